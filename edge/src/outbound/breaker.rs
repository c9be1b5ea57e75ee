//! When an upstream counts as down. Rules and a state, no clock: `now` is given.
//!
//! Closed, every exchange is let through and its end counted. Too many failures open the breaker:
//! exchanges fail at once, without a byte sent, so a platform that is down costs a login nothing but
//! its answer, and gets room to come back. After a wait one exchange, the probe, is let through; its
//! success closes the breaker, its failure opens it for twice as long.
//!
//! The crate failsafe was looked at: half open it lets every exchange through, which is the burst a
//! platform that just came back cannot have, and it cannot tell the end of an exchange that began
//! before the breaker opened from the probe's.

use std::time::{Duration, Instant};

/// When a breaker opens and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Failures in a row that open it; 0 never opens it, whatever else fails.
    pub failures: u32,
    /// Exchanges within `WINDOW` from which on the share of failures counts: more than half opens it.
    pub volume: u32,
    /// How long it is open the first time. Each failed probe doubles it.
    pub first_wait: Duration,
    /// How long it is open at most.
    pub longest_wait: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self { failures: 5, volume: 20, first_wait: Duration::from_secs(1), longest_wait: Duration::from_secs(30) }
    }
}

/// How an exchange ended, as far as it tells something about the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It answered, whatever it said.
    Answered,
    /// It could not be reached, did not answer in time or not in HTTP, or answered 5xx.
    Failed,
    /// Given up before anybody knows.
    Unknown,
}

/// Allows one exchange; handed back with its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// The state it was given in. The end of an exchange of an earlier state counts for nothing.
    turn: u64,
}

/// What a breaker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Closed,
    Open,
    HalfOpen,
}

/// The breaker of one upstream.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    phase: Phase,
    /// Counts changes of state.
    turn: u64,
}

#[derive(Debug)]
enum Phase {
    Closed(Counts),
    /// `rounds` times in a row it was opened.
    Open {
        until: Instant,
        rounds: u32,
    },
    /// The probe is under way.
    HalfOpen {
        rounds: u32,
    },
}

impl Default for Phase {
    fn default() -> Self {
        Self::Closed(Counts::default())
    }
}

impl Breaker {
    /// Lets an exchange through, or says how long the upstream counts as down.
    pub(super) fn admit(&mut self, now: Instant) -> Result<Pass, Duration> {
        match self.phase {
            Phase::Closed(_) => Ok(Pass { turn: self.turn }),
            Phase::Open { until, .. } if now < until => Err(until - now),
            Phase::Open { rounds, .. } => {
                self.enter(Phase::HalfOpen { rounds });
                Ok(Pass { turn: self.turn })
            }
            Phase::HalfOpen { .. } => Err(Duration::ZERO),
        }
    }

    /// Takes note of how the exchange of `pass` ended. `random` spreads the wait, so that the nodes of
    /// a fleet do not probe together: it is at least half of what the rules say.
    pub(super) fn ended(&mut self, pass: &Pass, end: End, now: Instant, rules: &Rules, random: u32) {
        if pass.turn != self.turn {
            return;
        }
        let rounds = match (&mut self.phase, end) {
            (Phase::Closed(counts), End::Answered | End::Failed) => {
                counts.add(end == End::Failed, now);
                if !counts.too_many(rules) {
                    return;
                }
                0
            }
            (Phase::HalfOpen { .. }, End::Answered) => return self.enter(Phase::default()),
            (Phase::HalfOpen { rounds }, End::Failed) => *rounds,
            // Another exchange may be the probe.
            (&mut Phase::HalfOpen { rounds }, End::Unknown) => return self.enter(Phase::Open { until: now, rounds }),
            (Phase::Closed(_) | Phase::Open { .. }, _) => return,
        };
        let wait = rules.first_wait.saturating_mul(1 << rounds.min(30)).min(rules.longest_wait);
        let until = now + wait / 2 + (wait / 2).mul_f64(f64::from(random) / f64::from(u32::MAX));
        self.enter(Phase::Open { until, rounds: rounds + 1 });
    }

    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::Closed(_) => State::Closed,
            Phase::Open { .. } => State::Open,
            Phase::HalfOpen { .. } => State::HalfOpen,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.turn += 1;
    }
}

/// Ends of exchanges: failures in a row, and both kinds by the second.
#[derive(Debug, Default)]
struct Counts {
    in_a_row: u32,
    /// When the current slot began, and its number.
    slot: Option<(Instant, usize)>,
    slots: [(u32, u32); SLOTS],
}

impl Counts {
    fn add(&mut self, failed: bool, now: Instant) {
        self.in_a_row = if failed { self.in_a_row.saturating_add(1) } else { 0 };
        let (began, slot) = self.slot.unwrap_or((now, 0));
        let passed = now.saturating_duration_since(began).as_nanos() / SLOT.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        for n in 1..=SLOTS.min(passed as usize) {
            self.slots[(slot + n) % SLOTS] = (0, 0);
        }
        let slot = (slot + passed as usize) % SLOTS;
        self.slot = Some((began + SLOT.saturating_mul(passed), slot));
        self.slots[slot].0 += 1;
        self.slots[slot].1 += u32::from(failed);
    }

    fn too_many(&self, rules: &Rules) -> bool {
        let (all, failed) = self.slots.iter().fold((0, 0), |sum, slot| (sum.0 + slot.0, sum.1 + slot.1));
        let share = all >= rules.volume && failed > all / 2;
        rules.failures > 0 && (self.in_a_row >= rules.failures || share)
    }
}

/// How far back the share of failures looks.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
const SLOTS: usize = 10;
const SLOT: Duration = Duration::from_secs(1);
const _: () = assert!(WINDOW.as_millis() == SLOT.as_millis() * SLOTS as u128);

#[cfg(test)]
mod tests {
    use super::*;

    /// A breaker and its clock.
    struct Bench {
        breaker: Breaker,
        now: Instant,
        rules: Rules,
    }

    impl Bench {
        fn new() -> Self {
            Self { breaker: Breaker::default(), now: Instant::now(), rules: Rules::default() }
        }

        fn end(&mut self, pass: &Pass, end: End) {
            self.breaker.ended(pass, end, self.now, &self.rules, u32::MAX);
        }

        fn exchange(&mut self, end: End) -> bool {
            let Ok(pass) = self.breaker.admit(self.now) else { return false };
            self.end(&pass, end);
            true
        }

        fn wait(&mut self, ms: u64) {
            self.now += Duration::from_millis(ms);
        }
    }

    #[test]
    fn five_failures_in_a_row_open_it() {
        let mut bench = Bench::new();
        for _ in 0..4 {
            assert!(bench.exchange(End::Failed));
        }
        assert!(bench.exchange(End::Answered));
        for _ in 0..4 {
            assert!(bench.exchange(End::Failed));
        }
        assert!(bench.exchange(End::Unknown), "tells nothing");
        assert_eq!(bench.breaker.state(), State::Closed);
        assert!(bench.exchange(End::Failed));
        assert_eq!(bench.breaker.state(), State::Open);
        assert!(!bench.exchange(End::Answered));
    }

    #[test]
    fn more_than_half_of_twenty_open_it_and_half_does_not() {
        let mut bench = Bench::new();
        for n in 0..200 {
            assert!(bench.exchange(if n % 2 == 1 { End::Failed } else { End::Answered }), "{n}");
        }
        let mut bench = Bench::new();
        let ends = [End::Failed, End::Failed, End::Answered];
        let opened = (1..100).find(|n| {
            assert!(bench.exchange(ends[(n - 1) % 3]));
            bench.breaker.state() == State::Open
        });
        assert_eq!(opened, Some(20), "not before there are twenty");
    }

    #[test]
    fn what_is_older_than_ten_seconds_is_forgotten() {
        let mut bench = Bench::new();
        for n in 0..19 {
            assert!(bench.exchange(if n % 4 == 3 { End::Answered } else { End::Failed }));
        }
        bench.wait(10_000);
        for _ in 0..4 {
            assert!(bench.exchange(End::Answered) && bench.exchange(End::Failed));
        }
        assert_eq!(bench.breaker.state(), State::Closed);
        // The same without the pause.
        let mut bench = Bench::new();
        for n in 0..19 {
            assert!(bench.exchange(if n % 4 == 3 { End::Answered } else { End::Failed }));
        }
        bench.wait(1000);
        assert!(bench.exchange(End::Answered));
        assert_eq!(bench.breaker.state(), State::Open);
    }

    #[test]
    fn exactly_one_probe_is_let_through() {
        let mut bench = Bench::new();
        while bench.exchange(End::Failed) {}
        bench.wait(999);
        assert_eq!(bench.breaker.admit(bench.now).map_err(|left| left.as_millis()), Err(1));
        bench.wait(1);
        let probe = bench.breaker.admit(bench.now).expect("is the probe");
        assert_eq!(bench.breaker.state(), State::HalfOpen);
        for _ in 0..100 {
            assert!(bench.breaker.admit(bench.now).is_err());
        }
        bench.end(&probe, End::Answered);
        assert_eq!(bench.breaker.state(), State::Closed);
        for _ in 0..4 {
            assert!(bench.exchange(End::Failed), "it starts anew");
        }
    }

    #[test]
    fn a_probe_that_is_given_up_makes_room_for_another() {
        let mut bench = Bench::new();
        while bench.exchange(End::Failed) {}
        bench.wait(1000);
        assert!(bench.exchange(End::Unknown));
        assert!(bench.exchange(End::Answered));
        assert_eq!(bench.breaker.state(), State::Closed);
    }

    #[test]
    fn an_exchange_from_before_decides_nothing_about_what_is_now() {
        let mut bench = Bench::new();
        let early: Vec<Pass> = (0..3).map(|_| bench.breaker.admit(bench.now).expect("is closed")).collect();
        while bench.exchange(End::Failed) {}
        bench.wait(1000);
        let probe = bench.breaker.admit(bench.now).expect("is the probe");
        bench.end(&early[0], End::Answered);
        assert_eq!(bench.breaker.state(), State::HalfOpen, "it is not the probe's answer");
        bench.end(&probe, End::Answered);
        bench.rules.failures = 1;
        bench.end(&early[1], End::Failed);
        assert_eq!(bench.breaker.state(), State::Closed);
    }

    #[test]
    fn each_failed_probe_doubles_the_wait_up_to_the_longest() {
        let mut bench = Bench::new();
        while bench.exchange(End::Failed) {}
        for seconds in [1, 2, 4, 8, 16, 30, 30, 30] {
            bench.wait(seconds * 1000 - 1);
            assert!(!bench.exchange(End::Failed), "{seconds} s");
            bench.wait(1);
            assert!(bench.exchange(End::Failed), "{seconds} s");
        }
        bench.wait(30_000);
        assert!(bench.exchange(End::Answered));
        while bench.exchange(End::Failed) {}
        bench.wait(1000);
        assert!(bench.exchange(End::Answered), "the first wait again");
    }

    #[test]
    fn the_wait_is_spread_over_its_second_half() {
        for (random, ms) in [(0, 500), (u32::MAX / 2, 750), (u32::MAX, 1000)] {
            let mut breaker = Breaker::default();
            let (now, rules) = (Instant::now(), Rules { failures: 1, ..Rules::default() });
            let pass = breaker.admit(now).expect("is closed");
            breaker.ended(&pass, End::Failed, now, &rules, random);
            let left = breaker.admit(now).expect_err("is open");
            assert!(left.abs_diff(Duration::from_millis(ms)) < Duration::from_millis(1), "{left:?} for {random}");
        }
    }

    #[test]
    fn it_can_be_turned_off() {
        let mut bench = Bench::new();
        bench.rules.failures = 0;
        for _ in 0..1000 {
            assert!(bench.exchange(End::Failed));
        }
    }
}
