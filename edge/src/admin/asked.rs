//! What a route of the admin listener is asked, and what it answers.

use std::fmt;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::table::{Parameters, decoded};
use crate::{
    handler::{Request, Response},
    problem::{self, Problem},
};

/// What a route is asked.
pub struct Asked {
    /// The request, read whole.
    pub request: Request,
    parameters: Parameters,
}

/// What a route answers.
pub type Answer = Result<Response, Fault>;

/// Why a route does not do what it is asked: a problem of its own words.
#[derive(Debug)]
pub struct Fault {
    /// Status of the answer.
    pub status: StatusCode,
    /// Stable name of what went wrong.
    pub code: &'static str,
    /// For people.
    pub detail: String,
    /// Members of the problem beside the usual ones.
    pub more: Map<String, Value>,
}

impl Asked {
    pub(super) fn new(request: Request, parameters: Parameters) -> Self {
        Self { request, parameters }
    }

    /// The `{name}` of the route's path, decoded; empty when the route has none of that name.
    #[must_use]
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    /// The first value of `name` in the query, decoded; empty when the name stands alone.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<String> {
        let pairs = self.request.target.query().unwrap_or_default().split('&');
        pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).find_map(|(key, value)| {
            let plain = |text: &str| Some(decoded(&text.replace('+', " "))?.into_owned());
            if plain(key)? == name { plain(value) } else { None }
        })
    }

    /// A switch of the query: there and not `false` or `0`.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.query(name).is_some_and(|value| !matches!(value.as_str(), "false" | "0"))
    }

    /// The body as JSON of this shape.
    ///
    /// # Errors
    /// 400 with the place and what is wrong there.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        serde_json::from_slice(&self.request.body).map_err(|error| Fault::bad_request(error.to_string()))
    }

    /// Who asks, by their own word: `x-edgepass-actor`, printable and at most 100 characters.
    #[must_use]
    pub fn actor(&self) -> String {
        let said = self.request.headers.get(ACTOR).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let said: String = said.trim().chars().take(MAX_ACTOR_CHARS).collect();
        if said.is_empty() { "admin".into() } else { said }
    }

    /// `200` with `body` as JSON.
    #[must_use]
    pub fn json_answer(&self, body: &impl Serialize) -> Response {
        json(StatusCode::OK, body)
    }
}

/// An answer that is not kept by anybody, with `body` as JSON.
#[must_use]
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    // What is answered here has string keys and no reason to fail.
    let text = serde_json::to_vec(body).unwrap_or_default();
    with_type(status, "application/json", text)
}

/// An answer that is not kept by anybody, of this content type.
#[must_use]
pub fn with_type(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response {
    let mut answer = http::Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

const ACTOR: &str = "x-edgepass-actor";
const MAX_ACTOR_CHARS: usize = 100;

impl Fault {
    /// A problem.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), more: Map::new() }
    }

    /// 400.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    /// 404.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// The same problem with one more member.
    #[must_use]
    pub fn and(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    pub(super) fn answer(self, trace_id: &str) -> Response {
        problem::answer(self.status, self.code, &self.detail, trace_id, self.more)
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        let (status, code, detail) = problem.parts();
        Self::new(status, code, detail)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn asked(target: &'static str, actor: Option<&str>, body: &'static str) -> Asked {
        let mut headers = http::HeaderMap::new();
        headers.extend(actor.map(|actor| (header::HeaderName::from_static(ACTOR), actor.parse().expect("a value"))));
        let request = Request {
            id: 0,
            method: http::Method::PUT,
            target: http::uri::PathAndQuery::from_static(target),
            headers,
            body: Bytes::from_static(body.as_bytes()),
            client: ([127, 0, 0, 1], 1).into(),
            secure: false,
            route: None,
            trace_id: "t".into(),
            deadline: Instant::now(),
        };
        Asked::new(request, vec![("digest", "abc".into())])
    }

    #[test]
    fn a_query_is_read_by_name() {
        let asked = asked("/a?activate&canary=5%25&who=a+b%2Bc&off=false&canary=9", None, "");
        assert_eq!(asked.query("canary").as_deref(), Some("5%"));
        assert_eq!(asked.query("who").as_deref(), Some("a b+c"));
        assert_eq!(asked.query("absent"), None);
        assert!(asked.is_set("activate") && !asked.is_set("off") && !asked.is_set("absent"));
        assert_eq!((asked.parameter("digest"), asked.parameter("other")), ("abc", ""));
    }

    #[test]
    fn who_asks_is_bounded_and_somebody() {
        assert_eq!(asked("/", None, "").actor(), "admin");
        assert_eq!(asked("/", Some("  "), "").actor(), "admin");
        assert_eq!(asked("/", Some("eve@host"), "").actor(), "eve@host");
        assert_eq!(asked("/", Some(&"x".repeat(500)), "").actor().len(), MAX_ACTOR_CHARS);
    }

    #[test]
    fn a_wrong_body_is_400_and_a_fault_shows_its_members() {
        let fault = asked("/", None, "{").json::<Value>().expect_err("no JSON");
        assert_eq!((fault.status, fault.code), (StatusCode::BAD_REQUEST, "bad_request"));
        let answer = fault.and("reason", "imports").answer("t-1");
        let body: Value = serde_json::from_slice(answer.body()).expect("JSON");
        assert_eq!(
            (&body["reason"], &body["trace_id"], &body["status"]),
            (&"imports".into(), &"t-1".into(), &400.into())
        );
    }
}
