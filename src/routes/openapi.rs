//! `GET /openapi.json`: the description of every route, for people and for tools.

use super::cached;
use crate::{message::Response, service::Exchange};

/// The document as it is in the repository: compact enough to be served as it is.
pub const DOCUMENT: &str = include_str!("../../docs/openapi.json");

/// For whom nothing but the document counts, not the build. FNV-1a, made by the compiler.
const FINGERPRINT: u64 = {
    let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while at < DOCUMENT.len() {
        hash = (hash ^ DOCUMENT.as_bytes()[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
};

/// How long a copy is fresh, in seconds: it changes with a deployment.
const FRESH_SECONDS: u32 = 300;

pub(super) fn document(exchange: &Exchange<'_>) -> Response {
    let etag = format!("\"{FINGERPRINT:016x}\"");
    cached::answer(&exchange.request.head, "application/json", &etag, FRESH_SECONDS, DOCUMENT.into())
}
