//! Requests to answers: the table of routes, the rules for bodies and credentials, and the one
//! place where errors become a status.

mod bearer;
mod body;
mod cached;
mod cors;
mod discovery;
mod form;
mod grant;
mod internal;
mod login;
mod logout;
mod oauth;
mod openapi;
mod operation;
mod refresh;
mod session;
mod sessions;

use serde::Serialize;

use crate::{
    host::Host,
    login::StoreFault,
    message::{Head, MAX_TARGET_BYTES, Response},
    problem::{Code, Problem},
    service::{Exchange, Service},
};

pub use body::MAX_BODY_BYTES;
pub use openapi::DOCUMENT as OPENAPI;
pub use operation::{BUILT, COMMIT, VERSION};

/// The header fields the core reads, in lower case. A host need not pass any other.
pub const READS: &[&str] = &[
    "access-control-request-method",
    "authorization",
    "content-type",
    "idempotency-key",
    "if-none-match",
    "origin",
    "traceparent",
    "x-edgepass-load-token",
    "x-env",
    "x-trace-id",
];

/// One row of the table.
struct Route {
    /// Its path, and what the log calls it. From the first `{` or `*` on, anything fits: a proxy
    /// appends its client's own path, and the handler judges an id.
    name: &'static str,
    /// The name up to there.
    fixed: &'static str,
    methods: Methods,
    handler: Handler,
}

#[derive(Clone, Copy)]
enum Methods {
    Get,
    Post,
    Delete,
    Any,
}

#[derive(Clone, Copy)]
enum Handler {
    Login,
    Refresh,
    Logout,
    LogoutAll,
    Session,
    Sessions,
    EndSession,
    Verify,
    VerifyApp,
    VerifyOffline,
    VerifyOfflineApp,
    Introspect,
    Revoke,
    Document,
    Health,
    Ready,
    Version,
    Jwks,
    Metadata,
    OperatorRevoke,
    Block,
    Unblock,
    Sweep,
}

/// The first row that fits counts.
const ROUTES: &[Route] = &[
    Route::new("/api/login", Methods::Post, Handler::Login),
    Route::new("/api/token/refresh", Methods::Post, Handler::Refresh),
    Route::new("/api/logout", Methods::Post, Handler::Logout),
    Route::new("/api/logout-all", Methods::Post, Handler::LogoutAll),
    Route::new("/api/session", Methods::Get, Handler::Session),
    Route::new("/api/sessions", Methods::Get, Handler::Sessions),
    Route::new("/api/sessions/{id}", Methods::Delete, Handler::EndSession),
    Route::new("/api/verify/app/{id}/*", Methods::Any, Handler::VerifyApp),
    Route::new("/api/verify/*", Methods::Any, Handler::Verify),
    Route::new("/api/verify-offline/app/{id}/*", Methods::Any, Handler::VerifyOfflineApp),
    Route::new("/api/verify-offline/*", Methods::Any, Handler::VerifyOffline),
    Route::new("/oauth/introspect", Methods::Post, Handler::Introspect),
    Route::new("/oauth/revoke", Methods::Post, Handler::Revoke),
    Route::new("/openapi.json", Methods::Get, Handler::Document),
    Route::new("/healthz", Methods::Get, Handler::Health),
    Route::new("/readyz", Methods::Get, Handler::Ready),
    Route::new("/version", Methods::Get, Handler::Version),
    Route::new("/.well-known/jwks.json", Methods::Get, Handler::Jwks),
    Route::new("/.well-known/oauth-authorization-server", Methods::Get, Handler::Metadata),
    Route::new("/internal/revoke", Methods::Post, Handler::OperatorRevoke),
    Route::new("/internal/block", Methods::Post, Handler::Block),
    Route::new("/internal/unblock", Methods::Post, Handler::Unblock),
    Route::new("/internal/sweep", Methods::Post, Handler::Sweep),
];

/// The route's name, and the answer.
///
/// HEAD is answered as GET, body and all: whoever writes HTTP leaves the body out and keeps its
/// length, which only it can say.
pub(crate) async fn answer<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> (&'static str, Response) {
    let respond = |problem: Problem| {
        exchange.note_problem(&problem);
        problem.response(&exchange.trace.id)
    };
    let (route, rest) = match find(exchange, service.has_operators()) {
        Ok(found) => found,
        Err(problem) => return ("none", respond(problem)),
    };
    let answer = handle(service, exchange, route, rest).await;
    let in_form = |problem: Problem| if route.is_oauth() { problem.in_oauth_form() } else { problem };
    let mut response = answer.unwrap_or_else(|problem| respond(in_form(problem)));
    if let Ok(login) = service.login(exchange) {
        cors::mark(login.config(), route, &exchange.request.head, &mut response.head);
    }
    (route.name, response)
}

async fn handle<H: Host>(
    service: &Service<H>,
    exchange: &Exchange<'_>,
    route: &Route,
    rest: &str,
) -> Result<Response, Problem> {
    service.enter(exchange)?;
    if !route.methods.include(&exchange.request.method) {
        let preflight = service.login(exchange).ok().and_then(|login| cors::preflight(login.config(), route, exchange));
        return preflight.ok_or_else(|| {
            let problem = Problem::new(Code::MethodNotAllowed, "The route exists, but not with this method.");
            Problem { allow: Some(route.methods.allow()), ..problem }
        });
    }
    match route.handler {
        Handler::Login => login::log_in(service, exchange).await,
        Handler::Refresh => refresh::refresh(service, exchange).await,
        Handler::Logout => logout::log_out(service, exchange).await,
        Handler::LogoutAll => logout::log_out_everywhere(service, exchange).await,
        Handler::Session => session::show(service, exchange).await,
        Handler::Sessions => sessions::list(service, exchange).await,
        Handler::EndSession => sessions::end(service, exchange, rest).await,
        Handler::Verify => session::verify(service, exchange, None).await,
        Handler::VerifyApp => session::verify(service, exchange, Some(session::app(rest))).await,
        Handler::VerifyOffline => session::verify_offline(service, exchange, None),
        Handler::VerifyOfflineApp => session::verify_offline(service, exchange, Some(session::app(rest))),
        Handler::Introspect => oauth::introspect(service, exchange).await,
        Handler::Revoke => oauth::revoke(service, exchange).await,
        Handler::Document => Ok(openapi::document(exchange)),
        Handler::Health => Ok(operation::health()),
        Handler::Ready => Ok(operation::ready(service).await),
        Handler::Version => Ok(operation::version()),
        Handler::Jwks => discovery::jwks(service, exchange),
        Handler::Metadata => discovery::metadata(service, exchange),
        Handler::OperatorRevoke => internal::revoke(service, exchange).await,
        Handler::Block => internal::block(service, exchange).await,
        Handler::Unblock => internal::unblock(service, exchange).await,
        Handler::Sweep => internal::sweep(service, exchange).await,
    }
}

impl Route {
    const fn new(name: &'static str, methods: Methods, handler: Handler) -> Self {
        let mut end = 0;
        while end < name.len() && !matches!(name.as_bytes()[end], b'{' | b'*') {
            end += 1;
        }
        Self { name, fixed: name.split_at(end).0, methods, handler }
    }

    /// What follows the fixed part of its name in `path`; `None` when `path` is another route's.
    fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix(self.fixed)?;
        (rest.is_empty() || self.fixed.len() < self.name.len()).then_some(rest)
    }

    /// Whether its errors have OAuth's form.
    fn is_oauth(&self) -> bool {
        self.name.starts_with("/oauth/")
    }
}

impl Methods {
    fn include(self, method: &str) -> bool {
        match self {
            Self::Get => matches!(method, "GET" | "HEAD"),
            Self::Post => method == "POST",
            Self::Delete => method == "DELETE",
            Self::Any => true,
        }
    }

    /// The value of `Allow`.
    const fn allow(self) -> &'static str {
        match self {
            Self::Get => "GET, HEAD",
            Self::Post => "POST",
            Self::Delete => "DELETE",
            Self::Any => "*",
        }
    }
}

/// The row of a request, and what follows its fixed part in the path. Where there are no operators
/// there are no routes for them.
fn find<'r>(exchange: &Exchange<'r>, has_operators: bool) -> Result<(&'static Route, &'r str), Problem> {
    if exchange.request.target.len() > MAX_TARGET_BYTES {
        return Err(Problem::new(Code::BadRequest, "The path and query are too long."));
    }
    let path = exchange.request.path();
    let exists = |route: &&Route| has_operators || !route.name.starts_with("/internal/");
    let found = ROUTES.iter().filter(exists).find_map(|route| Some((route, route.rest(path)?)));
    found.ok_or_else(|| Problem::new(Code::NotFound, "There is no such route."))
}

/// A method as it may stand in a log.
pub(crate) fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("_OTHER")
}

fn json(status: u16, body: &impl Serialize) -> Response {
    let mut head = Head::new();
    head.push("content-type", "application/json");
    Response { status, head, body: serde_json::to_vec(body).unwrap_or_default() }
}

impl From<StoreFault> for Problem {
    fn from(fault: StoreFault) -> Self {
        Self::new(Code::StoreUnavailable, "Nothing was decided; ask again.").because(fault.to_string())
    }
}

#[cfg(test)]
mod tests;
