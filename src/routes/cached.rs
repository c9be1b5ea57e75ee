//! Answers that are the same for everybody and may be kept (RFC 9111), with a name to ask by
//! whether they have changed (RFC 9110 §13.1.2).

use crate::message::{Head, Response};

/// `body`, which `etag` (with its quotes) names, fresh for `seconds`; 304 when the caller has it.
pub(super) fn answer(request: &Head, content_type: &str, etag: &str, seconds: u32, body: Vec<u8>) -> Response {
    let mut head = Head::new();
    head.push("etag", etag);
    head.push("cache-control", &format!("public, max-age={seconds}"));
    if has(request, etag) {
        return Response { status: 304, head, body: Vec::new() };
    }
    head.push("content-type", content_type);
    Response { status: 200, head, body }
}

/// Whether the caller names `etag`. Weak and strong are the same here: GET compares weakly.
fn has(request: &Head, etag: &str) -> bool {
    let named = request.get("if-none-match").unwrap_or_default();
    named.split(',').map(str::trim).any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_what_the_caller_has_is_not_sent_again() {
        let ask = |named: &str| {
            let mut request = Head::new();
            request.push("if-none-match", named);
            let response = answer(&request, "text/plain", "\"a\"", 300, b"body".to_vec());
            assert_eq!(response.head.get("etag"), Some("\"a\""));
            assert_eq!(response.head.get("cache-control"), Some("public, max-age=300"));
            (response.status, response.body)
        };
        for known in ["\"a\"", "W/\"a\"", "\"b\", \"a\"", "*"] {
            assert_eq!(ask(known), (304, Vec::new()), "{known}");
        }
        for other in ["", "a", "\"b\"", "\"a", "\"a\"x"] {
            assert_eq!(ask(other), (200, b"body".to_vec()), "{other}");
        }
    }
}
