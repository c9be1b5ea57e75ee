//! Traces on request: spans of sampled requests, sent to a collector by OTLP over HTTP.
//!
//! A request is never slower for it: its spans go into a bounded queue, from which a thread sends
//! them. What does not fit, and what cannot be sent, is counted and forgotten. A span names the route
//! and the stages, never a path, a query or a person. The lengths of stages are the component's own
//! measurement; they stand one behind the other, which is not always how they were.

mod exporter;
mod sampler;

use std::{
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, StatusCode};
use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use self::sampler::Sampler;
use crate::{
    exchange,
    metrics::{http::Seen, stage::STAGES},
};

/// Where spans go, and of which requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The collector's URL for traces.
    pub endpoint: String,
    /// The share of requests, 0 to 1, by their trace. A request whose sender samples its trace is
    /// taken too, as long as all together are few.
    pub ratio: f64,
}

/// Why there are no traces.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The collector's URL is none, or the exporter does not take it.
    #[error("{0} is no URL to send traces to")]
    Endpoint(String),
    /// No thread.
    #[error("starting the thread that sends traces")]
    Thread(#[source] std::io::Error),
}

/// Takes the spans of requests.
pub struct Traces {
    sampler: Sampler,
    queue: SyncSender<Vec<SpanData>>,
    counts: Counts,
    scope: InstrumentationScope,
}

/// Spans by what became of them.
#[derive(Clone, Default)]
struct Counts(Family<[(&'static str, &'static str); 1], Counter>);

impl Counts {
    fn add(&self, result: &'static str, spans: usize) {
        self.0.get_or_create(&[("result", result)]).inc_by(spans as u64);
    }
}

/// Who asked: the `traceparent` of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    trace: TraceId,
    span: SpanId,
    sampled: bool,
}

impl Context {
    /// Of the one `traceparent` in `head` (W3C Trace Context §3.2): version 00 exactly, a later one by
    /// what it has in common with 00.
    pub(crate) fn of(head: &HeaderMap) -> Option<Self> {
        let mut values = head.get_all("traceparent").iter();
        let (Some(only), None) = (values.next(), values.next()) else { return None };
        let fields: Vec<&str> = only.to_str().ok()?.split('-').collect();
        let [version, trace, span, flags, ref more @ ..] = fields[..] else { return None };
        let is_hex = |text: &str, length| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_version = is_hex(version, 2) && version != "ff" && (more.is_empty() || version != "00");
        if !is_version || !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
            return None;
        }
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (trace != TraceId::INVALID && span != SpanId::INVALID).then_some(Self { trace, span, sampled })
    }

    /// The trace's id, 32 hexadecimal digits.
    pub(crate) fn trace(&self) -> String {
        self.trace.to_string()
    }
}

impl Traces {
    /// Starts the thread that sends.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(config: &Config) -> Result<Arc<Self>, Error> {
        let unusable = || Error::Endpoint(config.endpoint.clone());
        let url: http::Uri = config.endpoint.parse().map_err(|_| unusable())?;
        if url.host().is_none_or(str::is_empty) || !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(unusable());
        }
        let origin = config.endpoint.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        let client = exchange::client(&[&origin]).map_err(|_| unusable())?;
        let exporter = exporter::build(&config.endpoint, client).ok_or_else(unusable)?;
        let (queue, inbox) = sync_channel(QUEUE);
        let counts = Counts::default();
        for result in ["sent", "failed", "dropped"] {
            counts.add(result, 0);
        }
        let counted = counts.clone();
        let run = move || exporter::run(&exporter, &inbox, |result, spans| counted.add(result, spans));
        thread::Builder::new().name("traces".into()).spawn(run).map_err(Error::Thread)?;
        let scope = InstrumentationScope::builder("edgepass").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Arc::new(Self { sampler: Sampler::new(config.ratio), queue, counts, scope }))
    }

    /// How many spans were sent, failed and dropped.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("edgepass_trace_spans", "Spans by what became of them", self.counts.0.clone());
    }

    /// A request has been answered. `asked` is who asked, `head` the answer's.
    pub(crate) fn answered(&self, asked: Option<Context>, head: &HeaderMap, status: StatusCode, seen: &Seen) {
        // The component answers with the name of its own span; what is sent is that one.
        let Some(own) = Context::of(head).or(asked) else { return };
        if !self.sampler.takes(own.trace, asked.is_some_and(|asked| asked.sampled)) {
            return;
        }
        let spans = self.spans(own, asked.filter(|asked| asked.trace == own.trace), status, seen);
        let count = spans.len();
        if self.queue.try_send(spans).is_err() {
            self.counts.add("dropped", count);
        }
    }

    fn spans(&self, own: Context, parent: Option<Context>, status: StatusCode, seen: &Seen) -> Vec<SpanData> {
        let end = SystemTime::now();
        let start = end.checked_sub(seen.duration).unwrap_or(end);
        // Where the component names no span, the parent's must not be used twice.
        let id = if parent.is_some_and(|parent| parent.span == own.span) { random() } else { own.span };
        let mut server = self.span(own.trace, id, format!("{} {}", seen.method, seen.route), start, end);
        server.span_kind = SpanKind::Server;
        server.parent_span_id = parent.map_or(SpanId::INVALID, |parent| parent.span);
        server.parent_span_is_remote = parent.is_some();
        server.attributes = vec![
            KeyValue::new("http.request.method", seen.method),
            KeyValue::new("http.route", seen.route),
            KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
        ];
        if status.is_server_error() {
            server.status = Status::error("");
            server.attributes.push(KeyValue::new("error.type", status.as_str().to_owned()));
        }
        let mut spans = vec![server];
        let mut at = start;
        for (stage, nanos) in STAGES.into_iter().zip(seen.stages).filter(|(_, nanos)| *nanos > 0) {
            let until = (at + Duration::from_nanos(nanos)).min(end);
            let mut span = self.span(own.trace, random(), stage.to_owned(), at, until);
            span.parent_span_id = id;
            spans.push(span);
            at = until;
        }
        spans
    }

    fn span(&self, trace: TraceId, id: SpanId, name: String, start: SystemTime, end: SystemTime) -> SpanData {
        SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default()),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: start,
            end_time: end,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }
}

/// Sampled requests that wait to be sent.
const QUEUE: usize = 2048;

/// A name, no secret.
fn random() -> SpanId {
    SpanId::from(getrandom::u64().unwrap_or(1).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_traceparent_is_a_context() {
        let of = |value: &'static str| {
            let mut head = HeaderMap::new();
            head.insert("traceparent", http::HeaderValue::from_static(value));
            Context::of(&head)
        };
        // The example of W3C Trace Context §3.2.3.
        let good = of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").expect("a context");
        assert_eq!((good.trace().as_str(), good.sampled), ("4bf92f3577b34da6a3ce929d0e0e4736", true));
        let unsampled = of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe").expect("a context");
        assert!(!unsampled.sampled);
        for later in [
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "fe-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more-x",
        ] {
            assert_eq!(of(later), Some(good), "{later}");
        }
        for bad in [
            "",
            "zz-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn stages_are_children_within_their_request() {
        let config = Config { endpoint: "http://127.0.0.1:9/v1/traces".into(), ratio: 0.0 };
        let traces = Traces::start(&config).expect("a collector's URL");
        let mut head = HeaderMap::new();
        head.insert("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00".parse().expect("a value"));
        let own = Context::of(&head).expect("a context");
        let duration = Duration::from_millis(10);
        let seen = Seen { route: "/api/login", method: "POST", duration, stages: [1_000_000, 8_000_000, 0, 5_000_000] };
        let spans = traces.spans(own, None, StatusCode::OK, &seen);
        let named: Vec<_> = spans
            .iter()
            .map(|span| (&*span.name, span.end_time.duration_since(span.start_time).expect("in order").as_millis()))
            .collect();
        assert_eq!(named, [("POST /api/login", 10), ("parse", 1), ("platform", 8), ("sign", 1)], "none ends after all");
        assert_eq!(spans[0].span_context.span_id(), own.span, "as it was answered");
        assert!(spans[1..].iter().all(|span| span.parent_span_id == own.span && span.end_time <= spans[0].end_time));
    }
}
