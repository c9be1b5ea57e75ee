//! `POST /api/token/refresh`: `{refresh_token, device_id?, app?}`.

use std::borrow::Cow;

use serde::Deserialize;

use super::{body, grant};
use crate::{
    audit::Event,
    host::Host,
    login::{LiveError, RefreshError, Turn},
    message::Response,
    problem::{Code, Problem},
    service::{Exchange, Service},
    timing::Stage,
};

#[derive(Deserialize)]
struct Wish<'a> {
    #[serde(borrow)]
    refresh_token: Cow<'a, str>,
    #[serde(borrow)]
    device_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    app: Option<Cow<'a, str>>,
}

pub(super) async fn refresh<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let answer = renew(service, exchange).await;
    if let Err(problem) = &answer {
        exchange.note_problem(problem);
        let is_reuse = problem.reason.as_deref() == Some(REUSE);
        service.event(if is_reuse { Event::TokenReuse } else { Event::TokenFail }, exchange);
    }
    answer
}

async fn renew<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let stages = &exchange.stages;
    let wish: Wish<'_> = stages.run(Stage::Parse, || body::read(exchange.request))?;
    let login = service.login(exchange)?;
    let token = stages.run(Stage::Sign, || login.read_refresh(&wish.refresh_token));
    let token = token.map_err(|_| refused("refresh.form"))?;
    exchange.note(|note| {
        note.sid = Some(token.sid);
        note.subject = Some(token.subject);
    });
    let renewed = login.refresh(&token, wish.app.as_deref(), wish.device_id.as_deref(), stages).await?;
    exchange.note(|note| {
        note.app = Some(renewed.grant.app.id.clone());
        note.platform = Some(renewed.grant.app.platform.name());
    });
    let event = match renewed.turn {
        Turn::Replayed => Event::TokenReplay,
        Turn::Ahead => Event::TokenAhead,
        Turn::Newest | Turn::Spent => Event::TokenRefresh,
    };
    service.event(event, exchange);
    service.host().later(login.remember(token.subject, token.sid, Vec::new()));
    Ok(grant::answer(&renewed.grant, None))
}

/// What the log says of a spent token.
const REUSE: &str = "refresh.reuse";

fn refused(reason: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(Code::RefreshInvalid, "Log in again.").because(reason)
}

impl From<RefreshError> for Problem {
    fn from(error: RefreshError) -> Self {
        match error {
            RefreshError::Session(LiveError::Store(fault)) | RefreshError::Store(fault) => fault.into(),
            RefreshError::Session(LiveError::Lagging) => Self::lagging(),
            RefreshError::Session(LiveError::Ended(reason)) => refused(reason),
            RefreshError::Reuse => refused(REUSE),
            RefreshError::Device => Self::new(
                Code::DeviceMismatch,
                "The login named a device; send the same device_id at every refresh, or log in again.",
            ),
        }
    }
}
