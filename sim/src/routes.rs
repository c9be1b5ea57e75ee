//! One request: a call to a platform, which faults may hit and the journal keeps, or a hand on the
//! controls, which neither does.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    BadFault, Clock, ControlError, Entry, Fault, Faults, Journal, Outcome, Platform, SimConfig,
    faults::Hit,
    query,
    wechat::{self, Call, WeChat},
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
            return Ok(problem(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is longer than 64 KiB",
            ));
        };
        let received = Received {
            connection,
            parts: &parts,
            body_bytes: body.len(),
        };
        match parts.uri.path() {
            wechat::EXCHANGE_PATH => self.exchange(&received).await,
            "/" => Ok(Answer::new(StatusCode::OK, "text/plain; charset=utf-8", PAGE).into()),
            path if path.starts_with("/sim/") => Ok(self.control(&parts, path, &body)),
            _ => {
                let status = Some(StatusCode::NOT_FOUND.as_u16());
                let outcome = || Outcome {
                    status,
                    ..Outcome::default()
                };
                self.journal.record(|number| {
                    received.entry(number, self.clock.unix_ms(), None, None, outcome())
                });
                Ok(problem(
                    StatusCode::NOT_FOUND,
                    "no simulated platform has this path",
                ))
            }
        }
    }

    async fn exchange(&self, received: &Received<'_>) -> Result<Response<Full<Bytes>>, Script> {
        let call = Call::read(received.parts);
        let Hit { delay, fault } = self
            .faults
            .take(Platform::Wechat, call.appid(), call.code());
        let spends = fault.as_ref().is_none_or(|fault| fault.spends());
        let verdict = spends.then(|| self.wechat.exchange(&call));
        let truth = || match &verdict {
            Some(verdict) => self.wechat.answer(&verdict.result),
            // Not reached: a fault that spoils the true answer spends the code.
            None => self.wechat.refusal(-1, false),
        };
        let reply = match &fault {
            None => Ok(truth()),
            Some(fault) => fault.kind.spoil(truth, |errcode, as_string| {
                self.wechat.refusal(errcode, as_string)
            }),
        };
        self.journal.record(|number| {
            let latency = (!delay.is_zero()).then_some("latency");
            let outcome = Outcome {
                status: reply.as_ref().ok().map(|answer| answer.status.as_u16()),
                errcode: reply.as_ref().ok().and_then(|answer| answer.errcode),
                user: verdict
                    .and_then(|verdict| verdict.user)
                    .map(|user| user.to_string()),
                fault: fault.as_ref().map(|fault| fault.kind.name()).or(latency),
                delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
            };
            let secret_ok = self.wechat.secret_ok(&call);
            received.entry(
                number,
                self.clock.unix_ms(),
                Some(Platform::Wechat),
                secret_ok,
                outcome,
            )
        });
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        reply.map(Into::into)
    }

    fn control(&self, parts: &Parts, path: &str, body: &[u8]) -> Response<Full<Bytes>> {
        let (is_get, is_post, is_delete) = match parts.method {
            Method::GET | Method::HEAD => (true, false, false),
            Method::POST => (false, true, false),
            Method::DELETE => (false, false, true),
            _ => (false, false, false),
        };
        let done = match path {
            "/sim/healthz" if is_get => Ok(json!({ "status": "ok" })),
            "/sim/healthz" => return method_not_allowed("GET, HEAD"),
            "/sim/wechat/login" if is_post => self.wechat.control_login(body).map_err(Into::into),
            "/sim/wechat/users" if is_post => self.wechat.control_users(body).map_err(Into::into),
            "/sim/wechat/login" | "/sim/wechat/users" => return method_not_allowed("POST"),
            "/sim/faults" if is_get => Ok(json!({ "faults": self.faults.list() })),
            "/sim/faults" if is_post => match self.arm(body) {
                Ok(id) => return answer(StatusCode::CREATED, &json!({ "id": id })),
                Err(bad) => Err(bad.into()),
            },
            "/sim/faults" if is_delete => return no_content(self.faults.clear()),
            "/sim/faults" => return method_not_allowed("GET, HEAD, POST, DELETE"),
            "/sim/journal" if is_get => Ok(json!({
                "total": self.journal.total(),
                "capacity": self.journal.capacity(),
                "entries": self.journal.entries(),
            })),
            "/sim/journal" if is_delete => return no_content(self.journal.clear()),
            "/sim/journal" => return method_not_allowed("GET, HEAD, DELETE"),
            "/sim/clock" if is_get => Ok(self.time()),
            "/sim/clock" if is_post => self.advance(body),
            "/sim/clock" => return method_not_allowed("GET, HEAD, POST"),
            _ => return problem(StatusCode::NOT_FOUND, "no such control; see /"),
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

impl Received<'_> {
    fn entry(
        &self,
        number: u64,
        unix_ms: u64,
        platform: Option<Platform>,
        secret_ok: Option<bool>,
        outcome: Outcome,
    ) -> Entry {
        let Parts {
            method,
            uri,
            headers,
            ..
        } = self.parts;
        let query = uri.query().unwrap_or_default();
        let masked = query::mask(query, "secret", "***");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Entry {
            number,
            unix_ms,
            connection: self.connection,
            platform,
            method: method.to_string(),
            path: uri.path().to_owned(),
            parameters: query::parameters(&masked)
                .map(|(name, value)| (text(&name), text(&value)))
                .collect(),
            query: masked,
            secret_ok,
            headers: headers.keys().map(ToString::to_string).collect(),
            body_bytes: self.body_bytes,
            outcome,
        }
    }
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
        Self {
            status,
            reason: error.to_string(),
        }
    }
}

impl From<BadFault> for Rejected {
    fn from(error: BadFault) -> Self {
        let status = match &error {
            BadFault::TooMany => StatusCode::CONFLICT,
            _ => StatusCode::BAD_REQUEST,
        };
        Self {
            status,
            reason: error.to_string(),
        }
    }
}

/// The whole body, or `None` when it is too long or broken off.
async fn read(body: Incoming) -> Option<Bytes> {
    if body.is_end_stream() {
        return Some(Bytes::new());
    }
    let whole = Limited::new(body, MAX_BODY_BYTES).collect().await.ok()?;
    Some(whole.to_bytes())
}

fn answer(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    Answer::new(status, "application/json", value.to_string()).into()
}

fn problem(status: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    answer(status, &json!({ "error": reason }))
}

fn method_not_allowed(allow: &'static str) -> Response<Full<Bytes>> {
    let mut response = problem(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

fn no_content((): ()) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Control bodies are small; so is everything a mini-program platform is sent for a login.
const MAX_BODY_BYTES: usize = 64 << 10;

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
