//! Bodies of the JSON routes: which content types are read, how long they may be, and what is
//! strict about the JSON. There are no cookies here, so taking `text/plain` or a form's content type
//! gives nothing away, and the plain lines of `curl -d` and `hey` work.

use serde::Deserialize;

use crate::{
    json::{self, JsonError, Object},
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
    value(request).map(|Object(value)| value)
}

/// The same where the body may be left out; `null` is what some clients send then.
///
/// # Errors
/// As [`read`].
pub(super) fn optional<'r, T: Deserialize<'r>>(request: &'r Request) -> Result<Option<T>, Problem> {
    if request.body.is_empty() {
        return Ok(None);
    }
    Ok(value::<Option<Object<T>>>(request)?.map(|Object(value)| value))
}

fn value<'r, T: Deserialize<'r>>(request: &'r Request) -> Result<T, Problem> {
    if !is_read(&kind(request)?) {
        return Err(Problem::new(Code::UnsupportedMediaType, "Send application/json."));
    }
    json::read(bounded(request)?)
        .map_err(|error: JsonError| Problem::new(Code::BadRequest, format!("The body: {error}.")))
}

/// The content type in lower case, without parameters; empty when there is none.
///
/// # Errors
/// `bad_request` when it was sent more than once.
pub(super) fn kind(request: &Request) -> Result<Vec<u8>, Problem> {
    let sent = request
        .head
        .only("content-type")
        .map_err(|_| Problem::new(Code::BadRequest, "content-type was sent more than once."))?;
    Ok(sent.unwrap_or_default().split(|&b| b == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase())
}

/// The body, when it is not too long.
///
/// # Errors
/// `payload_too_large`.
pub(super) fn bounded(request: &Request) -> Result<&[u8], Problem> {
    if request.body.len() > MAX_BODY_BYTES {
        return Err(Problem::new(Code::PayloadTooLarge, "A body may have 16 KiB."));
    }
    Ok(&request.body)
}

/// A text of at most `max_characters` none of which is a control character.
///
/// # Errors
/// `bad_request`, which names the member and not its value.
pub(super) fn check(member: &'static str, text: &str, max_characters: usize) -> Result<(), Problem> {
    if text.chars().count() <= max_characters && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, format!("{member}: at most {max_characters}, no control characters.")))
}

fn is_read(kind: &[u8]) -> bool {
    match kind {
        b"" | b"application/json" | b"application/x-www-form-urlencoded" => true,
        b"text/xml" => false,
        other => other.starts_with(b"text/") || (other.contains(&b'/') && other.ends_with(b"+json")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Head;

    fn is_content_type_read(content_type: &str) -> bool {
        let mut head = Head::new();
        head.push("content-type", content_type);
        is_read(&kind(&Request { head, ..Request::default() }).expect("sent once"))
    }

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
            assert!(is_content_type_read(read), "{read}");
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
            assert!(!is_content_type_read(refused), "{refused}");
        }
    }
}
