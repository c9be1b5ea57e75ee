//! Time, as a port. On `wasm32-unknown-unknown` `std::time` panics, and a rule that reads a clock
//! of its own cannot be tested.

use std::{
    pin::Pin,
    time::{Duration, SystemTime},
};

/// Where the core learns what time it is. Reading it never waits.
pub trait Clock: 'static {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    fn now(&self) -> UnixMillis;

    /// Nanoseconds on a clock that only moves forward; its zero means nothing. For the stages in
    /// `Server-Timing`, never for a rule.
    fn tick_ns(&self) -> u64;

    /// Waits for about `duration`, a few seconds at most.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// A wait that has begun. Boxed, so that a [`Clock`] can be a trait object: hardly any request waits.
pub type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMillis(pub u64);

/// Seconds since the Unix epoch. The unit of every stored and signed instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct UnixSeconds(pub u64);

impl UnixMillis {
    /// The second this instant lies in.
    #[must_use]
    pub const fn seconds(self) -> UnixSeconds {
        UnixSeconds(self.0 / 1000)
    }
}

impl UnixSeconds {
    /// How long ago `earlier` was; nothing for one in the future, which another node's clock may
    /// have written.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }

    /// This instant plus so many seconds, or the last representable instant.
    #[must_use]
    pub const fn plus(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// This instant plus `duration`, or the last representable instant.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        self.plus(duration.as_secs())
    }
}

/// `2026-11-30T12:00:00Z`, or with milliseconds for [`UnixMillis`]. Years above 9999 print as the
/// last second of 9999, the end of RFC 3339.
impl std::fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        humantime::format_rfc3339_seconds(system_time(Duration::from_secs(self.0))).fmt(f)
    }
}

impl std::fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        humantime::format_rfc3339_millis(system_time(Duration::from_millis(self.0))).fmt(f)
    }
}

fn system_time(since_epoch: Duration) -> SystemTime {
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    SystemTime::UNIX_EPOCH + since_epoch.min(LAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_print_as_rfc_3339_and_never_fail() {
        assert_eq!(UnixSeconds(1_700_000_000).to_string(), "2023-11-14T22:13:20Z");
        assert_eq!(UnixMillis(1_700_000_000_042).to_string(), "2023-11-14T22:13:20.042Z");
        assert_eq!(UnixSeconds(u64::MAX).to_string(), "9999-12-31T23:59:59Z");
        assert_eq!(UnixMillis(u64::MAX).seconds().after(Duration::MAX), UnixSeconds(u64::MAX));
    }
}
