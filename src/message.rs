//! The flat request and answer that every door speaks.
//!
//! A request is one owned value and so is an answer: method, target, one head, one body. A head is
//! a single buffer of `name: value\n` lines, as `wit/node.wit` carries it, because crossing into
//! the guest with twelve header records was measured at 2.3 µs and with one buffer at 0.2 µs, and
//! because a host forwards only the few headers the core reads. The `http` crate's `HeaderMap`
//! would be built once per request to answer three look-ups.
//!
//! This module knows no route and no JSON.

use std::fmt;

/// The longest target (path and query) a door passes on, in bytes. Longer is 400 in [`crate::routes`].
pub const MAX_TARGET_BYTES: usize = 4096;

/// A request as the core sees it.
#[derive(Clone, Default)]
pub struct Request {
    /// Upper-case method, as sent.
    pub method: String,
    /// Path and query, as sent: begins with `/`, percent-encoding kept.
    pub target: String,
    /// The header fields named in [`crate::routes::READS`]; a door may pass more.
    pub head: Head,
    /// The whole body. A door that reads a stream stops one byte past
    /// [`crate::routes::MAX_BODY_BYTES`], which is how the core learns that it was longer.
    pub body: Vec<u8>,
}

/// An answer of the core.
#[derive(Clone, Default)]
pub struct Response {
    /// HTTP status, 200 to 599.
    pub status: u16,
    /// Header fields; `content-length` is the door's to add, from the body.
    pub head: Head,
    /// The whole body.
    pub body: Vec<u8>,
}

/// Header fields in one buffer: `name: value\n`, names in lower case, no CR, LF or NUL inside.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Head(Vec<u8>);

/// A field that may be sent once was sent more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("header field sent more than once")]
pub struct Repeated;

impl Head {
    /// An empty head.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Takes lines in the form above as they come over the `node` door. Lines without a colon are
    /// skipped when reading, so any bytes are safe here.
    #[must_use]
    pub fn from_lines(lines: Vec<u8>) -> Self {
        Self(lines)
    }

    /// The lines, for the way out.
    #[must_use]
    pub fn into_lines(self) -> Vec<u8> {
        self.0
    }

    /// Appends a field. A control character in the value would let its sender write header fields
    /// of its own, so such a byte becomes a space: the field stays, the injection does not.
    pub fn push(&mut self, name: &str, value: &str) {
        self.push_bytes(name, value.as_bytes());
    }

    /// [`Head::push`] for a value that need not be UTF-8.
    pub fn push_bytes(&mut self, name: &str, value: &[u8]) {
        self.0.reserve(name.len() + value.len() + 3);
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b": ");
        self.0.extend(value.iter().map(|&b| if b < 0x20 && b != b'\t' || b == 0x7f { b' ' } else { b }));
        self.0.push(b'\n');
    }

    /// Every field in order: lower-case name, value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.split(|&b| b == b'\n').filter_map(|line| {
            let colon = line.iter().position(|&b| b == b':')?;
            let name = std::str::from_utf8(&line[..colon]).ok()?;
            Some((name, line[colon + 1..].trim_ascii()))
        })
    }

    /// The first value of `name` that is UTF-8. `name` is in lower case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next().and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The value of a field that may be sent once only, such as `authorization`.
    ///
    /// # Errors
    /// [`Repeated`] when it was sent more than once: which one a proxy in front believed is unknown.
    pub fn only(&self, name: &str) -> Result<Option<&[u8]>, Repeated> {
        let mut values = self.all(name);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            _ => Err(Repeated),
        }
    }

    fn all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.iter().filter(move |(n, _)| *n == name).map(|(_, value)| value)
    }
}

impl Request {
    /// The path: the target up to its query.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

/// Names only: a head may hold a bearer token.
impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// Without body and values: they may hold codes and tokens.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("path", &self.path())
            .field("head", &self.head)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Without body and values: they may hold tokens.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("head", &self.head)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_add_a_field_of_its_own() {
        let mut head = Head::new();
        head.push("x-a", "1\r\nx-b: 2\0");
        assert_eq!(head.get("x-a"), Some("1  x-b: 2"));
        assert_eq!(head.get("x-b"), None);
    }

    #[test]
    fn a_field_sent_twice_is_not_chosen_from() {
        let mut head = Head::new();
        head.push("authorization", "Bearer a");
        assert_eq!(head.only("authorization"), Ok(Some(&b"Bearer a"[..])));
        head.push("authorization", "Bearer b");
        assert_eq!(head.only("authorization"), Err(Repeated));
        assert_eq!(head.only("cookie"), Ok(None));
    }

    #[test]
    fn any_bytes_are_a_head() {
        let head = Head::from_lines(b"\n:\nno colon\n\xff: x\nx-a:1\nx-a:\xff\n".to_vec());
        assert_eq!(head.get("x-a"), Some("1"));
        assert_eq!(head.iter().count(), 3);
    }

    #[test]
    fn debug_shows_no_value() {
        let mut request = Request { target: "/a?code=canary".into(), body: b"canary".to_vec(), ..Request::default() };
        request.head.push("authorization", "canary");
        assert!(!format!("{request:?}").contains("canary"));
    }
}
