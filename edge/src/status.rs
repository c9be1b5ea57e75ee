//! What an operator sees at a glance: `GET /status`, and the page at `/` that draws it.
//!
//! The facts are the metrics'. What they say of the last minute is kept here, so that one question is
//! enough for a rate or a percentile.

mod history;
mod page;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use http::Method;
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::history::History;
use crate::{
    admin::{Asked, Route},
    metrics::{Metrics, histogram::Sum, http::Totals, process, route::Operation},
};

/// Says what is served: the revisions, as `GET /revisions` shows them.
pub(crate) type Revisions = Arc<dyn Fn() -> Value + Send + Sync>;

/// `GET /status` for whoever has the token, and `GET /`, the page, for all: it holds nothing until it
/// is given the token.
pub(crate) fn routes(metrics: &Metrics, revisions: Revisions) -> Vec<Route> {
    let status = Arc::new(Status {
        metrics: metrics.clone(),
        history: History::keep(metrics),
        revisions,
        started: (Instant::now(), SystemTime::now()),
    });
    let answer = move |asked: Asked| {
        let status = status.clone();
        async move { Ok(asked.json_answer(&status.now())) }
    };
    vec![Route::new(Method::GET, "/status", answer), page::route()]
}

struct Status {
    metrics: Metrics,
    history: Arc<History>,
    revisions: Revisions,
    started: (Instant, SystemTime),
}

/// One operation over the window.
#[derive(Serialize)]
struct Spent {
    name: &'static str,
    count: u64,
    per_second: f64,
    #[serde(flatten)]
    answer: Percentiles,
    stages: Vec<Stage>,
}

#[derive(Serialize)]
struct Stage {
    name: &'static str,
    count: u64,
    #[serde(flatten)]
    time: Percentiles,
}

/// In milliseconds; `null` where nothing was.
#[derive(Serialize)]
struct Percentiles {
    #[serde(rename = "p50_ms")]
    p50: Option<f64>,
    #[serde(rename = "p95_ms")]
    p95: Option<f64>,
    #[serde(rename = "p99_ms")]
    p99: Option<f64>,
}

impl Percentiles {
    fn of(sum: &Sum) -> Self {
        let at = |quantile| sum.quantile(quantile).map(milliseconds);
        Self { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

/// To the microsecond.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

impl Status {
    fn now(&self) -> Value {
        let (totals, (window, before)) = (self.metrics.http().totals(), self.history.oldest());
        let recent = totals.since(&before);
        let seconds = window.as_secs_f64().max(1e-3);
        let mut faults = Map::new();
        let outcomes: Vec<Value> = recent
            .outcomes()
            .map(|(operation, outcome, fault, count)| {
                let sum = faults.get(fault).and_then(Value::as_u64).unwrap_or(0) + count;
                faults.insert(fault.to_owned(), sum.into());
                json!({"operation": operation, "outcome": outcome, "fault": fault, "count": count})
            })
            .collect();
        let since = Duration::from_secs(self.started.0.elapsed().as_secs());
        let process = process::Seen::read();
        json!({
            "node": {
                "version": env!("CARGO_PKG_VERSION"),
                "started_at": humantime::format_rfc3339_seconds(self.started.1).to_string(),
                "uptime_seconds": since.as_secs(),
                "cpu_seconds": process.as_ref().map(|seen| seen.cpu_seconds),
                "resident_bytes": process.as_ref().and_then(|seen| seen.resident_bytes),
                "open_fds": process.as_ref().and_then(|seen| seen.open_fds),
                "max_fds": process.as_ref().and_then(|seen| seen.max_fds),
            },
            "revisions": (self.revisions)(),
            "window_seconds": seconds.round(),
            "in_flight": totals.in_flight(),
            "operations": spent(&recent, seconds),
            "outcomes": outcomes,
            "faults": faults,
            "events": self.metrics.events().all().collect::<Map<_, _>>(),
            "pool": self.metrics.pool().look().map(|(name, value)| (name.to_owned(), value.into())).collect::<Map<_, _>>(),
            "instances": self.metrics.pool().counted().map(|(name, count)| (name.to_owned(), count.into())).collect::<Map<_, _>>(),
            // What other parts of the node measure, by the names of `/metrics`.
            "gauges": self.metrics.values(SHOWN),
        })
    }
}

fn spent(recent: &Totals, seconds: f64) -> Vec<Spent> {
    let of = |operation: Operation| {
        let answers = recent.durations(operation);
        let stages = recent.stages(operation).filter(|(_, sum)| sum.count() > 0);
        Spent {
            name: operation.name(),
            count: answers.count(),
            per_second: (crate::metrics::histogram::as_f64(answers.count()) / seconds * 100.0).round() / 100.0,
            answer: Percentiles::of(&answers),
            stages: stages.map(|(name, sum)| Stage { name, count: sum.count(), time: Percentiles::of(sum) }).collect(),
        }
    };
    Operation::ALL.into_iter().map(of).collect()
}

/// Beginnings of the names that are shown as they are.
const SHOWN: &[&str] = &[
    "edgepass_breaker",
    "edgepass_connections",
    "edgepass_drain",
    "edgepass_kv",
    "edgepass_outbound",
    "edgepass_ratelimit",
    "edgepass_request_body",
    "edgepass_swap",
    "edgepass_tls",
];
