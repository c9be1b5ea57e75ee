//! Which requests are traced.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use opentelemetry::TraceId;

/// A share of all by their trace, and what its sender samples, but never more than [`PER_SECOND`]:
/// who asks chooses its trace and its flag, and could have every request sent.
pub(super) struct Sampler {
    /// Traces whose last eight bytes are below this.
    below: u128,
    left: Mutex<(Instant, f64)>,
}

impl Sampler {
    pub(super) fn new(ratio: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 2^64")]
        let below = (ratio.clamp(0.0, 1.0) * 2_f64.powi(64)) as u128;
        Self { below, left: Mutex::new((Instant::now(), PER_SECOND)) }
    }

    pub(super) fn takes(&self, trace: TraceId, is_wanted: bool) -> bool {
        let last = u128::from_be_bytes(trace.to_bytes()) & u128::from(u64::MAX);
        (is_wanted || last < self.below) && self.has_room(Instant::now())
    }

    fn has_room(&self, now: Instant) -> bool {
        // Numbers are never half written.
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let (then, tokens) = *left;
        let tokens = (tokens + now.saturating_duration_since(then).as_secs_f64() * PER_SECOND).min(PER_SECOND);
        let has_room = tokens >= 1.0;
        *left = (now, if has_room { tokens - 1.0 } else { tokens });
        has_room
    }
}

const PER_SECOND: f64 = 200.0;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_trace_is_taken_whole_or_not_by_its_id() {
        let low = TraceId::from_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0c, 0, 0, 0, 0, 0, 0, 1]);
        let high = TraceId::from_bytes([0, 0, 0, 0, 0, 0, 0, 1, 0x0d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let sampler = Sampler::new(0.05);
        assert!(sampler.takes(low, false) && !sampler.takes(high, false) && sampler.takes(high, true));
        assert!(!Sampler::new(0.0).takes(TraceId::from_bytes([0; 16]), false));
        assert!(Sampler::new(1.0).takes(TraceId::from_bytes([0xff; 16]), false));
    }

    #[test]
    fn nobody_has_more_sent_than_fits() {
        let (sampler, now) = (Sampler::new(1.0), Instant::now());
        let taken = |now| (0..1000).filter(|_| sampler.has_room(now)).count();
        assert_eq!(taken(now), 200);
        assert_eq!(taken(now + Duration::from_millis(100)), 20);
        assert_eq!(taken(now + Duration::from_hours(1)), 200);
    }
}
