//! Cross-origin calls from pages (the Fetch standard, §3.2), for the origins of `cors_origins` and
//! no others. There are no cookies, so credentials are never allowed; which page may call is all
//! that is said here, who is calling says the token.

use super::{Methods, Route};
use crate::{
    config::Config,
    message::{Head, Response},
    service::Exchange,
};

/// What a page may send, besides what every page may.
const MAY_SEND: &str = "authorization, content-type, idempotency-key, traceparent, x-trace-id";

/// What a page may read, besides what every page may.
const MAY_READ: &str = "retry-after, traceparent, www-authenticate, x-trace-id";

/// How long a browser keeps the answer to a preflight, in seconds: the most Firefox keeps one.
const MAX_AGE: &str = "86400";

/// Whether pages may call a route: what users call is below `/api/`, and what gateways call there
/// takes any method.
fn is_for_pages(route: &Route) -> bool {
    route.name.starts_with("/api/") && !matches!(route.methods, Methods::Any)
}

/// The answer to the preflight of a page that may call `route`; `None` is no such request.
pub(super) fn preflight(config: &Config, route: &Route, exchange: &Exchange<'_>) -> Option<Response> {
    let head = &exchange.request.head;
    let asks = exchange.request.method == "OPTIONS" && head.get("access-control-request-method").is_some();
    if !asks || !is_for_pages(route) || allowed(config, head).is_none() {
        return None;
    }
    let mut head = Head::new();
    head.push("access-control-allow-methods", route.methods.allow());
    head.push("access-control-allow-headers", MAY_SEND);
    head.push("access-control-max-age", MAX_AGE);
    Some(Response { status: 204, head, ..Response::default() })
}

/// Says on an answer of `route` whether the page that asked may read it.
pub(super) fn mark(config: &Config, route: &Route, request: &Head, answer: &mut Head) {
    if config.cors_origins.is_empty() || !is_for_pages(route) {
        return;
    }
    // Also where the origin is not allowed: a cache must not give that answer to another page.
    answer.push("vary", "origin");
    if let Some(origin) = allowed(config, request) {
        answer.push("access-control-allow-origin", origin);
        answer.push("access-control-expose-headers", MAY_READ);
    }
}

/// The origin of the request as it is configured.
fn allowed<'c>(config: &'c Config, head: &Head) -> Option<&'c str> {
    let origin = head.only("origin").ok()??;
    config.cors_origins.iter().map(String::as_str).find(|known| known.as_bytes() == origin)
}
