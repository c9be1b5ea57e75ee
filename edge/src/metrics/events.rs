//! Security events, counted as the component logs them.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};
use serde_json::Value;

/// The events that are counted by name; a test holds them against the component's own.
pub const EVENTS: &[&str] = &[
    "login.ok",
    "login.fail",
    "token.refresh",
    "token.replay",
    "token.ahead",
    "token.reuse",
    "token.fail",
    "session.revoke",
    "session.revoke_all",
    "admin.revoke",
    "admin.block",
    "admin.unblock",
    "admin.sweep",
    "admin.refused",
    "config.problem",
    "panic",
];

/// How often each was logged.
#[derive(Debug, Default)]
pub(crate) struct Events([AtomicU64; EVENTS.len()]);

impl Events {
    /// Counts the event of a line, if it names one of [`EVENTS`].
    pub(crate) fn count(&self, line: &str) {
        let event = name(line).and_then(|name| EVENTS.iter().position(|event| *event == name));
        if let Some(count) = event.and_then(|event| self.0.get(event)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// How often each was counted, by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = (String, Value)> {
        EVENTS.iter().zip(&self.0).map(|(event, count)| ((*event).to_owned(), count.load(Relaxed).into()))
    }
}

/// The event a line names. The component writes it third, behind the time and the level; it is
/// found without reading the line as JSON, which would cost more than the rest of logging it.
fn name(line: &str) -> Option<&str> {
    let head = &line[..line.floor_char_boundary(HEAD_BYTES)];
    let (_, rest) = head.split_once(r#""event":""#)?;
    Some(rest.split_once('"')?.0)
}

const HEAD_BYTES: usize = 128;

impl Collector for Events {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(
            "edgepass_events",
            "Security events that the component logged, by name.",
            None,
            MetricType::Counter,
        )?;
        for (event, count) in EVENTS.iter().zip(&self.0) {
            metric
                .encode_family(&[("event", *event)])?
                .encode_counter::<NoLabelSet, _, u64>(&count.load(Relaxed), None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_a_line_is_counted() {
        let events = Events::default();
        events.count(r#"{"ts":"2026-01-01T00:00:00.000Z","level":"error","event":"token.reuse","trace_id":"t"}"#);
        events.count(r#"{"event":"token.reuse"}"#);
        for other in [
            r#"{"event":"request","reason":"\"event\":\"token.reuse\""}"#,
            &format!(r#"{{"text":"{}","event":"token.reuse"}}"#, "é".repeat(100)),
            "token.reuse",
            r#"{"event":"token.reuse"#,
            "",
        ] {
            events.count(other);
        }
        let counted: Vec<_> = events.all().filter(|(_, count)| *count != 0).collect();
        assert_eq!(counted, [("token.reuse".to_owned(), 2.into())]);
    }
}
