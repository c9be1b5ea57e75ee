//! `POST /api/logout`: by a bearer access token, expired or not, or by `{refresh_token}`.

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
    timing::Stage,
};

#[derive(Deserialize)]
struct Wish<'a> {
    #[serde(borrow)]
    refresh_token: Option<Cow<'a, str>>,
}

pub(super) async fn log_out<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let request = exchange.request;
    let wish: Wish<'_>;
    let credential = match bearer::token(&request.head)? {
        Some(token) => Credential::Access(token),
        None if request.body.is_empty() => return Err(Problem::no_credentials()),
        None => {
            wish = exchange.stages.run(Stage::Parse, || body::read(request))?;
            Credential::Refresh(wish.refresh_token.as_deref().ok_or_else(Problem::no_credentials)?)
        }
    };
    let ended = service.login(exchange)?.log_out(credential, &exchange.stages).await?;
    exchange.note(|note| {
        note.sid = Some(ended.sid);
        note.subject = Some(ended.subject);
        note.reason = Some("logout".into());
    });
    if ended.now {
        service.event(Event::SessionRevoke, exchange);
    }
    Ok(Response { status: 204, ..Response::default() })
}

impl From<LogoutError> for Problem {
    fn from(error: LogoutError) -> Self {
        match error {
            LogoutError::Access(error) => Self::token_invalid(error.to_string()),
            LogoutError::Refresh => Self::new(Code::RefreshInvalid, "Log in again.").because("refresh.form"),
            LogoutError::Store(fault) => fault.into(),
        }
    }
}
