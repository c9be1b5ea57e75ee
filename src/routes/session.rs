//! `GET /api/session`, and `/api/verify/*` for proxies that ask before they forward.

use serde::Serialize;

use super::{bearer, json};
use crate::{
    host::Host,
    login::{AuthError, Listed, LiveError},
    message::{Head, Response},
    problem::Problem,
    service::{Exchange, Service},
    session::{Device, Session, SessionId},
    token::access::Access,
};

#[derive(Serialize)]
struct Answer<'a> {
    session: Shown<'a>,
    user: User,
}

/// A session as its user sees it.
#[derive(Serialize)]
pub(super) struct Shown<'a> {
    id: String,
    app: &'a str,
    platform: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a Device>,
    created_at: String,
    last_seen_at: String,
    /// Of the caller's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// In a list: whether it is the caller's.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<bool>,
}

#[derive(Serialize)]
struct User {
    id: String,
}

impl<'a> Shown<'a> {
    /// One in a list, of which the caller's own is `current`.
    pub(super) fn among(listed: &'a Listed, current: SessionId) -> Self {
        Self { current: Some(listed.sid == current), ..Self::of(listed) }
    }

    fn of(listed: &'a Listed) -> Self {
        let session = &listed.session;
        Self {
            id: listed.sid.text(),
            app: &session.app,
            platform: session.platform.name(),
            device: session.device.as_ref(),
            created_at: session.created.to_string(),
            last_seen_at: listed.last_seen.to_string(),
            expires_at: None,
            current: None,
        }
    }
}

pub(super) async fn show<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let token = bearer::token(&exchange.request.head)?.ok_or_else(Problem::no_credentials)?;
    let listed = service.login(exchange)?.show(token, &exchange.stages).await?;
    let session = &listed.session;
    exchange.note(|note| {
        note.app = Some(session.app.clone());
        note.sid = Some(listed.sid);
        note.subject = Some(session.subject);
    });
    let answer = Answer {
        session: Shown { expires_at: Some(session.expires.to_string()), ..Shown::of(&listed) },
        user: User { id: session.subject.text() },
    };
    Ok(json(200, &answer))
}

/// 200 with an empty body and every identity header, or 401 with none of them.
pub(super) async fn verify<H: Host>(
    service: &Service<H>,
    exchange: &Exchange<'_>,
    only: Option<&str>,
) -> Result<Response, Problem> {
    let (access, _) = authenticate(service, exchange, only).await?;
    Ok(passes(&access))
}

/// The same by the token alone: its session may be over.
pub(super) fn verify_offline<H: Host>(
    service: &Service<H>,
    exchange: &Exchange<'_>,
    only: Option<&str>,
) -> Result<Response, Problem> {
    let token = bearer::token(&exchange.request.head)?.ok_or_else(Problem::no_credentials)?;
    let access = service.login(exchange)?.authenticate_offline(token, only, &exchange.stages)?;
    note(exchange, &access);
    Ok(passes(&access))
}

/// The id of the one app whose tokens are taken, which begins what follows `/app/`. The id of no
/// app lets nobody in.
pub(super) fn app(rest: &str) -> &str {
    rest.split('/').next().unwrap_or_default()
}

fn passes(access: &Access<'_>) -> Response {
    let mut head = Head::new();
    head.push("x-edgepass-user", &access.subject.text());
    head.push("x-edgepass-session", &access.sid.text());
    head.push("x-edgepass-app", &access.app.id);
    Response { status: 200, head, body: Vec::new() }
}

async fn authenticate<'s, H: Host>(
    service: &'s Service<H>,
    exchange: &Exchange<'_>,
    only: Option<&str>,
) -> Result<(Access<'s>, Session), Problem> {
    let token = bearer::token(&exchange.request.head)?.ok_or_else(Problem::no_credentials)?;
    let login = service.login(exchange)?;
    let (access, session) = login.authenticate(token, only, &exchange.stages).await?;
    note(exchange, &access);
    Ok((access, session))
}

fn note(exchange: &Exchange<'_>, access: &Access<'_>) {
    exchange.note(|note| {
        note.app = Some(access.app.id.clone());
        note.sid = Some(access.sid);
        note.subject = Some(access.subject);
    });
}

impl From<AuthError> for Problem {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Session(LiveError::Store(fault)) => fault.into(),
            AuthError::Session(LiveError::Lagging) => Self::lagging(),
            refused => Self::token_invalid(refused.to_string()),
        }
    }
}
