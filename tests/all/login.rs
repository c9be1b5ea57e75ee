//! `POST /api/login`: what a mini-program sees, and what goes upstream.

use edgepass_sim::Entry;
use serde_json::json;

use crate::support::{World, keys_of, shared_behaviours};

shared_behaviours! {
    a_code_becomes_a_session,
    the_same_person_is_the_same_user,
    a_code_is_accepted_once,
    a_code_is_spent_on_every_node_over_the_same_store,
    a_code_in_flight_makes_no_second_call,
    the_upstream_request_carries_exactly_four_parameters,
    a_code_cannot_add_a_parameter,
    unionid_is_optional,
    an_unknown_app_is_refused_before_any_call,
    a_client_that_leaves_is_logged_in_all_the_same,
    a_flood_of_invented_codes_writes_nothing,
}

async fn a_code_becomes_a_session(world: World) {
    let code = world.code("alice");
    let answer = world.log_in(&code).await;

    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let body = answer.json();
    assert_eq!(
        keys_of(&body),
        ["access_token", "expires_in", "refresh_expires_in", "refresh_token", "session", "token_type", "user"]
    );
    assert_eq!(body["token_type"], "Bearer");
    assert_eq!(body["expires_in"], 600);
    assert_eq!(body["refresh_expires_in"], 30 * 24 * 3600, "the idle limit");
    assert!(body["refresh_token"].as_str().unwrap().starts_with("epr1_"));
    assert_eq!(body["user"]["is_new"], true);
    assert_eq!(body["user"]["app"], "wechat");
    assert_eq!(body["user"]["platform"], "wechat");
    let created = humantime::parse_rfc3339(body["session"]["created_at"].as_str().unwrap()).unwrap();
    let expires = humantime::parse_rfc3339(body["session"]["expires_at"].as_str().unwrap()).unwrap();
    assert_eq!(expires.duration_since(created).unwrap().as_secs(), 90 * 24 * 3600);

    let session = world.session(body["access_token"].as_str().unwrap()).await;
    assert_eq!(session.status, 200, "{session:?}");
    assert_eq!(session.json()["session"]["id"], body["session"]["id"]);
    assert_eq!(session.json()["user"]["id"], body["user"]["id"]);
}

async fn the_same_person_is_the_same_user(world: World) {
    let first = world.logged_in("alice").await;
    let second = world.logged_in("alice").await;
    let other = world.logged_in("bob").await;

    assert_eq!(first["user"]["id"], second["user"]["id"]);
    assert_eq!(second["user"]["is_new"], false);
    assert_ne!(first["session"]["id"], second["session"]["id"]);
    assert_ne!(first["user"]["id"], other["user"]["id"]);
}

async fn a_code_is_accepted_once(world: World) {
    let code = world.code("alice");
    assert_eq!(world.log_in(&code).await.status, 200);
    let calls = world.upstream_calls();

    let again = world.log_in(&code).await;
    assert_eq!((again.status, again.problem().as_str()), (401, "code_used"));
    assert_eq!(world.upstream_calls(), calls, "the store remembers; the platform is not asked");
}

async fn a_code_is_spent_on_every_node_over_the_same_store(world: World) {
    let code = world.code("alice");
    let body = world.log_in(&code).await.json();
    let calls = world.upstream_calls();
    let other = world.second_node();

    assert_eq!(other.log_in(&code).await.problem(), "code_used");
    assert_eq!(other.upstream_calls(), calls);

    // A logout leaves a tombstone, and that is memory enough.
    let token = body["access_token"].as_str().unwrap();
    assert_eq!(other.log_out(token).await.status, 204);
    assert_eq!(world.log_in(&code).await.problem(), "code_used");
    assert_eq!(world.upstream_calls(), calls);
}

async fn a_code_in_flight_makes_no_second_call(world: World) {
    let code = world.code("alice");
    world.fault(json!({"platform": "wechat", "kind": "latency", "ms": 400, "times": 1}));
    let (first, second) = tokio::join!(world.log_in(&code), async {
        world.upstream_call_arrived(0).await;
        world.log_in(&code).await
    });

    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!((second.status, second.problem().as_str()), (401, "code_used"));
    assert_eq!(world.upstream_calls(), 1);
}

async fn the_upstream_request_carries_exactly_four_parameters(world: World) {
    let code = world.code("alice");
    assert_eq!(world.log_in(&code).await.status, 200);

    let seen = world.last_upstream_request();
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("GET", "/sns/jscode2session"));
    let names: Vec<&str> = seen.parameters.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["appid", "secret", "js_code", "grant_type"]);
    assert_eq!(seen.secret_ok, Some(true));
    assert_eq!(parameter(&seen, "js_code"), Some(code.as_str()));
    assert_eq!(parameter(&seen, "grant_type"), Some("authorization_code"));
    assert_eq!(world.upstream_calls(), 1, "no access token is fetched for a login");
}

async fn a_code_cannot_add_a_parameter(world: World) {
    for code in ["x&appid=other", "x#y", "x?y=z", "x%26appid%3Dother", "a+b/c="] {
        let answer = world.log_in(code).await;
        assert_eq!((answer.status, answer.problem().as_str()), (401, "code_invalid"), "{code}");
        let seen = world.last_upstream_request();
        let names: Vec<&str> = seen.parameters.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["appid", "secret", "js_code", "grant_type"], "{code}");
        assert_eq!(parameter(&seen, "js_code"), Some(code));
    }
}

async fn unionid_is_optional(world: World) {
    for unionid in [json!({"unset": ["unionid"]}), json!({"set": {"unionid": ""}})] {
        let mut fault = unionid.clone();
        fault["kind"] = json!("patch");
        fault["times"] = json!(2);
        world.fault(fault);
        let user = unionid.to_string();
        assert_eq!(world.logged_in(&user).await["user"]["is_new"], true, "{unionid}");
        assert_eq!(world.logged_in(&user).await["user"]["is_new"], false, "{unionid}");
    }
}

async fn an_unknown_app_is_refused_before_any_call(world: World) {
    for body in [json!({"code": "c0de", "app": "nobody"}), json!({"code": "c0de", "platform": "alipay"})] {
        let answer = world.post("/api/login", &body).await;
        assert_eq!((answer.status, answer.problem().as_str()), (400, "app_unknown"), "{body}");
    }
    assert_eq!(world.upstream_calls(), 0);
}

async fn a_client_that_leaves_is_logged_in_all_the_same(world: World) {
    let code = world.code("alice");
    world.fault(json!({"platform": "wechat", "kind": "latency", "ms": 300, "times": 1}));
    let leaving = world.log_in_and_leave(&code).await;
    world.upstream_call_arrived(0).await;
    drop(leaving);

    // The login has ended when its session is in the store.
    world.written("/s/").await;
    assert_eq!(world.log_in(&code).await.problem(), "code_used");
    assert_eq!(world.upstream_calls(), 1);
}

async fn a_flood_of_invented_codes_writes_nothing(world: World) {
    for n in 0..200 {
        let answer = world.log_in(&format!("invented-{n}")).await;
        assert_eq!((answer.status, answer.problem().as_str()), (401, "code_invalid"));
    }
    assert_eq!(world.stored("").await, 0);
}

fn parameter<'e>(seen: &'e Entry, name: &str) -> Option<&'e str> {
    seen.parameters.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}
