//! Durations, and what is said of them.

use std::{fmt, time::Duration};

use serde::Serialize;

/// Measured durations of one thing, at least one.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<Duration>);

/// What is said of them, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub n: usize,
    /// Half are below.
    pub median_us: f64,
    /// A tenth is below.
    pub p10_us: f64,
    /// A tenth is above.
    pub p90_us: f64,
}

impl Samples {
    /// Adds one.
    pub fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// The middle and the spread: means mislead where a few are late.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |tenths: usize| match sorted.len() {
            0 => 0.0,
            n => sorted[((n - 1) * tenths + 5) / 10].as_secs_f64() * 1e6,
        };
        Summary { n: sorted.len(), median_us: at(5), p10_us: at(1), p90_us: at(9) }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} – {})", Micros(self.median_us), Micros(self.p10_us), Micros(self.p90_us))
    }
}

struct Micros(f64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us < 1000.0 => write!(f, "{us:.0} µs"),
            us if us < 1_000_000.0 => write!(f, "{:.1} ms", us / 1e3),
            us => write!(f, "{:.2} s", us / 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_in_the_middle() {
        let mut samples = Samples::default();
        for ms in [5, 1, 4, 2, 3, 9, 8, 7, 6, 10, 11] {
            samples.push(Duration::from_millis(ms));
        }
        let Summary { n, median_us, p10_us, p90_us } = samples.summary();
        assert_eq!((n, median_us, p10_us, p90_us), (11, 6000.0, 2000.0, 10_000.0));
    }

    #[test]
    fn units_fit_the_size() {
        let summary = Summary { n: 1, median_us: 281.4, p10_us: 1500.0, p90_us: 2_000_000.0 };
        assert_eq!(summary.to_string(), "281 µs (1.5 ms – 2.00 s)");
    }
}
