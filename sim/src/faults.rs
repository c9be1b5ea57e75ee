//! Scripted misbehaviour: which fault hits which call, and what then comes back.

use std::{
    num::NonZeroU64,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Platform,
    wire::{Answer, Script},
};

/// The faults that are armed. What is armed before a call is sent applies to that call.
#[derive(Default)]
pub struct Faults {
    /// Length of the list: with none armed a call takes no lock.
    armed: AtomicUsize,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    last_id: u64,
    armed: Vec<Armed>,
}

struct Armed {
    id: u64,
    /// Matching calls so far.
    seen: u64,
    /// Calls hit so far.
    hits: u64,
    fault: Arc<Fault>,
}

/// A fault: what goes wrong, for which calls, how often.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct Fault {
    /// What goes wrong.
    #[serde(flatten)]
    pub kind: Kind,
    /// For whom, and how often.
    #[serde(flatten)]
    pub rules: Rules,
}

/// Which calls a fault hits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// Calls of this platform.
    pub platform: Platform,
    /// Calls with these parameters.
    #[serde(rename = "match")]
    pub on: Match,
    /// So many calls, then the fault is gone; `None` until it is disarmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<NonZeroU64>,
    /// Every so many-th matching call; `None` each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<NonZeroU64>,
    /// Whether the code is used up all the same; `None` as [`Kind`] says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spend: Option<bool>,
}

/// Parameters a call must have, decoded; `None` takes any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// The login code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The app.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub appid: Option<String>,
}

/// What goes wrong. Kinds that spoil the true answer use the code up as any call does; the others
/// leave it alone, unless [`Rules::spend`] says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Kind {
    /// The true answer (or the next fault), later.
    Latency {
        /// Milliseconds.
        ms: u64,
    },
    /// Nothing, until the client goes.
    Stall {
        /// Milliseconds after which the connection is closed instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ms: Option<u64>,
    },
    /// Head and half the body of the true answer, then nothing, until the client goes.
    StallBody {
        /// Milliseconds after which the connection is closed instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ms: Option<u64>,
    },
    /// The true answer, its body byte by byte.
    Drip {
        /// Milliseconds before each byte.
        ms: u64,
    },
    /// A TCP reset before the first byte.
    Reset {},
    /// A TCP reset in the middle of the true answer's body.
    ResetBody {},
    /// The connection ends in order before the first byte.
    Close {},
    /// The connection ends in order in the middle of the true answer's body.
    Truncate {},
    /// Bytes that are not HTTP.
    Garbage {},
    /// The true answer with one member more, whose text is not UTF-8.
    NonUtf8 {},
    /// 200 and a page, as gateways in between send it.
    Html {},
    /// 200 and a JSON object, mostly padding.
    Huge {
        /// Length of the body, at most 64 MiB. Default 10 MB.
        #[serde(default = "ten_megabytes")]
        bytes: u32,
        /// Without a content-length.
        #[serde(default)]
        chunked: bool,
    },
    /// 200 without a body.
    Empty {},
    /// Another HTTP status, with a text for a body.
    HttpStatus {
        /// 200 to 599.
        status: u16,
    },
    /// The platform's error form with this number.
    Errcode {
        /// Any number, known or not.
        errcode: i64,
    },
    /// The same with the number as a string.
    StringErrcode {
        /// Any number, known or not.
        errcode: i64,
    },
    /// 200, or the status named, and this body.
    Body {
        /// The whole body.
        body: String,
        /// 200 to 599.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// Default `text/plain`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content_type: Option<String>,
    },
    /// The true answer with some members changed.
    Patch {
        /// Members to set, in place of what is there or new.
        #[serde(default)]
        set: Map<String, Value>,
        /// Members to leave out.
        #[serde(default)]
        unset: Vec<String>,
    },
}

const fn ten_megabytes() -> u32 {
    10_000_000
}

/// Longest body of [`Kind::Huge`]: one answer must not take a machine's memory.
const MAX_HUGE_BYTES: u32 = 64 << 20;

/// More armed at once is a script that has lost count.
const MAX_ARMED: usize = 1000;

const MEMBERS_OF_RULES: [&str; 5] = ["platform", "match", "times", "every", "spend"];

/// Why a fault was not armed.
#[derive(Debug, thiserror::Error)]
pub enum BadFault {
    /// A member is missing, unknown or of the wrong type.
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
    /// No such HTTP status can end an exchange.
    #[error("status {0} is not within 200 to 599")]
    Status(u16),
    /// Not a value of a header field.
    #[error("content_type is not a header value")]
    ContentType,
    /// More than one answer may have.
    #[error("{0} bytes are more than {MAX_HUGE_BYTES}")]
    Huge(u32),
    /// This kind spoils the true answer, and there is none without the code.
    #[error("{0} uses the code up: spend cannot be false")]
    MustSpend(&'static str),
    /// Too many.
    #[error("{MAX_ARMED} faults are armed already")]
    TooMany,
}

impl Fault {
    /// `kind` for every call, until disarmed.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self { kind, rules: Rules::default() }
    }

    /// For the next `times` matching calls; 0 is taken as 1.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.rules.times = Some(NonZeroU64::new(times).unwrap_or(NonZeroU64::MIN));
        self
    }

    /// For calls with this code.
    #[must_use]
    pub fn on_code(mut self, code: impl Into<String>) -> Self {
        self.rules.on.code = Some(code.into());
        self
    }

    /// For calls of this app.
    #[must_use]
    pub fn on_app(mut self, appid: impl Into<String>) -> Self {
        self.rules.on.appid = Some(appid.into());
        self
    }

    /// Uses the code up, or not, whatever the kind does by itself.
    #[must_use]
    pub fn spend(mut self, spend: bool) -> Self {
        self.rules.spend = Some(spend);
        self
    }

    /// Whether the call is carried out although its answer is lost or spoilt.
    pub(crate) fn spends(&self) -> bool {
        self.rules.spend.unwrap_or_else(|| self.kind.spoils_the_truth())
    }

    fn check(&self) -> Result<(), BadFault> {
        match &self.kind {
            Kind::HttpStatus { status } | Kind::Body { status: Some(status), .. } if !(200..600).contains(status) => {
                return Err(BadFault::Status(*status));
            }
            Kind::Huge { bytes, .. } if *bytes > MAX_HUGE_BYTES => {
                return Err(BadFault::Huge(*bytes));
            }
            Kind::Body { content_type: Some(text), .. } if HeaderValue::from_str(text).is_err() => {
                return Err(BadFault::ContentType);
            }
            _ => {}
        }
        if self.kind.spoils_the_truth() && !self.spends() {
            return Err(BadFault::MustSpend(self.kind.name()));
        }
        Ok(())
    }
}

impl TryFrom<Map<String, Value>> for Fault {
    type Error = BadFault;

    /// Splits the members, because serde's `flatten` lets unknown ones pass.
    fn try_from(members: Map<String, Value>) -> Result<Self, BadFault> {
        let (rules, kind) =
            members.into_iter().partition::<Map<_, _>, _>(|(name, _)| MEMBERS_OF_RULES.contains(&name.as_str()));
        Ok(Self {
            kind: serde_json::from_value(Value::Object(kind))?,
            rules: serde_json::from_value(Value::Object(rules))?,
        })
    }
}

impl Faults {
    /// Arms a fault and gives its id.
    ///
    /// # Errors
    /// When it asks for what cannot be sent, or a thousand are armed.
    pub fn arm(&self, fault: Fault) -> Result<u64, BadFault> {
        fault.check()?;
        let mut list = self.lock();
        if list.armed.len() == MAX_ARMED {
            return Err(BadFault::TooMany);
        }
        list.last_id += 1;
        let id = list.last_id;
        list.armed.push(Armed { id, seen: 0, hits: 0, fault: Arc::new(fault) });
        self.armed.store(list.armed.len(), Ordering::Release);
        Ok(id)
    }

    /// Disarms all.
    pub fn clear(&self) {
        let mut list = self.lock();
        list.armed.clear();
        self.armed.store(0, Ordering::Release);
    }

    /// How many are armed.
    #[must_use]
    pub fn armed(&self) -> usize {
        self.armed.load(Ordering::Acquire)
    }

    /// Those armed, oldest first, as JSON.
    pub(crate) fn list(&self) -> Value {
        #[derive(Serialize)]
        struct Row<'a> {
            id: u64,
            hits: u64,
            #[serde(flatten)]
            fault: &'a Fault,
        }
        let list = self.lock();
        let rows = list
            .armed
            .iter()
            .map(|Armed { id, hits, fault, .. }| serde_json::json!(Row { id: *id, hits: *hits, fault }));
        rows.collect()
    }

    /// What hits this call; counts it.
    pub(crate) fn take(&self, platform: Platform, appid: &[u8], code: &[u8]) -> Hit {
        let mut hit = Hit::default();
        if self.armed() == 0 {
            return hit;
        }
        let mut list = self.lock();
        list.armed.retain_mut(|armed| {
            let Fault { kind, rules } = &*armed.fault;
            let decided = hit.fault.is_some() && !matches!(kind, Kind::Latency { .. });
            if decided || rules.platform != platform || !rules.on.takes(appid, code) {
                return true;
            }
            armed.seen += 1;
            if rules.every.is_some_and(|every| !armed.seen.is_multiple_of(every.get())) {
                return true;
            }
            armed.hits += 1;
            match kind {
                Kind::Latency { ms } => hit.delay += Duration::from_millis(*ms),
                _ => hit.fault = Some(Arc::clone(&armed.fault)),
            }
            rules.times.is_none_or(|times| armed.hits < times.get())
        });
        self.armed.store(list.armed.len(), Ordering::Release);
        hit
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Match {
    fn takes(&self, appid: &[u8], code: &[u8]) -> bool {
        self.code.as_ref().is_none_or(|wanted| wanted.as_bytes() == code)
            && self.appid.as_ref().is_none_or(|wanted| wanted.as_bytes() == appid)
    }
}

/// What hits one call.
#[derive(Default)]
pub(crate) struct Hit {
    pub(crate) delay: Duration,
    /// Never a latency.
    pub(crate) fault: Option<Arc<Fault>>,
}

impl Kind {
    /// As in JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Latency { .. } => "latency",
            Self::Stall { .. } => "stall",
            Self::StallBody { .. } => "stall_body",
            Self::Drip { .. } => "drip",
            Self::Reset {} => "reset",
            Self::ResetBody {} => "reset_body",
            Self::Close {} => "close",
            Self::Truncate {} => "truncate",
            Self::Garbage {} => "garbage",
            Self::NonUtf8 {} => "non_utf8",
            Self::Html {} => "html",
            Self::Huge { .. } => "huge",
            Self::Empty {} => "empty",
            Self::HttpStatus { .. } => "http_status",
            Self::Errcode { .. } => "errcode",
            Self::StringErrcode { .. } => "string_errcode",
            Self::Body { .. } => "body",
            Self::Patch { .. } => "patch",
        }
    }

    /// Whether what is sent is made from the true answer.
    fn spoils_the_truth(&self) -> bool {
        matches!(
            self,
            Self::Latency { .. }
                | Self::StallBody { .. }
                | Self::Drip { .. }
                | Self::ResetBody {}
                | Self::Truncate {}
                | Self::NonUtf8 {}
                | Self::Patch { .. }
        )
    }

    /// What comes back. `truth` is the platform's own answer, `refusal` its error form for a
    /// number, as a string where the flag is set.
    ///
    /// # Errors
    /// The script to play on the socket, where it is not an HTTP answer.
    pub(crate) fn spoil(
        &self,
        truth: impl FnOnce() -> Answer,
        refusal: impl FnOnce(i64, bool) -> Answer,
    ) -> Result<Answer, Script> {
        let millis = |ms: &Option<u64>| ms.map(Duration::from_millis);
        Ok(match self {
            Self::Latency { .. } => truth(),
            Self::Stall { ms } => return Err(Script::stall(millis(ms))),
            Self::StallBody { ms } => return Err(Script::stall_body(&truth(), millis(ms))),
            Self::Drip { ms } => return Err(Script::drip(&truth(), Duration::from_millis(*ms))),
            Self::Reset {} => return Err(Script::reset()),
            Self::ResetBody {} => return Err(Script::reset_body(&truth())),
            Self::Close {} => return Err(Script::close()),
            Self::Truncate {} => return Err(Script::truncate(&truth())),
            Self::Garbage {} => return Err(Script::garbage(GARBAGE)),
            Self::NonUtf8 {} => {
                let mut answer = truth();
                let members = answer.body.strip_suffix(b"}").unwrap_or(&answer.body);
                answer.body = [members, b",\"note\":\"\xff\xfe\"}"].concat().into();
                answer
            }
            Self::Html {} => Answer::new(StatusCode::OK, "text/html; charset=utf-8", PAGE),
            Self::Huge { bytes, chunked } => {
                let answer = Answer::new(StatusCode::OK, "text/plain", huge(*bytes));
                Answer { chunked: *chunked, ..answer }
            }
            Self::Empty {} => Answer::new(StatusCode::OK, "text/plain", Bytes::new()),
            Self::HttpStatus { status } => {
                let body = format!("simulated status {status}\n");
                Answer { status: status_of(*status), ..plain(body) }
            }
            Self::Errcode { errcode } => refusal(*errcode, false),
            Self::StringErrcode { errcode } => refusal(*errcode, true),
            Self::Body { body, status, content_type } => {
                let mut answer = plain(body.clone());
                answer.status = status.map_or(StatusCode::OK, status_of);
                if let Some(Ok(value)) = content_type.as_deref().map(HeaderValue::from_str) {
                    answer.content_type = value;
                }
                answer
            }
            Self::Patch { set, unset } => {
                let mut answer = truth();
                let mut members: Map<String, Value> = serde_json::from_slice(&answer.body).unwrap_or_default();
                members.retain(|name, _| !unset.contains(name));
                members.extend(set.clone());
                answer.body = Value::Object(members).to_string().into();
                answer
            }
        })
    }
}

fn plain(body: String) -> Answer {
    Answer::new(StatusCode::OK, "text/plain", body)
}

/// Checked when the fault was armed.
fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// An object with one long member, `bytes` long as a whole (but no shorter than its frame).
fn huge(bytes: u32) -> Vec<u8> {
    let (front, back) = (br#"{"padding":""#, br#""}"#);
    let padding = (bytes as usize).saturating_sub(front.len() + back.len());
    let mut body = Vec::with_capacity(front.len() + padding + back.len());
    body.extend_from_slice(front);
    body.resize(front.len() + padding, b'x');
    body.extend_from_slice(back);
    body
}

const GARBAGE: &[u8] = b"\x15\x03\x01\x00\x02\x02\x28 this is not HTTP\r\n\r\n";

const PAGE: &str = "<!doctype html><html><head><title>502 Bad Gateway</title></head>\
                    <body><h1>502 Bad Gateway</h1></body></html>\n";
