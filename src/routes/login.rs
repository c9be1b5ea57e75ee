//! `POST /api/login`: `{code, app?, platform?, device?: {id?, label?}}`, with or without an
//! `Idempotency-Key`.

use std::borrow::Cow;

use serde::Deserialize;

use super::{body, grant};
use crate::{
    audit::Event,
    host::Host,
    json::Object,
    login::{Attempt, LoggedIn, LoginError},
    message::Response,
    outbound::{SendError, SendErrorKind},
    platforms::{Class, LoginCode, MAX_CODE_BYTES, PlatformError},
    problem::{Code, Problem},
    service::{Exchange, Service},
    session::{Device, Why},
    timing::Stage,
};

#[derive(Deserialize)]
struct Wish<'a> {
    code: String,
    #[serde(borrow)]
    app: Option<Cow<'a, str>>,
    #[serde(borrow)]
    platform: Option<Cow<'a, str>>,
    device: Option<Object<Device>>,
}

pub(super) async fn log_in<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let answer = attempt(service, exchange).await;
    if let Err(problem) = &answer {
        exchange.note_problem(problem);
        service.event(Event::LoginFail, exchange);
    }
    answer
}

async fn attempt<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let stages = &exchange.stages;
    let wish = stages.run(Stage::Parse, || body::read::<Wish<'_>>(exchange.request))?;
    let idempotency = idempotency_key(exchange)?;
    let code = LoginCode::new(wish.code).ok_or_else(|| {
        let detail = format!("code: 1 to {MAX_CODE_BYTES} visible ASCII characters.");
        Problem::new(Code::BadRequest, detail)
    })?;
    let device = wish.device.map(|Object(device)| device);
    if let Some(device) = &device {
        body::check("device.id", device.id.as_deref().unwrap_or_default(), 128)?;
        body::check("device.label", device.label.as_deref().unwrap_or_default(), 256)?;
    }
    let device = device.filter(|device| device.id.is_some() || device.label.is_some());
    let login = service.login(exchange)?;
    if let Some(app) = login.config().choose(wish.app.as_deref(), wish.platform.as_deref()) {
        exchange.note(|note| {
            note.app = Some(app.id.clone());
            note.platform = Some(app.platform.name());
        });
    }
    let attempt = Attempt { app: wish.app.as_deref(), platform: wish.platform.as_deref(), code, device, idempotency };
    let logged_in = login.log_in(attempt, stages).await.inspect_err(|error| {
        exchange.note(|note| note.subject = error.subject());
    });
    let LoggedIn { grant, is_new, is_repeated, evicted, over } = logged_in?;
    exchange.note(|note| {
        note.sid = Some(grant.sid);
        note.subject = Some(grant.subject);
        note.is_new = Some(is_new);
        note.is_repeated = is_repeated.then_some(true);
    });
    service.event(Event::LoginOk, exchange);
    for sid in evicted {
        service.ended_event(sid, Why::Evicted, exchange);
    }
    service.host().later(login.remember(grant.subject, grant.sid, over));
    Ok(grant::answer(&grant, Some(is_new)))
}

/// The value of `Idempotency-Key`, where the client sent one.
fn idempotency_key<'r>(exchange: &Exchange<'r>) -> Result<Option<&'r str>, Problem> {
    const FORM: &str = "Idempotency-Key: once, 16 to 128 visible ASCII characters.";
    let problem = || Problem::new(Code::BadRequest, FORM);
    let Some(value) = exchange.request.head.only("idempotency-key").map_err(|_| problem())? else { return Ok(None) };
    let fits = (16..=128).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
    std::str::from_utf8(value).ok().filter(|_| fits).map(Some).ok_or_else(problem)
}

impl From<LoginError> for Problem {
    fn from(error: LoginError) -> Self {
        match error {
            LoginError::AppUnknown => Self::new(Code::AppUnknown, "Name one of the configured apps."),
            LoginError::CodeUsed | LoginError::UnderWay => code_used("code.spent"),
            LoginError::OtherWish => Self::new(
                Code::IdempotencyMismatch,
                "Another app, platform or device than with this key before; use a key for one wish only.",
            ),
            LoginError::Overloaded => Self::new(Code::Overloaded, "Too many logins of this app at once."),
            LoginError::Blocked(_) => Self::new(Code::UserBlocked, "The user was blocked.").because("user.blocked"),
            LoginError::SessionLimit(_) => Self::new(
                Code::SessionLimit,
                "End one of the user's sessions, then log in with a new code: this one is spent.",
            )
            .because("session.limit"),
            LoginError::OtherSubjectKey => {
                Self::new(Code::Config, "The store was filled with another subject_key; the operator has to act.")
                    .because("config.subject_key")
            }
            LoginError::Platform(error) => error.into(),
            LoginError::Store(fault) => fault.into(),
            LoginError::Unstored(fault) => {
                let detail = "The session could not be kept; get a new code and try again.";
                Self::new(Code::StoreUnavailable, detail).because(fault.to_string())
            }
        }
    }
}

impl From<PlatformError> for Problem {
    fn from(error: PlatformError) -> Self {
        match error {
            PlatformError::Refused { class, number, request_id } => {
                Self { platform_code: Some(number), platform_request_id: request_id, ..refused(class) }
            }
            PlatformError::Status(429) => refused(Class::RateLimited).because("platform.status"),
            PlatformError::Status(500..) => refused(Class::Busy).because("platform.status"),
            PlatformError::Status(_) => refused(Class::Unknown).because("platform.status"),
            PlatformError::Malformed => refused(Class::Unknown).because("platform.malformed"),
            PlatformError::Unanswered(SendError { kind, .. }) => unanswered(kind),
        }
    }
}

/// By who has to act. None of these words is the platform's.
fn refused(class: Class) -> Problem {
    let (code, detail) = match class {
        Class::CodeInvalid => (Code::CodeInvalid, "Wrong, expired, or of another app; get a new code."),
        Class::CodeUsed => return code_used("code.used"),
        Class::UserBlocked => (Code::UserBlocked, "The platform blocks this user."),
        Class::RateLimited => (Code::RateLimited, "The platform's quota is used up; get a new code later."),
        Class::Busy => (Code::PlatformBusy, "Get a new code and try again."),
        Class::Config => (Code::Config, "The platform does not accept this service; its operator has to act."),
        Class::Unknown => (Code::PlatformError, "Get a new code and try again."),
    };
    Problem::new(code, detail)
}

/// No answer, by whether anybody can do something about it.
fn unanswered(kind: SendErrorKind) -> Problem {
    let (code, reason) = match kind {
        SendErrorKind::Duplicate => return code_used("code.under_way"),
        SendErrorKind::Timeout => (Code::PlatformTimeout, "send.timeout"),
        SendErrorKind::Unresolved => (Code::PlatformUnavailable, "send.unresolved"),
        SendErrorKind::Unreachable => (Code::PlatformUnavailable, "send.unreachable"),
        SendErrorKind::Tls => (Code::PlatformError, "send.tls"),
        SendErrorKind::Broken => (Code::PlatformError, "send.broken"),
        SendErrorKind::TooLarge => (Code::PlatformError, "send.too_large"),
        SendErrorKind::Busy => (Code::Overloaded, "send.busy"),
        SendErrorKind::Denied => (Code::Config, "send.denied"),
    };
    let detail = match code {
        Code::Config => "The service may not call the platform; its operator has to act.",
        _ => "Get a new code and try again.",
    };
    Problem::new(code, detail).because(reason)
}

fn code_used(reason: &'static str) -> Problem {
    Problem::new(Code::CodeUsed, "A code logs in once; get a new one.").because(reason)
}
