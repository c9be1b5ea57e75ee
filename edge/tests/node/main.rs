//! The node over HTTP, with a guest that misbehaves and clients that do.

mod client;
mod door;
mod front;
mod guest;
mod start;
