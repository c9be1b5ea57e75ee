//! Keys of exchanges that must not be made twice on this node.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A set of keys, each held by at most one exchange. Clones share the set.
#[derive(Clone, Default)]
pub struct Exclusive(Arc<Mutex<Keys>>);

#[derive(Default)]
struct Keys {
    held: BTreeSet<Vec<u8>>,
    /// Keys of ended exchanges, held until the instant, earliest first.
    ended: VecDeque<(Instant, Vec<u8>)>,
}

/// Holds a key: for [`AFTERWARDS`] when the exchange may have reached the upstream, else until it is
/// dropped.
pub(super) struct Held {
    key: Vec<u8>,
    set: Exclusive,
    /// Whether bytes may have reached the upstream.
    pub(super) sent: bool,
}

/// How long a key is kept after its exchange. What the component makes of the reply is in the store
/// by then, where a second request finds it; without that time one that had looked before would make
/// the exchange again.
const AFTERWARDS: Duration = Duration::from_secs(2);

impl Exclusive {
    /// Takes `key`, unless somebody has it.
    pub(super) fn hold(&self, key: Vec<u8>) -> Option<Held> {
        let mut keys = self.keys();
        let now = Instant::now();
        while let Some((_, key)) = keys.ended.pop_front_if(|(until, _)| *until <= now) {
            keys.held.remove(&key);
        }
        let free = keys.held.insert(key.clone());
        free.then(|| Held { key, set: self.clone(), sent: false })
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        // A key is in the set or it is not: a panic leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let key = std::mem::take(&mut self.key);
        let mut keys = self.set.keys();
        if self.sent {
            keys.ended.push_back((Instant::now() + AFTERWARDS, key));
        } else {
            keys.held.remove(&key);
        }
    }
}

/// How many; the keys are derived from codes.
impl fmt::Debug for Exclusive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exclusive").field(&self.keys().held.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_held_once_and_beyond_an_exchange_that_was_sent() {
        let set = Exclusive::default();
        let unsent = set.hold(vec![1]).expect("free");
        assert!(set.hold(vec![1]).is_none());
        assert!(set.hold(vec![2]).is_some());
        drop(unsent);

        let mut sent = set.hold(vec![1]).expect("nothing was sent");
        sent.sent = true;
        drop(sent);
        assert!(set.hold(vec![1]).is_none());
        if let Some((until, _)) = set.keys().ended.front_mut() {
            *until = Instant::now();
        }
        assert!(set.hold(vec![1]).is_some(), "its time is over");
    }
}
