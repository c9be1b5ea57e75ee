//! The keys that others verify with, as they go over HTTP.

use edgepass_edge::{
    cli::{KeyAlgorithm, KeyStatus, Making, Signing},
    command::keygen::make,
};
use serde_json::Value;

use crate::support::{World, WorldBuilder, behaviours, keys_of};

behaviours! {
    tokens_are_signed_with_a_published_key,
    b3_a_copy_of_the_keys_is_asked_for_again_by_its_tag,
    b6_a_signing_key_is_never_seen,
}

const JWKS: &str = "/.well-known/jwks.json";

/// The value of `signing_keys`.
fn signing_keys() -> String {
    let what = Signing { alg: KeyAlgorithm::EdDsa, status: KeyStatus::Current };
    make(&Making::Signing(what)).unwrap().value.unwrap()
}

fn with_keys(world: &World, signing_keys: &str) -> World {
    WorldBuilder::new(world.door())
        .setting("signing_keys", signing_keys)
        .setting("issuer", "https://login.example")
        .start()
}

fn kid_of(token: &str) -> Value {
    use base64ct::Encoding as _;
    let header = base64ct::Base64UrlUnpadded::decode_vec(token.split('.').next().unwrap()).unwrap();
    serde_json::from_slice::<Value>(&header).unwrap()["kid"].clone()
}

async fn tokens_are_signed_with_a_published_key(world: World) {
    assert_eq!(
        world.get(JWKS, &[]).await.json()["keys"],
        serde_json::json!([]),
        "of a derived key nothing is published"
    );

    let world = with_keys(&world, &signing_keys());
    let login = world.logged_in("alice").await;
    let token = login["access_token"].as_str().unwrap();
    let published = world.get(JWKS, &[]).await.json();
    assert_eq!(published["keys"][0]["kid"], kid_of(token));
    assert_eq!(keys_of(&published["keys"][0]), ["alg", "crv", "kid", "kty", "use", "x"]);
    assert_eq!(world.verify(token).await.status, 200);
    let metadata = world.get("/.well-known/oauth-authorization-server", &[]).await.json();
    assert_eq!(metadata["jwks_uri"], "https://login.example/.well-known/jwks.json");
}

async fn b3_a_copy_of_the_keys_is_asked_for_again_by_its_tag(world: World) {
    let answer = world.get(JWKS, &[]).await;
    assert_eq!(answer.header("cache-control"), Some("public, max-age=300"));
    assert_eq!(answer.header("content-type"), Some("application/jwk-set+json"));
    let etag = answer.header("etag").unwrap().to_owned();
    let unchanged = world.get(JWKS, &[("if-none-match", &etag)]).await;
    assert_eq!((unchanged.status, unchanged.body.len(), unchanged.header("content-length")), (304, 0, None));
    assert_eq!(unchanged.header("etag"), Some(&*etag));
    let head = world.request("HEAD", JWKS, &[], b"").await;
    assert_eq!((head.status, head.body.len(), head.header("etag")), (200, 0, Some(&*etag)));
}

async fn b6_a_signing_key_is_never_seen(world: World) {
    let keys = signing_keys();
    let world = with_keys(&world, &keys);
    world.logged_in("alice").await;
    let keys: Value = serde_json::from_str(&keys).unwrap();
    let secret = keys["keys"][0]["d"].as_str().unwrap();
    for path in [JWKS, "/readyz", "/version", "/openapi.json"] {
        assert!(!String::from_utf8_lossy(&world.get(path, &[]).await.body).contains(secret), "{path}");
    }
    assert!(!world.logs().contains(secret));
    let stored = world.stored_bytes().await;
    assert!(!stored.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()));
}
