//! Vectors printed in RFCs: that our signatures are everybody's.

use ed25519_dalek::{SigningKey as Ed25519, VerifyingKey as Ed25519Public};
use edgepass::token::{
    jws::Jws,
    keys::MacKey,
    signing::{Private, Public, SigningKey, VerifyingKey},
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::support::{decode, encode};

/// RFC 7515, appendix A.1.
mod a1 {
    pub(super) const KEY: &str =
        "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
    pub(super) const TOKEN: &str = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
}

/// RFC 8037, appendix A.1 to A.5.
mod ed25519 {
    pub(super) const D: &str = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A";
    pub(super) const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    pub(super) const THUMBPRINT: &str = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k";
    pub(super) const TOKEN: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
}

fn private() -> Ed25519 {
    Ed25519::from_bytes(&decode(ed25519::D).try_into().unwrap())
}

#[test]
fn hs256_is_that_of_rfc_7515() {
    let jws = Jws::read(a1::TOKEN).unwrap();
    let mac = MacKey::of_bytes(&decode(a1::KEY));
    assert_eq!(encode(mac.sign(jws.signed.as_bytes())), a1::TOKEN.rsplit('.').next().unwrap());
    let key = VerifyingKey::new("k".into(), Public::Hs256(mac));
    assert!(key.verifies(jws.signed.as_bytes(), &jws.signature));
    assert!(!key.verifies(jws.signed.as_bytes(), &jws.signature[..31]));
}

#[test]
fn ed25519_signatures_are_those_of_rfc_8037() {
    let jws = Jws::read(ed25519::TOKEN).unwrap();
    assert_eq!(jws.header, br#"{"alg":"EdDSA"}"#);
    assert_eq!(jws.payload, b"Example of Ed25519 signing");
    let public = Ed25519Public::from_bytes(&decode(ed25519::X).try_into().unwrap()).unwrap();
    assert_eq!(public, private().verifying_key());
    let key = VerifyingKey::new("k".into(), Public::EdDsa(public));
    assert!(key.verifies(jws.signed.as_bytes(), &jws.signature));

    // What we sign is determined by key and message (RFC 8032), so it is what a second
    // implementation of the RFC makes of the same token.
    let own = SigningKey::new("k".into(), Private::EdDsa(private())).token("JWT", json!({"a": "b"}));
    let jws = Jws::read(&own).unwrap();
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&jws.header).unwrap(),
        json!({"alg": "EdDSA", "typ": "JWT", "kid": "k"})
    );
    assert!(key.verifies(jws.signed.as_bytes(), &jws.signature));
    let again = SigningKey::new("k".into(), Private::EdDsa(private())).token("JWT", json!({"a": "b"}));
    assert_eq!(own, again);
}

#[test]
fn a19_ed25519_goes_by_its_own_name_where_the_key_says_so() {
    let key = SigningKey::new("k".into(), Private::Ed25519(private()));
    let token = key.token("JWT", json!({}));
    let jws = Jws::read(&token).unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&jws.header).unwrap()["alg"], "Ed25519");
    assert!(key.verifying().verifies(jws.signed.as_bytes(), &jws.signature));
    let jwk = serde_json::to_value(key.verifying().jwk()).unwrap();
    assert_eq!((&jwk["kty"], &jwk["crv"], &jwk["alg"]), (&json!("OKP"), &json!("Ed25519"), &json!("Ed25519")));
}

#[test]
fn b1_a_jwk_is_that_of_rfc_8037_and_holds_nothing_private() {
    let key = SigningKey::new("k".into(), Private::EdDsa(private()));
    let jwk = serde_json::to_value(key.verifying().jwk()).unwrap();
    assert_eq!(jwk, json!({"kty": "OKP", "crv": "Ed25519", "x": ed25519::X, "kid": "k", "use": "sig", "alg": "EdDSA"}));
    // RFC 7638 over the members a verifier elsewhere reads from it.
    let required = format!(r#"{{"crv":{},"kty":{},"x":{}}}"#, jwk["crv"], jwk["kty"], jwk["x"]);
    assert_eq!(encode(Sha256::digest(required)), ed25519::THUMBPRINT);
    let mac = SigningKey::new("k".into(), Private::Hs256(MacKey::of_bytes(&decode(a1::KEY))));
    assert!(mac.verifying().jwk().is_none());
}
