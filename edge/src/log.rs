//! The log: what is written, where, in which form, and what never is.
//!
//! A component's lines are JSON already, and stay it: in [`Format::Json`] their members are members of
//! the line. The last `tail::CAPACITY` lines are kept for whoever asks the admin listener.

mod json;
mod routes;
mod tail;

use std::{
    io::{self, Write as _},
    sync::Arc,
};

use tracing::{Event, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer, filter, fmt, fmt::MakeWriter, layer::Context, layer::SubscriberExt as _, registry,
};

pub(crate) use self::routes::routes;
use self::tail::Tail;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// A subscriber that writes text to `writer`: what `filter` lets through.
///
/// Whatever the filter says, libraries are heard from `info` up only: at `trace` wasmtime prints the
/// arguments of host calls, and a platform's URL holds the app secret.
pub fn subscriber<W>(filter: EnvFilter, writer: W, colour: bool) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let ours = filter::filter_fn(|event| is_ours(event.target()) || *event.level() <= tracing::Level::INFO);
    registry().with(fmt::layer().with_writer(writer).with_ansi(colour).with_filter(ours).with_filter(filter))
}

/// Writes the log of this process to standard error, and keeps its end: by `RUST_LOG`, else from
/// `level` up.
pub fn init(level: &str, format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let text = (format == Format::Text).then(|| {
        let colour = io::IsTerminal::is_terminal(&io::stderr());
        fmt::layer().with_writer(io::stderr).with_ansi(colour)
    });
    let lines = Lines { tail: Tail::of_process(), writes: format == Format::Json };
    let ours = filter::filter_fn(|event| is_ours(event.target()) || *event.level() <= tracing::Level::INFO);
    let all = text.map(Layer::boxed).into_iter().chain([lines.boxed()]).collect::<Vec<_>>();
    // Refused only when there is one already, which then writes.
    let _ = tracing::subscriber::set_global_default(registry().with(all.with_filter(ours).with_filter(filter)));
}

/// Makes a line of JSON of every event, keeps it, and writes it where that is the form.
struct Lines {
    tail: Arc<Tail>,
    writes: bool,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = json::line(event);
        if self.writes {
            line.push('\n');
            // A log that cannot be written has nowhere to say so.
            let _ = io::stderr().lock().write_all(line.as_bytes());
            line.pop();
        }
        self.tail.keep(*event.metadata().level(), line);
    }
}

/// Ours by the module that speaks, or a line of the component.
fn is_ours(target: &str) -> bool {
    target.starts_with("edgepass") || target == COMPONENT
}

/// The target of a component's own lines.
pub const COMPONENT: &str = "component";
