//! From an HTTP message to the flat request: what is checked, what is left out.

use http::{HeaderMap, HeaderName, HeaderValue, Version, header, request::Parts, uri::PathAndQuery};

use crate::{
    fields::{self, is_hop_by_hop},
    problem::Problem,
};

/// What is asked for, and of whom. Sets the one `host` field that a flat request has: HTTP/2 calls it
/// `:authority`.
pub(super) fn target(parts: &mut Parts) -> Result<PathAndQuery, Problem> {
    let target = match parts.uri.path_and_query() {
        Some(target) if target.path().starts_with('/') => target.clone(),
        _ => return Err(Problem::BadRequest("the target is no path")),
    };
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (None, _) => None,
        (Some(host), None) if is_authority(host.as_bytes()) => Some(host),
        _ => return Err(NO_HOST),
    };
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    match (authority, host) {
        (None, Some(_)) => {}
        // A message that names two is one that two programs read differently.
        (Some(authority), Some(host)) if !host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()) => {
            return Err(Problem::BadRequest("the Host field and the target's authority differ"));
        }
        (Some(authority), _) if is_authority(authority.as_bytes()) => {
            let host = HeaderValue::from_str(authority).map_err(|_| NO_HOST)?;
            parts.headers.insert(header::HOST, host);
        }
        _ => return Err(NO_HOST),
    }
    Ok(target)
}

const NO_HOST: Problem = Problem::BadRequest("a request has one Host field, and it is an authority");

/// Without a user's name (RFC 9110 §4.2.4, RFC 9113 §8.3.1).
fn is_authority(text: &[u8]) -> bool {
    !text.contains(&b'@') && http::uri::Authority::try_from(text).is_ok()
}

/// What hyper reads as chunked may say more than that; whoever reads it otherwise disagrees about
/// where the request ends.
pub(super) fn check_framing(parts: &Parts) -> Result<(), Problem> {
    let mut codings = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    let chunked = match (codings.next(), codings.next()) {
        (None, _) => return Ok(()),
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        _ => false,
    };
    // A length beside it hyper takes away, and ends the connection after the answer (RFC 9112 §6.1); to
    // HTTP/1.0 it means nothing.
    if !chunked || parts.version != Version::HTTP_11 {
        return Err(Problem::BadRequest("a body is sent whole or chunked"));
    }
    Ok(())
}

/// Takes out what speaks of this connection only (RFC 9110 §7.6.1), and every field that would
/// pass for one that the node itself adds.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| name != header::HOST)
        .collect();
    fields::remove(headers, |name| is_hop_by_hop(name) || name.as_str().starts_with("spin-") || named.contains(name));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn parts(uri: &str, fields: &[(&'static str, &'static str)]) -> Parts {
        let mut parts = http::Request::new(()).into_parts().0;
        parts.uri = uri.parse().expect("a URI");
        parts.headers = headers(fields);
        parts
    }

    #[test]
    fn a_client_cannot_speak_for_the_node_or_its_connection() {
        let mut sent = headers(&[
            ("host", "a"),
            ("connection", "keep-alive, X-Private, host"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABkAAQAAP__"),
            ("spin-client-addr", "6.6.6.6"),
            ("spin-client-addr", "7.7.7.7"),
            ("x-public", "1"),
        ]);
        strip(&mut sent);
        assert_eq!(sent, headers(&[("host", "a"), ("x-public", "1")]));
    }

    #[test]
    fn a_target_is_a_path_at_one_host() {
        for (uri, fields, host) in [
            ("/a?b=c", &[("host", "h")][..], "h"),
            ("http://h:1/a?b=c", &[], "h:1"),
            ("https://h/a?b=c", &[("host", "H")], "h"),
        ] {
            let mut parts = parts(uri, fields);
            assert_eq!(target(&mut parts).expect("a path"), "/a?b=c", "{uri}");
            assert_eq!(parts.headers["host"], host);
        }
        for (uri, fields) in [
            ("*", &[("host", "h")][..]),
            ("h:80", &[("host", "h")]),
            ("/a", &[]),
            ("/a", &[("host", "h"), ("host", "h")]),
            ("/a", &[("host", "")]),
            ("/a", &[("host", "u@h")]),
            ("http://u@h/a", &[]),
            ("http://h/a", &[("host", "other")]),
        ] {
            assert!(target(&mut parts(uri, fields)).is_err(), "{uri} {fields:?}");
        }
    }

    #[test]
    fn a_body_has_one_length() {
        for (fields, good) in [
            (&[][..], true),
            (&[("content-length", "5")], true),
            (&[("transfer-encoding", "Chunked")], true),
            (&[("transfer-encoding", "gzip, chunked")], false),
            (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], false),
            (&[("transfer-encoding", "xchunked")], false),
        ] {
            assert_eq!(check_framing(&parts("/", fields)).is_ok(), good, "{fields:?}");
        }
        let mut old = parts("/", &[("transfer-encoding", "chunked")]);
        old.version = Version::HTTP_10;
        assert!(check_framing(&old).is_err());
    }
}
