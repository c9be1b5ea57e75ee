//! Requests to answers: the table of routes, the rules for bodies and credentials, and the one
//! place where errors become a status.

mod bearer;
mod body;
mod login;
mod logout;
mod operation;
mod session;

use serde::Serialize;

use crate::{
    host::Host,
    login::StoreFault,
    message::{Head, MAX_TARGET_BYTES, Response},
    problem::{Code, Problem},
    service::{Exchange, Service},
};

pub use body::MAX_BODY_BYTES;
pub use operation::{BUILT, COMMIT, VERSION};

/// The header fields the core reads, in lower case. A host need not pass any other.
pub const READS: [&str; 4] = ["authorization", "content-type", "traceparent", "x-trace-id"];

/// One row of the table.
struct Route {
    path: Path,
    methods: Methods,
    handler: Handler,
    /// What the log calls it.
    name: &'static str,
}

enum Path {
    Exact(&'static str),
    /// Everything that begins so, whatever follows: a proxy appends its client's own path.
    Under(&'static str),
}

#[derive(Clone, Copy)]
enum Methods {
    Get,
    Post,
    Any,
}

#[derive(Clone, Copy)]
enum Handler {
    Login,
    Logout,
    Session,
    Verify,
    VerifyApp,
    Health,
    Ready,
    Version,
}

/// The first row that fits counts.
const ROUTES: [Route; 8] = [
    Route { path: Path::Exact("/api/login"), methods: Methods::Post, handler: Handler::Login, name: "/api/login" },
    Route { path: Path::Exact("/api/logout"), methods: Methods::Post, handler: Handler::Logout, name: "/api/logout" },
    Route { path: Path::Exact("/api/session"), methods: Methods::Get, handler: Handler::Session, name: "/api/session" },
    Route {
        path: Path::Under(session::VERIFY_APP),
        methods: Methods::Any,
        handler: Handler::VerifyApp,
        name: "/api/verify/app/{id}/*",
    },
    Route { path: Path::Under("/api/verify/"), methods: Methods::Any, handler: Handler::Verify, name: "/api/verify/*" },
    Route { path: Path::Exact("/healthz"), methods: Methods::Get, handler: Handler::Health, name: "/healthz" },
    Route { path: Path::Exact("/readyz"), methods: Methods::Get, handler: Handler::Ready, name: "/readyz" },
    Route { path: Path::Exact("/version"), methods: Methods::Get, handler: Handler::Version, name: "/version" },
];

/// The route's name, and the answer of its handler.
///
/// HEAD is answered as GET, body and all: whoever writes HTTP leaves the body out and keeps its
/// length, which only it can say.
pub(crate) async fn answer<H: Host>(
    service: &Service<H>,
    exchange: &Exchange<'_>,
) -> (&'static str, Result<Response, Problem>) {
    let route = match find(exchange) {
        Ok(route) => route,
        Err(problem) => return ("none", Err(problem)),
    };
    let answer = match route.handler {
        Handler::Login => login::log_in(service, exchange).await,
        Handler::Logout => logout::log_out(service, exchange).await,
        Handler::Session => session::show(service, exchange).await,
        Handler::Verify => session::verify(service, exchange, None).await,
        Handler::VerifyApp => session::verify_app(service, exchange).await,
        Handler::Health => Ok(operation::health()),
        Handler::Ready => Ok(operation::ready(service).await),
        Handler::Version => Ok(operation::version()),
    };
    (route.name, answer)
}

fn find(exchange: &Exchange<'_>) -> Result<&'static Route, Problem> {
    if exchange.request.target.len() > MAX_TARGET_BYTES {
        return Err(Problem::new(Code::BadRequest, "The path and query are too long."));
    }
    let path = exchange.request.path();
    let fits = |route: &&Route| match route.path {
        Path::Exact(exact) => path == exact,
        Path::Under(prefix) => path.starts_with(prefix),
    };
    let route = ROUTES.iter().find(fits).ok_or_else(|| Problem::new(Code::NotFound, "There is no such route."))?;
    let allow = match (route.methods, exchange.request.method.as_str()) {
        (Methods::Any, _) | (Methods::Get, "GET" | "HEAD") | (Methods::Post, "POST") => return Ok(route),
        (Methods::Get, _) => "GET, HEAD",
        (Methods::Post, _) => "POST",
    };
    let problem = Problem::new(Code::MethodNotAllowed, "The route exists, but not with this method.");
    Err(Problem { allow: Some(allow), ..problem })
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
