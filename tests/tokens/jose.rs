//! Wycheproof's files for JOSE, which no registry carries: read from beside the repository, and said
//! to be absent where they are not there.

use std::path::Path;

use edgepass::{
    config::Setup,
    json,
    token::{
        jws::Jws,
        keys::{KeyRing, MacKey},
        signing::{Public, VerifyingKey},
    },
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::decode;

#[derive(Deserialize)]
struct Header<'a> {
    alg: &'a str,
    kid: Option<&'a str>,
}

/// Whether `token` is signed by the key it names. Only what a JWS is, nothing of access tokens.
fn signed<'k>(token: &str, find: impl FnOnce(&str) -> Option<&'k VerifyingKey>) -> bool {
    let Some(jws) = Jws::read(token) else { return false };
    let Ok(header) = json::read::<Header<'_>>(&jws.header) else { return false };
    let key = header.kid.and_then(find);
    key.is_some_and(|key| key.algorithm().name() == header.alg && key.verifies(jws.signed.as_bytes(), &jws.signature))
}

/// The keys of a group without the setting, which would refuse weak ones; none of a group that has
/// others beside ours, as the setting has it.
fn bare(keys: &[Value]) -> Vec<VerifyingKey> {
    let ours = keys.iter().filter(|_| keys.iter().all(is_ours));
    let text = |key: &Value, name: &str| key[name].as_str().unwrap().to_owned();
    ours.map(|key| VerifyingKey::new(text(key, "kid"), Public::Hs256(MacKey::of_bytes(&decode(&text(key, "k"))))))
        .collect()
}

/// The keys of a group as `signing_keys`; `None` when the setting is refused.
fn ring(keys: &[Value]) -> Option<KeyRing> {
    let mut keys = keys.to_vec();
    for (at, key) in keys.iter_mut().enumerate() {
        key["status"] = json!(if at == 0 { "current" } else { "previous" });
    }
    let keys = json!({ "keys": keys }).to_string();
    let settings = [
        ("master_key", "Zx2T1cBqk0bqVVnTg0mK9d3pJrI0hYp7cVqGmT5rF0Q"),
        ("subject_key", "p8LkW3dYQm6nR0tVbX2zA5cE7gI9jK1oM4qS6uW8yB0"),
        ("wechat_appid", "wx1"),
        ("wechat_secret", "s1"),
        ("signing_keys", &keys),
    ];
    let settings: Vec<_> = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    match Setup::read(&settings) {
        Ok(setup) => Some(setup.ring),
        Err(problems) => {
            assert!(problems.iter().all(|problem| problem.setting == "signing_keys"), "{problems:?}");
            None
        }
    }
}

/// The groups of `file`; none, and a word about it, when it is absent.
fn groups(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/vectors").join(file);
    let Ok(text) = std::fs::read(&path) else {
        eprintln!("SKIPPED: {} is not there, so its vectors were not run", path.display());
        return Vec::new();
    };
    let set: Value = serde_json::from_slice(&text).unwrap();
    set["testGroups"].as_array().unwrap().clone()
}

fn keys_of(group: &Value) -> Vec<Value> {
    let private = &group["private"];
    private["keys"].as_array().cloned().unwrap_or_else(|| vec![private.clone()])
}

/// Runs one file: how many were accepted and refused.
fn run(
    file: &str,
    verifies: impl Fn(&[Value], &str) -> bool,
    accepts: impl Fn(&[Value], &Value) -> bool,
) -> (usize, usize) {
    let (mut accepted, mut refused) = (0, 0);
    for group in groups(file) {
        let keys = keys_of(&group);
        for test in group["tests"].as_array().unwrap() {
            let token = [&test["jws"], &test["jwe"]].into_iter().find(|token| !token.is_null()).unwrap();
            // The JSON serialization stands there as JSON.
            let token = token.as_str().map_or_else(|| token.to_string(), str::to_owned);
            let verified = verifies(&keys, &token);
            assert_eq!(verified, accepts(&keys, test), "{file} {}: {} {token}", test["tcId"], test["comment"]);
            *(if verified { &mut accepted } else { &mut refused }) += 1;
        }
    }
    (accepted, refused)
}

fn is_ours(key: &Value) -> bool {
    key["alg"] == "HS256" && key["kid"].is_string()
}

/// What Wycheproof calls valid and is of an algorithm we have.
fn valid(keys: &[Value], test: &Value) -> bool {
    test["result"] == "valid" && keys.iter().all(is_ours)
}

fn with_bare_keys(keys: &[Value], token: &str) -> bool {
    let keys = bare(keys);
    signed(token, |kid| keys.iter().find(|key| key.kid() == kid))
}

#[test]
fn a1_to_a9_json_web_signature_test_or_skipped_when_absent() {
    let counted = run("wycheproof_json_web_signature_test.json", with_bare_keys, |keys, test| {
        match test["comment"].as_str().unwrap() {
            // The file has it valid, because some decoders skip characters they do not know.
            "InvalidCharacterInsertedInHeader" | "InvalidCharacterInsertedInPayload" => false,
            // What is said to be wrong was lost in the file: it is its valid token, byte for byte.
            "invalidBase64Padding" | "invalidBase64PaddingInPayload" => test["jws"] == VALID_MAC,
            _ => valid(keys, test),
        }
    });
    assert!(counted == (0, 0) || counted == (10, 391), "{counted:?}");
}

/// Through the setting: short and weak keys, keys for something else and names given twice.
#[test]
fn a3_a16_json_web_key_test_or_skipped_when_absent() {
    let counted = run(
        "wycheproof_json_web_key_test.json",
        |keys, token| ring(keys).is_some_and(|ring| signed(token, |kid| ring.verifying(kid))),
        // The long one is a count from 0.
        |keys, test| valid(keys, test) && test["comment"] != "long_key",
    );
    assert!(counted == (0, 0) || counted == (1, 25), "{counted:?}");
}

#[test]
fn a8_json_web_crypto_test_or_skipped_when_absent() {
    let counted = run("wycheproof_json_web_crypto_test.json", with_bare_keys, valid);
    assert!(counted == (0, 0) || counted == (2, 81), "{counted:?}");
}

const VALID_MAC: &str =
    "eyJraWQiOiJoczI1Ni1rZXkiLCJhbGciOiJIUzI1NiJ9.VGVzdA.c1LROH7eNQwUT8KMVEO52VC3WZ9e_AnDWbZ7aMmowV8";
