//! A store in memory: for tests, the harness, and the native core of a single process.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future,
    rc::Rc,
    task::Poll,
};

use super::{Change, Store, StoreError};

/// Key-value pairs in this process. Clones share them; nothing expires by itself.
#[derive(Clone, Default)]
pub struct MemoryStore(Rc<Shared>);

#[derive(Default)]
struct Shared {
    entries: RefCell<BTreeMap<String, Vec<u8>>>,
    keys_read: Cell<usize>,
    changes_made: Cell<usize>,
    failing: Cell<Option<StoreError>>,
    calls_before_failing: Cell<usize>,
    changes_before_cut: Cell<Option<usize>>,
    failing_changes: Cell<Option<StoreError>>,
    changes_held: Cell<bool>,
}

impl MemoryStore {
    /// Every key, in order.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.0.entries.borrow().keys().cloned().collect()
    }

    /// What `key` holds.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.0.entries.borrow().get(key).cloned()
    }

    /// Puts `value` there as it is, valid or not.
    pub fn plant(&self, key: &str, value: impl Into<Vec<u8>>) {
        self.0.entries.borrow_mut().insert(key.to_owned(), value.into());
    }

    /// Loses what `key` holds.
    pub fn forget(&self, key: &str) {
        self.0.entries.borrow_mut().remove(key);
    }

    /// How many keys were read so far.
    #[must_use]
    pub fn keys_read(&self) -> usize {
        self.0.keys_read.get()
    }

    /// How many changes were made so far.
    #[must_use]
    pub fn changes_made(&self) -> usize {
        self.0.changes_made.get()
    }

    /// Answers everything with `failure` from now on, or works again.
    pub fn fail(&self, failure: Option<StoreError>) {
        self.0.failing.set(failure);
        self.0.calls_before_failing.set(0);
    }

    /// Answers so many more calls, and everything after them with `failure`.
    pub fn fail_after(&self, calls: usize, failure: StoreError) {
        self.0.failing.set(Some(failure));
        self.0.calls_before_failing.set(calls);
    }

    /// Makes only so many of the next changes that come together, and then breaks.
    pub fn cut_changes(&self, after: usize) {
        self.0.changes_before_cut.set(Some(after));
    }

    /// Answers changes alone with `failure` from now on, or makes them.
    pub fn fail_changes(&self, failure: Option<StoreError>) {
        self.0.failing_changes.set(failure);
    }

    /// Keeps changes waiting (`true`) or lets them go.
    pub fn hold_changes(&self, held: bool) {
        self.0.changes_held.set(held);
    }
}

impl Shared {
    fn answers(&self) -> Result<(), StoreError> {
        let Some(failure) = self.failing.get() else { return Ok(()) };
        let left = self.calls_before_failing.get().checked_sub(1).ok_or(failure)?;
        self.calls_before_failing.set(left);
        Ok(())
    }
}

impl Store for MemoryStore {
    async fn get(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.0.answers()?;
        self.0.keys_read.set(self.0.keys_read.get() + keys.len());
        let entries = self.0.entries.borrow();
        Ok(keys.iter().map(|&key| entries.get(key).cloned()).collect())
    }

    async fn apply(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        future::poll_fn(|_| if self.0.changes_held.get() { Poll::Pending } else { Poll::Ready(()) }).await;
        self.0.answers()?;
        if let Some(failure) = self.0.failing_changes.get() {
            return Err(failure);
        }
        let cut = self.0.changes_before_cut.take();
        let made = cut.map_or(changes.len(), |cut| cut.min(changes.len()));
        self.0.changes_made.set(self.0.changes_made.get() + made);
        let mut entries = self.0.entries.borrow_mut();
        for change in changes.into_iter().take(made) {
            match change {
                Change::Put { key, value, .. } => drop(entries.insert(key, value)),
                Change::PutIfGreater { key, value, .. } => {
                    let stored = entries.entry(key).or_default();
                    if value > *stored {
                        *stored = value;
                    }
                }
                Change::Delete { key } => drop(entries.remove(&key)),
            }
        }
        if cut.is_some() { Err(StoreError::Unavailable) } else { Ok(()) }
    }

    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, StoreError> {
        self.0.answers()?;
        let entries = self.0.entries.borrow();
        let behind = |key: &&String| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after);
        Ok(entries.keys().filter(behind).take(limit).cloned().collect())
    }
}
