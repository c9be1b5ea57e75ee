//! What became of a request: the `code` of its problem, and who has to act.

use http::StatusCode;

/// Who has to act on a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Whoever sent the request.
    Client,
    /// The platform whose code it was.
    Platform,
    /// We: the node, its store, its component, its operator.
    Node,
}

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Platform => "platform",
            Self::Node => "node",
        }
    }
}

/// Every code of a problem and whose fault it is; a test holds them against the component's own. The
/// last three are for answers without one.
pub const CODES: &[(&str, Fault)] = &[
    ("bad_request", Fault::Client),
    ("app_unknown", Fault::Client),
    ("token_invalid", Fault::Client),
    ("code_invalid", Fault::Client),
    ("code_used", Fault::Client),
    ("refresh_invalid", Fault::Client),
    ("device_mismatch", Fault::Client),
    ("user_blocked", Fault::Client),
    ("session_limit", Fault::Client),
    ("load_token_invalid", Fault::Client),
    ("not_found", Fault::Client),
    ("method_not_allowed", Fault::Client),
    ("payload_too_large", Fault::Client),
    ("unsupported_media_type", Fault::Client),
    ("idempotency_mismatch", Fault::Client),
    ("rate_limited", Fault::Platform),
    ("config", Fault::Node),
    ("internal", Fault::Node),
    ("platform_error", Fault::Platform),
    ("platform_busy", Fault::Platform),
    ("platform_unavailable", Fault::Platform),
    ("platform_timeout", Fault::Platform),
    ("store_unavailable", Fault::Node),
    ("store_lagging", Fault::Node),
    ("overloaded", Fault::Node),
    ("instance_lost", Fault::Node),
    ("other_3xx", Fault::Client),
    ("other_4xx", Fault::Client),
    ("other_5xx", Fault::Node),
];

/// What became of a request, as labels: one small number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome(usize);

impl Outcome {
    pub(crate) const COUNT: usize = CODES.len() + 2;
    /// It was answered as it wished.
    pub(crate) const OK: Self = Self(0);
    /// The node's own limit on one client or app, which shares its code with a platform's.
    const LIMITED: Self = Self(CODES.len() + 1);

    /// Of an answer. `own` is the code of an answer of the node's, of which the body is not read.
    pub(crate) fn of(status: StatusCode, own: Option<&str>, body: &[u8]) -> Self {
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Self::OK;
        }
        if own == Some("rate_limited") {
            return Self::LIMITED;
        }
        let of = |code: &str| CODES.iter().position(|(known, _)| *known == code).map(|index| Self(index + 1));
        own.or_else(|| code(body)).and_then(of).or_else(|| of(other(status))).unwrap_or(Self::OK)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// `ok`, or the code.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OK => "ok",
            Self::LIMITED => "rate_limited",
            Self(index) => CODES.get(index - 1).map_or("ok", |(code, _)| code),
        }
    }

    /// `none`, or who has to act.
    pub(crate) fn fault(self) -> &'static str {
        match self {
            Self::OK => "none",
            Self::LIMITED => Fault::Client.name(),
            Self(index) => CODES.get(index - 1).map_or("none", |(_, fault)| fault.name()),
        }
    }
}

/// The code in a problem. A component writes `type` first and the code is its last part, so nothing
/// is parsed.
fn code(body: &[u8]) -> Option<&str> {
    let rest = body.strip_prefix(PROBLEM)?;
    let end = rest.iter().take(MAX_CODE_BYTES).position(|&byte| byte == b'"')?;
    std::str::from_utf8(&rest[..end]).ok()
}

const PROBLEM: &[u8] = br#"{"type":"urn:edgepass:problem:"#;
const MAX_CODE_BYTES: usize = 40;

fn other(status: StatusCode) -> &'static str {
    match status.as_u16() {
        300..400 => "other_3xx",
        400..500 => "other_4xx",
        _ => "other_5xx",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_outcome_of_its_code() {
        let of = |status: u16, own, body: &str| {
            let outcome = Outcome::of(status.try_into().expect("a status"), own, body.as_bytes());
            (outcome.name(), outcome.fault())
        };
        let problem = |code: &str| format!(r#"{{"type":"urn:edgepass:problem:{code}","title":"x"}}"#);
        assert_eq!(of(200, None, &problem("config")), ("ok", "none"));
        assert_eq!(of(401, None, &problem("code_used")), ("code_used", "client"));
        assert_eq!(of(504, None, &problem("platform_timeout")), ("platform_timeout", "platform"));
        assert_eq!(of(503, Some("overloaded"), "{}"), ("overloaded", "node"));
        assert_eq!(of(429, None, &problem("rate_limited")), ("rate_limited", "platform"));
        assert_eq!(of(429, Some("rate_limited"), "{}"), ("rate_limited", "client"));
        assert_eq!(of(401, None, r#"{"error":"invalid_client"}"#), ("other_4xx", "client"));
        assert_eq!(of(500, None, &problem("made_up")), ("other_5xx", "node"));
        assert_eq!(of(302, None, ""), ("other_3xx", "client"));
    }
}
