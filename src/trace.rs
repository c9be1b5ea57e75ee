//! The trace of a request: taken from the caller when well formed, else made.
//!
//! Two headers carry one: `x-trace-id`, any text of `[A-Za-z0-9_-]{1,64}`, and W3C
//! `traceparent`. Both are answered. Calls to a platform carry neither: it is a third party.

use crate::{hex::hex, message::Head, random::Random};

/// Where one request belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What people quote: the caller's `x-trace-id`, else the trace id of `traceparent`.
    pub id: String,
    /// The `traceparent` of our own span, 55 characters.
    pub parent: String,
}

impl Trace {
    /// The trace of a request with this head.
    #[must_use]
    pub fn of(head: &Head, random: &dyn Random) -> Self {
        let fresh: [u8; 24] = crate::random::bytes(random);
        let (trace, span) = fresh.split_at(16);
        let given = head.only("traceparent").ok().flatten().and_then(parse);
        let named = head.only("x-trace-id").ok().flatten().and_then(|value| std::str::from_utf8(value).ok());
        let named = named.filter(|id| is_trace_id(id));
        // A sender's sampled flag is passed on and never obeyed: it would let anyone fill the log.
        let (trace_id, flags) = match (given, named) {
            (Some((id, flags)), _) => (id.to_owned(), flags),
            // One name for one trace, where the one given can be both.
            (None, Some(id)) if is_id(id, 32) => (id.to_owned(), "00"),
            (None, _) => (hex(trace), "00"),
        };
        let parent = format!("00-{trace_id}-{}-{flags}", hex(span));
        let id = named.map_or(trace_id, ToOwned::to_owned);
        Self { id, parent }
    }

    /// Whether a successful request is logged at this `rate` (0 to 1). By hash of the id, so every
    /// line of a trace is kept or none, on any node.
    #[must_use]
    pub fn sampled(&self, rate: f64) -> bool {
        // FNV-1a, then the finaliser of MurmurHash3: nothing is secret here, only evenly spread.
        let mut hash = self
            .id
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 33;
        let top = u32::try_from(hash >> 32).unwrap_or(u32::MAX);
        f64::from(top) < rate * (f64::from(u32::MAX) + 1.0)
    }
}

fn is_trace_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Trace id and flags of a `traceparent` (W3C Trace Context, §3.2): version 00 is exactly 55
/// characters of lower-case hex; a higher one may go on after another `-`; ff, zero ids and
/// anything else are ignored and a new trace begins.
fn parse(value: &[u8]) -> Option<(&str, &str)> {
    let text = std::str::from_utf8(value).ok()?;
    let version = text.get(..2)?;
    let (core, rest) = text.split_at_checked(55)?;
    if !is_hex(version) || version == "ff" || !(rest.is_empty() || version != "00" && rest.starts_with('-')) {
        return None;
    }
    let mut fields = core.split('-').skip(1);
    let (trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?);
    let known = fields.next().is_none() && is_id(trace, 32) && is_id(span, 16) && flags.len() == 2 && is_hex(flags);
    known.then_some((trace, flags))
}

/// Lower-case hex of this length, not all zero.
fn is_id(text: &str, length: usize) -> bool {
    text.len() == length && is_hex(text) && text.bytes().any(|b| b != b'0')
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SeededRandom;

    // The example of https://www.w3.org/TR/trace-context/#examples-of-http-traceparent-headers
    const W3C: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn trace(fields: &[(&str, &str)]) -> Trace {
        let mut head = Head::new();
        for (name, value) in fields {
            head.push(name, value);
        }
        Trace::of(&head, &SeededRandom::new(1))
    }

    #[test]
    fn a_well_formed_caller_is_followed() {
        let followed = trace(&[("traceparent", W3C)]);
        assert_eq!(followed.id, "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(
            followed.parent.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && followed.parent.ends_with("-01")
        );
        assert!(!followed.parent.contains("00f067aa0ba902b7"), "the span is ours");
        let named = trace(&[("traceparent", W3C), ("x-trace-id", "Order_42-a")]);
        assert_eq!((named.id.as_str(), named.parent), ("Order_42-a", followed.parent));
    }

    #[test]
    fn a_malformed_traceparent_begins_a_new_trace() {
        for bad in [
            "",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902bé-01",
        ] {
            assert!(!trace(&[("traceparent", bad)]).id.starts_with("4bf9"), "{bad}");
        }
        assert!(!trace(&[("traceparent", W3C), ("traceparent", W3C)]).id.starts_with("4bf9"), "sent twice");
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert!(trace(&[("traceparent", later)]).id.starts_with("4bf9"), "a later version is read as 00");
    }

    #[test]
    fn a_trace_id_outside_its_alphabet_is_replaced() {
        for bad in ["", "a b", "a\u{e9}", "<script>", &"a".repeat(65)] {
            let made = trace(&[("x-trace-id", bad)]).id;
            assert!(made.len() == 32 && made != bad, "{bad}");
        }
        assert_eq!(trace(&[("x-trace-id", &"a".repeat(64))]).id.len(), 64);
    }

    #[test]
    fn sampling_keeps_about_its_rate() {
        let kept = (0..10_000).filter(|n| Trace { id: format!("t{n}"), parent: String::new() }.sampled(0.05)).count();
        assert!((400..600).contains(&kept), "{kept}");
        let one = Trace { id: "a".into(), parent: String::new() };
        assert!(one.sampled(1.0) && !one.sampled(0.0));
    }
}
