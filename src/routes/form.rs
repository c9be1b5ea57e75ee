//! Bodies of the OAuth routes: `application/x-www-form-urlencoded` and nothing else. A parameter may
//! be sent once; those nobody knows are ignored, however often (RFC 6749 §3.2).

use std::borrow::Cow;

use super::body;
use crate::{
    message::Request,
    problem::{Code, Problem},
};

/// The parameters of a form.
pub(super) struct Form<'r>(Vec<(Cow<'r, str>, Cow<'r, str>)>);

impl<'r> Form<'r> {
    /// Reads the body.
    ///
    /// # Errors
    /// 415 or 413, in this order.
    pub(super) fn read(request: &'r Request) -> Result<Self, Problem> {
        if body::kind(request)? != b"application/x-www-form-urlencoded" {
            return Err(Problem::new(Code::UnsupportedMediaType, "Send application/x-www-form-urlencoded."));
        }
        Ok(Self(form_urlencoded::parse(body::bounded(request)?).collect()))
    }

    /// A parameter; one without a value counts as left out.
    ///
    /// # Errors
    /// `bad_request` when it was sent more than once.
    pub(super) fn get(&self, name: &'static str) -> Result<Option<&str>, Problem> {
        let mut values = self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_ref());
        match (values.next(), values.next()) {
            (value, None) => Ok(value.filter(|value| !value.is_empty())),
            _ => Err(Problem::new(Code::BadRequest, format!("{name} was sent more than once."))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Head;

    fn read(content_type: &str, body: &[u8], parameter: &'static str) -> Result<Option<String>, u16> {
        let mut head = Head::new();
        if !content_type.is_empty() {
            head.push("content-type", content_type);
        }
        let request = Request { head, body: body.to_vec(), ..Request::default() };
        let form = Form::read(&request).map_err(|problem| problem.status())?;
        form.get(parameter).map(|value| value.map(str::to_owned)).map_err(|problem| problem.status())
    }

    #[test]
    fn a_parameter_is_found_decoded() {
        let read = |body: &[u8]| read("Application/X-WWW-Form-urlencoded; charset=UTF-8", body, "token");
        assert_eq!(read(b"token_type_hint=x&token=a%2Bb+c&z"), Ok(Some("a+b c".into())));
        assert_eq!(read(b"%74oken=1"), Ok(Some("1".into())));
        for absent in [&b""[..], b"token", b"token=", b"Token=1", b"&&&=&", b"{\"token\":\"1\"}"] {
            assert_eq!(read(absent), Ok(None), "{absent:?}");
        }
        assert_eq!(read(b"token=%ff%zz"), Ok(Some("\u{fffd}%zz".into())), "any bytes are a form");
    }

    #[test]
    fn f8_only_a_form_of_bounded_length_without_a_repeated_parameter_is_read() {
        let form = "application/x-www-form-urlencoded";
        for kind in ["", "application/json", "text/plain", "multipart/form-data", "application/x-www-form-urlencodedx"]
        {
            assert_eq!(read(kind, b"token=1", "token"), Err(415), "{kind}");
        }
        assert_eq!(read(form, &vec![b'a'; body::MAX_BODY_BYTES + 1], "token"), Err(413));
        for twice in ["token=1&token=1", "token=1&a=1&%74oken=2", "token&token="] {
            assert_eq!(read(form, twice.as_bytes(), "token"), Err(400), "{twice}");
        }
        assert_eq!(read(form, b"a=1&token=1&a=2&=&=", "token"), Ok(Some("1".into())), "the others are ignored");
    }
}
