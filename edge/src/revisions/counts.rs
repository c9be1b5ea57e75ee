//! What became of a revision's requests, counted: since it began, or in the last minute.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::{handler::Response, problem};

/// What a request says about the revision that was given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered, also with a refusal.
    Answered,
    /// It failed: an answer of 500 or more, or none in time.
    Failed,
    /// It had no instance to the end: the instance trapped, ran out of time or memory, or could not be made.
    Lost,
}

impl Outcome {
    /// Of an answer; `None` when the node turned the request away before a revision saw it, which
    /// says nothing about any.
    #[must_use]
    pub fn of(answer: &Response) -> Option<Self> {
        match answer.extensions().get::<problem::Own>() {
            Some(problem::Own("overloaded" | "rate_limited")) => None,
            Some(problem::Own("instance_lost")) => Some(Self::Lost),
            _ if answer.status().is_server_error() => Some(Self::Failed),
            _ => Some(Self::Answered),
        }
    }
}

/// Requests, and those that did not end well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All.
    pub requests: u64,
    /// Those that [failed](Outcome::Failed).
    pub failed: u64,
    /// Those that were [lost](Outcome::Lost).
    pub lost: u64,
}

/// Counts of all that is recorded. Recording takes no lock.
#[derive(Debug, Default)]
pub struct Tally {
    requests: AtomicU64,
    failed: AtomicU64,
    lost: AtomicU64,
}

impl Tally {
    /// Counts a request that has ended.
    pub fn record(&self, outcome: Outcome) {
        // The whole is never less than its parts, for whoever reads them in the other order.
        self.requests.fetch_add(1, Relaxed);
        match outcome {
            Outcome::Answered => {}
            Outcome::Failed => drop(self.failed.fetch_add(1, Relaxed)),
            Outcome::Lost => drop(self.lost.fetch_add(1, Relaxed)),
        }
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (failed, lost) = (self.failed.load(Relaxed), self.lost.load(Relaxed));
        Counts { requests: self.requests.load(Relaxed).max(failed + lost), failed, lost }
    }

    fn clear(&self) {
        for count in [&self.requests, &self.failed, &self.lost] {
            count.store(0, Relaxed);
        }
    }
}

/// Counts of the last while, on a ring of parts. Recording takes no lock; when a part begins anew, a
/// few requests that end at that very moment may go uncounted.
#[derive(Debug)]
pub struct Recent {
    began: Instant,
    part: Duration,
    ring: [Part; PARTS],
}

#[derive(Debug, Default)]
struct Part {
    /// The number of its time, from 1; 0 is none.
    number: AtomicU64,
    tally: Tally,
}

const PARTS: usize = 8;

impl Recent {
    /// Counts from `now` on, over `window` at a time.
    #[must_use]
    pub fn new(window: Duration, now: Instant) -> Self {
        let part = (window / u32::try_from(PARTS - 1).unwrap_or(1)).max(Duration::from_millis(1));
        Self { began: now, part, ring: Default::default() }
    }

    /// Counts a request that has ended at `now`.
    pub fn record(&self, outcome: Outcome, now: Instant) {
        let number = self.number(now);
        let part = &self.ring[usize::try_from(number).unwrap_or_default() % PARTS];
        let held = part.number.fetch_max(number, Relaxed);
        if held < number {
            part.tally.clear();
        }
        if held <= number {
            part.tally.record(outcome);
        }
    }

    /// What was counted in the window before `now`, give or take an eighth of it.
    #[must_use]
    pub fn counts(&self, now: Instant) -> Counts {
        let number = self.number(now);
        let after = number.saturating_sub(u64::try_from(PARTS).unwrap_or_default());
        let inside = |part: &&Part| (after + 1..=number).contains(&part.number.load(Relaxed));
        self.ring.iter().filter(inside).fold(Counts::default(), |sum, part| {
            let counts = part.tally.counts();
            Counts {
                requests: sum.requests + counts.requests,
                failed: sum.failed + counts.failed,
                lost: sum.lost + counts.lost,
            }
        })
    }

    fn number(&self, now: Instant) -> u64 {
        let parts = now.saturating_duration_since(self.began).as_nanos() / self.part.as_nanos();
        u64::try_from(parts).unwrap_or(u64::MAX - 1) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Problem;

    #[test]
    fn an_answer_says_what_became_of_a_request() {
        let answered = |status: u16| {
            let mut answer = Response::default();
            *answer.status_mut() = http::StatusCode::from_u16(status).expect("a status");
            Outcome::of(&answer)
        };
        for status in [200, 204, 304, 401, 404, 429] {
            assert_eq!(answered(status), Some(Outcome::Answered), "{status}");
        }
        for status in [500, 502, 503, 504] {
            assert_eq!(answered(status), Some(Outcome::Failed), "{status}: of the component");
        }
        for (problem, expected) in [
            (Problem::Overloaded, None),
            (Problem::RateLimited(Duration::from_secs(1)), None),
            (Problem::Leaving, None),
            (Problem::InstanceLost, Some(Outcome::Lost)),
            (Problem::Deadline, Some(Outcome::Failed)),
            (Problem::Internal, Some(Outcome::Failed)),
            (Problem::BadRequest("x"), Some(Outcome::Answered)),
        ] {
            assert_eq!(Outcome::of(&problem.answer("t")), expected, "{problem:?}");
        }
    }

    #[test]
    fn what_is_long_past_counts_no_more() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let recent = Recent::new(Duration::from_secs(70), began);
        assert_eq!(recent.counts(at(500)), Counts::default());
        for second in 0..1000 {
            let outcome = [Outcome::Answered, Outcome::Failed, Outcome::Lost, Outcome::Answered][second % 4];
            recent.record(outcome, at(u64::try_from(second).expect("fits")));
            let counts = recent.counts(at(u64::try_from(second).expect("fits")));
            let expected = second + 1;
            let requests = usize::try_from(counts.requests).expect("fits");
            assert!(requests <= expected && requests >= expected.min(70) && requests <= 80, "{second}: {counts:?}");
            assert!(counts.failed.abs_diff(counts.requests / 4) <= 1 && counts.lost.abs_diff(counts.failed) <= 1);
        }
        assert_eq!(recent.counts(at(999 + 81)), Counts::default());
        recent.record(Outcome::Lost, at(0));
        assert_eq!(recent.counts(at(999 + 81)), Counts::default(), "what comes too late");
        recent.record(Outcome::Lost, at(2000));
        assert_eq!(recent.counts(at(2000)), Counts { requests: 1, failed: 0, lost: 1 });
    }

    #[test]
    fn many_may_count_at_once() {
        let tally = &Tally::default();
        std::thread::scope(|scope| {
            for outcome in [Outcome::Answered, Outcome::Failed, Outcome::Lost] {
                scope.spawn(move || (0..1000).for_each(|_| tally.record(outcome)));
            }
        });
        assert_eq!(tally.counts(), Counts { requests: 3000, failed: 1000, lost: 1000 });
    }
}
