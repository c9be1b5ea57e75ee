//! What `edgepass keygen` makes, the component takes.

use edgepass::config::Setup;
use edgepass_edge::{
    cli::{Client, KeyAlgorithm, KeyStatus, Making, Signing},
    command::keygen::{advance, make},
};
use serde_json::Value;

fn made(what: &Making) -> String {
    make(what).unwrap().value.unwrap()
}

fn signing(alg: KeyAlgorithm, status: KeyStatus) -> String {
    made(&Making::Signing(Signing { alg, status }))
}

/// A configuration of made values only.
fn read(signing_keys: &str) -> Setup {
    let clients = made(&Making::Client(Client { id: "back-end".into(), apps: vec!["wechat".into()] }));
    let settings = [
        ("master_key", made(&Making::Master)),
        ("subject_key", made(&Making::Subject)),
        ("operator_tokens", format!("{},{}", made(&Making::Operator), made(&Making::Operator))),
        ("load_token", made(&Making::Load)),
        ("shadow_mark", "load".into()),
        ("clients", clients),
        ("signing_keys", signing_keys.into()),
        ("wechat_appid", "wx1".into()),
        ("wechat_secret", "s1".into()),
    ];
    let settings: Vec<_> = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Setup::read(&settings).unwrap_or_else(|problems| panic!("{problems:?}"))
}

#[test]
fn every_kind_of_key_is_taken() {
    assert!(read("").ring.public().next().is_none());
    for (alg, published) in [(KeyAlgorithm::EdDsa, 1), (KeyAlgorithm::Ed25519, 1), (KeyAlgorithm::Hs256, 0)] {
        let setup = read(&signing(alg, KeyStatus::Current));
        assert_eq!(setup.ring.signing().verifying().algorithm().name(), alg.name());
        assert_eq!(setup.ring.public().count(), published);
    }
    assert_ne!(made(&Making::Master), made(&Making::Master));
}

/// B1: the kid is the thumbprint of RFC 7638, of what is published.
#[test]
fn b1_the_kid_is_a_thumbprint() {
    use base64ct::{Base64UrlUnpadded, Encoding as _};
    use sha2::Digest as _;
    let setup = read(&signing(KeyAlgorithm::EdDsa, KeyStatus::Current));
    let jwk = serde_json::to_value(setup.ring.public().next().unwrap()).unwrap();
    let members = format!(r#"{{"crv":{},"kty":{},"x":{}}}"#, jwk["crv"], jwk["kty"], jwk["x"]);
    assert_eq!(jwk["kid"], Base64UrlUnpadded::encode_string(&sha2::Sha256::digest(members)));
}

/// B2: next, current, previous, gone; each step is a set that is taken.
#[test]
fn b2_a_rotation_goes_step_by_step() {
    let statuses = |set: &str| -> Vec<(String, String)> {
        let set: Value = serde_json::from_str(set).unwrap();
        let text = |key: &Value, name: &str| key[name].as_str().unwrap().to_owned();
        set["keys"].as_array().unwrap().iter().map(|key| (text(key, "status"), text(key, "kid"))).collect()
    };
    let first = signing(KeyAlgorithm::EdDsa, KeyStatus::Current);
    let kid = statuses(&first)[0].1.clone();

    let (added, said) = advance(&first).unwrap();
    assert_eq!(read(&added).ring.signing().kid(), kid);
    let next = statuses(&added)[1].1.clone();
    assert_eq!(statuses(&added), [("current".into(), kid.clone()), ("next".into(), next.clone())]);
    assert!(said.contains(&next) && said.contains("5 minutes"), "{said}");

    let (promoted, said) = advance(&added).unwrap();
    assert_eq!(read(&promoted).ring.signing().kid(), next);
    assert!(read(&promoted).ring.verifying(&kid).is_some());
    assert_eq!(statuses(&promoted), [("previous".into(), kid), ("current".into(), next.clone())]);
    assert!(said.contains("access_ttl"), "{said}");

    let (dropped, said) = advance(&promoted).unwrap();
    assert_eq!(statuses(&dropped), [("current".into(), next)]);
    assert!(said.contains("over"), "{said}");
    assert_eq!(read(&dropped).ring.public().count(), 1);

    // A service that signed with derived keys so far.
    let (begun, _) = advance(&signing(KeyAlgorithm::Hs256, KeyStatus::Next)).unwrap();
    assert_eq!(statuses(&begun)[0].0, "current");
}

#[test]
fn what_is_no_key_set_is_not_rotated_and_not_quoted() {
    for text in [
        "",
        "canary",
        "[]",
        "{\"keys\":\"canary\"}",
        "{\"keys\":[]}",
        "{\"keys\":[{\"status\":\"previous\",\"d\":\"canary\"}]}",
        "{\"keys\":[{\"status\":\"current\",\"alg\":\"canary\"}]}",
    ] {
        let error = format!("{:#}", advance(text).unwrap_err());
        assert!(!error.contains("canary"), "{error}");
    }
}
