//! Key-value storage as the node sees it: bytes in, bytes out, with an expiry.
//!
//! One [`Backend`] serves all cores and both doors. It knows no wasmtime type.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

/// What a backend can do. Keys are at most [`MAX_KEY_BYTES`], values at most [`MAX_VALUE_BYTES`];
/// above that is [`Failure::TooLarge`]. An expired entry reads as absent.
pub trait Backend: Send + Sync + 'static {
    /// Reads `keys`, in order.
    fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Failure>>;

    /// Makes `changes` in order, as one batch, durable when it answers. Says per change whether
    /// the key was there before. On failure none, some or all of them hold.
    fn apply(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<Vec<bool>, Failure>>;

    /// Up to `limit` keys that begin with `prefix` and sort after `after`, in byte order.
    fn scan(&self, prefix: String, after: Option<String>, limit: usize) -> BoxFuture<'_, Result<Vec<String>, Failure>>;

    /// Writes out what is buffered and stops. Calls after it fail with [`Failure::Unavailable`].
    fn close(&self) -> BoxFuture<'_, Result<(), Failure>>;
}

/// A backend that several owners share.
pub type SharedBackend = Arc<dyn Backend>;

/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// Longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 1024 * 1024;

/// An entry to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Full key.
    pub key: String,
    /// Value.
    pub value: Bytes,
    /// Unix seconds after which the entry is gone; 0 is never.
    pub expires: u64,
}

/// One change of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes the entry.
    Put(Entry),
    /// Writes the entry unless the stored value is greater or equal, compared as bytes.
    PutIfGreater(Entry),
    /// Removes the key, there or not.
    Delete(String),
}

/// Why the store did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Not reachable, closed, or broken.
    #[error("store unavailable")]
    Unavailable,
    /// Too slow.
    #[error("store timed out")]
    Timeout,
    /// The manifest gives this component no such store.
    #[error("store access denied")]
    Denied,
    /// Key or value above the limit.
    #[error("key or value too large")]
    TooLarge,
}
