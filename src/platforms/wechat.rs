//! 微信: `GET /sns/jscode2session` (developers.weixin.qq.com, 小程序登录凭证校验).
//!
//! The answer is JSON labelled `text/plain`. On success `errcode` is absent (the documentation shows
//! 0), on failure it is a number (on some pages a numeric string) beside HTTP 200. Success is an
//! `openid` and a `session_key` and no error; anything else is not.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Deserializer, de};

use super::{Class, LoginCode, MAX_FIELD_BYTES, PlatformError, PlatformSession, get};
use crate::{config::App, json, outbound::Call, secret::Secret};

/// What each error number means for a login, and to whom.
const ERRORS: &[(i64, Class)] = &[
    (-1, Class::Busy),           // system busy
    (40001, Class::Config),      // secret wrong; never from this call unless a token was attached
    (40013, Class::Config),      // appid not valid
    (40029, Class::CodeInvalid), // wrong, expired, or of another app
    (40125, Class::Config),      // secret not valid
    (40163, Class::CodeUsed),    // code been used
    (40164, Class::Config),      // our address is not on the list
    (40226, Class::UserBlocked), // high-risk user
    (40243, Class::Config),      // secret frozen by its owner
    (41002, Class::Config),      // appid missing
    (41004, Class::Config),      // secret missing
    (41008, Class::CodeInvalid), // code missing
    (45009, Class::RateLimited), // daily quota
    (45011, Class::RateLimited), // quota of the minute
    (48001, Class::Config),      // not authorised
    (48004, Class::Config),      // forbidden
    (50002, Class::Config),      // account limited
    (61003, Class::Config),      // not authorised to the component
    (61007, Class::Config),      // not authorised to the component
];

/// What stays as it is in a query (RFC 3986, unreserved).
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The call that exchanges `code`. Its URL holds the secret: [`Call`] never shows it.
#[must_use]
pub fn request(app: &App, code: &LoginCode) -> Call {
    let encoded = |text| utf8_percent_encode(text, QUERY);
    get(format!(
        "{}/sns/jscode2session?appid={}&secret={}&js_code={}&grant_type=authorization_code",
        app.base.as_str(),
        encoded(&app.appid),
        encoded(app.secret.expose()),
        encoded(code.expose()),
    ))
}

/// Reads the answer.
///
/// # Errors
/// [`PlatformError`], for anything but a session.
pub fn parse(status: u16, body: &[u8]) -> Result<PlatformSession, PlatformError> {
    if status != 200 {
        return Err(PlatformError::Status(status));
    }
    let answer: Answer<'_> = json::object(body).map_err(|_| PlatformError::Malformed)?;
    if answer.errcode != 0 {
        let class =
            ERRORS.iter().find(|(number, _)| *number == answer.errcode).map_or(Class::Unknown, |(_, class)| *class);
        let request_id = answer.errmsg.as_deref().and_then(request_id);
        return Err(PlatformError::Refused { class, number: answer.errcode, request_id });
    }
    let present = |field: Option<Cow<'_, str>>| match field {
        Some(text) if text.len() > MAX_FIELD_BYTES => Err(PlatformError::Malformed),
        Some(text) if !text.is_empty() => Ok(Some(Secret::new(text.into_owned()))),
        _ => Ok(None),
    };
    Ok(PlatformSession {
        openid: present(answer.openid)?.ok_or(PlatformError::Malformed)?,
        unionid: present(answer.unionid)?,
        session_key: present(answer.session_key)?.ok_or(PlatformError::Malformed)?,
    })
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(default, deserialize_with = "number")]
    errcode: i64,
    #[serde(borrow)]
    errmsg: Option<Cow<'a, str>>,
    #[serde(borrow)]
    openid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    unionid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    session_key: Option<Cow<'a, str>>,
}

/// A number or a numeric string; `null` counts as absent.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form<'a> {
        Number(i64),
        #[serde(borrow)]
        Text(Cow<'a, str>),
    }

    match Option::deserialize(deserializer)? {
        None => Ok(0),
        Some(Form::Number(number)) => Ok(number),
        Some(Form::Text(text)) => text.parse().map_err(|_| de::Error::custom("not a number")),
    }
}

/// The id their support asks for: ` rid: 8hex-8hex-8hex` or `req_id: XXXX` somewhere in `errmsg`,
/// the only part of that text ever looked at.
fn request_id(errmsg: &str) -> Option<String> {
    let (_, rest) = errmsg.split_once("rid:").or_else(|| errmsg.split_once("req_id:"))?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').unwrap_or(rest.len());
    rest.get(..end).filter(|id| (1..=64).contains(&id.len())).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::two_apps;

    fn refused(body: &str) -> (i64, Class, Option<String>) {
        match parse(200, body.as_bytes()) {
            Err(PlatformError::Refused { class, number, request_id }) => (number, class, request_id),
            other => unreachable!("{body}: {other:?}"),
        }
    }

    #[test]
    fn a_code_cannot_add_a_parameter() {
        let (config, _) = two_apps();
        let code = LoginCode::new("x&appid=other#/?%25+".into()).expect("a code");
        let call = request(config.app("one").expect("configured"), &code);
        assert_eq!(
            call.url,
            "http://127.0.0.1:9/sns/jscode2session?appid=wx1&secret=s1\
             &js_code=x%26appid%3Dother%23%2F%3F%2525%2B&grant_type=authorization_code"
        );
        assert_eq!((call.method, call.body.len()), ("GET", 0));
        assert!(!format!("{call:?} {code:?}").contains("s1"));
    }

    #[test]
    fn success_is_two_fields_and_no_error() {
        for body in [
            r#"{"session_key":"k==","openid":"o1"}"#,
            r#"{"errcode":0,"errmsg":"ok","session_key":"k==","openid":"o1","unionid":""}"#,
            r#"{"errcode":"0","session_key":"k==","openid":"o1","expires_in":7200,"new":{"x":[1]}}"#,
            r#"{"errcode":null,"unionid":null,"session_key":"k==","openid":"o1"}"#,
        ] {
            let session = parse(200, body.as_bytes()).expect(body);
            assert_eq!((session.openid.expose().as_str(), session.session_key.expose().as_str()), ("o1", "k=="));
            assert!(session.unionid.is_none());
        }
        let session = parse(200, br#"{"session_key":"k","openid":"o","unionid":"u"}"#).expect("a session");
        assert_eq!(session.unionid.map(|u| u.expose().clone()).as_deref(), Some("u"));
    }

    #[test]
    fn whatever_else_is_no_session() {
        let long = format!(r#"{{"openid":"{}","session_key":"k"}}"#, "o".repeat(257));
        for body in [
            "",
            "{",
            "{}",
            "[]",
            "null",
            "1",
            "<html>busy</html>",
            r#"{"openid":"o"}"#,
            r#"{"session_key":"k"}"#,
            r#"{"openid":"","session_key":"k"}"#,
            r#"{"openid":"o","session_key":""}"#,
            r#"{"openid":1,"session_key":"k"}"#,
            r#"{"openid":"o","session_key":"k","errcode":"x"}"#,
            r#"{"openid":"o","session_key":"k","errcode":1.5}"#,
            r#"{"openid":"o","openid":"p","session_key":"k"}"#,
            r#"{"openid":"o","session_key":"k"#,
            &long,
        ] {
            assert_eq!(parse(200, body.as_bytes()).err(), Some(PlatformError::Malformed), "{body}");
        }
        assert_eq!(parse(200, b"{\"openid\":\"\xff\",\"session_key\":\"k\"}").err(), Some(PlatformError::Malformed));
        for status in [204, 302, 404, 429, 500, 503] {
            let body = br#"{"openid":"o","session_key":"k"}"#;
            assert_eq!(parse(status, body).err(), Some(PlatformError::Status(status)));
        }
    }

    #[test]
    fn an_error_number_decides_and_its_text_never_does() {
        for (number, class) in ERRORS {
            for errcode in [number.to_string(), format!("\"{number}\"")] {
                let body = format!(r#"{{"errcode":{errcode},"errmsg":"ok","openid":"o","session_key":"k"}}"#);
                assert_eq!(refused(&body), (*number, *class, None));
            }
        }
        assert_eq!(refused(r#"{"errcode":99999}"#).1, Class::Unknown);
        assert!(ERRORS.is_sorted_by_key(|(number, _)| *number), "and each number once");
    }

    #[test]
    fn the_request_id_is_taken_from_either_form() {
        let id = |errmsg: &str| refused(&serde_json::json!({"errcode": 40029, "errmsg": errmsg}).to_string()).2;
        let form = "invalid code, rid: 5f64a7c3-0a1b2c3d-4e5f6a7b";
        assert_eq!(id(form).as_deref(), Some("5f64a7c3-0a1b2c3d-4e5f6a7b"));
        assert_eq!(id("invalid code, hints: [ req_id: aBc_1-2 ]").as_deref(), Some("aBc_1-2"));
        for none in ["", "rid:", "rid: <script>", &format!("rid: {}", "a".repeat(65)), "no id"] {
            assert_eq!(id(none), None, "{none}");
        }
    }
}
