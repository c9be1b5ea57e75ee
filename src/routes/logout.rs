//! `POST /api/logout`, `POST /api/logout-all`: by a bearer access token, expired or not, or by
//! `{refresh_token}`.

use std::borrow::Cow;

use serde::Deserialize;

use super::{bearer, body};
use crate::{
    audit::Event,
    host::Host,
    login::{Credential, LogoutError},
    message::Response,
    problem::{Code, Problem},
    service::{Exchange, Service},
    session::{SessionId, Why},
    timing::Stage,
    token::keys::Subject,
};

#[derive(Deserialize)]
struct Wish<'a> {
    #[serde(borrow)]
    refresh_token: Option<Cow<'a, str>>,
}

pub(super) async fn log_out<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let given = Given::read(exchange)?;
    let ended = service.login(exchange)?.log_out(given.credential(), &exchange.stages).await?;
    note(exchange, ended.sid, ended.subject, Why::Logout);
    if ended.now {
        service.event(Event::SessionRevoke, exchange);
    }
    Ok(Response { status: 204, ..Response::default() })
}

pub(super) async fn log_out_everywhere<H: Host>(
    service: &Service<H>,
    exchange: &Exchange<'_>,
) -> Result<Response, Problem> {
    let given = Given::read(exchange)?;
    let ended = service.login(exchange)?.log_out_everywhere(given.credential(), &exchange.stages).await?;
    note(exchange, ended.sid, ended.subject, Why::LogoutAll);
    if let Some(sessions) = ended.sessions {
        exchange.note(|note| note.count = Some(sessions));
        service.event(Event::SessionRevokeAll, exchange);
    }
    Ok(Response { status: 204, ..Response::default() })
}

/// What a request brought to be logged out by.
enum Given<'r> {
    Access(&'r str),
    Refresh(Cow<'r, str>),
}

impl<'r> Given<'r> {
    fn read(exchange: &Exchange<'r>) -> Result<Self, Problem> {
        let request = exchange.request;
        let token = bearer::token(&request.head)?;
        // A body is read even where it is not needed: what is wrong with it is wrong either way.
        let wish: Option<Wish<'r>> = exchange.stages.run(Stage::Parse, || body::optional(request))?;
        let refresh_token = wish.and_then(|wish| wish.refresh_token);
        let given = token.map(Self::Access).or_else(|| refresh_token.map(Self::Refresh));
        given.ok_or_else(Problem::no_credentials)
    }

    fn credential(&self) -> Credential<'_> {
        match self {
            Self::Access(token) => Credential::Access(token),
            Self::Refresh(token) => Credential::Refresh(token),
        }
    }
}

fn note(exchange: &Exchange<'_>, sid: SessionId, subject: Subject, why: Why) {
    exchange.note(|note| {
        note.sid = Some(sid);
        note.subject = Some(subject);
        note.reason = Some(why.name().into());
    });
}

impl From<LogoutError> for Problem {
    fn from(error: LogoutError) -> Self {
        match error {
            LogoutError::Access(error) => Self::token_invalid(error.to_string()),
            LogoutError::Refresh => Self::new(Code::RefreshInvalid, "Log in again.").because("refresh.form"),
            LogoutError::Lagging => Self::lagging(),
            LogoutError::Store(fault) => fault.into(),
        }
    }
}
