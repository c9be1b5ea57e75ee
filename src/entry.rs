//! The doors: how a request from a WebAssembly host reaches the core, and how the core reaches the
//! host's store, network, clock and randomness. They exist on wasm only, one per cargo feature,
//! and decide nothing: whatever can be decided without a host is decided, and tested, natively.

#[cfg(feature = "node")]
mod node;
#[cfg(feature = "service")]
mod service;
