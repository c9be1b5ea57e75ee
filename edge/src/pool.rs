//! Which instance takes a request, and when an instance has served long enough. Rules only, no
//! instances: `crate::node_door` asks here.

use std::time::Duration;

/// Limits of the instances of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most instances that take requests, per core. An instance costs about 10 µs and 64 KiB.
    pub max_instances: usize,
    /// Requests under way in an instance before another one is used. Eight instances with eight
    /// requests cost the same as one with 64, and a trap loses eight requests instead of 64.
    pub in_flight: usize,
    /// Requests under way in an instance, never exceeded.
    pub max_in_flight: usize,
    /// How long a request waits for a place before it is answered 503.
    pub queue_wait: Duration,
    /// Requests after which an instance is replaced; each instance draws its own number between
    /// three quarters of this and all of it, so that they do not all go at once.
    pub max_reuse: u32,
    /// Age at which an instance is replaced.
    pub max_age: Duration,
    /// How long an instance may have nothing to do before it goes. One per core stays.
    pub max_idle: Duration,
    /// Most memory of an instance, in bytes. It is replaced at half of that.
    pub max_memory_bytes: usize,
    /// How long a guest may compute without waiting for anything before it traps.
    pub max_cpu: Duration,
    /// How long after a request's deadline, or after the end of its use, an instance may work on
    /// before its store is dropped with everything in it.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_instances: 128,
            in_flight: 8,
            max_in_flight: 32,
            queue_wait: Duration::from_secs(1),
            max_reuse: 10_000,
            max_age: Duration::from_hours(1),
            max_idle: Duration::from_secs(10),
            max_memory_bytes: 64 << 20,
            max_cpu: Duration::from_millis(500),
            grace: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// One request per instance, in a fresh one each time: nothing of a request is left for the
    /// next, at a tenth to a fifth of the throughput.
    #[must_use]
    pub fn isolated(self) -> Self {
        Self { in_flight: 1, max_in_flight: 1, max_reuse: 1, ..self }
    }

    /// Requests a core takes at once; more wait.
    #[must_use]
    pub fn places(&self) -> usize {
        self.max_instances.max(1) * self.in_flight.clamp(1, self.max_in_flight.max(1))
    }
}

/// What the rules see of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Requests under way.
    pub in_flight: usize,
    /// It computes, so a request given to it would wait.
    pub busy: bool,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Into this one.
    Use(usize),
    /// Into a new one.
    New,
    /// Nowhere: all are full.
    Full,
}

/// Chooses among the instances of a core: the fullest that has room and waits, so that the others
/// become idle and can go; else a new one; else, at the limit, the emptiest.
#[must_use]
pub fn choose(instances: impl ExactSizeIterator<Item = Load> + Clone, limits: &Limits) -> Choice {
    let count = instances.len();
    let fullest = instances
        .clone()
        .enumerate()
        .filter(|(_, load)| !load.busy && load.in_flight < limits.in_flight)
        .max_by_key(|(_, load)| load.in_flight);
    if let Some((index, _)) = fullest {
        return Choice::Use(index);
    }
    if count < limits.max_instances.max(1) {
        return Choice::New;
    }
    instances
        .enumerate()
        .filter(|(_, load)| load.in_flight < limits.max_in_flight)
        .min_by_key(|(_, load)| (load.busy, load.in_flight))
        .map_or(Choice::Full, |(index, _)| Choice::Use(index))
}

/// The number of requests after which an instance goes, from a random number.
#[must_use]
pub fn reuse(limits: &Limits, random: u32) -> u32 {
    limits.max_reuse.max(1) - random % (limits.max_reuse / 4 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { max_instances: 3, ..Limits::default() }
    }

    fn chosen(loads: &[(usize, bool)]) -> Choice {
        choose(loads.iter().map(|&(in_flight, busy)| Load { in_flight, busy }), &limits())
    }

    #[test]
    fn the_fullest_with_room_takes_the_request() {
        assert_eq!(chosen(&[(1, false), (7, false), (0, false)]), Choice::Use(1));
    }

    #[test]
    fn a_busy_or_full_instance_is_passed_over() {
        assert_eq!(chosen(&[(7, true), (8, false), (2, false)]), Choice::Use(2));
        assert_eq!(chosen(&[(7, true), (8, false)]), Choice::New);
        assert_eq!(chosen(&[]), Choice::New);
    }

    #[test]
    fn at_the_limit_the_emptiest_that_waits_takes_it() {
        assert_eq!(chosen(&[(9, false), (8, false), (0, true)]), Choice::Use(1));
        assert_eq!(chosen(&[(1, true), (2, true), (32, false)]), Choice::Use(0));
        assert_eq!(chosen(&[(32, false), (32, true), (40, false)]), Choice::Full);
    }

    #[test]
    fn reuse_is_drawn_from_the_last_quarter() {
        let limits = Limits { max_reuse: 100, ..limits() };
        let drawn: Vec<u32> = (0..200).map(|random| reuse(&limits, random)).collect();
        assert_eq!(drawn.iter().min(), Some(&75));
        assert_eq!(drawn.iter().max(), Some(&100));
        assert_eq!(reuse(&limits.isolated(), u32::MAX), 1);
        assert_eq!(reuse(&Limits { max_reuse: 0, ..limits }, 3), 1);
    }

    #[test]
    fn isolated_has_one_place_per_instance() {
        assert_eq!(limits().places(), 24);
        assert_eq!(limits().isolated().places(), 3);
        assert_eq!(Limits { max_instances: 0, in_flight: 0, ..limits() }.places(), 1);
    }
}
