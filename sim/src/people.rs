//! Who is who: a user name becomes ids and a `session_key`, the same ones on every run.
//!
//! Ids are derived from the name, so nothing is stored for them; stored is what was told about a
//! user, and how far the key of a user in an app has been rotated.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64ct::{Base64, Base64UrlUnpadded, Encoding};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::Clock;

/// A user as one app sees them.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// 28 characters, the first an `o`; another one in each app.
    pub openid: String,
    /// The same in all apps of one owner; `None` where the app has no owner, or the user none.
    pub unionid: Option<String>,
    /// 16 bytes in base64, valid at the moment.
    pub session_key: String,
}

impl Identity {
    /// `user`, of whom this is known, as the app with this id and owner sees them.
    pub(crate) fn derive(
        user: &str,
        appid: &str,
        owner: Option<&str>,
        Recalled { traits, key_generation }: Recalled,
    ) -> Self {
        let key = digest(&["session_key", appid, user], key_generation);
        Self {
            openid: id("openid", appid, user),
            unionid: owner.filter(|_| traits.has_unionid).map(|owner| id("unionid", owner, user)),
            session_key: Base64::encode_string(&key[..16]),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("openid", &self.openid).field("unionid", &self.unionid).finish_non_exhaustive()
    }
}

/// What was told about a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traits {
    /// Logins are refused with this number.
    pub(crate) errcode: Option<i64>,
    /// Has a unionid in apps that have an owner.
    pub(crate) has_unionid: bool,
}

impl Default for Traits {
    fn default() -> Self {
        Self { errcode: None, has_unionid: true }
    }
}

/// What is known of a user in one app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recalled {
    pub(crate) traits: Traits,
    /// How often the key has been replaced.
    key_generation: u64,
}

/// More users than the configured capacity.
#[derive(Debug, thiserror::Error)]
#[error("no room for another user")]
pub(crate) struct Full;

/// All users of one platform.
pub(crate) struct People {
    clock: Clock,
    refresh: Duration,
    capacity: usize,
    known: Mutex<HashMap<Arc<str>, Person>>,
}

#[derive(Default)]
struct Person {
    traits: Traits,
    /// By app. Few apps, so a list; an app is added at the first login.
    keys: Vec<(usize, Key)>,
}

#[derive(Clone, Copy)]
struct Key {
    generation: u64,
    since: Duration,
}

impl People {
    /// `refresh`: the age below which a key survives a login. At most `capacity` users are kept.
    pub(crate) fn new(clock: Clock, refresh: Duration, capacity: usize) -> Self {
        Self { clock, refresh, capacity, known: Mutex::default() }
    }

    /// `user` logs in to `app`: makes a new key when `rotate` says so or, where it says nothing,
    /// when the old one is old enough. Gives the name back as it is stored.
    pub(crate) fn log_in(&self, user: &str, app: usize, rotate: Option<bool>) -> Result<Arc<str>, Full> {
        let now = self.clock.now();
        let mut known = self.known();
        let name = self.meet(&mut known, user)?;
        let person = known.entry(Arc::clone(&name)).or_default();
        match person.keys.iter_mut().find(|(of, _)| *of == app) {
            None => person.keys.push((app, Key { generation: 0, since: now })),
            Some((_, key)) => {
                if rotate.unwrap_or(now.saturating_sub(key.since) >= self.refresh) {
                    *key = Key { generation: key.generation + 1, since: now };
                }
            }
        }
        Ok(name)
    }

    /// Lets `change` tell something about `user`.
    pub(crate) fn tell(&self, user: &str, change: impl FnOnce(&mut Traits)) -> Result<(), Full> {
        let mut known = self.known();
        let name = self.meet(&mut known, user)?;
        change(&mut known.entry(name).or_default().traits);
        Ok(())
    }

    /// What is known of `user` in `app`; someone never met is like anyone else.
    pub(crate) fn recall(&self, user: &str, app: usize) -> Recalled {
        self.known().get(user).map_or_else(Recalled::default, |person| {
            let key = person.keys.iter().find(|(of, _)| *of == app);
            let key_generation = key.map_or(0, |(_, key)| key.generation);
            Recalled { traits: person.traits, key_generation }
        })
    }

    /// The name under which `user` is stored, if there is room for them.
    fn meet(&self, known: &mut HashMap<Arc<str>, Person>, user: &str) -> Result<Arc<str>, Full> {
        match known.get_key_value(user) {
            Some((name, _)) => Ok(Arc::clone(name)),
            None if known.len() < self.capacity => Ok(user.into()),
            None => Err(Full),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Arc<str>, Person>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 28 characters of the URL alphabet, the first an `o`.
fn id(what: &str, within: &str, user: &str) -> String {
    let mut text = String::with_capacity(29);
    text.push('o');
    text.push_str(&Base64UrlUnpadded::encode_string(&digest(&[what, within, user], 0)[..21]));
    text.truncate(28);
    text
}

/// Each part with its length before it, so that no two lists of parts are the same bytes.
fn digest(parts: &[&str], number: u64) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.update(number.to_le_bytes());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn people() -> (People, Clock) {
        let clock = Clock::manual(Duration::from_secs(1_700_000_000));
        (People::new(clock.clone(), Duration::from_mins(1), 3), clock)
    }

    #[test]
    fn ids_have_the_platforms_shape_and_are_the_same_on_every_run() {
        let alice = Identity::derive("alice", "wx1", Some("owner"), Recalled::default());
        // Computed apart from this code: SHA-256 over the length-prefixed parts.
        assert_eq!(alice.openid, "oKtkcKM-6emjp5Bb3aTePHYVD342");
        for id in [&alice.openid, alice.unionid.as_ref().expect("the app has an owner")] {
            assert_eq!(id.len(), 28);
            assert!(id.starts_with('o'));
            assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
        }
        assert_ne!(Some(&alice.openid), alice.unionid.as_ref());
        assert_eq!(alice.session_key.len(), 24);
        assert_eq!(Base64::decode_vec(&alice.session_key).expect("base64").len(), 16);
    }

    #[test]
    fn openid_is_per_app_and_unionid_per_owner() {
        let see = |user, appid, owner| Identity::derive(user, appid, owner, Recalled::default());
        let here = see("alice", "wx1", Some("owner"));
        let sister = see("alice", "wx2", Some("owner"));
        let stranger = see("alice", "wx3", Some("other"));
        let alone = see("alice", "wx4", None);
        assert_ne!(here.openid, sister.openid);
        assert_ne!(here.session_key, sister.session_key);
        assert_eq!(here.unionid, sister.unionid);
        assert_ne!(here.unionid, stranger.unionid);
        assert_eq!(alone.unionid, None);
        assert_ne!(here.openid, see("bob", "wx1", None).openid);
    }

    #[test]
    fn a_login_rotates_an_old_key_of_its_app_only() {
        let (people, clock) = people();
        let key = |app| Identity::derive("alice", "wx", None, people.recall("alice", app)).session_key;
        let log_in = |app, rotate| people.log_in("alice", app, rotate).expect("room");
        log_in(0, None);
        log_in(1, None);
        let (first, other) = (key(0), key(1));
        clock.advance(Duration::from_secs(59));
        log_in(0, None);
        assert_eq!(key(0), first, "too young to be replaced");
        log_in(0, Some(true));
        let second = key(0);
        assert_ne!(second, first);
        clock.advance(Duration::from_mins(1));
        log_in(0, Some(false));
        assert_eq!(key(0), second);
        log_in(0, None);
        assert_ne!(key(0), second);
        assert_eq!(key(1), other);
    }

    #[test]
    fn a_user_too_many_is_refused_and_known_ones_are_not() {
        let (people, _) = people();
        for user in ["a", "b", "c", "a"] {
            people.log_in(user, 0, None).expect("room");
        }
        assert!(people.log_in("d", 0, None).is_err());
        assert!(people.tell("d", |traits| traits.errcode = Some(1)).is_err());
        people.tell("c", |traits| traits.errcode = Some(1)).expect("known");
        assert_eq!(people.recall("c", 0).traits.errcode, Some(1));
        assert_eq!(people.recall("d", 0), Recalled::default());
    }
}
