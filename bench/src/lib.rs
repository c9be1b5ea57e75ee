//! The native harness: what edgepass costs.

pub mod kv_engines;
