//! Where the time of one request went: the stages of `Server-Timing`.

use std::{cell::Cell, fmt::Write as _};

use crate::clock::Clock;

/// The stages of one request. Off by default, and then the clock is not read at all.
pub struct Stages<'c> {
    clock: Option<&'c dyn Clock>,
    nanos: [Cell<u64>; STAGES.len()],
}

/// A part of a request worth its own figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading and checking the request.
    Parse,
    /// Waiting for the platform.
    Platform,
    /// Waiting for the store.
    Store,
    /// Signing tokens and sealing records.
    Sign,
}

const STAGES: [(Stage, &str); 4] =
    [(Stage::Parse, "parse"), (Stage::Platform, "platform"), (Stage::Store, "store"), (Stage::Sign, "sign")];

impl<'c> Stages<'c> {
    /// Stages measured with `clock`, or not at all.
    #[must_use]
    pub fn new(clock: Option<&'c dyn Clock>) -> Self {
        Self { clock, nanos: Default::default() }
    }

    /// Counts the time of `work`.
    pub async fn wait<T>(&self, stage: Stage, work: impl Future<Output = T>) -> T {
        let begun = self.tick();
        let done = work.await;
        self.count(stage, begun);
        done
    }

    /// Counts the time of `work` that waits for nothing.
    pub fn run<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let begun = self.tick();
        let done = work();
        self.count(stage, begun);
        done
    }

    /// The value of `Server-Timing`, in milliseconds; `None` when nothing is measured.
    #[must_use]
    pub fn header(&self) -> Option<String> {
        self.clock?;
        let mut text = String::new();
        for ((_, name), nanos) in STAGES.iter().zip(&self.nanos) {
            let micros = nanos.get() / 1000;
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{comma}{name};dur={}.{:03}", micros / 1000, micros % 1000);
        }
        Some(text)
    }

    fn tick(&self) -> u64 {
        self.clock.map_or(0, Clock::tick_ns)
    }

    fn count(&self, stage: Stage, begun: u64) {
        let spent = self.tick().saturating_sub(begun);
        if let Some((_, nanos)) = STAGES.iter().zip(&self.nanos).find(|((s, _), _)| *s == stage) {
            nanos.set(nanos.get() + spent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::FixedClock;

    #[test]
    fn stages_add_up_in_milliseconds() {
        let clock = FixedClock::at(0);
        let stages = Stages::new(Some(&clock));
        stages.run(Stage::Store, || clock.advance(Duration::from_millis(2)));
        stages.run(Stage::Store, || clock.advance(Duration::from_millis(1)));
        assert_eq!(
            stages.header().as_deref(),
            Some("parse;dur=0.000, platform;dur=0.000, store;dur=3.000, sign;dur=0.000")
        );
        assert_eq!(Stages::new(None).header(), None);
    }
}
