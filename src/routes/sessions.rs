//! The caller's devices: `GET /api/sessions`, `DELETE /api/sessions/{id}`.

use serde::Serialize;

use super::{bearer, json, session::Shown};
use crate::{
    audit::Event,
    host::Host,
    message::Response,
    problem::{Code, Problem},
    service::{Exchange, Service},
    session::Why,
};

#[derive(Serialize)]
struct List<'a> {
    sessions: Vec<Shown<'a>>,
}

pub(super) async fn list<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let token = bearer::token(&exchange.request.head)?.ok_or_else(Problem::no_credentials)?;
    let devices = service.login(exchange)?.devices(token, &exchange.stages).await?;
    exchange.note(|note| {
        note.sid = Some(devices.current);
        note.subject = devices.sessions.first().map(|listed| listed.session.subject);
    });
    let shown = devices.sessions.iter().map(|listed| Shown::among(listed, devices.current));
    Ok(json(200, &List { sessions: shown.collect() }))
}

/// One answer for an id that is another user's, of no session, of one that is over, or none at all.
pub(super) async fn end<H: Host>(service: &Service<H>, exchange: &Exchange<'_>, id: &str) -> Result<Response, Problem> {
    let token = bearer::token(&exchange.request.head)?.ok_or_else(Problem::no_credentials)?;
    let ended = service.login(exchange)?.end_device(token, id, &exchange.stages).await?;
    let ended = ended.ok_or_else(|| Problem::new(Code::NotFound, "You have no such session."))?;
    exchange.note(|note| {
        note.sid = Some(ended.sid);
        note.subject = Some(ended.subject);
        note.reason = Some(Why::Device.name().into());
    });
    service.event(Event::SessionRevoke, exchange);
    Ok(Response { status: 204, ..Response::default() })
}
