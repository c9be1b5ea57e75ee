//! What operators do: `POST /internal/{revoke,block,unblock,sweep}`, with one of `operator_tokens` as
//! the bearer token. Without any configured these routes do not exist.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{bearer, body, json};
use crate::{
    audit::Event,
    host::Host,
    login::Login,
    message::Response,
    platforms::PlatformClient,
    problem::{Code, Problem},
    service::{Exchange, Service},
    session::SessionId,
    timing::Stage,
    token::keys::Subject,
};

#[derive(Deserialize)]
struct Whom<'a> {
    #[serde(borrow)]
    session_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    user_id: Option<Cow<'a, str>>,
}

/// Which keys to look at.
#[derive(Default, Deserialize)]
struct Window<'a> {
    #[serde(borrow)]
    cursor: Option<Cow<'a, str>>,
    limit: Option<u32>,
}

#[derive(Serialize)]
struct Swept {
    removed: usize,
    /// `null` at the end.
    cursor: Option<String>,
}

pub(super) async fn revoke<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let login = operated(service, exchange)?;
    let whom: Whom<'_> = exchange.stages.run(Stage::Parse, || body::read(exchange.request))?;
    let ended = match (whom.session_id, whom.user_id) {
        (Some(id), None) => {
            let sid = SessionId::parse(&id).ok_or_else(|| malformed("session_id", "session"))?;
            exchange.note(|note| note.sid = Some(sid));
            usize::from(login.revoke_session(sid, &exchange.stages).await?)
        }
        (None, Some(id)) => login.revoke_user(user(&id, exchange)?, &exchange.stages).await?,
        _ => return Err(Problem::new(Code::BadRequest, "session_id, user_id: one of them, and only one.")),
    };
    Ok(done(service, exchange, Event::AdminRevoke, Some(ended)))
}

pub(super) async fn block<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let login = operated(service, exchange)?;
    let ended = login.block(named_user(exchange)?, &exchange.stages).await?;
    Ok(done(service, exchange, Event::AdminBlock, Some(ended)))
}

pub(super) async fn unblock<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let login = operated(service, exchange)?;
    login.unblock(named_user(exchange)?, &exchange.stages).await?;
    Ok(done(service, exchange, Event::AdminUnblock, None))
}

pub(super) async fn sweep<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let login = operated(service, exchange)?;
    // A cron job with nothing to say may say nothing.
    let from: Window<'_> = body::optional(exchange.request)?.unwrap_or_default();
    let limit = from.limit.unwrap_or(USUAL_KEYS);
    if !(1..=MOST_KEYS).contains(&limit) {
        return Err(Problem::new(Code::BadRequest, format!("limit: 1 to {MOST_KEYS}.")));
    }
    if from.cursor.as_ref().is_some_and(|cursor| !login.is_cursor(cursor)) {
        return Err(Problem::new(Code::BadRequest, "cursor: not one that a sweep has answered."));
    }
    let swept = login.sweep(from.cursor.as_deref(), limit as usize, &exchange.stages).await?;
    exchange.note(|note| note.count = Some(swept.removed));
    service.event(Event::AdminSweep, exchange);
    Ok(json(200, &Swept { removed: swept.removed, cursor: swept.cursor }))
}

/// The login service, for an operator.
fn operated<'s, H: Host>(
    service: &'s Service<H>,
    exchange: &Exchange<'_>,
) -> Result<&'s Login<H::Store, impl PlatformClient + use<H>>, Problem> {
    let login = service.login(exchange)?;
    let problem = match bearer::token(&exchange.request.head) {
        Ok(Some(token)) if login.config().operator_tokens.contains(token) => return Ok(login),
        Ok(Some(_)) => Problem::token_invalid("operator.token"),
        Ok(None) => Problem::no_credentials(),
        Err(problem) => problem,
    };
    exchange.note_problem(&problem);
    service.event(Event::AdminRefused, exchange);
    Err(problem)
}

fn named_user(exchange: &Exchange<'_>) -> Result<Subject, Problem> {
    let whom: Whom<'_> = exchange.stages.run(Stage::Parse, || body::read(exchange.request))?;
    user(&whom.user_id.ok_or_else(|| malformed("user_id", "user"))?, exchange)
}

fn user(id: &str, exchange: &Exchange<'_>) -> Result<Subject, Problem> {
    let subject = Subject::parse(id).ok_or_else(|| malformed("user_id", "user"))?;
    exchange.note(|note| note.subject = Some(subject));
    Ok(subject)
}

fn malformed(member: &'static str, of: &'static str) -> Problem {
    Problem::new(Code::BadRequest, format!("{member}: not the id of a {of}."))
}

/// Whether there was such a session or user, an operator's logs say and the answer does not.
fn done<H: Host>(service: &Service<H>, exchange: &Exchange<'_>, event: Event, ended: Option<usize>) -> Response {
    exchange.note(|note| note.count = ended);
    service.event(event, exchange);
    Response { status: 204, ..Response::default() }
}

/// How many keys one sweep looks at: a few dozen milliseconds of a store over a network.
const USUAL_KEYS: u32 = 200;

/// How many it looks at at most; also what the edge node lists at once.
const MOST_KEYS: u32 = 1000;
