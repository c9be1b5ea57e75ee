//! One-time codes: issued to a user of an app, redeemed once, within five minutes, by that app.
//!
//! Knows no platform: the shape of a code is its maker's business, and who an app or a user is
//! stays a number and a name.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Deserialize;

use crate::Clock;

/// How long a code is good: `WeChat` documents five minutes.
pub(crate) const LIFETIME: Duration = Duration::from_mins(5);

/// What a code can be redeemed for. One kind is not accepted in place of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CodeKind {
    /// From `wx.login`.
    #[default]
    Login,
    /// From `getPhoneNumber`.
    Phone,
    /// From the OAuth page of the web.
    Web,
}

/// Why a code was not redeemed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Never issued, expired, forgotten, of another app or of another kind.
    Invalid,
    /// Redeemed before.
    Used,
}

/// All codes of one platform. Spread over locks that are held for a look-up only.
pub(crate) struct Codes {
    clock: Clock,
    reusable: bool,
    capacity_per_shard: usize,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    issued: HashMap<Arc<str>, Issued>,
    /// All codes live equally long, so the oldest is the next to expire.
    oldest_first: VecDeque<(Duration, Arc<str>)>,
}

struct Issued {
    app: usize,
    user: Arc<str>,
    kind: CodeKind,
    expires: Duration,
    used: bool,
}

impl Codes {
    /// `reusable`: codes neither expire nor are used up. At most about `capacity` are remembered.
    pub(crate) fn new(clock: Clock, reusable: bool, capacity: usize) -> Self {
        Self {
            clock,
            reusable,
            capacity_per_shard: capacity.div_ceil(SHARDS).max(1),
            hasher: RandomState::new(),
            shards: Default::default(),
        }
    }

    /// Remembers `code` as issued now to `user` of `app`.
    pub(crate) fn issue(&self, code: Arc<str>, app: usize, user: Arc<str>, kind: CodeKind) {
        let now = self.clock.now();
        let expires = now.saturating_add(LIFETIME);
        let mut shard = self.shard(&code).lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((expires, _)) = shard.oldest_first.front()
            && (shard.oldest_first.len() >= self.capacity_per_shard || (!self.reusable && *expires <= now))
        {
            let oldest = shard.oldest_first.pop_front();
            oldest.and_then(|(_, code)| shard.issued.remove(&code));
        }
        shard.oldest_first.push_back((expires, Arc::clone(&code)));
        shard.issued.insert(code, Issued { app, user, kind, expires, used: false });
    }

    /// Takes `code` on behalf of `app`: of any number of callers at once, one gets the user.
    /// `None`: a code that was never issued, where those are good too.
    pub(crate) fn redeem(&self, code: &str, app: usize, kind: CodeKind) -> Result<Option<Arc<str>>, Refused> {
        let now = self.clock.now();
        let mut shard = self.shard(code).lock().unwrap_or_else(PoisonError::into_inner);
        let Some(issued) = shard.issued.get_mut(code) else {
            return if self.reusable { Ok(None) } else { Err(Refused::Invalid) };
        };
        if issued.app != app || issued.kind != kind || (!self.reusable && issued.expires <= now) {
            return Err(Refused::Invalid);
        }
        if issued.used && !self.reusable {
            return Err(Refused::Used);
        }
        issued.used = true;
        Ok(Some(Arc::clone(&issued.user)))
    }

    fn shard(&self, code: &str) -> &Mutex<Shard> {
        let hash = self.hasher.hash_one(code);
        &self.shards[usize::try_from(hash % SHARDS as u64).expect("less than SHARDS")]
    }
}

/// Enough that the few threads of a simulator seldom meet at one.
const SHARDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(reusable: bool, capacity: usize) -> (Codes, Clock) {
        let clock = Clock::manual(Duration::from_secs(1_700_000_000));
        (Codes::new(clock.clone(), reusable, capacity), clock)
    }

    fn issue(codes: &Codes, code: &str) {
        codes.issue(code.into(), 0, "alice".into(), CodeKind::Login);
    }

    fn redeem(codes: &Codes, code: &str) -> Result<Option<Arc<str>>, Refused> {
        codes.redeem(code, 0, CodeKind::Login)
    }

    #[test]
    fn a_code_is_good_until_the_last_millisecond_of_five_minutes() {
        let (codes, clock) = codes(false, 100);
        issue(&codes, "early");
        issue(&codes, "late");
        clock.advance(Duration::from_millis(299_999));
        assert_eq!(redeem(&codes, "early"), Ok(Some("alice".into())));
        clock.advance(Duration::from_millis(1));
        assert_eq!(redeem(&codes, "late"), Err(Refused::Invalid));
        assert_eq!(redeem(&codes, "early"), Err(Refused::Invalid), "used and expired");
    }

    #[test]
    fn a_refused_redeem_does_not_use_the_code_up() {
        let (codes, _) = codes(false, 100);
        issue(&codes, "code");
        assert_eq!(codes.redeem("code", 1, CodeKind::Login), Err(Refused::Invalid));
        assert_eq!(codes.redeem("code", 0, CodeKind::Phone), Err(Refused::Invalid));
        assert_eq!(redeem(&codes, "code"), Ok(Some("alice".into())));
        assert_eq!(redeem(&codes, "code"), Err(Refused::Used));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_expired_codes_are_let_go() {
        let (codes, clock) = codes(false, SHARDS * 2);
        for n in 0..1000 {
            issue(&codes, &n.to_string());
        }
        let remembered = || -> usize {
            let shards = codes.shards.iter().map(|shard| shard.lock().expect("no panic"));
            shards.map(|shard| shard.issued.len().max(shard.oldest_first.len())).sum()
        };
        assert!(remembered() <= SHARDS * 2, "{}", remembered());
        clock.advance(LIFETIME);
        for n in 0..SHARDS * 50 {
            issue(&codes, &n.to_string());
            clock.advance(LIFETIME);
        }
        assert!(remembered() <= SHARDS, "{}", remembered());
    }

    #[test]
    fn reusable_codes_neither_expire_nor_end_and_keep_to_their_app() {
        let (codes, clock) = codes(true, 100);
        issue(&codes, "code");
        for _ in 0..3 {
            clock.advance(LIFETIME * 2);
            issue(&codes, "another");
            assert_eq!(redeem(&codes, "code"), Ok(Some("alice".into())));
            assert_eq!(redeem(&codes, "0a1b2c3d"), Ok(None));
        }
        assert_eq!(codes.redeem("code", 1, CodeKind::Login), Err(Refused::Invalid));
    }
}
