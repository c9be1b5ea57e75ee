//! The service natively, with keys of every kind, and what an attacker can make.

use base64ct::{Base64UrlUnpadded, Encoding as _};
use ed25519_dalek::Signer as _;
use edgepass::{
    Service,
    message::{Head, Request, Response},
    testing::{CannedHttp, TestHost, block_on, reply},
};
use hmac::{Hmac, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

/// A key pair of Ed25519 as a JWK has it, made for these tests.
pub(crate) struct Pair {
    pub(crate) d: &'static str,
    pub(crate) x: &'static str,
}

pub(crate) const FIRST: Pair =
    Pair { d: "S6v1-JrpPB1dU1v1i3PF1TnPS3zfNPWJKuIFAnNuX0M", x: "QypF9oOa07gKWPY3ZUqK1UwvKEHNGCMnB1zn1McIWV8" };
pub(crate) const SECOND: Pair =
    Pair { d: "6bwboDG8yjvJFR5QzMmULm6a7d2StqCV-_TBm7XqzqM", x: "WlaXle3uklsSzfkU2DU6ztGKZZi-lnRUdT6wsA8CImo" };
pub(crate) const THIRD: Pair =
    Pair { d: "ld4R9qVoQPTRs7UuUO092-ezT3dya7WSqe6Xj6co094", x: "P-6OC3H2B5ltMlORpgi4dooQ-154Dif-zsRjrZOJzd8" };
/// A MAC key, made for these tests.
pub(crate) const MAC: &str = "Ye20uFXNTbN837f8OIj5_itmqbjY7Psb5QRgG-7SCpI";

impl Pair {
    /// An entry of `signing_keys`.
    pub(crate) fn jwk(&self, kid: &str, status: &str) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": kid, "status": status, "x": self.x, "d": self.d})
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        let seed: [u8; 32] = decode(self.d).try_into().expect("32 bytes");
        ed25519_dalek::SigningKey::from_bytes(&seed).sign(message).to_bytes().to_vec()
    }
}

/// An entry of `signing_keys` for HS256.
pub(crate) fn mac_jwk(kid: &str, status: &str) -> Value {
    json!({"kty": "oct", "alg": "HS256", "kid": kid, "status": status, "k": MAC})
}

pub(crate) fn set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    Base64UrlUnpadded::encode_string(bytes.as_ref())
}

pub(crate) fn decode(text: &str) -> Vec<u8> {
    Base64UrlUnpadded::decode_vec(text).expect("base64url")
}

pub(crate) fn hs256(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

/// A token of any header and payload, signed by `sign`.
pub(crate) fn token(header: &[u8], payload: &[u8], sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let signed = format!("{}.{}", encode(header), encode(payload));
    let signature = sign(signed.as_bytes());
    format!("{signed}.{}", encode(signature))
}

/// Header or claims of a token, unverified.
pub(crate) fn part(token: &str, at: usize) -> Value {
    serde_json::from_slice(&decode(token.split('.').nth(at).expect("three parts"))).expect("JSON")
}

pub(crate) fn json_of(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_default()
}

/// One node, over a store in memory and a platform that takes every code.
pub(crate) struct World {
    host: TestHost,
    service: Service<TestHost>,
}

impl World {
    /// With `first` signing, `second` before it and `mac` after it.
    pub(crate) fn new() -> Self {
        Self::with_keys(&set(&[
            FIRST.jwk("first", "current"),
            SECOND.jwk("second", "previous"),
            mac_jwk("mac", "next"),
        ]))
    }

    /// With these `signing_keys`; none when empty.
    pub(crate) fn with_keys(signing_keys: &str) -> Self {
        let accept = reply(200, json!({"openid": "o-1", "session_key": "a2V5"}).to_string());
        Self::on(TestHost::new(CannedHttp::answering(move |_| Ok(accept.clone()))), signing_keys)
    }

    /// Another node over the same store, or the same node started again.
    pub(crate) fn beside(&self, signing_keys: &str) -> Self {
        Self::on(self.host.clone(), signing_keys)
    }

    fn on(host: TestHost, signing_keys: &str) -> Self {
        Self::with_settings(host, &[("signing_keys", signing_keys)])
    }

    /// Another node over the same store, with settings that differ.
    pub(crate) fn changed(&self, changes: &[(&str, &str)]) -> Self {
        Self::with_settings(self.host.clone(), changes)
    }

    fn with_settings(host: TestHost, changes: &[(&str, &str)]) -> Self {
        let usual = [
            // Random bytes, made for these tests.
            ("master_key", "Zx2T1cBqk0bqVVnTg0mK9d3pJrI0hYp7cVqGmT5rF0Q"),
            ("subject_key", "p8LkW3dYQm6nR0tVbX2zA5cE7gI9jK1oM4qS6uW8yB0"),
            ("issuer", "https://login.example"),
            ("wechat_appid", "wx1"),
            ("wechat_secret", "s1"),
            ("wechat_base_url", "http://127.0.0.1:9"),
            ("log_sample", "1"),
        ];
        let is_changed = |name: &str| changes.iter().any(|(changed, _)| *changed == name);
        let settings = usual.iter().filter(|(name, _)| !is_changed(name)).chain(changes);
        let settings: Vec<_> = settings.map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let service = Service::new(host.clone(), &settings);
        assert_eq!(service.describe().problems, Vec::<String>::new());
        Self { host, service }
    }

    pub(crate) fn send(&self, method: &str, target: &str, fields: &[(&str, &str)], body: &str) -> Response {
        let mut head = Head::new();
        for (name, value) in fields {
            head.push(name, value);
        }
        let request = Request { method: method.into(), target: target.into(), head, body: body.into() };
        let response = block_on(self.service.handle(request));
        self.host.settle();
        response
    }

    pub(crate) fn bearer(&self, method: &str, target: &str, token: &str) -> Response {
        self.send(method, target, &[("authorization", &format!("Bearer {token}"))], "")
    }

    /// The body of a login that succeeds.
    pub(crate) fn log_in(&self, code: &str) -> Value {
        let response = self.send("POST", "/api/login", &[], &json!({ "code": code }).to_string());
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        json_of(&response)
    }

    /// The access token of a login, each with a code of its own.
    pub(crate) fn token(&self) -> String {
        let code = format!("code-{}", self.host.http.urls().len());
        self.log_in(&code)["access_token"].as_str().expect("a token").to_owned()
    }

    pub(crate) fn accepts(&self, token: &str) -> bool {
        self.bearer("GET", "/api/verify/any", token).status == 200
    }

    /// Fails unless `token` opens no route, each answers as it does for nonsense, and nothing was
    /// fetched.
    pub(crate) fn refuses(&self, token: &str) {
        let calls = self.host.http.urls().len();
        let shown = &token[..token.len().min(200)];
        for (method, target) in [("GET", "/api/verify/any"), ("GET", "/api/session"), ("POST", "/api/logout")] {
            let answer = |token| {
                let response = self.bearer(method, target, token);
                let mut body = json_of(&response);
                let trace = body.as_object_mut().and_then(|body| body.remove("trace_id"));
                assert!(trace.is_some(), "{method} {target}: {shown}");
                (response.status, body, response.head.get("www-authenticate").map(str::to_owned))
            };
            let refused = answer(token);
            assert_eq!((refused.0, &refused.1["code"]), (401, &json!("token_invalid")), "{method} {target}: {shown}");
            assert_eq!(refused, answer("nonsense"), "{method} {target}: {shown}");
        }
        assert_eq!(self.host.http.urls().len(), calls, "something was fetched: {shown}");
    }

    pub(crate) fn log(&self) -> String {
        self.host.log_text()
    }
}
