//! One request: a call to a platform, which faults may hit and the journal keeps, or a hand on the
//! controls, which neither does.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    BadFault, Clock, ControlError, Entry, Fault, Faults, Journal, Outcome, SimConfig,
    faults::Hit,
    platform::Call,
    query,
    wechat::{self, WeChat},
    wire::{Answer, Script},
};

/// What all connections share.
pub(crate) struct World {
    pub(crate) wechat: WeChat,
    pub(crate) faults: Faults,
    pub(crate) journal: Journal,
    pub(crate) clock: Clock,
}

impl World {
    pub(crate) fn new(config: &SimConfig) -> Self {
        Self {
            wechat: WeChat::new(config),
            faults: Faults::default(),
            journal: Journal::new(config.journal_capacity),
            clock: config.clock.clone(),
        }
    }

    /// Answers `request`, which came over this `connection`.
    ///
    /// # Errors
    /// The script to play on the socket instead of an answer.
    pub(crate) async fn handle(
        &self,
        connection: u64,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Script> {
        let (parts, body) = request.into_parts();
        let Some(body) = read(body).await else {
            return Ok(problem(StatusCode::PAYLOAD_TOO_LARGE, "the body is longer than 64 KiB"));
        };
        let received = Received { connection, parts: &parts, body_bytes: body.len() };
        match parts.uri.path() {
            wechat::EXCHANGE_PATH => {
                let (delay, reply) = self.call(&received, &self.wechat.exchange(&parts));
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                reply.map(Into::into)
            }
            "/" => Ok(Answer::new(StatusCode::OK, "text/plain; charset=utf-8", PAGE).into()),
            path if path.starts_with("/sim/") => Ok(self.control(&parts, path, &body)),
            _ => {
                let status = Some(StatusCode::NOT_FOUND.as_u16());
                let outcome = Outcome { status, ..Outcome::default() };
                self.journal.record(|number| self.entry(number, &received, None, outcome));
                Ok(problem(StatusCode::NOT_FOUND, "no simulated platform has this path"))
            }
        }
    }

    /// Carries out a call, or what a fault makes of it.
    fn call(&self, received: &Received<'_>, call: &dyn Call) -> (Duration, Result<Answer, Script>) {
        let Hit { delay, fault } = self.faults.take(call.platform(), call.appid(), call.code());
        let spends = fault.as_ref().is_none_or(|fault| fault.spends());
        let truth = spends.then(|| call.answer());
        let user = truth.as_ref().and_then(|truth| truth.user.clone());
        let truth = || truth.unwrap_or_else(|| call.answer());
        let reply = match &fault {
            None => Ok(truth()),
            Some(fault) => fault.kind.spoil(truth, |errcode, as_string| call.refusal(errcode, as_string)),
        };
        self.journal.record(|number| {
            let latency = (!delay.is_zero()).then_some("latency");
            let answer = reply.as_ref().ok();
            let outcome = Outcome {
                status: answer.map(|answer| answer.status.as_u16()),
                errcode: answer.and_then(|answer| answer.errcode),
                user: user.map(|user| user.to_string()),
                fault: fault.as_ref().map(|fault| fault.kind.name()).or(latency),
                delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            };
            self.entry(number, received, Some(call), outcome)
        });
        (delay, reply)
    }

    fn entry(&self, number: u64, received: &Received<'_>, call: Option<&dyn Call>, outcome: Outcome) -> Entry {
        let Parts { method, uri, headers, .. } = received.parts;
        let query = query::mask(uri.query().unwrap_or_default(), "secret", "***");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Entry {
            number,
            unix_ms: self.clock.unix_ms(),
            connection: received.connection,
            platform: call.map(Call::platform),
            method: method.to_string(),
            path: uri.path().to_owned(),
            parameters: query::parameters(&query).map(|(name, value)| (text(&name), text(&value))).collect(),
            query,
            secret_ok: call.and_then(Call::secret_ok),
            headers: headers.keys().map(ToString::to_string).collect(),
            body_bytes: received.body_bytes,
            outcome,
        }
    }

    fn control(&self, parts: &Parts, path: &str, body: &[u8]) -> Response<Full<Bytes>> {
        let method = if parts.method == Method::HEAD { "GET" } else { parts.method.as_str() };
        let done = match (method, path) {
            ("GET", "/sim/healthz") => Ok(json!({ "status": "ok" })),
            ("POST", "/sim/wechat/login") => self.wechat.control_login(body).map_err(Into::into),
            ("POST", "/sim/wechat/users") => self.wechat.control_users(body).map_err(Into::into),
            ("GET", "/sim/faults") => Ok(json!({ "faults": self.faults.list() })),
            ("POST", "/sim/faults") => match self.arm(body) {
                Ok(id) => return answer(StatusCode::CREATED, &json!({ "id": id })),
                Err(bad) => Err(bad.into()),
            },
            ("DELETE", "/sim/faults") => {
                self.faults.clear();
                return no_content();
            }
            ("GET", "/sim/journal") => Ok(json!({
                "total": self.journal.total(),
                "capacity": self.journal.capacity(),
                "entries": self.journal.entries(),
            })),
            ("DELETE", "/sim/journal") => {
                self.journal.clear();
                return no_content();
            }
            ("GET", "/sim/clock") => Ok(self.time()),
            ("POST", "/sim/clock") => self.advance(body),
            _ => return not_a_control(path),
        };
        match done {
            Ok(value) => answer(StatusCode::OK, &value),
            Err(Rejected { status, reason }) => problem(status, &reason),
        }
    }

    fn arm(&self, body: &[u8]) -> Result<u64, BadFault> {
        self.faults.arm(serde_json::from_slice::<Fault>(body)?)
    }

    fn advance(&self, body: &[u8]) -> Result<Value, Rejected> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Advance {
            advance_ms: u64,
        }
        let Advance { advance_ms } = serde_json::from_slice(body).map_err(BadFault::from)?;
        self.clock.advance(Duration::from_millis(advance_ms));
        Ok(self.time())
    }

    fn time(&self) -> Value {
        json!({ "unix_ms": self.clock.unix_ms() })
    }
}

/// A request as the journal sees it.
struct Received<'a> {
    connection: u64,
    parts: &'a Parts,
    body_bytes: usize,
}

/// A control request that was not carried out.
struct Rejected {
    status: StatusCode,
    reason: String,
}

impl From<ControlError> for Rejected {
    fn from(error: ControlError) -> Self {
        let status = match &error {
            ControlError::Malformed(_) | ControlError::BadUser => StatusCode::BAD_REQUEST,
            ControlError::UnknownApp => StatusCode::NOT_FOUND,
            ControlError::Full => StatusCode::INSUFFICIENT_STORAGE,
            ControlError::Random => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, reason: error.to_string() }
    }
}

impl From<BadFault> for Rejected {
    fn from(error: BadFault) -> Self {
        let status = match &error {
            BadFault::TooMany => StatusCode::CONFLICT,
            _ => StatusCode::BAD_REQUEST,
        };
        Self { status, reason: error.to_string() }
    }
}

/// The whole body, or `None` when it is too long or broken off. What is too long is read on for a
/// while: closing a socket with bytes unread resets it, and the client would not see the 413.
async fn read(mut body: Incoming) -> Option<Bytes> {
    let (mut whole, mut seen) = (Vec::new(), 0);
    while seen <= MAX_IGNORED_BYTES
        && let Some(frame) = body.frame().await
    {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        seen += data.len();
        if seen <= MAX_BODY_BYTES {
            whole.extend_from_slice(&data);
        }
    }
    (seen <= MAX_BODY_BYTES).then(|| whole.into())
}

fn answer(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    Answer::new(status, "application/json", value.to_string()).into()
}

fn problem(status: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    answer(status, &json!({ "error": reason }))
}

/// 405 where another method would do, else 404.
fn not_a_control(path: &str) -> Response<Full<Bytes>> {
    let allow = match path {
        "/sim/healthz" => "GET, HEAD",
        "/sim/wechat/login" | "/sim/wechat/users" => "POST",
        "/sim/faults" => "GET, HEAD, POST, DELETE",
        "/sim/journal" => "GET, HEAD, DELETE",
        "/sim/clock" => "GET, HEAD, POST",
        _ => return problem(StatusCode::NOT_FOUND, "no such control; see /"),
    };
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

fn no_content() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Control bodies are small; so is everything a mini-program platform is sent for a login.
const MAX_BODY_BYTES: usize = 64 << 10;

/// How far a longer body is read before the connection is given up.
const MAX_IGNORED_BYTES: usize = 4 << 20;

const PAGE: &str = "\
THIS IS A SIMULATOR. It logs anyone in as anyone. Never put it where others can reach it.

It stands in for mini-program platforms during development, tests and load.

  GET    /sns/jscode2session     WeChat's code exchange
  POST   /sim/wechat/login       {\"user\":\"alice\"}: a code, in the role of wx.login
  POST   /sim/wechat/users       {\"user\":\"alice\",\"blocked\":true}
  POST   /sim/faults             {\"kind\":\"errcode\",\"errcode\":45011,\"times\":3}; GET, DELETE
  GET    /sim/journal            the requests received; DELETE
  POST   /sim/clock              {\"advance_ms\":300000}; GET
  GET    /sim/healthz
";
