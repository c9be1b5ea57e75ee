//! The pools of instances: how many, how full, how long a request waits for a place, and how
//! instances end. Places and instances are gauges that a core sets as it looks itself over.

use std::{cell::Cell, fmt, sync::Arc, time::Instant};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// The counts of all cores and revisions of a node. Clones are the same counts.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Counts>);

struct Counts {
    levels: [Gauge; LEVELS.len()],
    waiting: Gauge,
    waited: Histogram,
    refused: Counter,
    started: Counter,
    retired: Counter,
    lost: Family<[(&'static str, &'static str); 1], Counter>,
}

/// Why an instance ended in the middle of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There never was one.
    Instantiate,
    /// The guest trapped.
    Trap,
    /// It computed too long without waiting.
    Cpu,
    /// It was refused memory, and trapped.
    Memory,
    /// It worked on past its last request's deadline.
    Deadline,
}

impl Cause {
    const ALL: [Self; 5] = [Self::Instantiate, Self::Trap, Self::Cpu, Self::Memory, Self::Deadline];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Instantiate => "instantiate",
            Self::Trap => "trap",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Deadline => "deadline",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Default for Pool {
    fn default() -> Self {
        let lost = Family::<[(&'static str, &'static str); 1], Counter>::default();
        for cause in Cause::ALL {
            // There from the start: a rate over what appears with its first loss misses that one.
            drop(lost.get_or_create(&[("cause", cause.name())]));
        }
        Self(Arc::new(Counts {
            levels: LEVELS.map(|_| Gauge::default()),
            waiting: Gauge::default(),
            waited: Histogram::new([0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5]),
            refused: Counter::default(),
            started: Counter::default(),
            retired: Counter::default(),
            lost,
        }))
    }
}

/// What one core's set of instances looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    /// Instances that take requests.
    pub(crate) instances: usize,
    /// Of these, those that compute.
    pub(crate) busy: usize,
    /// Instances that finish what they have.
    pub(crate) retiring: usize,
    /// Linear memory of all, in bytes.
    pub(crate) memory_bytes: usize,
    /// Requests that may be under way at once.
    pub(crate) places: usize,
    /// Requests that are.
    pub(crate) taken: usize,
}

/// Names and meanings of [`Levels`], in their order.
const LEVELS: [(&str, &str); 6] = [
    ("edgepass_pool_instances", "Instances that take requests"),
    ("edgepass_pool_busy_instances", "Instances that compute just now"),
    ("edgepass_pool_retiring_instances", "Instances that only finish what they have"),
    ("edgepass_pool_memory_bytes", "Linear memory of all instances"),
    ("edgepass_pool_places", "Requests that may be in instances at once"),
    ("edgepass_pool_taken_places", "Requests that are in instances"),
];

impl Levels {
    fn values(self) -> [i64; LEVELS.len()] {
        [self.instances, self.busy, self.retiring, self.memory_bytes, self.places, self.taken]
            .map(|value| i64::try_from(value).unwrap_or(i64::MAX))
    }
}

/// One core's part of the levels, gone when dropped.
pub(crate) struct Part {
    pool: Pool,
    said: Cell<[i64; LEVELS.len()]>,
}

impl Part {
    /// Says how it looks now.
    pub(crate) fn say(&self, levels: Levels) {
        self.put(levels.values());
    }

    fn put(&self, values: [i64; LEVELS.len()]) {
        let before = self.said.replace(values);
        for ((gauge, value), before) in self.pool.0.levels.iter().zip(values).zip(before) {
            gauge.inc_by(value - before);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.put(Default::default());
    }
}

/// A request in the queue, until it is dropped.
pub(crate) struct Waiting<'a> {
    counts: &'a Counts,
    since: Instant,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.counts.waiting.dec();
        self.counts.waited.observe(self.since.elapsed().as_secs_f64());
    }
}

impl Pool {
    /// A part for one more core.
    pub(crate) fn part(&self) -> Part {
        Part { pool: self.clone(), said: Cell::default() }
    }

    /// A request waits for a place.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.0.waiting.inc();
        Waiting { counts: &self.0, since: Instant::now() }
    }

    /// A request was given no place.
    pub(crate) fn refuse(&self) {
        self.0.refused.inc();
    }

    /// An instance was started.
    pub(crate) fn start(&self) {
        self.0.started.inc();
    }

    /// An instance ended as it should.
    pub(crate) fn retire(&self) {
        self.0.retired.inc();
    }

    /// An instance ended otherwise.
    pub(crate) fn lose(&self, cause: Cause) {
        self.0.lost.get_or_create(&[("cause", cause.name())]).inc();
    }

    /// Levels by name, with what else is worth a look.
    pub(crate) fn look(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let levels = LEVELS.iter().zip(&self.0.levels);
        let levels = levels.map(|((name, _), gauge)| (name.trim_start_matches("edgepass_pool_"), gauge.get()));
        levels.chain([("waiting", self.0.waiting.get())])
    }

    /// Counters by name: started, retired, refused, and lost by cause.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let ended =
            [("started", self.0.started.get()), ("retired", self.0.retired.get()), ("refused", self.0.refused.get())];
        let lost = Cause::ALL.map(|cause| (cause.name(), self.0.lost.get_or_create(&[("cause", cause.name())]).get()));
        ended.into_iter().chain(lost)
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let counts = &self.0;
        for ((name, help), gauge) in LEVELS.iter().zip(&counts.levels) {
            registry.register(*name, *help, gauge.clone());
        }
        registry.register("edgepass_pool_waiting_requests", "Requests that wait for a place", counts.waiting.clone());
        let help = "How long requests waited that found no place at once";
        registry.register("edgepass_pool_wait_seconds", help, counts.waited.clone());
        registry.register(
            "edgepass_pool_refused_requests",
            "Requests that were given no place",
            counts.refused.clone(),
        );
        registry.register("edgepass_pool_started_instances", "Instances started", counts.started.clone());
        registry.register(
            "edgepass_pool_retired_instances",
            "Instances that ended as they should",
            counts.retired.clone(),
        );
        let help = "Instances that ended in the middle of their work, by cause";
        registry.register("edgepass_pool_lost_instances", help, counts.lost.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_of_the_cores_that_are_there() {
        let pool = Pool::default();
        let level = |name: &str| pool.look().find(|(level, _)| *level == name).map(|(_, value)| value);
        let (one, two) = (pool.part(), pool.part());
        one.say(Levels { instances: 3, ..Levels::default() });
        two.say(Levels { instances: 2, busy: 1, ..Levels::default() });
        one.say(Levels { instances: 1, ..Levels::default() });
        assert_eq!((level("instances"), level("busy_instances")), (Some(3), Some(1)));
        drop(two);
        assert_eq!((level("instances"), level("busy_instances")), (Some(1), Some(0)));
    }

    #[test]
    fn a_request_waits_until_it_is_dropped() {
        let pool = Pool::default();
        let waits = |pool: &Pool| pool.look().any(|(name, value)| name == "waiting" && value == 1);
        let waiting = pool.wait();
        assert!(waits(&pool));
        drop(waiting);
        assert!(!waits(&pool));
        let (mut registry, mut text) = (Registry::default(), String::new());
        pool.register(&mut registry);
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("it is text");
        assert!(text.contains("edgepass_pool_wait_seconds_count 1\n"), "{text}");
    }
}
