//! How often one client, or all together, may ask.
//!
//! A bucket (GCRA) for each limit and key. A client is an IPv4 address or an IPv6 network of 64 bits:
//! who has one address of such a network has all. Behind one IPv4 address there may be thousands of
//! people, so limits by client are for what no crowd does.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    net::IpAddr,
    num::NonZeroU32,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter, clock::Clock as _};

/// What is limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The path it is for, and all paths below it; `/` is all.
    pub path: String,
    /// Whose requests share a bucket.
    pub by: By,
    /// How many.
    pub rate: Rate,
}

/// Whose requests share a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Those of one client.
    Client,
    /// All.
    All,
}

/// A number per time, and how many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Until one more is allowed.
    pub period: Duration,
    /// Most at once.
    pub burst: NonZeroU32,
}

/// All limits of a node, and where each client stands.
pub struct Guard {
    limits: Vec<(Limit, Buckets)>,
    refusals: Option<Refusals>,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    /// A word for the metrics: `client`, `all` or `refusals`.
    pub(crate) scope: &'static str,
    /// Until it would be.
    pub(crate) wait: Duration,
}

type Buckets = DefaultKeyedRateLimiter<Key>;

/// Clients whose credentials were refused more often than people's are: for a while, all they ask is.
struct Refusals {
    buckets: Buckets,
    until: Mutex<HashMap<Key, Instant>>,
}

/// Who shares a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    All,
    V4(u32),
    V6(u64),
    /// One of the few that clients share when there are too many of them.
    Shared(u16),
}

impl Key {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6(u64::try_from(address.to_bits() >> 64).unwrap_or_default()),
        }
    }

    fn shared(self) -> Self {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(self);
        Self::Shared(u16::try_from(hash % SHARED_KEYS).unwrap_or_default())
    }
}

/// Clients that have a bucket of their own, at most; a bucket takes about 100 bytes.
const MAX_KEYS: usize = 100_000;
const SHARED_KEYS: u64 = 1024;

impl Default for Guard {
    /// No limit.
    fn default() -> Self {
        Self::new(Vec::new(), None)
    }
}

impl Guard {
    /// `refusals` is how often the answer to one client may be 401.
    #[must_use]
    pub fn new(limits: Vec<Limit>, refusals: Option<Rate>) -> Self {
        let limits = limits.into_iter().map(|limit| {
            let buckets = buckets(limit.rate);
            (limit, buckets)
        });
        Self {
            limits: limits.collect(),
            refusals: refusals.map(|rate| Refusals { buckets: buckets(rate), until: Mutex::default() }),
        }
    }

    /// Counts a request of `client` for `path`.
    pub(crate) fn admit(&self, client: IpAddr, path: &str) -> Result<(), Exceeded> {
        let key = Key::of(client);
        if let Some(wait) = self.refusals.as_ref().and_then(|refusals| refusals.wait(key, Instant::now())) {
            return Err(Exceeded { scope: "refusals", wait });
        }
        for (limit, buckets) in self.limits.iter().filter(|(limit, _)| limit.covers(path)) {
            let (key, scope) = match limit.by {
                By::All => (Key::All, "all"),
                By::Client => (key, "client"),
            };
            take(buckets, key).map_err(|wait| Exceeded { scope, wait })?;
        }
        Ok(())
    }

    /// Counts a 401 to `client`, once for each attempt.
    pub(crate) fn refused(&self, client: IpAddr) {
        if let Some(refusals) = &self.refusals {
            let key = Key::of(client);
            if let Err(wait) = take(&refusals.buckets, key) {
                let mut until = refusals.until();
                if until.len() < MAX_KEYS {
                    until.insert(key, Instant::now() + wait);
                }
            }
        }
    }

    /// Forgets whoever is as good as new. Call every few seconds.
    pub(crate) fn sweep(&self) {
        for buckets in self.limits.iter().map(|(_, buckets)| buckets).chain(self.refusals.iter().map(|r| &r.buckets)) {
            buckets.retain_recent();
            buckets.shrink_to_fit();
        }
        if let Some(refusals) = &self.refusals {
            let now = Instant::now();
            refusals.until().retain(|_, until| *until > now);
        }
    }
}

impl Refusals {
    fn wait(&self, key: Key, now: Instant) -> Option<Duration> {
        let until = *self.until().get(&key)?;
        Some(until.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    fn until(&self) -> MutexGuard<'_, HashMap<Key, Instant>> {
        // An entry is there or it is not.
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Limit {
    fn covers(&self, path: &str) -> bool {
        let base = self.path.trim_end_matches('/');
        path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

fn buckets(rate: Rate) -> Buckets {
    let quota = Quota::with_period(rate.period.max(Duration::from_nanos(1))).unwrap_or(Quota::per_second(rate.burst));
    RateLimiter::keyed(quota.allow_burst(rate.burst))
}

fn take(buckets: &Buckets, key: Key) -> Result<(), Duration> {
    let key = if buckets.len() >= MAX_KEYS { key.shared() } else { key };
    buckets.check_key(&key).map_err(|early| early.wait_time_from(buckets.clock().now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(path: &str, by: By, burst: u32) -> Limit {
        let burst = NonZeroU32::new(burst).expect("a burst");
        Limit { path: path.into(), by, rate: Rate { period: Duration::from_hours(1), burst } }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_client_has_a_bucket_of_its_own() {
        let guard = Guard::new(vec![limit("/", By::Client, 2)], None);
        let (one, other) = (ip("192.0.2.1"), ip("192.0.2.2"));
        assert!(guard.admit(one, "/a").is_ok() && guard.admit(one, "/b").is_ok());
        let exceeded = guard.admit(one, "/a").expect_err("a third");
        assert_eq!(exceeded.scope, "client");
        assert!(exceeded.wait > Duration::from_mins(50), "{:?}", exceeded.wait);
        assert!(guard.admit(other, "/a").is_ok());
        assert!(guard.admit(ip("::ffff:192.0.2.1"), "/a").is_err(), "the same client");
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let guard = Guard::new(vec![limit("/", By::Client, 1)], None);
        assert!(guard.admit(ip("2001:db8::1"), "/").is_ok());
        assert!(guard.admit(ip("2001:db8::ffff:2"), "/").is_err());
        assert!(guard.admit(ip("2001:db8:0:1::1"), "/").is_ok());
    }

    #[test]
    fn a_limit_is_for_a_path_and_what_is_below() {
        let guard = Guard::new(vec![limit("/api/login", By::All, 1)], None);
        assert!(guard.admit(ip("192.0.2.1"), "/api/login").is_ok());
        assert_eq!(guard.admit(ip("192.0.2.2"), "/api/login/x").map_err(|exceeded| exceeded.scope), Err("all"));
        for other in ["/", "/api", "/api/logins", "/api/session"] {
            assert!(guard.admit(ip("192.0.2.2"), other).is_ok(), "{other}");
        }
    }

    #[test]
    fn g4_who_is_refused_too_often_waits_and_others_do_not() {
        let rate = Rate { period: Duration::from_hours(1), burst: NonZeroU32::new(3).expect("three") };
        let guard = Guard::new(Vec::new(), Some(rate));
        let scanner = ip("192.0.2.1");
        for _ in 0..3 {
            guard.refused(scanner);
            assert!(guard.admit(scanner, "/").is_ok(), "an attempt counts once");
        }
        guard.refused(scanner);
        assert_eq!(guard.admit(scanner, "/").map_err(|exceeded| exceeded.scope), Err("refusals"));
        assert!(guard.admit(ip("192.0.2.2"), "/").is_ok());
        guard.sweep();
        assert!(guard.admit(scanner, "/").is_err(), "a sweep forgets nobody who waits");
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let guard = Guard::new(vec![limit("/", By::Client, 1)], None);
        let most = u32::try_from(MAX_KEYS).expect("it fits");
        for n in 0..most + 5000 {
            let _ = guard.admit(IpAddr::V4(n.into()), "/");
        }
        let (_, buckets) = &guard.limits[0];
        assert!(buckets.len() <= MAX_KEYS + usize::try_from(SHARED_KEYS).expect("it fits"), "{}", buckets.len());
        assert!(guard.admit(IpAddr::V4((most + 9000).into()), "/").is_err(), "who comes later shares");
    }
}
