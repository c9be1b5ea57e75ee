//! Bodies of the JSON routes: which content types are read, how long they may be, and what is
//! strict about the JSON. There are no cookies here, so taking `text/plain` or a form's content type
//! gives nothing away, and the plain lines of `curl -d` and `hey` work.

use serde::Deserialize;

use crate::{
    json::{self, JsonError},
    message::Request,
    problem::{Code, Problem},
};

/// Longest body of a JSON route, in bytes.
pub const MAX_BODY_BYTES: usize = 16 * 1024;

/// Reads the body as a `T`. Unknown members are ignored.
///
/// # Errors
/// 415, 413 or 400, in this order.
pub(super) fn read<'r, T: Deserialize<'r>>(request: &'r Request) -> Result<T, Problem> {
    let kind = request
        .head
        .only("content-type")
        .map_err(|_| Problem::new(Code::BadRequest, "content-type was sent more than once."))?;
    if !is_read(kind.unwrap_or_default()) {
        return Err(Problem::new(Code::UnsupportedMediaType, "Send application/json."));
    }
    if request.body.len() > MAX_BODY_BYTES {
        return Err(Problem::new(Code::PayloadTooLarge, "A body may have 16 KiB."));
    }
    json::read(&request.body).map_err(|error: JsonError| Problem::new(Code::BadRequest, format!("The body: {error}.")))
}

/// A text of at most `max_bytes` without control characters.
///
/// # Errors
/// `bad_request`, which names the member and not its value.
pub(super) fn check(member: &'static str, text: &str, max_bytes: usize) -> Result<(), Problem> {
    if text.len() <= max_bytes && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, format!("{member}: at most {max_bytes} bytes, no control characters.")))
}

fn is_read(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&b| b == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    match essence.as_slice() {
        b"" | b"application/json" | b"application/x-www-form-urlencoded" => true,
        b"text/xml" => false,
        other => other.starts_with(b"text/") || (other.contains(&b'/') && other.ends_with(b"+json")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_documents_are_not() {
        for read in [
            "",
            "application/json",
            "Application/JSON ; charset=utf-8",
            "application/vnd.x+json",
            "text/plain",
            "text/html",
            "application/x-www-form-urlencoded",
        ] {
            assert!(is_read(read.as_bytes()), "{read}");
        }
        for refused in [
            "multipart/form-data; boundary=x",
            "application/xml",
            "text/xml; charset=utf-8",
            "TEXT/XML",
            "application/octet-stream",
            "image/png",
            "json",
            "+json",
            "application/jsonx",
        ] {
            assert!(!is_read(refused.as_bytes()), "{refused}");
        }
    }
}
