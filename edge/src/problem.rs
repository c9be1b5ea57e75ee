//! Answers the node gives itself, as RFC 9457 problems with the codes the component uses too.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value};

use crate::handler::Response;

/// Why the node answers in the component's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Not a request this node can pass on; says what is wrong with it.
    BadRequest(&'static str),
    /// This listener has no such route.
    NotFound,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The body is longer than the node takes.
    PayloadTooLarge,
    /// The head is longer, or has more fields, than the node takes.
    HeadTooLarge,
    /// The client, or all together, asked more often than allowed; the time until it is allowed again.
    RateLimited(Duration),
    /// The node is about to end, and not to be sent anything new.
    Leaving,
    /// The store can be neither written nor read as it should be.
    StoreUnavailable,
    /// The component gave something that is no answer.
    Internal,
    /// No place for the request within the waiting time.
    Overloaded,
    /// The instance that held the request is gone; whether it had an effect is unknown.
    InstanceLost,
    /// No answer before the deadline; whether the request had an effect is unknown.
    Deadline,
}

/// Marks an answer that the node gives itself, with its code: an extension of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Own(pub(crate) &'static str);

/// Marks an answer that took a second try, because the first one's instance was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SecondTry;

impl Problem {
    /// The answer: status, `content-type`, `cache-control`, and `retry-after` where it helps.
    #[must_use]
    pub fn answer(self, trace_id: &str) -> Response {
        let (status, code, detail) = self.parts();
        let mut answer = answer(status, code, detail, trace_id, Map::new());
        answer.extensions_mut().insert(Own(code));
        if self == Self::Overloaded {
            // A crowd that was turned away together must not come back together.
            let spread = getrandom::u32().unwrap_or_default() % RETRY_SPREAD;
            answer.headers_mut().insert(header::RETRY_AFTER, (1 + spread).into());
        }
        if let Self::RateLimited(wait) = self {
            // Whole seconds, and not before it is allowed.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            answer.headers_mut().insert(header::RETRY_AFTER, seconds.max(1).into());
        }
        answer
    }

    pub(crate) fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest(detail) => (StatusCode::BAD_REQUEST, "bad_request", detail),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", "there is no such route"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, "bad_request", "the body did not arrive in time"),
            Self::PayloadTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", "the body is too long"),
            Self::HeadTooLarge => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "bad_request", "the head has too many fields")
            }
            Self::RateLimited(_) => (StatusCode::TOO_MANY_REQUESTS, "rate_limited", "too many requests; wait"),
            Self::Leaving => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "the node is about to end"),
            Self::StoreUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "store_unavailable",
                "the store does not take writes, or cannot be read",
            ),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "the component gave no valid answer"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "all instances are busy"),
            Self::InstanceLost => {
                (StatusCode::SERVICE_UNAVAILABLE, "instance_lost", "the instance that held the request is gone")
            }
            Self::Deadline => (StatusCode::GATEWAY_TIMEOUT, "platform_timeout", "no answer within the time limit"),
        }
    }
}

/// A problem with words of its own: status, `content-type`, `cache-control`, and `retry-after` where
/// it helps. `more` are members beside the usual ones.
#[must_use]
pub fn answer(status: StatusCode, code: &str, detail: &str, trace_id: &str, more: Map<String, Value>) -> Response {
    let mut body = more;
    body.extend([
        ("type".to_owned(), format!("urn:edgepass:problem:{code}").into()),
        ("title".to_owned(), status.canonical_reason().unwrap_or_default().into()),
        ("status".to_owned(), status.as_u16().into()),
        ("detail".to_owned(), detail.into()),
        ("code".to_owned(), code.into()),
        ("trace_id".to_owned(), trace_id.into()),
        ("retryable".to_owned(), is_retryable(status).into()),
    ]);
    let mut answer = http::Response::new(Bytes::from(Value::Object(body).to_string()));
    *answer.status_mut() = status;
    let head = answer.headers_mut();
    head.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    head.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        head.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

fn is_retryable(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}
/// Seconds over which those turned away by a full node are told to come back.
const RETRY_SPREAD: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_turned_away_are_told_different_times() {
        let told = |_| Problem::Overloaded.answer("t").headers()["retry-after"].clone();
        let told: std::collections::HashSet<_> = (0..200).map(told).collect();
        assert_eq!(told, ["1", "2", "3"].map(HeaderValue::from_static).into());
    }

    #[test]
    fn a_problem_names_its_code_and_trace() {
        let answer = Problem::InstanceLost.answer("t-1");
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        assert_eq!(answer.headers()["retry-after"], "1");
        let body: Value = serde_json::from_slice(answer.body()).expect("JSON");
        assert_eq!(body["code"], "instance_lost");
        assert_eq!(body["trace_id"], "t-1");
        assert_eq!(body["retryable"], true);
    }
}
