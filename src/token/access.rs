//! Access tokens: JWTs in the profile of RFC 9068 (`typ` is `at+jwt`), signed with the current key of
//! [`super::signing`], or under a key derived from the master key where there is none.
//!
//! Signing is `jwt-compact`'s. Verifying is stricter than any general library: a closed header
//! (`alg`, `typ`, `kid` and nothing else, so `crit`, `jwk`, `jku`, `x5u`, `b64` and JWE end there),
//! canonical base64url, no member twice, every claim required and of its type.

use std::borrow::Cow;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    clock::UnixSeconds,
    config::{App, Config},
    json,
    random::Random,
    session::SessionId,
    token::{
        jws::Jws,
        keys::{KeyRing, Subject},
        signing::Algorithm,
    },
};

/// How far another node's clock may be ahead, in seconds. Expiry has no such leeway.
const LEEWAY_SECONDS: u64 = 60;

const TYPE: &str = "at+jwt";

/// What a token says, once its signature and every claim are verified.
#[derive(Clone, Copy)]
pub struct Access<'c> {
    /// The app it was issued to.
    pub app: &'c App,
    /// The user.
    pub subject: Subject,
    /// The session.
    pub sid: SessionId,
    /// When it was issued.
    pub issued: UnixSeconds,
    /// When it ends.
    pub expires: UnixSeconds,
}

/// Whether a token past its end is taken: a logout ends a session with any of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// An expired token is refused.
    Enforced,
    /// An expired token is as good as a fresh one.
    Ignored,
}

/// Why a token is refused. For the log: a caller learns only that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Not three parts of canonical base64url, or too long.
    #[error("token.form")]
    Form,
    /// The header is not exactly `alg`, `typ` and `kid`.
    #[error("token.header")]
    Header,
    /// An algorithm nobody uses here, or another than that of the key.
    #[error("token.alg")]
    Algorithm,
    /// Another kind of token.
    #[error("token.typ")]
    Type,
    /// No key of this name.
    #[error("token.kid")]
    UnknownKey,
    /// The signature is wrong.
    #[error("token.signature")]
    Signature,
    /// A claim is missing, sent twice or of the wrong type.
    #[error("token.claims")]
    Claims,
    /// Another issuer.
    #[error("token.iss")]
    Issuer,
    /// No app of this name.
    #[error("token.client_id")]
    App,
    /// Meant for somebody else.
    #[error("token.aud")]
    Audience,
    /// Past its end.
    #[error("token.exp")]
    Expired,
    /// From the future.
    #[error("token.nbf")]
    NotYet,
}

#[derive(Serialize, Deserialize)]
struct Claims<'a> {
    #[serde(borrow)]
    iss: Cow<'a, str>,
    #[serde(borrow)]
    aud: Cow<'a, str>,
    #[serde(borrow)]
    sub: Cow<'a, str>,
    #[serde(borrow)]
    client_id: Cow<'a, str>,
    #[serde(borrow)]
    sid: Cow<'a, str>,
    iat: u64,
    exp: u64,
    #[serde(borrow)]
    jti: Cow<'a, str>,
    // Never issued, honoured when another holder of the key set it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    nbf: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClosedHeader<'a> {
    #[serde(borrow)]
    alg: Cow<'a, str>,
    #[serde(borrow)]
    typ: Cow<'a, str>,
    #[serde(borrow)]
    kid: Cow<'a, str>,
}

/// Issues a token that says what `token` says.
#[must_use]
pub fn issue(token: &Access<'_>, issuer: &str, ring: &KeyRing, random: &dyn Random) -> String {
    let jti: [u8; 16] = crate::random::bytes(random);
    let claims = Claims {
        iss: issuer.into(),
        aud: token.app.audience.as_str().into(),
        sub: token.subject.text().into(),
        client_id: token.app.id.as_str().into(),
        sid: token.sid.text().into(),
        iat: token.issued.0,
        exp: token.expires.0,
        jti: Base64UrlUnpadded::encode_string(&jti).into(),
        nbf: None,
    };
    ring.signing().token(TYPE, claims)
}

/// Verifies `token` at `now`.
///
/// # Errors
/// [`AccessError`], the first reason found.
pub fn verify<'c>(
    token: &str,
    config: &'c Config,
    ring: &KeyRing,
    now: UnixSeconds,
    expiry: Expiry,
) -> Result<Access<'c>, AccessError> {
    let jws = Jws::read(token).ok_or(AccessError::Form)?;
    let header: ClosedHeader<'_> = json::object(&jws.header).map_err(|_| AccessError::Header)?;
    let algorithm = Algorithm::named(&header.alg).ok_or(AccessError::Algorithm)?;
    if header.typ != TYPE && header.typ != "application/at+jwt" {
        return Err(AccessError::Type);
    }
    let key = ring.verifying(&header.kid).ok_or(AccessError::UnknownKey)?;
    if key.algorithm() != algorithm {
        return Err(AccessError::Algorithm);
    }
    if !key.verifies(jws.signed.as_bytes(), &jws.signature) {
        return Err(AccessError::Signature);
    }

    let claims: Claims<'_> = json::object(&jws.payload).map_err(|_| AccessError::Claims)?;
    if claims.iss != config.issuer {
        return Err(AccessError::Issuer);
    }
    let app = config.app(&claims.client_id).ok_or(AccessError::App)?;
    if claims.aud != app.audience {
        return Err(AccessError::Audience);
    }
    let subject = Subject::parse(&claims.sub).ok_or(AccessError::Claims)?;
    let sid = SessionId::parse(&claims.sid).ok_or(AccessError::Claims)?;
    if claims.jti.is_empty() {
        return Err(AccessError::Claims);
    }
    if expiry == Expiry::Enforced && claims.exp <= now.0 {
        return Err(AccessError::Expired);
    }
    let latest = now.0.saturating_add(LEEWAY_SECONDS);
    if claims.iat > latest || claims.nbf.is_some_and(|nbf| nbf > latest) {
        return Err(AccessError::NotYet);
    }
    Ok(Access { app, subject, sid, issued: UnixSeconds(claims.iat), expires: UnixSeconds(claims.exp) })
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    u64::deserialize(deserializer).map(Some)
}

/// The `jti` of a token that [`verify`] accepted.
#[must_use]
pub fn token_id(verified: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        jti: String,
    }
    Some(json::object::<Named>(&Jws::read(verified)?.payload).ok()?.jti)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::tests::two_apps, testing::SeededRandom};

    const NOW: UnixSeconds = UnixSeconds(1_700_000_000);

    struct Case {
        config: Config,
        ring: KeyRing,
        token: String,
    }

    fn case() -> Case {
        let (config, ring) = two_apps();
        let access = Access {
            app: config.app("one").expect("configured"),
            subject: Subject::from_bytes([1; 16]),
            sid: SessionId::from_bytes([2; 16]),
            issued: NOW,
            expires: UnixSeconds(NOW.0 + 600),
        };
        let token = issue(&access, &config.issuer, &ring, &SeededRandom::new(3));
        Case { config, ring, token }
    }

    impl Case {
        fn verify(&self, token: &str) -> Result<(Subject, SessionId), AccessError> {
            verify(token, &self.config, &self.ring, NOW, Expiry::Enforced).map(|a| (a.subject, a.sid))
        }

        /// A token of any content, signed with the right key.
        fn forge(&self, header: &str, claims: &str) -> String {
            let b64 = |text: &str| Base64UrlUnpadded::encode_string(text.as_bytes());
            let signed = format!("{}.{}", b64(header), b64(claims));
            let mac = self.ring.active().access.sign(signed.as_bytes());
            format!("{signed}.{}", Base64UrlUnpadded::encode_string(&mac))
        }

        fn header(&self) -> String {
            format!(r#"{{"alg":"HS256","typ":"at+jwt","kid":"{}"}}"#, self.ring.active().kid)
        }

        fn claims(change: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) -> String {
            let mut claims = serde_json::json!({
                "iss": "https://login.example", "aud": "api-one", "client_id": "one",
                "sub": Subject::from_bytes([1; 16]).text(), "sid": SessionId::from_bytes([2; 16]).text(),
                "iat": NOW.0, "exp": NOW.0 + 600, "jti": "j",
            });
            change(claims.as_object_mut().expect("an object"));
            claims.to_string()
        }
    }

    #[test]
    fn an_issued_token_is_verified_and_names_nothing_else() {
        let case = case();
        assert_eq!(case.verify(&case.token), Ok((Subject::from_bytes([1; 16]), SessionId::from_bytes([2; 16]))));
        let claims = case.token.split('.').nth(1).expect("three parts");
        let claims: serde_json::Value =
            serde_json::from_slice(&Base64UrlUnpadded::decode_vec(claims).expect("base64")).expect("JSON");
        let names: Vec<_> = claims.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(names, ["aud", "client_id", "exp", "iat", "iss", "jti", "sid", "sub"]);
    }

    #[test]
    fn every_changed_character_is_noticed() {
        let case = case();
        for at in 0..case.token.len() {
            for with in ['A', 'b', '.', '=', ' ', '\u{e9}'] {
                let mut token = case.token.clone();
                if token[at..].starts_with(with) {
                    continue;
                }
                token.replace_range(at..=at, &with.to_string());
                assert!(case.verify(&token).is_err(), "{at} {with}");
            }
        }
        for token in ["", ".", "..", "a.b", "a.b.c.d.e", &format!("{}=", case.token), &format!(" {}", case.token)] {
            assert!(case.verify(token).is_err(), "{token}");
        }
        assert_eq!(case.verify(&"a".repeat(4097)), Err(AccessError::Form));
    }

    #[test]
    fn the_header_is_closed() {
        let case = case();
        let kid = case.ring.active().kid.clone();
        let claims = Case::claims(|_| ());
        assert!(case.verify(&case.forge(&case.header(), &claims)).is_ok());
        let accepted = format!(r#"{{"kid":"{kid}","typ":"application/at+jwt","alg":"HS256"}}"#);
        assert!(case.verify(&case.forge(&accepted, &claims)).is_ok());
        for (header, error) in [
            (format!(r#"{{"alg":"none","typ":"at+jwt","kid":"{kid}"}}"#), AccessError::Algorithm),
            (format!(r#"{{"alg":"nOnE","typ":"at+jwt","kid":"{kid}"}}"#), AccessError::Algorithm),
            (format!(r#"{{"alg":"","typ":"at+jwt","kid":"{kid}"}}"#), AccessError::Algorithm),
            (format!(r#"{{"alg":"hs256","typ":"at+jwt","kid":"{kid}"}}"#), AccessError::Algorithm),
            (format!(r#"{{"alg":"RS256","typ":"at+jwt","kid":"{kid}"}}"#), AccessError::Algorithm),
            (format!(r#"{{"alg":null,"typ":"at+jwt","kid":"{kid}"}}"#), AccessError::Header),
            (format!(r#"{{"alg":["HS256"],"typ":"at+jwt","kid":"{kid}"}}"#), AccessError::Header),
            (format!(r#"{{"typ":"at+jwt","kid":"{kid}"}}"#), AccessError::Header),
            (format!(r#"{{"alg":"HS256","kid":"{kid}"}}"#), AccessError::Header),
            (r#"{"alg":"HS256","typ":"at+jwt"}"#.into(), AccessError::Header),
            (format!(r#"{{"alg":"HS256","typ":"JWT","kid":"{kid}"}}"#), AccessError::Type),
            (r#"{"alg":"HS256","typ":"at+jwt","kid":"../../dev/null"}"#.into(), AccessError::UnknownKey),
            (r#"{"alg":"HS256","typ":"at+jwt","kid":""}"#.into(), AccessError::UnknownKey),
            (format!(r#"{{"alg":"HS256","alg":"HS256","typ":"at+jwt","kid":"{kid}"}}"#), AccessError::Header),
            (
                format!(r#"{{"alg":"HS256","typ":"at+jwt","kid":"{kid}","crit":["b64"],"b64":false}}"#),
                AccessError::Header,
            ),
            (
                format!(r#"{{"alg":"HS256","typ":"at+jwt","kid":"{kid}","jku":"http://127.0.0.1/"}}"#),
                AccessError::Header,
            ),
            (format!(r#"{{"alg":"HS256","typ":"at+jwt","kid":"{kid}","jwk":{{}}}}"#), AccessError::Header),
            (format!(r#"{{"alg":"HS256","typ":"at+jwt","kid":"{kid}","zip":"DEF"}}"#), AccessError::Header),
            ("[]".into(), AccessError::Header),
            ("x".into(), AccessError::Header),
        ] {
            assert_eq!(case.verify(&case.forge(&header, &claims)), Err(error), "{header}");
        }
    }

    #[test]
    fn every_claim_is_required_and_of_its_type() {
        let case = case();
        let refused = |claims: &str| case.verify(&case.forge(&case.header(), claims)).expect_err(claims);
        for name in ["iss", "aud", "sub", "client_id", "sid", "iat", "exp", "jti"] {
            assert_eq!(refused(&Case::claims(|c| drop(c.remove(name)))), AccessError::Claims, "{name} missing");
            let wrong = serde_json::json!(["x"]);
            assert_eq!(refused(&Case::claims(|c| drop(c.insert(name.into(), wrong.clone())))), AccessError::Claims);
        }
        let with = |name: &str, value: serde_json::Value| {
            refused(&Case::claims(|c| drop(c.insert(name.to_owned(), value.clone()))))
        };
        // CVE-2026-25537: a time as text skipped the check.
        assert_eq!(with("exp", "9999999999".into()), AccessError::Claims);
        assert_eq!(with("nbf", "0".into()), AccessError::Claims);
        assert_eq!(with("nbf", serde_json::Value::Null), AccessError::Claims);
        assert_eq!(with("exp", 1.5.into()), AccessError::Claims);
        assert_eq!(with("exp", NOW.0.into()), AccessError::Expired);
        assert_eq!(with("iat", (NOW.0 + 61).into()), AccessError::NotYet);
        assert_eq!(with("nbf", (NOW.0 + 61).into()), AccessError::NotYet);
        assert_eq!(with("iss", "https://other.example".into()), AccessError::Issuer);
        assert_eq!(with("client_id", "three".into()), AccessError::App);
        assert_eq!(with("client_id", "two".into()), AccessError::Audience);
        assert_eq!(with("aud", "".into()), AccessError::Audience);
        assert_eq!(with("sid", "short".into()), AccessError::Claims);
        assert_eq!(with("jti", "".into()), AccessError::Claims);
        let twice = Case::claims(|_| ()).replacen('{', r#"{"x":1,"x":2,"#, 1);
        assert_eq!(refused(&twice), AccessError::Claims);
        let unknown = Case::claims(|c| drop(c.insert("scope".into(), "a".into())));
        assert!(case.verify(&case.forge(&case.header(), &unknown)).is_ok(), "a later version may say more");
    }

    #[test]
    fn an_expired_token_is_taken_only_where_asked_for() {
        let case = case();
        let later = UnixSeconds(NOW.0 + 600);
        let at = |now, expiry| verify(&case.token, &case.config, &case.ring, now, expiry).map(|a| a.expires).err();
        assert_eq!(at(UnixSeconds(later.0 - 1), Expiry::Enforced), None);
        assert_eq!(at(later, Expiry::Enforced), Some(AccessError::Expired));
        assert_eq!(at(later, Expiry::Ignored), None);
    }
}
