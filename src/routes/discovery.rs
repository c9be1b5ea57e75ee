//! What others need to know to verify our tokens: the public keys (RFC 7517) and the metadata of the
//! issuer (RFC 8414). Both are those of users, whoever asks: what is kept by caches is the same for all.

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::cached;
use crate::{
    host::Host,
    message::Response,
    problem::{Code, Problem},
    service::{Exchange, Service},
    token::signing::Jwk,
};

/// How long a copy is good without asking, in seconds, and so how long a `next` key is published
/// before it may sign.
const FRESH_SECONDS: u32 = 300;

#[derive(Serialize)]
struct Keys<'k> {
    keys: Vec<Jwk<'k>>,
}

/// No member without a value, so no `response_types_supported` and no `grant_types_supported`: there
/// is neither an authorization nor a token endpoint in the sense of RFC 6749.
#[derive(Serialize)]
struct Metadata<'a> {
    issuer: &'a str,
    jwks_uri: String,
    revocation_endpoint: String,
    revocation_endpoint_auth_methods_supported: &'static [&'static str],
    /// Where `clients` names somebody who may ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    introspection_endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    introspection_endpoint_auth_methods_supported: Option<&'static [&'static str]>,
}

pub(super) fn jwks<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let keys = service.live()?.ring().public().collect();
    Ok(answer(exchange, "application/jwk-set+json", &Keys { keys }))
}

pub(super) fn metadata<H: Host>(service: &Service<H>, exchange: &Exchange<'_>) -> Result<Response, Problem> {
    let config = service.live()?.config();
    let issuer = config.issuer.as_str();
    if !is_url(issuer) {
        return Err(Problem::new(Code::NotFound, "The issuer is a name and not a URL, so it has no metadata."));
    }
    let at = |path| format!("{}{path}", issuer.trim_end_matches('/'));
    let has_clients = !config.clients.is_empty();
    let metadata = Metadata {
        issuer,
        jwks_uri: at("/.well-known/jwks.json"),
        revocation_endpoint: at("/oauth/revoke"),
        // Who holds a token may end it; a client may name itself.
        revocation_endpoint_auth_methods_supported: if has_clients { &["none", BASIC] } else { &["none"] },
        introspection_endpoint: has_clients.then(|| at("/oauth/introspect")),
        introspection_endpoint_auth_methods_supported: has_clients.then_some(&[BASIC]),
    };
    Ok(answer(exchange, "application/json", &metadata))
}

const BASIC: &str = "client_secret_basic";

/// Whether an issuer is a URL as RFC 8414 §2 wants it; plain http too, for a node without TLS.
fn is_url(issuer: &str) -> bool {
    let rest = issuer.strip_prefix("https://").or_else(|| issuer.strip_prefix("http://")).unwrap_or_default();
    !rest.is_empty() && !rest.starts_with('/') && !rest.contains(['?', '#'])
}

fn answer(exchange: &Exchange<'_>, content_type: &str, body: &impl Serialize) -> Response {
    let body = serde_json::to_vec(body).unwrap_or_default();
    let etag = format!("\"{}\"", Base64UrlUnpadded::encode_string(&Sha256::digest(&body)));
    cached::answer(&exchange.request.head, content_type, &etag, FRESH_SECONDS, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f6_an_issuer_is_a_url_without_a_query() {
        for issuer in ["https://login.example", "https://login.example:8443/a/b/", "http://127.0.0.1:3000"] {
            assert!(is_url(issuer), "{issuer}");
        }
        for issuer in ["edgepass", "", "https://", "https:///a", "https://a?b", "https://a/#b", "ftp://a", "urn:a:b"] {
            assert!(!is_url(issuer), "{issuer}");
        }
    }
}
