//! The node over HTTP, with a guest that misbehaves and clients that do.

mod admin;
mod client;
mod door;
mod front;
mod guest;
mod hostile;
mod http2;
mod http_door;
mod metrics;
mod overload;
mod start;
mod swap;
mod tls;
mod traces;
