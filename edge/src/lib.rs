//! The edge node as a library.

pub mod handler;
pub mod kv;
