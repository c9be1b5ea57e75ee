//! The store port: what the core asks of a key-value store, and nothing more.
//!
//! The state is cut so that every key has one kind of writer, so get, put and delete are enough:
//! no compare-and-set, no counter, no expiry is relied on; where a host compares, a late write is
//! harmless sooner. [`key`] names what is stored,
//! [`envelope`] is how it lies there.

pub mod envelope;
pub mod key;
mod memory;

pub use memory::MemoryStore;

/// A key-value store. Cloning is cheap and shares the store.
pub trait Store: Clone + 'static {
    /// Reads all of `keys` at once, in order; `None` where there is nothing.
    ///
    /// # Errors
    /// [`StoreError`] when any of them could not be read: an unreadable key is never "absent".
    fn get(&self, keys: &[&str]) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>, StoreError>>;

    /// Makes `changes` in order; durable, as far as the store is, when it answers.
    ///
    /// # Errors
    /// [`StoreError`]; then none, some or all of them hold.
    fn apply(&self, changes: Vec<Change>) -> impl Future<Output = Result<(), StoreError>>;

    /// Up to `limit` keys that begin with `prefix` and sort behind `after`, in byte order. A store
    /// that can only list all of its keys does so, and keeps no more than these.
    ///
    /// # Errors
    /// [`StoreError`] when the keys could not be listed to the end.
    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>>;
}

/// One change.
#[derive(Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes a value.
    Put {
        /// Full key, under 200 bytes.
        key: String,
        /// Value, under 64 KiB, in its envelope.
        value: Vec<u8>,
        /// When a host that can expire keys may drop it, in Unix seconds; 0 is never.
        expires: u64,
    },
    /// Writes a value unless what is there is greater or equal, compared as bytes. A store that
    /// cannot compare writes it: who uses this must be right without the comparison.
    PutIfGreater {
        /// Full key, under 200 bytes.
        key: String,
        /// Value, under 64 KiB, in its envelope.
        value: Vec<u8>,
        /// As in [`Change::Put`].
        expires: u64,
    },
    /// Removes a key that may not be there.
    Delete {
        /// Full key.
        key: String,
    },
}

/// Why the store did not answer; the failures of `wit/node.wit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Not reachable, or it broke.
    #[error("store unavailable")]
    Unavailable,
    /// Too slow.
    #[error("store timed out")]
    Timeout,
    /// The manifest gives this component no such store.
    #[error("store access denied")]
    Denied,
    /// Key or value above the store's limit.
    #[error("too large for the store")]
    TooLarge,
}
