//! The edge node as a library.

mod bindings;
pub mod engine;
pub mod front;
pub mod handler;
mod host;
mod instance;
pub mod kv;
pub mod manifest;
mod meter;
pub mod node;
mod node_door;
pub mod outbound;
pub mod pool;
pub mod problem;
pub mod revision;
pub mod server;
mod spin;
pub mod template;
pub mod variables;
mod wasi_http;
