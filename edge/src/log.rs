//! The log: what is written, where, and what never is.

use std::io;

use tracing_subscriber::{EnvFilter, Layer as _, filter, fmt, fmt::MakeWriter, layer::SubscriberExt as _, registry};

/// A subscriber that writes to `writer` what `filter` lets through.
///
/// Whatever the filter says, libraries are heard from `info` up only: at `trace` wasmtime prints the
/// arguments of host calls, and a platform's URL holds the app secret.
pub fn subscriber<W>(filter: EnvFilter, writer: W, colour: bool) -> impl tracing::Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let ours = filter::filter_fn(|event| is_ours(event.target()) || *event.level() <= tracing::Level::INFO);
    registry().with(fmt::layer().with_writer(writer).with_ansi(colour).with_filter(ours).with_filter(filter))
}

/// Writes the log of this process to standard error: by `RUST_LOG`, else from `level` up.
pub fn init(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colour = io::IsTerminal::is_terminal(&io::stderr());
    // Refused only when there is one already, which then writes.
    let _ = tracing::subscriber::set_global_default(subscriber(filter, io::stderr, colour));
}

/// Ours by the module that speaks, or a line of the component.
fn is_ours(target: &str) -> bool {
    target.starts_with("edgepass") || target == COMPONENT
}

/// The target of a component's own lines.
pub const COMPONENT: &str = "component";
