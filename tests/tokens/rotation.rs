//! Keys come and go, and nobody is logged out.

use serde_json::{Value, json};

use crate::support::{FIRST, SECOND, THIRD, World, json_of, mac_jwk, part, set};

fn kid(token: &str) -> Value {
    part(token, 0)["kid"].clone()
}

fn published(world: &World) -> Vec<String> {
    let keys = json_of(&world.send("GET", "/.well-known/jwks.json", &[], ""));
    keys["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

/// Every node in turn changes its setting: at each moment every node takes what any node issues,
/// and what it issued before.
#[test]
fn b2_keys_change_node_by_node_and_no_token_is_refused() {
    let steps = [
        set(&[FIRST.jwk("first", "current")]),
        set(&[FIRST.jwk("first", "current"), SECOND.jwk("second", "next")]),
        set(&[FIRST.jwk("first", "previous"), SECOND.jwk("second", "current")]),
        set(&[SECOND.jwk("second", "current")]),
    ];
    let mut nodes = vec![World::with_keys(&steps[0])];
    nodes.push(nodes[0].beside(&steps[0]));
    let mut signed_with = Vec::new();
    for step in &steps[1..] {
        for at in 0..nodes.len() {
            let before: Vec<String> = (0..nodes.len()).map(|n| nodes[n].token()).collect();
            nodes[at] = nodes[at].beside(step);
            let after = nodes.iter().map(World::token);
            for token in before.into_iter().chain(after) {
                // The last step is taken when the tokens of the previous key have expired.
                let over = step == &steps[3] && kid(&token) == "first";
                for node in &nodes {
                    assert!(over || node.accepts(&token), "{step}: {}", kid(&token));
                    assert!(over || published(node).iter().any(|known| kid(&token) == known.as_str()));
                }
                signed_with.push(kid(&token));
            }
        }
    }
    assert!(signed_with.contains(&json!("first")) && signed_with.contains(&json!("second")));
}

/// From the derived key to signing keys: published first, then used.
#[test]
fn b2_a_running_service_moves_to_signing_keys_without_refusing_a_token() {
    let steps = [String::new(), set(&[FIRST.jwk("first", "next")]), set(&[FIRST.jwk("first", "current")])];
    let mut nodes = vec![World::with_keys(&steps[0])];
    nodes.push(nodes[0].beside(&steps[0]));
    assert!(published(&nodes[0]).is_empty());
    for step in &steps[1..] {
        for at in 0..nodes.len() {
            let before = nodes[1 - at].token();
            nodes[at] = nodes[at].beside(step);
            let after: Vec<String> = nodes.iter().map(World::token).collect();
            for token in after.iter().chain([&before]) {
                assert!(nodes.iter().all(|node| node.accepts(token)), "{step}: {}", kid(token));
            }
        }
    }
    assert_eq!((kid(&nodes[0].token()), part(&nodes[0].token(), 0)["alg"].clone()), (json!("first"), json!("EdDSA")));
}

#[test]
fn b5_a_key_that_is_dropped_is_refused_and_unpublished_at_once() {
    let before = World::with_keys(&set(&[FIRST.jwk("first", "current"), SECOND.jwk("second", "next")]));
    let token = before.token();
    let after = before.beside(&set(&[SECOND.jwk("second", "current")]));
    assert!(before.accepts(&token));
    after.refuses(&token);
    assert_eq!(published(&after), ["second"]);
    assert!(after.log().contains("token.kid"), "why is in the log, and only there");
}

#[test]
fn a17_b1_only_public_halves_are_published() {
    let mut public_only = THIRD.jwk("third", "previous");
    public_only.as_object_mut().unwrap().remove("d");
    let world = World::with_keys(&set(&[
        SECOND.jwk("second", "next"),
        FIRST.jwk("first", "current"),
        public_only,
        mac_jwk("mac", "previous"),
    ]));
    let response = world.send("GET", "/.well-known/jwks.json", &[], "");
    let member = |kid, x| json!({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid, "use": "sig", "alg": "EdDSA"});
    assert_eq!(
        json_of(&response),
        json!({"keys": [member("second", SECOND.x), member("first", FIRST.x), member("third", THIRD.x)]})
    );
    assert!(published(&World::with_keys("")).is_empty());
    assert_eq!(json_of(&World::with_keys("").send("GET", "/.well-known/jwks.json", &[], "")), json!({"keys": []}));
}

#[test]
fn b3_the_keys_may_be_kept_for_a_while_and_asked_for_again() {
    let world = World::new();
    for (path, content_type) in [
        ("/.well-known/jwks.json", "application/jwk-set+json"),
        ("/.well-known/oauth-authorization-server", "application/json"),
    ] {
        let get = |fields: &[(&str, &str)]| world.send("GET", path, fields, "");
        let response = get(&[]);
        assert_eq!(response.status, 200);
        assert_eq!(response.head.get("cache-control"), Some("public, max-age=300"));
        assert_eq!(response.head.get("content-type"), Some(content_type));
        let etag = response.head.get("etag").unwrap().to_owned();
        assert!(etag.starts_with('"') && etag.ends_with('"') && etag.len() > 20, "{etag}");
        assert_eq!(get(&[]).head.get("etag"), Some(&*etag));
        for known in [&etag, "*", &format!("W/{etag}"), &format!("\"x\", {etag}")] {
            let unchanged = get(&[("if-none-match", known)]);
            assert_eq!((unchanged.status, unchanged.body.len()), (304, 0), "{known}");
            assert_eq!(unchanged.head.get("etag"), Some(&*etag));
            assert_eq!(unchanged.head.get("cache-control"), Some("public, max-age=300"));
        }
        assert_eq!(get(&[("if-none-match", "\"x\"")]).status, 200);
        assert_eq!(world.send("HEAD", path, &[], "").status, 200);
        assert_eq!(world.send("POST", path, &[], "").status, 405);
    }
    let jwks = |world: &World| world.send("GET", "/.well-known/jwks.json", &[], "").head.get("etag").map(str::to_owned);
    let changed = world.beside(&set(&[FIRST.jwk("first", "current")]));
    assert_ne!(jwks(&world), jwks(&changed));
}

#[test]
fn f6_metadata_says_only_what_there_is() {
    let world = World::new();
    let ask = |world: &World| world.send("GET", "/.well-known/oauth-authorization-server", &[], "");
    let metadata = json_of(&ask(&world));
    assert_eq!(
        metadata,
        json!({
            "issuer": "https://login.example",
            "jwks_uri": "https://login.example/.well-known/jwks.json",
            "revocation_endpoint": "https://login.example/oauth/revoke",
            "revocation_endpoint_auth_methods_supported": ["none"],
        })
    );
    assert_eq!(part(&world.token(), 1)["iss"], metadata["issuer"]);

    let clients = r#"[{"id":"b","secret":"9dGmV2kQx7LzR4tYw1NcHs6PjF8uBoE3","apps":["wechat"]}]"#;
    let metadata = json_of(&ask(&world.changed(&[("clients", clients), ("issuer", "https://login.example/a/")])));
    assert_eq!(metadata["issuer"], "https://login.example/a/");
    assert_eq!(metadata["introspection_endpoint"], "https://login.example/a/oauth/introspect");
    assert_eq!(metadata["introspection_endpoint_auth_methods_supported"], json!(["client_secret_basic"]));
    assert_eq!(metadata["revocation_endpoint_auth_methods_supported"], json!(["none", "client_secret_basic"]));

    let refused = ask(&world.changed(&[("issuer", "edgepass")]));
    assert_eq!((refused.status, &json_of(&refused)["code"]), (404, &json!("not_found")));
    assert_eq!(refused.head.get("cache-control"), Some("no-store"));
}

/// A cache in front keeps one answer for all: a load test must not be able to put another there.
#[test]
fn b3_a_load_test_is_told_the_same_keys() {
    let token = "9dGmV2kQx7LzR4tYw1NcHs6PjF8uBoE3";
    let keys = set(&[FIRST.jwk("first", "current")]);
    let world = World::new().changed(&[("signing_keys", &keys), ("shadow_mark", "load"), ("load_token", token)]);
    let marked = [("x-env", "load"), ("x-edgepass-load-token", token)];
    for path in ["/.well-known/jwks.json", "/.well-known/oauth-authorization-server"] {
        assert_eq!(world.send("GET", path, &marked, "").body, world.send("GET", path, &[], "").body);
    }
    // Nor does what it is issued verify under what is published.
    let login = world.send("POST", "/api/login", &marked, &json!({"code": "load"}).to_string());
    let shadow = json_of(&login)["access_token"].as_str().unwrap().to_owned();
    assert_eq!(part(&shadow, 0)["alg"], "HS256");
    world.refuses(&shadow);
}
