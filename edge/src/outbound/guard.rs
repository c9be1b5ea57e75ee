//! What the whole node knows of each upstream: whether it is down, and how many exchanges are under
//! way with it. Shared by cores and revisions, so that five failures are five, whichever core saw
//! them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use super::{
    Failure, Kind,
    breaker::{Breaker, End, Pass, Rules, State},
    metrics::{Metrics, OfUpstream},
};

/// The guards of a node's upstreams. Clones share them.
#[derive(Clone, Default)]
pub struct Guards {
    all: Arc<Mutex<BTreeMap<String, Arc<Guard>>>>,
    pub(super) metrics: Metrics,
}

/// What is asked of a guard; each revision may ask for something else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) in_flight: usize,
    pub(super) breaker: Rules,
}

/// The guard of one `host:port`.
pub(super) struct Guard {
    breaker: Mutex<Breaker>,
    in_flight: AtomicUsize,
    metrics: OfUpstream,
}

/// Lets one exchange happen and counts it while it does. Dropped before [`Admitted::ended`], it says
/// that nobody knows how the exchange ended.
pub(super) struct Admitted {
    guard: Arc<Guard>,
    limits: Limits,
    /// `None` once the end is known.
    pass: Option<Pass>,
}

impl Guards {
    /// The numbers of all upstreams.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The guard of `authority`, which is `host:port`; `named`: the manifest names it, so it is one of
    /// few. `None`: there are too many, which only a component with a `*` in its allow-list can bring
    /// about.
    pub(super) fn guard(&self, authority: &str, named: bool) -> Option<Arc<Guard>> {
        let mut all = lock(&self.all);
        if let Some(guard) = all.get(authority) {
            return Some(guard.clone());
        }
        if all.len() >= MAX_GUARDS {
            all.retain(|_, guard| Arc::strong_count(guard) > 1 || lock(&guard.breaker).state() != State::Closed);
        }
        if all.len() >= MAX_GUARDS {
            return None;
        }
        let guard = Guard {
            breaker: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            metrics: self.metrics.of_upstream(named.then_some(authority)),
        };
        let guard = Arc::new(guard);
        all.insert(authority.to_owned(), guard.clone());
        Some(guard)
    }
}

/// As many as a core keeps upstreams.
const MAX_GUARDS: usize = 1024;

impl Guard {
    /// Lets an exchange through.
    ///
    /// # Errors
    /// [`Kind::Busy`] when too many are under way, [`Kind::Down`] when the upstream counts as down.
    pub(super) fn admit(self: &Arc<Self>, limits: Limits) -> Result<Admitted, Failure> {
        let taken =
            self.in_flight.fetch_update(Relaxed, Relaxed, |count| (count < limits.in_flight).then_some(count + 1));
        taken.map_err(|_| Kind::Busy.unsent())?;
        // From here on the count is given back by the drop.
        let mut admitted = Admitted { guard: self.clone(), limits, pass: None };
        self.metrics.in_flight.inc();
        admitted.pass = Some(self.change(|breaker| breaker.admit(Instant::now())).map_err(|_| Kind::Down.unsent())?);
        Ok(admitted)
    }

    /// Does something with the breaker, and tells what became of it.
    fn change<T>(&self, with: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let before = breaker.state();
        let done = with(&mut breaker);
        let after = breaker.state();
        if before != after {
            self.metrics.entered(after);
        }
        done
    }
}

impl Admitted {
    /// The upstream answered with this status.
    pub(super) fn answered(&mut self, status: u16) {
        self.ended(if status >= 500 { End::Failed } else { End::Answered });
    }

    /// No answer came.
    pub(super) fn failed(&mut self, failure: Failure) {
        self.ended(match failure.kind {
            Kind::Unresolved | Kind::Unreachable | Kind::Tls | Kind::Timeout => End::Failed,
            // A kept connection that the upstream had closed says nothing about the next one.
            Kind::Broken => {
                if failure.sent {
                    End::Failed
                } else {
                    End::Unknown
                }
            }
            Kind::TooLarge => End::Answered,
            Kind::Denied | Kind::Busy | Kind::Down | Kind::Duplicate => End::Unknown,
        });
    }

    fn ended(&mut self, end: End) {
        let Some(pass) = self.pass.take() else { return };
        let random = getrandom::u32().unwrap_or(u32::MAX);
        self.guard.change(|breaker| breaker.ended(&pass, end, Instant::now(), &self.limits.breaker, random));
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.ended(End::Unknown);
        self.guard.in_flight.fetch_sub(1, Relaxed);
        self.guard.metrics.in_flight.dec();
    }
}

/// Nothing is left half done by a panic: counts and states are written whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many.
impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guards").field(&lock(&self.all).len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { in_flight: 2, breaker: Rules { failures: 1, volume: 20, first_wait: LONG, longest_wait: LONG } };
    const LONG: std::time::Duration = std::time::Duration::from_hours(1);

    fn guard() -> Arc<Guard> {
        Guards::default().guard("a.example:443", true).expect("there is room")
    }

    #[test]
    fn exchanges_are_counted_until_they_are_dropped() {
        let guard = guard();
        let (one, _two) = (guard.admit(LIMITS).ok(), guard.admit(LIMITS).ok());
        assert_eq!(guard.admit(LIMITS).err(), Some(Kind::Busy.unsent()));
        drop(one);
        assert!(guard.admit(LIMITS).is_ok());
        assert_eq!(guard.metrics.in_flight.get(), 1);
    }

    #[test]
    fn only_what_speaks_of_the_upstream_opens_the_breaker() {
        for (failure, opens) in [
            (Kind::Unresolved.unsent(), true),
            (Kind::Unreachable.unsent(), true),
            (Kind::Tls.unsent(), true),
            (Kind::Timeout.unsent(), true),
            (Kind::Timeout.sent(), true),
            (Kind::Broken.sent(), true),
            (Kind::Broken.unsent(), false),
            (Kind::TooLarge.sent(), false),
            (Kind::Busy.unsent(), false),
            (Kind::Denied.unsent(), false),
        ] {
            let guard = guard();
            guard.admit(LIMITS).expect("is closed").failed(failure);
            assert_eq!(guard.admit(LIMITS).err(), opens.then_some(Kind::Down.unsent()), "{failure:?}");
        }
        for (status, opens) in [(200, false), (302, false), (404, false), (429, false), (500, true), (503, true)] {
            let guard = guard();
            guard.admit(LIMITS).expect("is closed").answered(status);
            assert_eq!(guard.admit(LIMITS).is_err(), opens, "{status}");
        }
    }

    #[test]
    fn a_guard_is_the_same_for_everybody_and_there_are_not_too_many() {
        let guards = Guards::default();
        let one = guards.guard("a.example:1", false).expect("there is room");
        assert!(Arc::ptr_eq(&one, &guards.clone().guard("a.example:1", false).expect("is there")));
        one.admit(LIMITS).expect("is closed").answered(500);
        drop(one);
        for n in 0..3 * MAX_GUARDS {
            assert!(guards.guard(&format!("{n}.example:1"), false).is_some());
        }
        assert!(lock(&guards.all).len() <= MAX_GUARDS);
        let down = guards.guard("a.example:1", false).expect("is there");
        assert!(down.admit(LIMITS).is_err(), "what is known to be down is not forgotten");
    }
}
