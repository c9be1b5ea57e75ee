//! What edgepass does, over HTTP: each behaviour on the native core and through both doors of the
//! built component, on a node in this process.

// A test says what is wrong by panicking, and names what it is about in its own name.
#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

mod support;

mod documents;
mod hostile_input;
mod keygen;
mod keys;
mod login;
mod metrics;
mod oauth;
mod operation;
mod platform;
mod redis;
mod refresh;
mod rotation;
mod secrets;
mod session;
mod shadow;
mod users;
