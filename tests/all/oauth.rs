//! What back ends, gateways and pages ask: `/oauth/*`, `/api/verify-offline/*`, CORS, the document.

use base64ct::Encoding as _;
use serde_json::{Value, json};

use crate::support::{World, WorldBuilder, behaviours, http::Answer};

behaviours! {
    a_back_end_learns_whose_a_token_is,
    a_back_end_that_is_not_one_learns_nothing,
    a_revoked_token_has_no_session,
    offline_verification_outlives_the_store,
    a_page_of_a_configured_origin_may_call,
    the_document_is_served_and_may_be_kept,
}

const SECRET: &str = "a-secret-of-the-back-end-0123456789";
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

fn with_a_client(world: &World) -> World {
    let clients = json!([{"id": "back", "secret": SECRET, "apps": ["wechat"]}]);
    WorldBuilder::new(world.door()).setting("clients", &clients.to_string()).start()
}

async fn introspect(world: &World, secret: &str, token: &Value) -> Answer {
    let proof = format!("Basic {}", base64ct::Base64::encode_string(format!("back:{secret}").as_bytes()));
    let form = format!("token={}", token.as_str().unwrap());
    world.request("POST", "/oauth/introspect", &[FORM, ("authorization", &proof)], form.as_bytes()).await
}

async fn a_back_end_learns_whose_a_token_is(world: World) {
    let world = with_a_client(&world);
    let login = world.logged_in("alice").await;
    for (token, kind) in [("access_token", "Bearer"), ("refresh_token", "refresh_token")] {
        let answer = introspect(&world, SECRET, &login[token]).await;
        assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")));
        let shown = answer.json();
        assert_eq!((&shown["active"], &shown["token_type"]), (&json!(true), &json!(kind)));
        assert_eq!((&shown["sub"], &shown["sid"]), (&login["user"]["id"], &login["session"]["id"]));
        assert!(shown["openid"].as_str().is_some_and(|openid| !openid.is_empty()));
    }
    assert_eq!(introspect(&world, SECRET, &json!("epr1_x")).await.json(), json!({"active": false}));
}

async fn a_back_end_that_is_not_one_learns_nothing(world: World) {
    let world = with_a_client(&world);
    let login = world.logged_in("alice").await;
    let answer = introspect(&world, "another-secret-of-the-same-length-0", &login["access_token"]).await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (401, Some("invalid_client")));
    assert!(answer.header("www-authenticate").is_some_and(|challenge| challenge.starts_with("Basic ")));
}

async fn a_revoked_token_has_no_session(world: World) {
    let login = world.logged_in("alice").await;
    let form = format!("token={}&token_type_hint=access_token", login["refresh_token"].as_str().unwrap());
    for _ in 0..2 {
        let answer = world.request("POST", "/oauth/revoke", &[FORM], form.as_bytes()).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0));
    }
    assert_eq!(world.session(login["access_token"].as_str().unwrap()).await.status, 401);
}

async fn offline_verification_outlives_the_store(world: World) {
    let login = world.logged_in("alice").await;
    let bearer = format!("Bearer {}", login["access_token"].as_str().unwrap());
    let credentials = [("authorization", bearer.as_str())];
    world.break_store(true);
    for path in ["/api/verify-offline/orders/1?x", "/api/verify-offline/app/wechat/"] {
        let answer = world.request("DELETE", path, &credentials, b"").await;
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
        assert_eq!(answer.header("x-edgepass-user"), login["user"]["id"].as_str());
    }
    assert_eq!(world.get("/api/verify/x", &credentials).await.problem(), "store_unavailable");
    assert_eq!(world.get("/api/verify-offline/app/other/", &credentials).await.problem(), "token_invalid");
}

async fn a_page_of_a_configured_origin_may_call(world: World) {
    let ask = [("origin", "https://shop.example"), ("access-control-request-method", "POST")];
    assert_eq!(world.request("OPTIONS", "/api/login", &ask, b"").await.status, 405);

    let open = WorldBuilder::new(world.door()).setting("cors_origins", "https://shop.example").start();
    let answer = open.request("OPTIONS", "/api/login", &ask, b"").await;
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://shop.example"));
    assert_eq!(open.request("OPTIONS", "/oauth/revoke", &ask, b"").await.status, 405);
}

async fn the_document_is_served_and_may_be_kept(world: World) {
    let answer = world.get("/openapi.json", &[]).await;
    assert_eq!(answer.json()["openapi"], "3.1.0");
    assert_eq!(answer.header("cache-control"), Some("public, max-age=300"));
    let etag = answer.header("etag").unwrap().to_owned();
    let again = world.get("/openapi.json", &[("if-none-match", &etag)]).await;
    assert_eq!((again.status, again.body.len()), (304, 0));
}
