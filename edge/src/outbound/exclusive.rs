//! Keys of exchanges under way on this node.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// A set of keys, each held by at most one exchange. Clones share the set.
#[derive(Clone, Default)]
pub struct Exclusive(Arc<Mutex<BTreeSet<Vec<u8>>>>);

/// Holds a key until it is dropped.
pub(super) struct Held {
    key: Vec<u8>,
    set: Exclusive,
}

impl Exclusive {
    /// Takes `key`, unless somebody has it.
    pub(super) fn hold(&self, key: Vec<u8>) -> Option<Held> {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        free.then(|| Held { key, set: self.clone() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// How many; the keys are derived from codes.
impl fmt::Debug for Exclusive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exclusive").field(&self.0.lock().unwrap_or_else(PoisonError::into_inner).len()).finish()
    }
}
