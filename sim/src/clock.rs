//! What time it is for the simulator: codes expire and keys grow old by this clock alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// A clock that never goes back and can be put forward. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Since the Unix epoch, when the clock was made.
    start: Duration,
    /// `None`: time passes only through [`Clock::advance`].
    running_since: Option<Instant>,
    advanced_ms: AtomicU64,
}

impl Clock {
    /// The machine's time, running on.
    #[must_use]
    pub fn system() -> Self {
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::new(start, Some(Instant::now()))
    }

    /// Stands at `unix` (since the Unix epoch) until it is put forward: exact limits can be tested.
    #[must_use]
    pub fn manual(unix: Duration) -> Self {
        Self::new(unix, None)
    }

    fn new(start: Duration, running_since: Option<Instant>) -> Self {
        Self(Arc::new(Inner { start, running_since, advanced_ms: AtomicU64::new(0) }))
    }

    /// Puts the clock forward by whole milliseconds.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        let _ = self.0.advanced_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |ms| Some(ms.saturating_add(by)));
    }

    /// Since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> Duration {
        let ran = self.0.running_since.map_or(Duration::ZERO, |since| since.elapsed());
        let advanced = Duration::from_millis(self.0.advanced_ms.load(Ordering::Relaxed));
        self.0.start.saturating_add(ran).saturating_add(advanced)
    }

    /// [`Clock::now`] in whole milliseconds.
    pub(crate) fn unix_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}
