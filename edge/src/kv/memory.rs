//! A store that forgets with the process.

use std::{
    collections::BTreeMap,
    future::ready,
    ops::Bound,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use futures::future::BoxFuture;

use super::{Backend, Change, Clock, Effect, Failure, check_changes, check_keys, is_expired, system_clock};

/// Entries in a map behind one lock, which is held for microseconds and never while waiting.
pub struct Memory {
    clock: Clock,
    /// `None` once closed.
    entries: Mutex<Option<Entries>>,
}

#[derive(Default)]
struct Entries {
    map: BTreeMap<String, Stored>,
    /// Where the sweep goes on.
    cursor: String,
}

struct Stored {
    value: Bytes,
    expires: u64,
}

impl Memory {
    /// An empty store on the clock of the system.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(system_clock())
    }

    /// An empty store whose entries expire by `clock`.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Self {
        Self { clock, entries: Mutex::new(Some(Entries::default())) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Entries, u64) -> T) -> Result<T, Failure> {
        let now = (self.clock)();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.as_mut().map(|entries| work(entries, now)).ok_or(Failure::Unavailable)
    }

    /// Entries held, expired ones among them.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.with(|entries, _| entries.map.len()).unwrap_or_default()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for Memory {
    fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Failure>> {
        let found = check_keys(&keys)
            .and_then(|()| self.with(|entries, now| keys.iter().map(|key| entries.get(key, now).cloned()).collect()));
        Box::pin(ready(found))
    }

    fn apply(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<Vec<bool>, Failure>> {
        let applied = check_changes(&changes).and_then(|()| {
            self.with(|entries, now| {
                entries.sweep(now);
                changes.into_iter().map(|change| entries.apply(change, now)).collect()
            })
        });
        Box::pin(ready(applied))
    }

    fn scan(&self, prefix: String, after: Option<String>, limit: usize) -> BoxFuture<'_, Result<Vec<String>, Failure>> {
        Box::pin(async move {
            let (mut found, mut after) = (Vec::new(), after);
            // In pieces: between a few live keys there may be any number of expired ones.
            while self.with(|entries, now| entries.look(&prefix, &mut after, limit, now, &mut found))? {
                tokio::task::yield_now().await;
            }
            Ok(found)
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
        *self.entries.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Box::pin(ready(Ok(())))
    }
}

impl Entries {
    fn get(&self, key: &str, now: u64) -> Option<&Bytes> {
        self.map.get(key).filter(|stored| !is_expired(stored.expires, now)).map(|stored| &stored.value)
    }

    /// Looks at the next entries of a scan, moves `after` behind them, and says whether there may be
    /// more to find.
    fn look(
        &self,
        prefix: &String,
        after: &mut Option<String>,
        limit: usize,
        now: u64,
        found: &mut Vec<String>,
    ) -> bool {
        let from = match after {
            Some(after) if *after >= *prefix => Bound::Excluded(&*after),
            _ => Bound::Included(prefix),
        };
        let next = self.map.range::<String, _>((from, Bound::Unbounded));
        let mut last = None;
        for (key, stored) in next.take_while(|(key, _)| key.starts_with(prefix)).take(LOOKED_AT_PER_TURN) {
            if found.len() >= limit {
                return false;
            }
            last = Some(key);
            if !is_expired(stored.expires, now) {
                found.push(key.clone());
            }
        }
        *after = last.cloned();
        after.is_some()
    }

    fn apply(&mut self, change: Change, now: u64) -> bool {
        let current = self.get(change.key(), now).cloned();
        let (key, effect, answer) = change.effect(current.as_deref());
        match effect {
            Effect::Keep => {}
            Effect::Write { value, expires } => _ = self.map.insert(key, Stored { value, expires }),
            Effect::Remove => _ = self.map.remove(&key),
        }
        answer
    }

    /// Looks at the next few entries and drops those that have expired. Every write does this, so a
    /// round over all entries takes an eighth as many writes as there are entries.
    fn sweep(&mut self, now: u64) {
        let next = self.map.range::<String, _>((Bound::Excluded(&self.cursor), Bound::Unbounded)).take(SWEPT_PER_WRITE);
        let seen = next.map(|(key, stored)| (key.clone(), stored.expires)).collect::<Vec<_>>();
        self.cursor = seen.last().map(|(key, _)| key.clone()).unwrap_or_default();
        for (key, _) in seen.into_iter().filter(|(_, expires)| is_expired(*expires, now)) {
            self.map.remove(&key);
        }
    }
}

const SWEPT_PER_WRITE: usize = 8;
/// About a tenth of a millisecond.
const LOOKED_AT_PER_TURN: usize = 1024;
