//! An event as one line of JSON.

use std::fmt;

use serde::{
    Deserialize,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use tracing::{
    Event, Level,
    field::{Field, Visit},
};

use super::COMPONENT;

/// The line of an event, without its end: `ts`, `level`, `target`, `message` and the event's fields;
/// of a component's line that is an object, `target` and its own members.
pub(super) fn line(event: &Event<'_>) -> String {
    let mut fields = Fields(Map::new());
    event.record(&mut fields);
    let Fields(mut fields) = fields;
    let metadata = event.metadata();
    if metadata.target() == COMPONENT
        && let Some(Value::String(said)) = fields.get("message")
        && is_line(said)
    {
        // Its own words as they are, time and level among them.
        return said.replacen('{', r#"{"target":"component","#, 1);
    }
    let now = humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string();
    for (name, value) in [("ts", now.as_str()), ("level", level(*metadata.level())), ("target", metadata.target())] {
        fields.insert(name.into(), value.into());
    }
    Value::Object(fields).to_string()
}

/// The name of a level, as our component writes it too.
pub(super) fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }
}

/// Whether a component's line is an object that needs only our `target` to be a line of the log: it
/// has a time and a level, and none of its members is called as ours.
fn is_line(said: &str) -> bool {
    struct Members {
        fits: bool,
    }
    impl<'de> Deserialize<'de> for Members {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Look)
        }
    }
    struct Look;
    impl<'de> Visitor<'de> for Look {
        type Value = Members;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
            let (mut has_time, mut has_level, mut is_free) = (false, false, true);
            while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                match &*name {
                    "ts" => has_time = true,
                    "level" => has_level = true,
                    "target" => is_free = false,
                    _ => {}
                }
                map.next_value::<IgnoredAny>()?;
            }
            Ok(Members { fits: has_time && has_level && is_free })
        }
    }
    said.starts_with('{') && serde_json::from_str::<Members>(said).is_ok_and(|members| members.fits)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::{Layer, layer::SubscriberExt as _, registry};

    use super::*;

    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<Value>>>);

    impl<S: tracing::Subscriber> Layer<S> for Heard {
        fn on_event(&self, event: &Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            let line = line(event);
            assert!(!line.contains('\n'));
            self.0.lock().expect("nobody panicked").push(serde_json::from_str(&line).expect("JSON"));
        }
    }

    fn heard(say: impl FnOnce()) -> Value {
        let heard = Heard::default();
        tracing::subscriber::with_default(registry().with(heard.clone()), say);
        let mut lines = heard.0.lock().expect("nobody panicked");
        lines.pop().expect("a line")
    }

    #[test]
    fn an_event_is_an_object_with_its_fields() {
        let line = heard(|| tracing::warn!(count = 3, name = %"a\nb", ratio = 0.5, is_late = true, "much to\ndo"));
        assert_eq!((&line["level"], &line["message"]), (&"warn".into(), &"much to\ndo".into()));
        assert_eq!((&line["count"], &line["name"]), (&3.into(), &"a\nb".into()));
        assert_eq!((&line["ratio"], &line["is_late"]), (&0.5.into(), &true.into()));
        assert!(line["target"].as_str().is_some_and(|target| target.contains("log::json")), "{line}");
        assert!(humantime::parse_rfc3339(line["ts"].as_str().expect("a time")).is_ok(), "{line}");
    }

    #[test]
    fn what_the_component_says_are_fields() {
        let said = r#"{"ts":"2026-01-01T00:00:00.000Z","level":"error","event":"token.reuse","trace_id":"t"}"#;
        let line = heard(|| tracing::error!(target: COMPONENT, "{said}"));
        assert_eq!((&line["event"], &line["target"]), (&"token.reuse".into(), &"component".into()));
        assert_eq!(line.get("message"), None);
    }

    #[test]
    fn a_component_cannot_forge_a_line() {
        for said in [
            "plain words",
            r#"{"ts":"x","level":"info","target":"edgepass"}"#,
            r#"{"event":"no time"}"#,
            r#"{"ts":"x","level":"info"} {"#,
            r#"["ts","level"]"#,
            r#"{"ts":"x","level":"info""#,
        ] {
            let line = heard(|| tracing::info!(target: COMPONENT, "{said}"));
            assert_eq!((&line["message"], &line["target"]), (&said.into(), &"component".into()));
        }
    }
}
