//! Whether a new revision is worse than the one before: the rule of the automatic rollback.
//!
//! Two things are held against a revision, each as a share of its requests and each above that of
//! the old one: requests *lost* with their instance, and requests that *failed*. Lost ones should not
//! be at all, so their share is taken as it is. Failures depend on platforms and stores too and come
//! by chance, so their share counts only as far as chance does not explain it: the lower end of the
//! difference's interval (Newcombe 1998, method 10: Wilson's interval on each side) at 99.7 %.
//!
//! What this does not tell apart is a platform that fails at the very moment of an activation: the
//! old revision serves again then, and fails as well. A canary is compared at the same time.

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::{
    counts::{Counts, Outcome, Tally},
    rule::Share,
};

/// When a revision is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// How long it is watched from its activation on. Default: 60 s.
    pub window: Duration,
    /// Requests before it is judged, unless the window ends before. Default: 20.
    pub min_requests: u64,
    /// The share of lost requests, above the old one's, up to which it is not worse. Default: 0.5 %,
    /// so that a trap in every hundredth request is found also where requests have instances of their own.
    pub max_lost: Share,
    /// The share of failed requests, above the old one's, up to which it is not worse. Default: 2 %.
    pub max_failed: Share,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            window: Duration::from_mins(1),
            min_requests: 20,
            max_lost: Share::of_hundredths(50),
            max_failed: Share::of_hundredths(200),
        }
    }
}

/// A new revision under watch.
#[derive(Debug)]
pub struct Trial {
    thresholds: Thresholds,
    began: Instant,
    old: Old,
    new: Tally,
}

#[derive(Debug)]
enum Old {
    /// It served before.
    Before(Counts),
    /// It serves at the same time.
    Beside(Tally),
}

/// What is known about a new revision by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is wrong so far.
    Watching,
    /// The window is over, and nothing was wrong.
    Good,
    /// It is worse: roll it back.
    Bad(Cause),
}

/// Why a revision is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// What there was too much of.
    pub kind: CauseKind,
    /// Of the new revision.
    pub new: Counts,
    /// Of the old one.
    pub old: Counts,
}

/// What there was too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CauseKind {
    /// Requests lost with their instance.
    Lost,
    /// Failures.
    Failed,
}

impl Trial {
    /// Watches a revision that took another's place at `now`; `old` was counted in the window before.
    #[must_use]
    pub fn after(thresholds: Thresholds, old: Counts, now: Instant) -> Self {
        Self { thresholds, began: now, old: Old::Before(old), new: Tally::default() }
    }

    /// Watches a canary from `now` on, beside the revision that goes on serving the others. A canary
    /// may live longer than a window: after [`Verdict::Good`] the next trial begins.
    #[must_use]
    pub fn beside(thresholds: Thresholds, now: Instant) -> Self {
        Self { thresholds, began: now, old: Old::Beside(Tally::default()), new: Tally::default() }
    }

    /// Counts a request that the new revision was given.
    pub fn record(&self, outcome: Outcome) {
        self.new.record(outcome);
    }

    /// Counts a request that the old revision was given; without effect where it served before.
    pub fn record_old(&self, outcome: Outcome) {
        if let Old::Beside(tally) = &self.old {
            tally.record(outcome);
        }
    }

    /// What is known at `now`. Cheap: it may be asked after every request.
    #[must_use]
    pub fn verdict(&self, now: Instant) -> Verdict {
        let over = now.saturating_duration_since(self.began) >= self.thresholds.window;
        let new = self.new.counts();
        if !over && new.requests < self.thresholds.min_requests {
            return Verdict::Watching;
        }
        let old = match &self.old {
            Old::Before(counts) => *counts,
            Old::Beside(tally) => tally.counts(),
        };
        match (self.thresholds.worse(new, old), over) {
            (Some(kind), _) => Verdict::Bad(Cause { kind, new, old }),
            (None, true) => Verdict::Good,
            (None, false) => Verdict::Watching,
        }
    }
}

impl Thresholds {
    fn worse(&self, new: Counts, old: Counts) -> Option<CauseKind> {
        let more_lost = share(new.lost, new.requests) - share(old.lost, old.requests);
        if new.lost >= BY_CHANCE && more_lost > self.max_lost.fraction() {
            return Some(CauseKind::Lost);
        }
        let more_failed = surely_more(Z, (new.failed, new.requests), (old.failed, old.requests));
        (new.failed >= BY_CHANCE && more_failed > self.max_failed.fraction()).then_some(CauseKind::Failed)
    }
}

impl CauseKind {
    /// Its stable name.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Lost => "requests_lost",
            Self::Failed => "requests_failed",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, new, old) = match self.kind {
            CauseKind::Lost => ("lost with their instance", self.new.lost, self.old.lost),
            CauseKind::Failed => ("failed", self.new.failed, self.old.failed),
        };
        write!(
            f,
            "{new} of {} requests {what}; of the revision before {old} of {}",
            self.new.requests, self.old.requests
        )
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { real(part) / real(whole) }
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
fn real(count: u64) -> f64 {
    count as f64
}

/// By how much the first share is above the second, as far as chance does not explain it; `z` is the
/// normal quantile of how sure that is. A side without requests is taken to be without failures.
fn surely_more(z: f64, new: (u64, u64), old: (u64, u64)) -> f64 {
    let (low, p, _) = wilson(z, new);
    let (_, q, high) = wilson(z, old);
    p - q - (p - low).hypot(high - q)
}

/// A share between the ends of its interval.
fn wilson(z: f64, (part, whole): (u64, u64)) -> (f64, f64, f64) {
    let (p, n) = (share(part, whole), real(whole));
    if whole == 0 {
        return (0.0, 0.0, 0.0);
    }
    let middle = p + z * z / (2.0 * n);
    let reach = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z * z / n;
    (((middle - reach) / scale).max(0.0), p, ((middle + reach) / scale).min(1.0))
}

/// Three standard deviations: it is asked after every request, so once in a hundred would be often.
const Z: f64 = 3.0;
/// Fewer than this are an accident, however few requests there are.
const BY_CHANCE: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_mins(1);
    const QUIET: Counts = Counts { requests: 10_000, failed: 0, lost: 0 };

    /// A seeded coin: xorshift64*.
    struct Coin(u64);

    impl Coin {
        fn of(seed: u64) -> Self {
            Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
        }

        fn falls(&mut self, of_1000: u64) -> bool {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % 1000 < of_1000
        }
    }

    /// A minute of evenly spread requests; the verdict and after how many it was given.
    fn minute(trial: &Trial, per_second: u32, mut outcome: impl FnMut() -> Outcome) -> (Verdict, u32) {
        for request in 1..=per_second * 60 {
            trial.record(outcome());
            let verdict = trial.verdict(trial.began + WINDOW * (request - 1) / (per_second * 60));
            if verdict != Verdict::Watching {
                return (verdict, request);
            }
        }
        (trial.verdict(trial.began + WINDOW), per_second * 60)
    }

    fn failing(coin: &mut Coin, of_1000: u64) -> Outcome {
        if coin.falls(of_1000) { Outcome::Failed } else { Outcome::Answered }
    }

    fn kind((verdict, _): (Verdict, u32)) -> Option<CauseKind> {
        match verdict {
            Verdict::Bad(cause) => Some(cause.kind),
            Verdict::Good => None,
            Verdict::Watching => unreachable!("the minute is over"),
        }
    }

    fn trial(old: Counts) -> Trial {
        Trial::after(Thresholds::default(), old, Instant::now())
    }

    #[test]
    fn what_fails_always_is_found_at_once() {
        let few = Counts { requests: 1, ..Counts::default() };
        for old in [QUIET, Counts::default(), few] {
            for outcome in [Outcome::Failed, Outcome::Lost] {
                let (verdict, requests) = minute(&trial(old), 10, || outcome);
                assert!(matches!(verdict, Verdict::Bad(_)), "{old:?} {outcome:?}");
                assert_eq!(requests, 20, "{old:?} {outcome:?}");
            }
        }
    }

    #[test]
    fn a_trap_in_every_hundredth_request_is_found_within_the_window() {
        for (per_second, neighbours) in [(10, 1), (10, 8), (100, 1), (100, 8), (1000, 1), (1000, 8)] {
            for seed in 0..50 {
                // Not by chance here: a minute of ten a second may be lucky and have fewer than three.
                let mut request = seed;
                let mut dying = 0;
                let found = minute(&trial(QUIET), per_second, || {
                    request += 1;
                    if request % 100 == 0 {
                        dying = neighbours;
                    }
                    dying = i32::max(dying, 0) - 1;
                    if dying >= 0 { Outcome::Lost } else { Outcome::Answered }
                });
                assert_eq!(kind(found), Some(CauseKind::Lost), "{per_second}/s, {neighbours} share, {seed}");
                assert!(found.1 <= 400, "{} requests at {per_second}/s, {neighbours} share", found.1);
            }
        }
    }

    #[test]
    fn one_lost_request_is_an_accident() {
        let mut first = true;
        let once = || if std::mem::take(&mut first) { Outcome::Lost } else { Outcome::Answered };
        assert_eq!(minute(&trial(QUIET), 1, once).0, Verdict::Good);
    }

    #[test]
    fn what_the_old_one_lost_too_is_not_held_against_the_new_one() {
        let old = Counts { requests: 1000, failed: 0, lost: 30 };
        let mut coin = Coin::of(5);
        let poisoned = || if coin.falls(30) { Outcome::Lost } else { Outcome::Answered };
        let found = minute(&trial(Counts { lost: 60, ..old }), 100, poisoned);
        assert_eq!(kind(found), None, "{found:?}");
        assert_eq!(kind(minute(&trial(old), 100, || Outcome::Lost)), Some(CauseKind::Lost));
    }

    #[test]
    fn an_equal_revision_is_almost_never_worse() {
        for (of_1000, per_second) in [(0, 5), (1, 5), (10, 5), (50, 5), (10, 100), (50, 100), (500, 20)] {
            let wronged = (0..100).filter(|seed| {
                let mut coin = Coin::of(seed + 1000 * of_1000);
                let mut old = Counts { requests: u64::from(per_second) * 60, ..Counts::default() };
                old.failed = (0..old.requests).map(|_| u64::from(coin.falls(of_1000))).sum();
                kind(minute(&trial(old), per_second, || failing(&mut coin, of_1000))).is_some()
            });
            let wronged = wronged.count();
            assert!(wronged <= 3, "{wronged} of 100 at {of_1000} of 1000 and {per_second}/s");
        }
    }

    #[test]
    fn a_revision_that_fails_more_is_found() {
        for (before, after, per_second) in [(0, 100, 10), (10, 150, 10), (0, 50, 100), (10, 60, 100), (200, 300, 100)] {
            let found = (0..50).filter(|seed| {
                let mut coin = Coin::of(*seed);
                let old = Counts { requests: 6000, failed: 6 * before, lost: 0 };
                kind(minute(&trial(old), per_second, || failing(&mut coin, after))) == Some(CauseKind::Failed)
            });
            let found = found.count();
            assert!(found >= 48, "{found} of 50: {before} to {after} of 1000 at {per_second}/s");
        }
    }

    #[test]
    fn a_canary_is_compared_with_what_happens_meanwhile() {
        let both = |old: u64, new: u64, seed: u64| {
            let trial = Trial::beside(Thresholds::default(), Instant::now());
            let mut coin = Coin::of(seed);
            // A tenth of the clients.
            kind(minute(&trial, 50, || {
                (0..9).for_each(|_| trial.record_old(failing(&mut coin, old)));
                failing(&mut coin, new)
            }))
        };
        assert!((0..50).filter(|seed| both(400, 400, *seed).is_some()).count() <= 2, "the platform is down for both");
        assert!((0..50).filter(|seed| both(10, 100, *seed).is_none()).count() <= 1);
        let before = trial(QUIET);
        before.record_old(Outcome::Failed);
        assert_eq!(kind(minute(&before, 1, || Outcome::Answered)), None, "counted once and for all");
    }

    #[test]
    fn a_quiet_node_is_judged_when_the_window_ends() {
        for (outcomes, expected) in [
            (&[][..], None),
            (&[Outcome::Failed], None),
            (&[Outcome::Failed, Outcome::Answered, Outcome::Failed], None),
            (&[Outcome::Failed, Outcome::Failed, Outcome::Failed], Some(CauseKind::Failed)),
            (&[Outcome::Lost, Outcome::Answered, Outcome::Lost, Outcome::Lost], Some(CauseKind::Lost)),
        ] {
            let trial = trial(Counts::default());
            for outcome in outcomes {
                trial.record(*outcome);
            }
            assert_eq!(trial.verdict(trial.began + WINDOW.mul_f64(0.999)), Verdict::Watching, "{outcomes:?}");
            assert_eq!(kind((trial.verdict(trial.began + WINDOW), 0)), expected, "{outcomes:?}");
        }
    }

    #[test]
    fn an_interval_is_the_published_one() {
        // Newcombe 1998, Statistics in Medicine 17, 857-872 (81 of 263) and 873-890 (56 of 70 and 48
        // of 80), at 95 %.
        let (low, _, high) = wilson(1.96, (81, 263));
        assert!((low - 0.2553).abs() < 1e-4 && (high - 0.3662).abs() < 1e-4, "{low} {high}");
        let (low, high) = (surely_more(1.96, (56, 70), (48, 80)), -surely_more(1.96, (48, 80), (56, 70)));
        assert!((low - 0.0524).abs() < 1e-4 && (high - 0.3339).abs() < 1e-4, "{low} {high}");
    }

    #[test]
    fn a_cause_says_what_was_counted() {
        let found = minute(&trial(Counts { requests: 40, failed: 1, lost: 0 }), 10, || Outcome::Failed);
        let Verdict::Bad(cause) = found.0 else { unreachable!("{found:?}") };
        assert_eq!(cause.to_string(), "20 of 20 requests failed; of the revision before 1 of 40");
        assert_eq!((cause.kind.code(), CauseKind::Lost.code()), ("requests_failed", "requests_lost"));
    }
}
