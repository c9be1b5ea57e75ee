//! The `signing_keys` setting: a JWK set (RFC 7517) in which each key also says what it is for:
//! `next`, `current` or `previous`.

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::{Reader, Wrong, value};
use crate::{
    json,
    secret::Secret,
    token::{
        keys::MacKey,
        signing::{Private, Public, SigningKey, SigningKeys, VerifyingKey},
    },
};

/// Members that nobody reads here are ignored, as RFC 7517 wants it.
#[derive(Deserialize)]
struct Set<'a> {
    #[serde(borrow)]
    keys: Vec<Entry<'a>>,
}

/// Texts are borrowed: what is secret in them is copied nowhere.
#[derive(Deserialize)]
struct Entry<'a> {
    kid: &'a str,
    alg: &'a str,
    kty: &'a str,
    status: &'a str,
    crv: Option<&'a str>,
    x: Option<&'a str>,
    d: Option<&'a str>,
    k: Option<&'a str>,
    r#use: Option<&'a str>,
    key_ops: Option<Vec<&'a str>>,
}

/// One key of the set.
struct Key {
    status: Status,
    public: Public,
    /// What only its owner has; of a key that only verifies, nothing.
    private: Option<Private>,
    /// Tells equal keys, whatever they are called.
    bytes: Secret<Vec<u8>>,
}

/// Public and private half, and the bytes that make the key this one.
type Halves = (Public, Option<Private>, Secret<Vec<u8>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Next,
    Current,
    Previous,
}

/// Reads `signing_keys`; `secrets` are those of other settings, which no key may be.
pub(super) fn read(reader: &mut Reader<'_>, secrets: &[&Secret<Vec<u8>>]) -> SigningKeys {
    let mut all = SigningKeys::default();
    let Some(text) = reader.get(SETTING) else { return all };
    let set: Set<'_> = match json::object(text.as_bytes()) {
        Ok(set) => set,
        // Of serde's own words none are used: they quote what they did not like.
        Err(error) => {
            reader.problem(SETTING, format!("not a JWK set: {error}"));
            return all;
        }
    };
    let mut seen: Vec<Secret<Vec<u8>>> = Vec::new();
    let mut statuses = Vec::new();
    for (at, entry) in (1..).zip(&set.keys) {
        let key = match entry.check() {
            Ok(key) => key,
            Err(wrong) => {
                reader.problem(SETTING, format!("key {at}: {wrong}"));
                continue;
            }
        };
        if all.verifying.iter().any(|known| known.kid() == entry.kid) {
            reader.problem(SETTING, format!("key {at}: kid: given twice"));
        }
        if seen.iter().any(|known| known.expose() == key.bytes.expose()) {
            reader.problem(SETTING, format!("key {at}: a key given twice"));
        }
        if secrets.iter().any(|secret| secret.expose() == key.bytes.expose()) {
            reader.problem(SETTING, format!("key {at}: k: also in another setting"));
        }
        statuses.push(key.status);
        seen.push(key.bytes);
        all.verifying.push(VerifyingKey::new(entry.kid.to_owned(), key.public));
        if let (Status::Current, Some(private)) = (key.status, key.private) {
            all.current = Some(SigningKey::new(entry.kid.to_owned(), private));
        }
    }
    if set.keys.is_empty() {
        reader.problem(SETTING, "no key; leave the setting out to sign with a key derived from master_key");
    }
    // Keys that are all still to come may stand alone: with them a service moves from derived keys to
    // its own, every node knowing one before the first signs with it.
    let count = |status| statuses.iter().filter(|s| **s == status).count();
    let all_read = statuses.len() == set.keys.len();
    if all_read && count(Status::Current) != 1 && count(Status::Next) != statuses.len() {
        reader.problem(SETTING, "not exactly one key is current");
    }
    all
}

impl Entry<'_> {
    fn check(&self) -> Result<Key, String> {
        let named = |name: &'static str| move |wrong: Wrong| format!("{name}: {wrong}");
        value::app_id(self.kid).map_err(named("kid"))?;
        let status = match self.status {
            "next" => Status::Next,
            "current" => Status::Current,
            "previous" => Status::Previous,
            _ => return Err("status: not next, current or previous".to_owned()),
        };
        if self.r#use.is_some_and(|r#use| r#use != "sig") {
            return Err("use: not sig".to_owned());
        }
        if self.key_ops.as_ref().is_some_and(|ops| !ops.iter().all(|op| matches!(*op, "sign" | "verify"))) {
            return Err("key_ops: not sign and verify".to_owned());
        }
        let (public, private, bytes) = match (self.kty, self.alg, self.crv) {
            ("oct", "HS256", None) => {
                let k = value::key(self.k.ok_or("k: required")?).map_err(named("k"))?;
                let key = MacKey::of_bytes(k.expose());
                (Public::Hs256(key.clone()), Some(Private::Hs256(key)), k)
            }
            ("OKP", "EdDSA", Some("Ed25519")) => self.ed25519(Public::EdDsa, Private::EdDsa)?,
            ("OKP", "Ed25519", Some("Ed25519")) => self.ed25519(Public::Ed25519, Private::Ed25519)?,
            _ => return Err(KINDS.to_owned()),
        };
        if status == Status::Current && private.is_none() {
            return Err("d: required of the current key".to_owned());
        }
        Ok(Key { status, public, private, bytes })
    }

    fn ed25519(
        &self,
        public: fn(ed25519_dalek::VerifyingKey) -> Public,
        private: fn(ed25519_dalek::SigningKey) -> Private,
    ) -> Result<Halves, String> {
        let x = coordinate("x", self.x)?;
        let key = ed25519_dalek::VerifyingKey::from_bytes(&x).map_err(|_| "x: not a point of the curve")?;
        // Under one of these anything verifies (RFC 8725 §3.4).
        if key.is_weak() {
            return Err("x: a point of small order".to_owned());
        }
        let secret = self.private()?.map(|d| ed25519_dalek::SigningKey::from_bytes(&d));
        // Signing for another public key than one's own gives the private one away.
        if secret.as_ref().is_some_and(|secret| secret.verifying_key() != key) {
            return Err("x: not that of d".to_owned());
        }
        Ok((public(key), secret.map(private), Secret::new(x.to_vec())))
    }

    fn private(&self) -> Result<Option<Zeroizing<[u8; 32]>>, String> {
        let Some(d) = self.d else { return Ok(None) };
        let d = value::key(d).map_err(|wrong| format!("d: {wrong}"))?;
        let d = d.expose().as_slice().try_into().map_err(|_| "d: not 32 bytes")?;
        Ok(Some(Zeroizing::new(d)))
    }
}

fn coordinate(name: &str, text: Option<&str>) -> Result<[u8; 32], String> {
    let mut bytes = [0; 32];
    let decoded = text.and_then(|text| Base64UrlUnpadded::decode(text, &mut bytes).ok()).map(<[u8]>::len);
    if decoded == Some(32) { Ok(bytes) } else { Err(format!("{name}: not 32 bytes of base64url")) }
}

const SETTING: &str = "signing_keys";

const KINDS: &str = "kty, crv and alg: neither oct with HS256 nor OKP and Ed25519 with EdDSA or Ed25519";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{
        Setup,
        tests::{ACTIVE_KEY, OLDER_KEY, SUBJECT_KEY, settings},
    };

    const D: &str = "S6v1-JrpPB1dU1v1i3PF1TnPS3zfNPWJKuIFAnNuX0M";
    const X: &str = "QypF9oOa07gKWPY3ZUqK1UwvKEHNGCMnB1zn1McIWV8";
    const OTHER_X: &str = "WlaXle3uklsSzfkU2DU6ztGKZZi-lnRUdT6wsA8CImo";

    fn current() -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "a", "status": "current", "d": D, "x": X})
    }

    fn mac() -> Value {
        json!({"kty": "oct", "alg": "HS256", "kid": "m", "status": "previous", "k": OLDER_KEY})
    }

    /// A key with members set, or taken away where the value is null.
    fn with(mut key: Value, changes: &Value) -> Value {
        let members = key.as_object_mut().expect("an object");
        for (name, value) in changes.as_object().expect("an object") {
            members.insert(name.clone(), value.clone());
        }
        members.retain(|_, value| !value.is_null());
        key
    }

    fn read_text(text: &str) -> Result<Setup, Vec<String>> {
        let all = [
            ("master_key", ACTIVE_KEY),
            ("subject_key", SUBJECT_KEY),
            ("wechat_appid", "wx1"),
            ("wechat_secret", "s1"),
            (SETTING, text),
        ];
        Setup::read(&settings(&all)).map_err(|problems| {
            let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
            assert!(
                [D, X, OLDER_KEY, ACTIVE_KEY, "canary"].iter().all(|value| !text.concat().contains(value)),
                "{text:?}"
            );
            text
        })
    }

    fn read(keys: &[Value]) -> Result<Setup, Vec<String>> {
        read_text(&json!({ "keys": keys, "more": 1 }).to_string())
    }

    fn problem(keys: &[Value]) -> String {
        let problems = read(keys).expect_err("refused");
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].strip_prefix("signing_keys: ").expect("names its setting").to_owned()
    }

    #[test]
    fn the_current_key_signs_and_every_key_verifies() {
        let next = json!({"kid": "b", "status": "next", "d": null, "x": OTHER_X, "alg": "Ed25519"});
        let setup = read(&[with(current(), &next), current(), mac()]).expect("good");
        assert_eq!((setup.ring.signing().kid(), setup.ring.signing().verifying().algorithm().name()), ("a", "EdDSA"));
        for (kid, algorithm) in [("a", "EdDSA"), ("b", "Ed25519"), ("m", "HS256"), (&setup.ring.active().kid, "HS256")]
        {
            assert_eq!(setup.ring.verifying(kid).map(|key| key.algorithm().name()), Some(algorithm), "{kid}");
        }
        assert_eq!(setup.ring.public().count(), 2);
        assert!(!format!("{setup:?}").contains(D));
    }

    #[test]
    fn without_the_setting_the_derived_key_signs() {
        let setup = read_text("").expect("good");
        assert_eq!(setup.ring.signing().kid(), setup.ring.active().kid);
        assert_eq!(setup.ring.public().count(), 0);
        // The first step of a service that moves to signing keys.
        let setup = read(&[with(current(), &json!({"status": "next"}))]).expect("good");
        assert_eq!(setup.ring.signing().kid(), setup.ring.active().kid);
        assert_eq!(setup.ring.public().count(), 1);
    }

    #[test]
    fn b2_exactly_one_key_is_current() {
        let other = |status| with(mac(), &json!({ "status": status }));
        assert_eq!(problem(&[current(), other("current")]), "not exactly one key is current");
        assert_eq!(problem(&[other("previous")]), "not exactly one key is current");
        assert_eq!(
            problem(&[other("previous"), with(current(), &json!({"status": "next"}))]),
            "not exactly one key is current"
        );
        assert!(problem(&[]).starts_with("no key; "));
    }

    /// A1, A3, A16: what one key may be.
    #[test]
    fn a3_a16_a_key_is_one_of_three_kinds_and_strong() {
        let counting = Base64UrlUnpadded::encode_string(&(0..32).collect::<Vec<u8>>());
        let long =
            Base64UrlUnpadded::encode_string(&[Base64UrlUnpadded::decode_vec(D).expect("base64url"), vec![1]].concat());
        for (changes, expected) in [
            (json!({"alg": "ES256"}), KINDS),
            (json!({"alg": "HS256"}), KINDS),
            (json!({"alg": "eddsa"}), KINDS),
            (json!({"alg": "none"}), KINDS),
            (json!({"crv": "Ed448"}), KINDS),
            (json!({"crv": "X25519"}), KINDS),
            (json!({"crv": null}), KINDS),
            (json!({"kty": "EC"}), KINDS),
            (json!({"kid": ""}), "kid: not 1 to 64 of A-Z a-z 0-9 . _ -"),
            (json!({"kid": "../a"}), "kid: not 1 to 64 of A-Z a-z 0-9 . _ -"),
            (json!({"kid": "canary "}), "kid: not 1 to 64 of A-Z a-z 0-9 . _ -"),
            (json!({"kid": "a".repeat(65)}), "kid: not 1 to 64 of A-Z a-z 0-9 . _ -"),
            (json!({"status": "canary"}), "status: not next, current or previous"),
            (json!({"use": "enc"}), "use: not sig"),
            (json!({"key_ops": ["encrypt"]}), "key_ops: not sign and verify"),
            (json!({"d": null}), "d: required of the current key"),
            (json!({"d": "%%"}), "d: not base64url"),
            (json!({"d": counting}), "d: a sample or a text, not random bytes"),
            (json!({"d": long}), "d: not 32 bytes"),
            (json!({"d": &D[..42]}), "d: not base64url"),
            (json!({"x": OTHER_X}), "x: not that of d"),
            (json!({"x": null}), "x: not 32 bytes of base64url"),
            (json!({"x": &X[..42]}), "x: not 32 bytes of base64url"),
            (json!({"x": format!("{X}=")}), "x: not 32 bytes of base64url"),
            (json!({"x": "AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}), "x: not a point of the curve"),
        ] {
            assert_eq!(problem(&[with(current(), &changes)]), format!("key 1: {expected}"), "{changes}");
        }
        for (changes, expected) in [
            (json!({"k": null}), "k: required"),
            (json!({"k": "c2hvcnQ"}), "k: shorter than 32 bytes"),
            (json!({"k": counting}), "k: a sample or a text, not random bytes"),
            (
                json!({"k": Base64UrlUnpadded::encode_string(b"correct horse battery staple, correct horse")}),
                "k: a sample or a text, not random bytes",
            ),
            (json!({"k": ACTIVE_KEY}), "k: also in another setting"),
            (json!({"k": SUBJECT_KEY}), "k: also in another setting"),
            (json!({"alg": "HS512"}), KINDS),
            (json!({"kid": "a"}), "kid: given twice"),
        ] {
            assert_eq!(problem(&[current(), with(mac(), &changes)]), format!("key 2: {expected}"), "{changes}");
        }
    }

    /// A18: under such a key any signature verifies.
    #[test]
    fn a18_a_point_of_small_order_is_no_key() {
        for x in ["AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
            let weak = json!({"kid": "w", "status": "previous", "d": null, "x": x});
            assert_eq!(problem(&[current(), with(current(), &weak)]), "key 2: x: a point of small order");
        }
    }

    /// A16: a key from a document is everybody's.
    #[test]
    fn a16_keys_of_rfcs_are_refused() {
        // RFC 8037, A.1, and RFC 7515, A.1.
        let okp = json!({"d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"});
        assert_eq!(problem(&[with(current(), &okp)]), "key 1: d: a key from a document");
        let oct =
            json!({"k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"});
        assert_eq!(problem(&[current(), with(mac(), &oct)]), "key 2: k: a key from a document");
    }

    #[test]
    fn a3_one_key_has_one_name() {
        let twice = json!({"kid": "b", "status": "previous", "alg": "Ed25519"});
        assert_eq!(problem(&[current(), with(current(), &twice)]), "key 2: a key given twice");
        let derived = read_text("").expect("good").ring.active().kid.clone();
        assert_eq!(
            problem(&[current(), with(mac(), &json!({ "kid": derived }))]),
            "a kid that a key of master_key has"
        );
    }

    #[test]
    fn what_is_no_jwk_set_is_named_and_not_quoted() {
        for text in ["{", "[]", "null", "{}", r#"{"keys":{}}"#, r#"{"keys":[1]}"#, r#"{"keys":[{"kid":"canary"}]}"#] {
            let problems = read_text(text).expect_err("refused");
            assert!(problems.len() == 1 && problems[0].starts_with("signing_keys: not a JWK set: "), "{problems:?}");
        }
        let twice = json!({ "keys": [current()] }).to_string().replacen('{', r#"{"keys":[],"#, 1);
        assert!(read_text(&twice).is_err(), "a member sent twice");
        let problems = read(&[json!({}), current()]).expect_err("refused");
        assert!(problems[0].starts_with("signing_keys: not a JWK set: "), "{problems:?}");
    }
}
