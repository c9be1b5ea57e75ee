//! Requests as the front answers them: how many, how long, how they ended, and in which stage the
//! time went.
//!
//! Every core counts for itself, so that two never write the same line of cache; a scrape adds up.
//! A request costs two readings of the clock, one look through the routes and about ten additions.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderName, Method, StatusCode};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

use super::{
    histogram::{Bounds, Durations, Sum},
    outcome::Outcome,
    route::{Operation, Slot},
    stage::{self, STAGES},
};

/// The cores' counts.
#[derive(Debug, Default)]
pub(crate) struct Http(Mutex<Vec<Arc<Shard>>>);

/// What one core counts.
#[derive(Debug)]
pub(crate) struct Shard {
    /// By labels and class of status.
    answers: Box<[[Durations; CLASSES.len()]]>,
    /// By operation.
    stages: [[Durations; STAGES.len()]; Operation::ALL.len()],
    /// By operation and outcome.
    outcomes: [[AtomicU64; Outcome::COUNT]; Operation::ALL.len()],
    in_flight: AtomicI64,
    abandoned: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

/// What an observation needs of an answer.
pub(crate) struct Answer<'a> {
    pub(crate) status: StatusCode,
    pub(crate) head: &'a HeaderMap,
    /// The code of an answer that the node gives itself.
    pub(crate) own: Option<&'static str>,
    pub(crate) body: &'a [u8],
}

/// A request that is being answered. Dropped without an answer, its client has gone.
pub(crate) struct Observation {
    shard: Arc<Shard>,
    slot: Slot,
    begun: Instant,
    ended: bool,
}

/// What is known of a request once it is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) route: &'static str,
    pub(crate) method: &'static str,
    pub(crate) duration: Duration,
    /// In nanoseconds, as [`STAGES`] are ordered; 0 of one that did not take place.
    pub(crate) stages: [u64; STAGES.len()],
}

impl Http {
    /// Counts for one more core.
    pub(crate) fn shard(&self) -> Arc<Shard> {
        let shard = Arc::new(Shard::new());
        self.shards().push(shard.clone());
        shard
    }

    /// Adds up what all cores have counted so far.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for shard in &*self.shards() {
            shard.add_to(&mut totals);
        }
        totals
    }

    fn shards(&self) -> MutexGuard<'_, Vec<Arc<Shard>>> {
        // A list of pointers is never half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn new() -> Self {
        Self {
            answers: (0..Slot::COUNT).map(|_| CLASSES.map(|_| Durations::new(ANSWER_BOUNDS))).collect(),
            stages: Operation::ALL.map(|_| STAGES.map(|_| Durations::new(STAGE_BOUNDS))),
            outcomes: Operation::ALL.map(|_| [const { AtomicU64::new(0) }; Outcome::COUNT]),
            in_flight: AtomicI64::new(0),
            abandoned: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }
    }

    /// A request's head is there.
    pub(crate) fn begin(self: &Arc<Self>, method: &Method, path: &str) -> Observation {
        self.in_flight.fetch_add(1, Relaxed);
        Observation { shard: self.clone(), slot: Slot::of(method, path), begun: Instant::now(), ended: false }
    }

    fn add_to(&self, totals: &mut Totals) {
        totals.answers.resize_with(Slot::COUNT, Default::default);
        for (sums, durations) in totals.answers.iter_mut().zip(&self.answers) {
            sums.iter_mut().zip(durations).for_each(|(sum, durations)| durations.add_to(sum));
        }
        for (sums, durations) in totals.stages.iter_mut().zip(&self.stages) {
            sums.iter_mut().zip(durations).for_each(|(sum, durations)| durations.add_to(sum));
        }
        for (sums, counts) in totals.outcomes.iter_mut().zip(&self.outcomes) {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count.load(Relaxed));
        }
        totals.in_flight += self.in_flight.load(Relaxed);
        totals.abandoned += self.abandoned.load(Relaxed);
        totals.received += self.received.load(Relaxed);
        totals.sent += self.sent.load(Relaxed);
    }
}

impl Observation {
    /// The body has been read: so many bytes.
    pub(crate) fn received(&self, bytes: usize) {
        self.shard.received.fetch_add(bytes as u64, Relaxed);
    }

    /// It is answered.
    pub(crate) fn end(mut self, answer: &Answer<'_>) -> Seen {
        self.ended = true;
        let (shard, operation) = (&*self.shard, self.slot.operation());
        let duration = self.begun.elapsed();
        let class = usize::from((answer.status.as_u16() / 100).clamp(2, 5) - 2);
        shard.answers[self.slot.index()][class].observe(nanos(duration));
        let outcome = Outcome::of(answer.status, answer.own, answer.body);
        shard.outcomes[operation as usize][outcome.index()].fetch_add(1, Relaxed);
        shard.sent.fetch_add(answer.body.len() as u64, Relaxed);
        let timing = answer.head.get(SERVER_TIMING).and_then(|value| value.to_str().ok());
        let stages = timing.map_or([0; STAGES.len()], stage::read);
        for (durations, &nanos) in shard.stages[operation as usize].iter().zip(&stages) {
            if nanos > 0 {
                durations.observe(nanos);
            }
        }
        Seen { route: self.slot.route(), method: self.slot.method(), duration, stages }
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.shard.in_flight.fetch_sub(1, Relaxed);
        if !self.ended {
            self.shard.abandoned.fetch_add(1, Relaxed);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// All cores together, at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    answers: Vec<[Sum; CLASSES.len()]>,
    stages: [[Sum; STAGES.len()]; Operation::ALL.len()],
    outcomes: [[u64; Outcome::COUNT]; Operation::ALL.len()],
    in_flight: i64,
    abandoned: u64,
    received: u64,
    sent: u64,
}

impl Totals {
    /// What has come since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut new = self.clone();
        for (sums, before) in new.answers.iter_mut().zip(&earlier.answers) {
            sums.iter_mut().zip(before).for_each(|(sum, before)| *sum = sum.since(before));
        }
        for (sums, before) in new.stages.iter_mut().zip(&earlier.stages) {
            sums.iter_mut().zip(before).for_each(|(sum, before)| *sum = sum.since(before));
        }
        for (counts, before) in new.outcomes.iter_mut().zip(&earlier.outcomes) {
            counts.iter_mut().zip(before).for_each(|(count, before)| *count = count.saturating_sub(*before));
        }
        new
    }

    /// Requests under way.
    pub(crate) fn in_flight(&self) -> i64 {
        self.in_flight
    }

    /// How long answers of an operation took.
    pub(crate) fn durations(&self, operation: Operation) -> Sum {
        let mut all = Sum::default();
        for (slot, classes) in Slot::all().zip(&self.answers) {
            if slot.operation() == operation {
                for sum in classes {
                    all.add(sum);
                }
            }
        }
        all
    }

    /// How long each stage of an operation took, by name.
    pub(crate) fn stages(&self, operation: Operation) -> impl Iterator<Item = (&'static str, &Sum)> {
        STAGES.into_iter().zip(&self.stages[operation as usize])
    }

    /// How often each outcome was, where it was: operation, outcome, whose fault, how often.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str, u64)> {
        Operation::ALL.into_iter().zip(&self.outcomes).flat_map(|(operation, counts)| {
            let counted = Outcome::all().zip(counts).filter(|(_, count)| **count > 0);
            counted.map(move |(outcome, count)| (operation.name(), outcome.name(), outcome.fault(), *count))
        })
    }
}

impl Collector for Http {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let totals = self.totals();
        let mut metric = encoder.encode_descriptor(
            "edgepass_http_server_request_duration_seconds",
            "From a request's head to its answer; HEAD counts as GET, a method the route does not have as route `other`.",
            None,
            MetricType::Histogram,
        )?;
        for (slot, classes) in Slot::all().zip(&totals.answers) {
            for (class, sum) in CLASSES.into_iter().zip(classes) {
                let labels = [("route", slot.route()), ("method", slot.method()), ("status_class", class)];
                distribution(metric.encode_family(&labels)?, sum)?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "edgepass_stage_duration_seconds",
            "Time of answered requests by stage, as the component measured it.",
            None,
            MetricType::Histogram,
        )?;
        for operation in Operation::ALL {
            for (stage, sum) in totals.stages(operation) {
                let labels = [("operation", operation.name()), ("stage", stage)];
                distribution(metric.encode_family(&labels)?, sum)?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "edgepass_outcomes",
            "Answers by what they were for, the code of their problem, and who has to act on it.",
            None,
            MetricType::Counter,
        )?;
        for (operation, outcome, fault, count) in totals.outcomes() {
            let labels = [("operation", operation), ("outcome", outcome), ("fault", fault)];
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        let counters = [
            ("edgepass_http_server_request_body_bytes", "Bytes of bodies received.", totals.received),
            ("edgepass_http_server_response_body_bytes", "Bytes of bodies answered.", totals.sent),
            (
                "edgepass_http_server_abandoned_requests",
                "Requests whose client went away before the answer.",
                totals.abandoned,
            ),
        ];
        for (name, help, count) in counters {
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        encoder
            .encode_descriptor("edgepass_http_server_active_requests", "Requests under way.", None, MetricType::Gauge)?
            .encode_gauge(&totals.in_flight)
    }
}

/// Nothing is said of what never was: most combinations of labels never are.
fn distribution(mut metric: MetricEncoder<'_>, sum: &Sum) -> fmt::Result {
    if sum.count() == 0 {
        return Ok(());
    }
    metric.encode_histogram::<NoLabelSet>(sum.total(), sum.count(), &sum.buckets(), None)
}

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

const CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// OpenTelemetry's advice for servers, with finer ones below: most answers take less than 5 ms.
const ANSWER_BOUNDS: Bounds = &[
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
];

/// Finer still: parsing takes microseconds, a platform takes a tenth of a second.
const STAGE_BOUNDS: Bounds = &[
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(head: &HeaderMap, status: StatusCode) -> Answer<'_> {
        Answer { status, head, own: None, body: b"12345" }
    }

    #[test]
    fn cores_are_added_up() {
        let http = Http::default();
        let mut head = HeaderMap::new();
        head.insert(SERVER_TIMING, "platform;dur=80.000, store;dur=0.000".parse().expect("a value"));
        for _ in 0..2 {
            let seen = http.shard().begin(&Method::POST, "/api/login").end(&answer(&head, StatusCode::OK));
            assert_eq!((seen.route, seen.method, seen.stages), ("/api/login", "POST", [0, 80_000_000, 0, 0]));
        }
        let totals = http.totals();
        assert_eq!(totals.durations(Operation::Login).count(), 2);
        let stages: Vec<_> = totals.stages(Operation::Login).map(|(name, sum)| (name, sum.count())).collect();
        assert_eq!(stages, [("parse", 0), ("platform", 2), ("store", 0), ("sign", 0)], "a stage of no time was none");
        assert_eq!(totals.outcomes().collect::<Vec<_>>(), [("login", "ok", "none", 2)]);
        assert_eq!((totals.sent, totals.in_flight()), (10, 0));
        assert_eq!(totals.since(&totals).durations(Operation::Login).count(), 0);
    }

    #[test]
    fn a_client_that_goes_is_counted() {
        let http = Http::default();
        let shard = http.shard();
        let begun = shard.begin(&Method::GET, "/healthz");
        begun.received(3);
        assert_eq!(http.totals().in_flight(), 1);
        drop(begun);
        let totals = http.totals();
        assert_eq!((totals.in_flight(), totals.abandoned, totals.received), (0, 1, 3));
        assert_eq!(totals.outcomes().count(), 0);
    }
}
