//! Between header fields and lines of `name: value\n`.

use http::{HeaderMap, HeaderName, header};

use crate::{
    fields::{self, is_hop_by_hop},
    lines,
};

/// The fields in `lines` that go upstream.
pub(super) fn head(lines: &[u8]) -> HeaderMap {
    let mut head = HeaderMap::new();
    for (name, value) in lines::read(lines) {
        if !stays(&name) && name != header::CONTENT_LENGTH {
            head.append(name, value);
        }
    }
    head
}

/// Takes out of `head` what stays between the guest and this node.
pub(super) fn strip(head: &mut HeaderMap) {
    fields::remove(head, stays);
}

/// The fields of a reply as lines.
pub(super) fn lines(head: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::with_capacity(head.iter().map(|(name, value)| name.as_str().len() + value.len() + 3).sum());
    for (name, value) in head.iter().filter(|(name, _)| !is_hop_by_hop(name)) {
        lines::write(&mut lines, name, value);
    }
    lines
}

/// Fields of this connection, and those that would tell a platform which of our requests is behind
/// its own.
fn stays(name: &HeaderName) -> bool {
    is_hop_by_hop(name) || matches!(name.as_str(), "host" | "expect" | "traceparent" | "tracestate" | "baggage")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_fields_meant_for_the_upstream_go_there() {
        let head = head(
            b"accept: a\naccept: b\nHost: evil\ncontent-length: 9\ntransfer-encoding: chunked\nconnection: close\n\
              traceparent: t\ntracestate: t\nno colon\n: empty\nx-nul: a\0b\nx-space:  c \n",
        );
        assert_eq!(lines(&head), b"accept: a\naccept: b\nx-space: c\n");
    }

    #[test]
    fn hop_by_hop_fields_of_a_reply_stay_here() {
        let mut head = HeaderMap::new();
        for (name, value) in [("content-type", "a/b"), ("keep-alive", "timeout=5"), ("connection", "keep-alive")] {
            head.insert(name, HeaderValue::from_static(value));
        }
        assert_eq!(lines(&head), b"content-type: a/b\n");
        head.insert("traceparent", HeaderValue::from_static("t"));
        strip(&mut head);
        assert_eq!(head.len(), 1);
    }
}
