//! `POST /oauth/introspect` (RFC 7662) and `POST /oauth/revoke` (RFC 7009): for back ends that ask
//! what a token is worth, and for OAuth clients that end sessions.

use base64ct::{Base64, Encoding as _};
use percent_encoding::percent_decode_str;
use serde::Serialize;

use super::{form::Form, json};
use crate::{
    audit::Event,
    config::{Client, Config},
    host::Host,
    login::{AuthError, Credential, Inspected, LiveError, LogoutError},
    message::Response,
    problem::{Code, OAuthError, Problem},
    service::{Exchange, Service},
    session::Why,
    timing::Stage,
};

/// What a token is worth. There is no `scope`: a token is good for what its app and its user are,
/// and an empty one would say that it is good for nothing.
#[derive(Serialize)]
struct Worth<'a> {
    active: bool,
    sub: String,
    client_id: &'a str,
    exp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    iat: Option<u64>,
    iss: &'a str,
    aud: &'a str,
    token_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<&'a str>,
    sid: String,
    platform: &'static str,
    appid: &'a str,
    openid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unionid: Option<&'a str>,
}

/// The whole answer for every other token, whatever is wrong with it.
#[derive(Serialize)]
struct Inactive {
    active: bool,
}

pub(super) async fn introspect<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let login = service.login(exchange)?;
    let client = client(login.config(), exchange)?.ok_or_else(|| Problem::client_invalid("client.absent"))?;
    let form = exchange.stages.run(Stage::Parse, || Form::read(exchange.request))?;
    let token = token(&form)?;
    let refused = match login.inspect(token, &exchange.stages).await {
        Ok(found) if client.may_ask_about(found.app) => return Ok(active(login.config(), exchange, token, &found)),
        Ok(_) => "client.other_app".to_owned(),
        Err(error @ AuthError::Session(LiveError::Store(_) | LiveError::Lagging)) => return Err(error.into()),
        Err(refused) => refused.to_string(),
    };
    exchange.note(|note| note.reason = Some(refused.into()));
    Ok(json(200, &Inactive { active: false }))
}

/// Whoever holds a token may end its session: a mini-program has no secret to prove more by. A
/// client that names itself all the same is held to its apps (RFC 7009 §2.1).
pub(super) async fn revoke<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let login = service.login(exchange)?;
    let client = client(login.config(), exchange)?;
    let form = exchange.stages.run(Stage::Parse, || Form::read(exchange.request))?;
    let token = token(&form)?;
    if let Some(client) = client
        && login.issued_to(token).is_some_and(|app| !client.may_ask_about(app))
    {
        let problem = Problem::new(Code::BadRequest, "The token was issued to an app that is not this client's.");
        return Err(Problem { oauth: Some(OAuthError::UnauthorizedClient), ..problem.because("client.other_app") });
    }
    match login.log_out(token, &exchange.stages).await {
        Ok(ended) => {
            exchange.note(|note| {
                note.sid = Some(ended.sid);
                note.subject = Some(ended.subject);
                note.reason = Some(Why::Logout.name().into());
            });
            if ended.now {
                service.event(Event::SessionRevoke, exchange);
            }
        }
        // A token that never was cannot be used any more: that is all the caller wants.
        Err(unknown @ (LogoutError::Access(_) | LogoutError::Refresh)) => {
            exchange.note(|note| note.reason = Some(unknown.to_string().into()));
        }
        Err(fault @ (LogoutError::Store(_) | LogoutError::Lagging)) => return Err(fault.into()),
    }
    Ok(Response { status: 200, ..Response::default() })
}

fn active(config: &Config, exchange: &Exchange<'_>, token: Credential<'_>, found: &Inspected<'_>) -> Response {
    let Inspected { app, sid, session, .. } = found;
    exchange.note(|note| {
        note.app = Some(app.id.clone());
        note.sid = Some(*sid);
        note.subject = Some(session.subject);
    });
    // A refresh token is for this service alone, and no other name would let a back end that looks
    // at `active` and `aud` take it for an access token.
    let (token_type, aud) = match token {
        Credential::Access(_) => ("Bearer", &app.audience),
        Credential::Refresh(_) => ("refresh_token", &config.issuer),
    };
    let worth = Worth {
        active: true,
        sub: session.subject.text(),
        client_id: &app.id,
        exp: found.expires.0,
        iat: found.issued.map(|at| at.0),
        iss: &config.issuer,
        aud,
        token_type,
        jti: found.id.as_deref(),
        sid: sid.text(),
        platform: session.platform.name(),
        appid: &session.appid,
        openid: session.openid.expose(),
        unionid: session.unionid.as_ref().map(|unionid| unionid.expose().as_str()),
    };
    json(200, &worth)
}

/// The token of a form. What `token_type_hint` says is not looked at: a token shows what it is.
fn token<'f>(form: &'f Form<'_>) -> Result<Credential<'f>, Problem> {
    form.get("token_type_hint")?;
    let token = form.get("token")?.ok_or_else(|| Problem::new(Code::BadRequest, "Send token."))?;
    Ok(Credential::of(token))
}

/// The client of HTTP Basic (RFC 7617); `None` when nobody tried to be one.
///
/// # Errors
/// 401 for any other credentials, also of another scheme: they were meant to prove something.
fn client<'c>(config: &'c Config, exchange: &Exchange<'_>) -> Result<Option<&'c Client>, Problem> {
    let sent = exchange.request.head.only("authorization");
    let Some(sent) = sent.map_err(|_| Problem::client_invalid("client.repeated"))? else { return Ok(None) };
    let (id, secret) = basic(sent).ok_or_else(|| Problem::client_invalid("client.form"))?;
    // RFC 6749 §2.3.1 has the secret percent-encoded before it is joined; many clients do not.
    let decoded = percent_decode_str(&secret).decode_utf8_lossy();
    // Every client is compared, so that the time taken does not tell which ids there are.
    let found = config.clients.iter().fold(None, |found, client| {
        let proven = client.is_secret(&secret) | client.is_secret(&decoded);
        if proven && client.id == id { Some(client) } else { found }
    });
    let client = found.ok_or_else(|| Problem::client_invalid("client.secret"))?;
    exchange.note(|note| note.client = Some(client.id.clone()));
    Ok(Some(client))
}

/// Id and secret of `Basic base64(id:secret)`.
fn basic(value: &[u8]) -> Option<(String, String)> {
    let (scheme, credentials) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = Base64::decode_vec(credentials.trim_ascii()).ok()?;
    let (id, secret) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((id.to_owned(), secret.to_owned()))
}
