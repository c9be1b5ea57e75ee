//! Key-value storage as the node sees it: bytes in, bytes out, with an expiry.
//!
//! One [`Backend`] serves all cores and both doors. It knows no wasmtime type. [`Memory`] forgets
//! with the process; [`Durable`] keeps what it has acknowledged; [`redis`] is what several nodes share.
//! `docs/store.md` says how they work, and why the second one on fjall.

pub(crate) mod browse;
mod durable;
mod memory;
pub mod metered;
pub mod redis;
mod watched;

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures::future::BoxFuture;

pub use self::{
    durable::{Durable, OpenError},
    memory::Memory,
    metered::Metered,
    redis::Redis,
    watched::{Health, Watched},
};

/// What a backend can do. Keys are at most [`MAX_KEY_BYTES`], values at most [`MAX_VALUE_BYTES`];
/// above that is [`Failure::TooLarge`]. An expired entry reads as absent.
pub trait Backend: Send + Sync + 'static {
    /// Reads `keys`, in order.
    fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Failure>>;

    /// Makes `changes` in order, as one batch, durable when it answers. Says per change whether
    /// the key was there before; for [`Change::PutIf`], whether it was written. On failure none,
    /// some or all of them hold.
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
    /// Writes the entry if `old` is what is stored, `None` being nothing.
    PutIf {
        /// What to write.
        entry: Entry,
        /// What has to be there.
        old: Option<Bytes>,
    },
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

/// Unix seconds, as expiry is counted in.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The clock of the system.
#[must_use]
pub fn system_clock() -> Clock {
    Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()))
}

/// What a [`Change`] does to its key.
enum Effect {
    Keep,
    Write { value: Bytes, expires: u64 },
    Remove,
}

impl Change {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put(entry) | Self::PutIfGreater(entry) | Self::PutIf { entry, .. } => &entry.key,
            Self::Delete(key) => key,
        }
    }

    /// What it writes, where it writes.
    #[must_use]
    pub fn entry(&self) -> Option<&Entry> {
        match self {
            Self::Put(entry) | Self::PutIfGreater(entry) | Self::PutIf { entry, .. } => Some(entry),
            Self::Delete(_) => None,
        }
    }

    /// Its key, what it does when `current` is stored there, and its answer.
    fn effect(self, current: Option<&[u8]>) -> (String, Effect, bool) {
        let was_there = current.is_some();
        let (entry, write, answer) = match self {
            Self::Put(entry) => (entry, true, was_there),
            Self::PutIfGreater(entry) => {
                let greater = current.is_none_or(|current| *entry.value > *current);
                (entry, greater, was_there)
            }
            Self::PutIf { entry, old } => {
                let holds = current == old.as_deref();
                (entry, holds, holds)
            }
            Self::Delete(key) => return (key, Effect::Remove, was_there),
        };
        let Entry { key, value, expires } = entry;
        (key, if write { Effect::Write { value, expires } } else { Effect::Keep }, answer)
    }
}

/// An entry is there up to and including the second it expires in.
fn is_expired(expires: u64, now: u64) -> bool {
    expires != 0 && expires < now
}

fn check_keys(keys: &[String]) -> Result<(), Failure> {
    if keys.iter().all(|key| key.len() <= MAX_KEY_BYTES) { Ok(()) } else { Err(Failure::TooLarge) }
}

fn check_changes(changes: &[Change]) -> Result<(), Failure> {
    let fits = |change: &Change| {
        change.key().len() <= MAX_KEY_BYTES && change.entry().is_none_or(|entry| entry.value.len() <= MAX_VALUE_BYTES)
    };
    if changes.iter().all(fits) { Ok(()) } else { Err(Failure::TooLarge) }
}

#[cfg(test)]
mod tests;
