//! The edge node as a library.

pub mod handler;
pub mod kv;
pub mod manifest;
pub mod outbound;
pub mod template;
pub mod variables;
