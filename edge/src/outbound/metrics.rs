//! The numbers of the way out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::{Failure, breaker::State};

/// The numbers of a node's upstreams. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<All>);

#[derive(Debug)]
struct All {
    duration: Family<Labels<&'static str>, Histogram, fn() -> Histogram>,
    in_flight: Family<Labels<String>, Gauge>,
    state: Family<Labels<String>, Gauge>,
    transitions: Family<[(&'static str, String); 2], Counter>,
    /// Upstreams with a label of their own.
    named: AtomicUsize,
}

type Labels<T> = [(&'static str, T); 1];

/// The numbers of one upstream.
pub(super) struct OfUpstream {
    metrics: Metrics,
    /// Its label; `None` is one of many without their own.
    authority: Option<String>,
    pub(super) in_flight: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self(Arc::new(All {
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            in_flight: Family::default(),
            state: Family::default(),
            transitions: Family::default(),
            named: AtomicUsize::new(0),
        }))
    }
}

impl Metrics {
    /// Adds them to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let All { duration, in_flight, state, transitions, named: _ } = &*self.0;
        registry.register(
            "edgepass_outbound_duration_seconds",
            "From a call to its end or, streamed, to the reply's head, by result",
            duration.clone(),
        );
        registry.register(
            "edgepass_outbound_in_flight",
            "Exchanges under way, by upstream; `other` is all the manifest does not name",
            in_flight.clone(),
        );
        registry.register(
            "edgepass_breaker_state",
            "0: the upstream is used, 1: one probe is under way, 2: it counts as down",
            state.clone(),
        );
        registry.register(
            "edgepass_breaker_transitions",
            "Changes of that state, by the one entered",
            transitions.clone(),
        );
    }

    /// An exchange ended after `duration`, with a status or without.
    pub(super) fn ended(&self, duration: Duration, result: Result<u16, Failure>) {
        let result = match result {
            Ok(500..) => "status_5xx",
            Ok(_) => "answered",
            Err(failure) => failure.kind.name(),
        };
        self.0.duration.get_or_create(&[("result", result)]).observe(duration.as_secs_f64());
    }

    /// The numbers of `authority`.
    pub(super) fn of_upstream(&self, authority: Option<&str>) -> OfUpstream {
        // A network in the allow-list names many.
        let room = || self.0.named.fetch_update(Relaxed, Relaxed, |count| (count < MAX_LABELS).then_some(count + 1));
        let authority = authority.filter(|_| room().is_ok()).map(str::to_owned);
        if let Some(authority) = &authority {
            self.0.state.get_or_create(&label(authority)).set(0);
        }
        let in_flight = self.0.in_flight.get_or_create_owned(&label(authority.as_deref().unwrap_or(OTHER)));
        OfUpstream { metrics: self.clone(), authority, in_flight }
    }
}

impl OfUpstream {
    /// The breaker has this state now.
    pub(super) fn entered(&self, state: State) {
        let (value, name) = match state {
            State::Closed => (0, "closed"),
            State::HalfOpen => (1, "half_open"),
            State::Open => (2, "open"),
        };
        let authority = self.authority.as_deref().unwrap_or(OTHER);
        if self.authority.is_some() {
            self.metrics.0.state.get_or_create(&label(authority)).set(value);
        }
        let labels = [("authority", authority.to_owned()), ("to", name.to_owned())];
        self.metrics.0.transitions.get_or_create(&labels).inc();
        match state {
            State::Open => tracing::warn!(authority, "upstream counts as down"),
            State::HalfOpen => tracing::debug!(authority, "upstream is probed"),
            State::Closed => tracing::info!(authority, "upstream is back"),
        }
    }
}

fn label(authority: &str) -> Labels<String> {
    [("authority", authority.to_owned())]
}

const OTHER: &str = "other";
/// Upstreams with a label of their own. A deployment has one per platform.
const MAX_LABELS: usize = 64;
const BUCKETS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(metrics: &Metrics) -> String {
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        text
    }

    #[test]
    fn an_upstream_is_shown_by_name_and_with_its_state() {
        let metrics = Metrics::default();
        let named = metrics.of_upstream(Some("a.example:443"));
        named.entered(State::Open);
        named.in_flight.inc();
        metrics.of_upstream(None).entered(State::Open);
        metrics.ended(Duration::from_millis(7), Ok(200));
        metrics.ended(Duration::ZERO, Err(super::super::Kind::Down.unsent()));
        let text = shown(&metrics);
        for line in [
            r#"edgepass_breaker_state{authority="a.example:443"} 2"#,
            r#"edgepass_breaker_transitions_total{authority="a.example:443",to="open"} 1"#,
            r#"edgepass_breaker_transitions_total{authority="other",to="open"} 1"#,
            r#"edgepass_outbound_in_flight{authority="a.example:443"} 1"#,
            r#"edgepass_outbound_duration_seconds_bucket{le="0.01",result="answered"} 1"#,
            r#"edgepass_outbound_duration_seconds_count{result="down"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(!text.contains(r#"state{authority="other"}"#), "{text}");
    }

    #[test]
    fn there_is_a_limit_to_names() {
        let metrics = Metrics::default();
        for n in 0..200 {
            metrics.of_upstream(Some(&format!("10.0.0.{n}:80")));
        }
        assert_eq!(shown(&metrics).matches("edgepass_breaker_state{").count(), 64);
    }
}
