//! A backend with its calls counted and timed.

use std::time::Instant;

use bytes::Bytes;
use futures::future::BoxFuture;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::{Backend, Change, Failure, SharedBackend};

/// Passes every call on.
pub struct Metered {
    inner: SharedBackend,
    metrics: Metrics,
}

/// What is counted of a store. Clones count together.
#[derive(Clone)]
pub struct Metrics {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    op: &'static str,
    result: &'static str,
}

impl Metrics {
    /// Adds them to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let durations = self.durations.clone();
        registry.register("edgepass_kv_operation_duration_seconds", "Calls of the key-value store", durations);
        registry.register("edgepass_kv_operations_in_flight", "Calls of the store under way", self.in_flight.clone());
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { durations: Family::new_with_constructor(histogram), in_flight: Gauge::default() }
    }
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

/// From a look into memory to a call that has had all its time, in seconds.
const BUCKETS: [f64; 15] =
    [0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

impl Metered {
    /// Counts the calls of `inner` in `metrics`.
    #[must_use]
    pub fn new(inner: SharedBackend, metrics: Metrics) -> Self {
        Self { inner, metrics }
    }

    fn timed<'a, T: 'a>(
        &'a self,
        op: &'static str,
        call: BoxFuture<'a, Result<T, Failure>>,
    ) -> BoxFuture<'a, Result<T, Failure>> {
        let timed = Timed { metrics: &self.metrics, op, begun: Instant::now(), result: "abandoned" };
        timed.metrics.in_flight.inc();
        Box::pin(async move {
            let mut timed = timed;
            let done = call.await;
            timed.result = match &done {
                Ok(_) => "ok",
                Err(Failure::Unavailable) => "unavailable",
                Err(Failure::Timeout) => "timeout",
                Err(Failure::Denied) => "denied",
                Err(Failure::TooLarge) => "too_large",
            };
            done
        })
    }
}

/// A call under way; counted when it ends, or nobody waits for it any more.
struct Timed<'a> {
    metrics: &'a Metrics,
    op: &'static str,
    begun: Instant,
    result: &'static str,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        let labels = Labels { op: self.op, result: self.result };
        self.metrics.durations.get_or_create(&labels).observe(self.begun.elapsed().as_secs_f64());
    }
}

impl Backend for Metered {
    fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Failure>> {
        self.timed("get", self.inner.get(keys))
    }

    fn apply(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<Vec<bool>, Failure>> {
        self.timed("apply", self.inner.apply(changes))
    }

    fn scan(&self, prefix: String, after: Option<String>, limit: usize) -> BoxFuture<'_, Result<Vec<String>, Failure>> {
        self.timed("scan", self.inner.scan(prefix, after, limit))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
        self.inner.close()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kv::Memory;

    #[tokio::test]
    async fn every_call_is_counted_by_what_became_of_it() {
        let metrics = Metrics::default();
        let store = Metered::new(Arc::new(Memory::new()), metrics.clone());
        store.get(vec!["a".into()]).await.expect("reads");
        store.apply(vec![Change::Delete("a".into())]).await.expect("writes");
        assert_eq!(store.get(vec!["k".repeat(9999)]).await, Err(Failure::TooLarge));
        drop(store.scan(String::new(), None, 1));
        store.close().await.expect("closes");
        assert_eq!(store.scan(String::new(), None, 1).await, Err(Failure::Unavailable));

        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("a text");
        for line in [
            r#"edgepass_kv_operation_duration_seconds_count{op="get",result="ok"} 1"#,
            r#"edgepass_kv_operation_duration_seconds_count{op="apply",result="ok"} 1"#,
            r#"edgepass_kv_operation_duration_seconds_count{op="get",result="too_large"} 1"#,
            r#"edgepass_kv_operation_duration_seconds_count{op="scan",result="abandoned"} 1"#,
            r#"edgepass_kv_operation_duration_seconds_count{op="scan",result="unavailable"} 1"#,
            "edgepass_kv_operations_in_flight 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
