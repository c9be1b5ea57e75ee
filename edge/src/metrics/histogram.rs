//! Durations counted into buckets, without a lock: what a core counts for itself.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper ends of the buckets, in nanoseconds.
pub(crate) type Bounds = &'static [u64];

/// A distribution of durations. Written by one core, read by all.
#[derive(Debug)]
pub(crate) struct Durations {
    bounds: Bounds,
    /// One per bound, and one for what is longer.
    counts: Box<[AtomicU64]>,
    nanos: AtomicU64,
}

impl Durations {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), nanos: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, nanos: u64) {
        // A handful of bounds, most answers within the first: faster than halving.
        let bucket = self.bounds.iter().position(|&bound| nanos <= bound).unwrap_or(self.bounds.len());
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// Adds what is counted here to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Sum) {
        sum.bounds = self.bounds;
        sum.counts.resize(self.counts.len(), 0);
        for (all, count) in sum.counts.iter_mut().zip(&self.counts) {
            *all += count.load(Relaxed);
        }
        sum.nanos += self.nanos.load(Relaxed);
    }
}

/// Distributions added up, at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    bounds: Bounds,
    counts: Vec<u64>,
    nanos: u64,
}

impl Sum {
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// In seconds.
    pub(crate) fn total(&self) -> f64 {
        seconds(self.nanos)
    }

    /// Upper end in seconds and count of every bucket.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        let ends = self.bounds.iter().map(|&bound| seconds(bound)).chain([f64::INFINITY]);
        ends.zip(self.counts.iter().copied()).collect()
    }

    /// Adds another distribution over the same bounds.
    pub(crate) fn add(&mut self, other: &Self) {
        self.bounds = if other.bounds.is_empty() { self.bounds } else { other.bounds };
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.nanos += other.nanos;
    }

    /// What has come since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(before).map(|(now, then)| now.saturating_sub(then)).collect();
        Self { bounds: self.bounds, counts, nanos: self.nanos.saturating_sub(earlier.nanos) }
    }

    /// The duration below which the share `quantile` (0 to 1) of all lies: within its bucket as if
    /// evenly spread. `None` of nothing; of what is longer than the last bound, that bound.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<Duration> {
        let rank = quantile * as_f64(self.count());
        let (mut below, mut low) = (0.0, 0);
        for (&bound, &count) in self.bounds.iter().zip(&self.counts) {
            let count = as_f64(count);
            if count > 0.0 && below + count >= rank {
                let share = ((rank - below) / count).clamp(0.0, 1.0);
                return Some(
                    Duration::from_nanos(low).mul_f64(1.0 - share) + Duration::from_nanos(bound).mul_f64(share),
                );
            }
            below += count;
            low = bound;
        }
        (self.count() > 0).then(|| Duration::from_nanos(low))
    }
}

pub(crate) fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a count of requests is far below 2^53")]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = &[1_000_000, 10_000_000];

    fn sum(durations: &Durations) -> Sum {
        let mut sum = Sum::default();
        durations.add_to(&mut sum);
        sum
    }

    #[test]
    fn a_duration_counts_in_the_bucket_it_fits() {
        let durations = Durations::new(BOUNDS);
        for nanos in [0, 1_000_000, 1_000_001, 99_000_000] {
            durations.observe(nanos);
        }
        let sum = sum(&durations);
        assert_eq!(sum.buckets(), [(0.001, 2), (0.01, 1), (f64::INFINITY, 1)]);
        assert_eq!((sum.count(), sum.total()), (4, 0.101_000_001));
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let durations = Durations::new(BOUNDS);
        assert_eq!(sum(&durations).quantile(0.5), None);
        (0..9).for_each(|_| durations.observe(500_000));
        durations.observe(5_000_000);
        let middle = sum(&durations).quantile(0.5).expect("there are some");
        assert!(middle > Duration::from_micros(500) && middle < Duration::from_micros(600), "{middle:?}");
        assert_eq!(sum(&durations).quantile(1.0), Some(Duration::from_millis(10)));
        let before = sum(&durations);
        durations.observe(60_000_000_000);
        assert_eq!(sum(&durations).since(&before).quantile(0.5), Some(Duration::from_millis(10)), "no end is known");
    }
}
