//! The edge node as a library.

pub mod engine;
pub mod handler;
pub mod kv;
pub mod manifest;
pub mod outbound;
pub mod problem;
pub mod template;
pub mod variables;
