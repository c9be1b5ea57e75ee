//! Which header fields speak of one connection only, and how fields are taken out.

use http::{HeaderMap, HeaderName};

/// A field of the connection it came over (RFC 9110 §7.6.1, RFC 9113 §8.2.2), not of the message.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Takes out every field whose name is one of `those`.
pub(crate) fn remove(head: &mut HeaderMap, those: impl Fn(&HeaderName) -> bool) {
    let found: Vec<HeaderName> = head.keys().filter(|name| those(name)).cloned().collect();
    for name in found {
        head.remove(name);
    }
}
