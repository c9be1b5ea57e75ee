//! The edge node as a library: it runs a component, keeps its sessions, and lets it out to the
//! hosts of its manifest and nowhere else.
//!
//! # The way of a request
//!
//! ```text
//! server  one accept thread, a thread per core         front   HTTP, limits, deadlines, problems
//! node    a node: component, surroundings, server      handler what the front talks to
//! pool    which instance takes a request               node_door, instance   the `node` door
//! crew    what a full core passes to another              admin  what only operators reach
//! wasi_http  any `wasi:http` component                 bindings, host, spin  what a guest may call
//! engine  compiles, keeps, loads                       revision  one version of a component
//! kv      the store     outbound  the way out          manifest, variables   spin.toml
//! ```
//!
//! `front` calls a [`handler::Handler`]: a revision's instances, or whatever the harness mounts. A
//! component is bytes here; nothing of its login is known.

pub mod admin;
mod bindings;
pub mod cli;
pub mod command;
mod crew;
pub mod development;
mod digest;
pub mod engine;
mod exchange;
mod fields;
pub mod front;
pub mod handler;
pub mod handover;
mod host;
mod instance;
pub mod kv;
mod lines;
pub mod log;
pub mod manifest;
mod meter;
pub mod metrics;
mod near;
pub mod node;
mod node_door;
mod observer;
pub mod outbound;
pub mod pool;
pub mod problem;
mod queue;
pub mod revision;
pub mod revisions;
pub mod secret_file;
pub mod server;
pub mod signal;
mod spin;
mod status;
pub mod template;
pub mod tls;
pub mod traces;
pub mod variables;
mod wasi_http;

/// Writes a line to standard output; the log goes to standard error. Colour is left out where
/// nobody would see it.
///
/// # Errors
/// When standard output is closed.
pub(crate) fn say(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut out = anstream::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
