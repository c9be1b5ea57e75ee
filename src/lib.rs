//! edgepass, the login service of a mini-program as a WASI 0.3 component.
//!
//! This crate is the login core. It reaches the world through ports only, so the same code runs in
//! a component behind either door and natively in tests and in the harness.
//!
//! # Map
//!
//! | module | owns |
//! |---|---|
//! | [`service`] | the whole behind one value: settings in, requests answered |
//! | [`routes`] | requests to answers; errors to status and body |
//! | [`login`] | what the service does: log in, look up, log out. No JSON, no HTTP, no host |
//! | [`session`], [`token`] | what is remembered of a user; what a client holds of it |
//! | [`platforms`] | a code to a user: one codec per platform |
//! | [`store`] | what is stored under which name, and how it lies there |
//! | [`config`] | settings to checked values and keys |
//! | [`host`], [`clock`], [`random`], [`outbound`], [`message`] | the ports and what passes them |
//! | [`problem`], [`audit`], [`trace`], [`timing`] | what is said outside, in the log, about one request |
//!
//! # The path of one request
//!
//! A door makes a [`message::Request`] and calls [`Service::handle`]. `routes` finds the row of its
//! table, reads body or bearer token, and calls [`login::Login`]. That asks the [`store::Store`],
//! the platform through [`outbound::HttpClient`], and the store again; signs; and answers with
//! values, of which `routes` makes JSON. What nobody waits for (the device list, a log line) goes to
//! [`host::Host::later`].
//!
//! # No host inside
//!
//! The doors in `src/entry/` are the only code that names a host, and they exist on wasm only. A
//! core that reached for one would not compile natively:
//!
//! ```compile_fail
//! let store = spin_sdk::key_value::Store::open_default();
//! ```
//!
//! Futures here are not `Send`: a guest has one thread, and native hosts run one copy per core.

pub mod audit;
pub mod clock;
pub mod config;
#[cfg(target_family = "wasm")]
mod entry;
mod hex;
pub mod host;
pub mod json;
pub mod login;
pub mod message;
pub mod outbound;
pub mod platforms;
pub mod problem;
pub mod random;
pub mod routes;
pub mod secret;
pub mod service;
pub mod session;
pub mod store;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
pub mod timing;
pub mod token;
pub mod trace;

pub use service::{Description, Service};
