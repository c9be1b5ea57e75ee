//! The native harness: what edgepass costs, rung by rung.
//!
//! A ladder of targets does the same work on the same store with the same platform, each with one
//! layer more: the native core, the `node` door, the `wasi:http` door. The difference between two
//! rungs is that layer's price.
//!
//! | module | measures |
//! |---|---|
//! | [`cold_start`] | compiled component on disk to first correct login; a fresh and a warm instance |
//! | [`kv_engines`] | embedded stores under the load of logins |
//! | [`native`] | nothing: it is the first rung, and what the behaviour suite calls native |

pub mod cold_start;
pub mod kv_engines;
pub mod machine;
pub mod native;
pub mod sample;
