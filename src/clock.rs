//! Time, as a port. On `wasm32-unknown-unknown` `std::time` panics, and a rule that reads a clock
//! of its own cannot be tested.

/// Where the core learns what time it is. Reading it never waits.
pub trait Clock: 'static {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    fn now(&self) -> UnixMillis;

    /// Nanoseconds on a clock that only moves forward; its zero means nothing. For the stages in
    /// `Server-Timing`, never for a rule.
    fn tick_ns(&self) -> u64;
}

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
    /// This instant plus `duration`, or the last representable instant.
    #[must_use]
    pub const fn after(self, duration: std::time::Duration) -> Self {
        Self(self.0.saturating_add(duration.as_secs()))
    }
}
