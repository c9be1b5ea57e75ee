//! The counts of the last minute, a look every few seconds.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::metrics::{Metrics, http::Totals};

/// Looks at the counts, the oldest first.
pub(super) struct History(Mutex<VecDeque<(Instant, Totals)>>);

impl History {
    /// Looks regularly, on a thread of its own, for as long as somebody has the history.
    pub(super) fn keep(metrics: &Metrics) -> Arc<Self> {
        let history = Arc::new(Self(Mutex::new(VecDeque::from([(Instant::now(), Totals::default())]))));
        let (kept, metrics) = (Arc::downgrade(&history), metrics.clone());
        let looks = thread::Builder::new().name("history".into()).spawn(move || {
            loop {
                thread::sleep(EVERY);
                let Some(history) = kept.upgrade() else { return };
                history.push(Instant::now(), metrics.http().totals());
            }
        });
        if let Err(error) = looks {
            tracing::warn!(%error, "no thread for the history; it shows all since the start");
        }
        history
    }

    /// The oldest look of the window: how long ago it was, and what it saw.
    pub(super) fn oldest(&self) -> (Duration, Totals) {
        let looks = self.looks();
        looks.front().map_or_else(Default::default, |(when, seen)| (when.elapsed(), seen.clone()))
    }

    fn push(&self, now: Instant, seen: Totals) {
        let mut looks = self.looks();
        looks.push_back((now, seen));
        while looks.len() > 1 && now.duration_since(looks[0].0) > WINDOW {
            looks.pop_front();
        }
    }

    fn looks(&self) -> MutexGuard<'_, VecDeque<(Instant, Totals)>> {
        // A look is in the list or it is not.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const WINDOW: Duration = Duration::from_mins(1);
/// So the window is a minute and at most this less.
const EVERY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_stays_for_a_minute() {
        let history = History(Mutex::default());
        let begun = Instant::now();
        for seconds in [0, 30, 59, 60, 61, 62] {
            history.push(begun + Duration::from_secs(seconds), Totals::default());
        }
        assert_eq!(history.looks().len(), 5, "the first is too old");
        assert_eq!(history.looks()[0].0, begun + Duration::from_secs(30));
    }
}
