//! edgepass, the login service of a mini-program as a WASI 0.3 component.

pub mod clock;
#[cfg(target_family = "wasm")]
mod entry;
pub mod host;
pub mod message;
pub mod outbound;
pub mod random;
pub mod service;
pub mod store;

pub use service::{Description, Service};
