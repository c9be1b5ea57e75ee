//! A store that remembers every version of every key, and the ways it may fail.

use std::collections::BTreeMap;

use edgepass::store::{Change, StoreError};

/// Every version of every key, with the moment it came to be.
#[derive(Default)]
pub(crate) struct Versions {
    keys: BTreeMap<String, Vec<Version>>,
    /// Whether [`Change::PutIfGreater`] compares, as memory, redb and Redis do, or just puts, as
    /// Spin's stores do.
    pub(crate) compares: bool,
}

/// When a value came to be, and the value; `None` for one that was deleted.
type Version = (u64, Option<Vec<u8>>);

impl Versions {
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.keys.get(key)?.last()?.1.clone()
    }

    /// What was there `back` versions ago, but nothing older than what was newest at `since`.
    pub(crate) fn get_stale(&self, key: &str, back: usize, since: u64) -> Option<Vec<u8>> {
        let versions = self.keys.get(key)?;
        let oldest = versions.iter().rposition(|(at, _)| *at <= since);
        let at = versions.len().checked_sub(1 + back).max(oldest)?;
        versions[at].1.clone()
    }

    pub(crate) fn apply(&mut self, now: u64, change: Change) {
        let (key, value) = match change {
            Change::Put { key, value, .. } => (key, Some(value)),
            Change::PutIfGreater { key, value, .. } => {
                if self.compares && self.get(&key).is_some_and(|there| there >= value) {
                    return;
                }
                (key, Some(value))
            }
            Change::Delete { key } => (key, None),
        };
        self.keys.entry(key).or_default().push((now, value));
    }

    /// Keys that begin with `prefix`, behind `after`.
    pub(crate) fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
        let wanted = |key: &&String| {
            key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after) && self.get(key).is_some()
        };
        self.keys.keys().filter(wanted).take(limit).cloned().collect()
    }

    /// Each key of `kind` with everything it ever held, oldest first.
    pub(crate) fn histories(&self, kind: &str) -> impl Iterator<Item = Vec<Option<&[u8]>>> {
        self.keys
            .iter()
            .filter(move |(key, _)| kind_of(key) == kind)
            .map(|(_, versions)| versions.iter().map(|(_, value)| value.as_deref()).collect())
    }
}

/// The kind of a key: `s`, `x`, `g`, `e`, `l`, …
pub(crate) fn kind_of(key: &str) -> &str {
    key.split('/').nth(2).unwrap_or_default()
}

/// What becomes of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// What should.
    Done,
    /// A read finds what was there some versions ago.
    Stale(usize),
    /// A write is acknowledged and gone.
    Lost,
    /// A write is acknowledged, and made at some later time, over whatever is there then.
    Late,
    /// A failure is reported, of something that was done or was not.
    Failed { applied: bool },
}

/// What may go wrong with a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Whether it compares for [`Change::PutIfGreater`].
    pub(crate) compares: bool,
    /// The kinds of keys whose reads may be stale.
    pub(crate) stale: &'static [&'static str],
    /// How long a read may lag behind, in milliseconds.
    pub(crate) lag: u64,
    /// The kinds of keys whose writes may be lost or late.
    pub(crate) unsafe_puts: &'static [&'static str],
    /// The kinds of keys whose deletion may be lost or late.
    pub(crate) unsafe_deletes: &'static [&'static str],
    /// Whether anything may be reported as failed.
    pub(crate) failing: bool,
}

/// A store that does what it says, in one place at one time.
pub(crate) const TRUTHFUL: Faults =
    Faults { compares: true, stale: &[], lag: u64::MAX, unsafe_puts: &[], unsafe_deletes: &[], failing: false };

impl Faults {
    /// What chance `roll` makes of reading `key`. Most operations go well.
    pub(crate) fn of_read(&self, key: &str, roll: u8) -> Fate {
        match roll {
            200..240 if self.stale.contains(&kind_of(key)) => Fate::Stale(usize::from(roll - 199).min(4)),
            240.. if self.failing => Fate::Failed { applied: false },
            _ => Fate::Done,
        }
    }

    /// What chance `roll` makes of `change`.
    pub(crate) fn of_change(&self, change: &Change, roll: u8) -> Fate {
        let (kinds, key) = match change {
            Change::Put { key, .. } | Change::PutIfGreater { key, .. } => (self.unsafe_puts, key),
            Change::Delete { key } => (self.unsafe_deletes, key),
        };
        match roll {
            150..200 if kinds.contains(&kind_of(key)) => Fate::Lost,
            200..240 if kinds.contains(&kind_of(key)) => Fate::Late,
            240.. if self.failing => Fate::Failed { applied: roll.is_multiple_of(2) },
            _ => Fate::Done,
        }
    }
}

/// What a store reports when it fails.
pub(crate) const FAILURE: StoreError = StoreError::Unavailable;
