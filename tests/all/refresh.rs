//! `POST /api/token/refresh`, and logins that may be sent again. What depends on time is in the
//! core's own tests, under a clock that stands, and in `tests/model`.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::{World, WorldBuilder, claims_of, keys_of, shared_behaviours};

shared_behaviours! {
    d1_a_refresh_rotates_and_keeps_whose_session_it_is,
    d2_reuse_ends_the_session,
    d5_nothing_a_token_may_do_grows,
    d6_a_token_is_of_one_app,
    d7_concurrent_refreshes_give_one_successor,
    d7_two_tabs_do_not_sign_each_other_out,
    d8_a_lost_answer_is_recovered,
    d10_a_logout_beats_a_refresh_in_flight,
    d11_no_token_is_stored,
    d12_what_may_be_retried_is_told_from_what_may_not,
    a_session_of_a_device_is_renewed_by_that_device_only,
    c1_two_nodes_make_one_session_of_one_code,
    c3_a_repeated_login_gives_the_same_session_on_any_node,
    c3_a_login_whose_answer_was_lost_is_repeated,
    c3_logins_sent_twice_at_once_give_one_session,
    c3_another_key_or_another_body_gets_nothing,
    c3_after_a_logout_nothing_is_repeated,
}

const KEY: &str = "0123456789abcdef";

async fn d1_a_refresh_rotates_and_keeps_whose_session_it_is(world: World) {
    let login = world.logged_in("alice").await;
    let renewed = world.refreshed(&login["refresh_token"]).await;

    assert_eq!(
        keys_of(&renewed),
        ["access_token", "expires_in", "refresh_expires_in", "refresh_token", "session", "token_type", "user"]
    );
    assert_eq!(keys_of(&renewed["user"]), ["app", "id", "platform"]);
    assert_ne!(renewed["refresh_token"], login["refresh_token"]);
    assert_eq!(renewed["session"], login["session"], "its absolute end as well");
    assert_eq!(renewed["user"]["id"], login["user"]["id"]);
    assert_eq!(world.session(text(&renewed["access_token"])).await.status, 200);
    let again = world.refreshed(&renewed["refresh_token"]).await;
    assert_ne!(again["refresh_token"], renewed["refresh_token"]);
}

async fn d2_reuse_ends_the_session(world: World) {
    let world = WorldBuilder::new(world.door()).setting("refresh_grace", "0").start();
    let login = world.logged_in("alice").await;
    let renewed = world.refreshed(&login["refresh_token"]).await;

    assert_eq!(world.refresh(&login["refresh_token"]).await.problem(), "refresh_invalid");
    assert_eq!(world.refresh(&renewed["refresh_token"]).await.problem(), "refresh_invalid", "every token of it");
    assert_eq!(world.session(text(&renewed["access_token"])).await.status, 401);
    assert_eq!(world.second_node().refresh(&renewed["refresh_token"]).await.status, 401, "on every node");
    assert!(world.logs().contains("token.reuse"));
}

async fn d5_nothing_a_token_may_do_grows(world: World) {
    let login = world.logged_in("alice").await;
    let body = json!({
        "refresh_token": login["refresh_token"], "scope": "admin", "audience": "other", "aud": "other", "sub": "other",
    });
    let renewed = world.post("/api/token/refresh", &body).await.json();
    let [before, after] = [&login, &renewed].map(|granted| claims_of(text(&granted["access_token"])));
    assert_eq!(keys_of(&before), keys_of(&after));
    for claim in ["iss", "aud", "sub", "client_id", "sid"] {
        assert_eq!(before[claim], after[claim], "{claim}");
    }
}

async fn d6_a_token_is_of_one_app(world: World) {
    let apps = json!([
        {"id": "one", "platform": "wechat", "appid": "wx1", "secret": "s"},
        {"id": "two", "platform": "wechat", "appid": "wx2", "secret": "s"},
    ]);
    let apps = apps.to_string();
    let none = [("wechat_appid", ""), ("wechat_secret", "")];
    let builder =
        none.into_iter().fold(WorldBuilder::new(world.door()), |builder, (name, no)| builder.setting(name, no));
    let world = builder.setting("apps", &apps).start();
    world.reply(&json!({"openid": "o1", "session_key": "a2V5"}));
    let login = world.post("/api/login", &json!({"code": "c1", "app": "one"})).await.json();

    let token = &login["refresh_token"];
    let wrong = world.post("/api/token/refresh", &json!({"refresh_token": token, "app": "two"})).await;
    assert_eq!((wrong.status, wrong.problem().as_str()), (401, "refresh_invalid"));
    let right = world.post("/api/token/refresh", &json!({"refresh_token": token, "app": "one"})).await;
    assert_eq!(right.status, 200, "and nothing was changed by the wrong one: {right:?}");
}

async fn d7_concurrent_refreshes_give_one_successor(world: World) {
    let nodes = [world.second_node(), world];
    for count in [2, 10, 100] {
        let login = nodes[0].logged_in("alice").await;
        let answers = join_all((0..count).map(|n| nodes[n % 2].refresh(&login["refresh_token"]))).await;
        let mut successors = BTreeSet::new();
        for answer in answers {
            assert_eq!(answer.status, 200, "{count}: {answer:?}");
            successors.insert(answer.json()["refresh_token"].to_string());
        }
        assert_eq!(successors.len(), 1, "of {count}");
        let successor: Value = serde_json::from_str(successors.first().unwrap()).unwrap();
        assert_eq!(nodes[1].refresh(&successor).await.status, 200, "and it is good");
    }
}

async fn d7_two_tabs_do_not_sign_each_other_out(world: World) {
    let login = world.logged_in("alice").await;
    let mut held = login["refresh_token"].clone();
    for _ in 0..5 {
        // Both tabs read the same stored token, and the later one writes what it got.
        let (one, other) = tokio::join!(world.refreshed(&held), world.refreshed(&held));
        assert_eq!(one["refresh_token"], other["refresh_token"]);
        for tab in [&one, &other] {
            assert_eq!(world.session(text(&tab["access_token"])).await.status, 200);
        }
        held = other["refresh_token"].clone();
    }
}

async fn d8_a_lost_answer_is_recovered(world: World) {
    let login = world.logged_in("alice").await;
    let mut hold = world.hold_writes("/g/");
    let leaving =
        world.post_and_leave("/api/token/refresh", &[], &json!({"refresh_token": login["refresh_token"]})).await;
    hold.arrived().await;
    drop(leaving);
    drop(hold);
    world.written("/g/").await;

    let nodes = [world.second_node(), world];
    let successor = nodes[0].refreshed(&login["refresh_token"]).await["refresh_token"].clone();
    assert_eq!(nodes[1].refreshed(&login["refresh_token"]).await["refresh_token"], successor, "as often as it takes");
    assert_eq!(nodes[0].refresh(&successor).await.status, 200);
}

async fn d10_a_logout_beats_a_refresh_in_flight(world: World) {
    let other = world.second_node();
    let login = world.logged_in("alice").await;
    let mut hold = world.hold_writes("/g/");
    let logout = async {
        hold.arrived().await;
        assert_eq!(other.log_out(text(&login["access_token"])).await.status, 204);
        drop(hold);
    };
    let (refreshed, ()) = tokio::join!(world.refresh(&login["refresh_token"]), logout);

    // It had read that the session lives; what it answers opens nothing.
    if refreshed.status == 200 {
        let renewed = refreshed.json();
        assert_eq!(world.session(text(&renewed["access_token"])).await.problem(), "token_invalid");
        assert_eq!(other.refresh(&renewed["refresh_token"]).await.problem(), "refresh_invalid");
    }
    assert_eq!(world.refresh(&login["refresh_token"]).await.problem(), "refresh_invalid");
    assert_eq!(world.stored("/s/").await, 0, "the session was not written again");
}

async fn d11_no_token_is_stored(world: World) {
    let login = world.logged_in("alice").await;
    let renewed = world.refreshed(&login["refresh_token"]).await;
    let stored = world.stored_bytes().await;
    for granted in [&login, &renewed] {
        for token in ["access_token", "refresh_token"] {
            // Its MAC, in the form it travels and in the form it has.
            let token = text(&granted[token]);
            let mac = &token[token.len() - 24..];
            let decoded = base64_decoded(mac);
            for part in [mac.as_bytes(), &decoded] {
                assert!(!stored.windows(part.len()).any(|window| window == part));
            }
        }
    }
}

async fn d12_what_may_be_retried_is_told_from_what_may_not(world: World) {
    let login = world.logged_in("alice").await;
    world.break_store(true);
    let down = world.refresh(&login["refresh_token"]).await;
    assert_eq!((down.status, down.problem().as_str()), (503, "store_unavailable"));
    assert_eq!((&down.json()["retryable"], down.header("retry-after").is_some()), (&json!(true), true));
    world.break_store(false);

    world.refreshed(&login["refresh_token"]).await;
    let forged = json!("epr1_AAAA");
    let refused = world.refresh(&forged).await;
    assert_eq!((refused.status, refused.problem().as_str()), (401, "refresh_invalid"));
    assert_eq!(refused.json()["retryable"], false);
}

async fn a_session_of_a_device_is_renewed_by_that_device_only(world: World) {
    let body = json!({"code": world.code("alice"), "device": {"id": "phone"}});
    let login = world.post("/api/login", &body).await.json();
    let token = &login["refresh_token"];
    for wrong in [json!({"refresh_token": token}), json!({"refresh_token": token, "device_id": "laptop"})] {
        let answer = world.post("/api/token/refresh", &wrong).await;
        assert_eq!((answer.status, answer.problem().as_str()), (401, "device_mismatch"), "{wrong}");
    }
    let right = json!({"refresh_token": token, "device_id": "phone"});
    assert_eq!(world.post("/api/token/refresh", &right).await.status, 200, "the others changed nothing");
}

async fn c1_two_nodes_make_one_session_of_one_code(world: World) {
    let other = world.second_node();
    for _ in 0..5 {
        let code = world.code("alice");
        let (one, two) = tokio::join!(world.log_in(&code), other.log_in(&code));
        let granted = [&one, &two].iter().filter(|answer| answer.status == 200).count();
        assert!(granted <= 1, "{one:?} {two:?}");
        let refused = if one.status == 200 { two } else { one };
        assert_eq!((refused.status, refused.problem().as_str()), (401, "code_used"));
    }
}

async fn c3_a_repeated_login_gives_the_same_session_on_any_node(world: World) {
    let other = world.second_node();
    let code = world.code("alice");
    let first = world.log_in_with_key(&code, KEY).await.json();
    for node in [&world, &other] {
        let again = node.log_in_with_key(&code, KEY).await;
        assert_eq!(again.status, 200, "{again:?}");
        let again = again.json();
        assert_eq!(again["refresh_token"], first["refresh_token"]);
        assert_eq!(again["session"], first["session"]);
        assert_eq!(node.session(text(&again["access_token"])).await.status, 200);
    }
    assert_eq!(world.upstream_calls(), 1);
    world.refreshed(&first["refresh_token"]).await;
    assert_eq!(other.log_in_with_key(&code, KEY).await.problem(), "code_used", "a session that went on begins no more");
}

async fn c3_a_login_whose_answer_was_lost_is_repeated(world: World) {
    let code = world.code("alice");
    let mut hold = world.hold_writes("/s/");
    let leaving = world.post_and_leave("/api/login", &[("idempotency-key", KEY)], &json!({"code": code})).await;
    hold.arrived().await;
    drop(leaving);
    drop(hold);
    world.written("/s/").await;

    let other = world.second_node();
    let again = other.log_in_with_key(&code, KEY).await;
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(world.session(text(&again.json()["access_token"])).await.status, 200);
    assert_eq!((world.upstream_calls(), world.stored("/s/").await), (1, 1));
}

/// The platform tells the second node that the code is used (40163) before the first has written.
async fn c3_logins_sent_twice_at_once_give_one_session(world: World) {
    let other = world.second_node();
    let code = world.code("alice");
    let mut hold = world.hold_writes("/s/");
    let second = async {
        hold.arrived().await;
        let before = world.upstream_calls();
        let release = async {
            other.upstream_call_arrived(before).await;
            drop(hold);
        };
        tokio::join!(other.log_in_with_key(&code, KEY), release).0
    };
    let (one, two) = tokio::join!(world.log_in_with_key(&code, KEY), second);

    assert_eq!((one.status, two.status), (200, 200), "{one:?} {two:?}");
    assert_eq!(one.json()["refresh_token"], two.json()["refresh_token"]);
    assert_eq!(world.stored("/s/").await, 1);
}

async fn c3_another_key_or_another_body_gets_nothing(world: World) {
    let code = world.code("alice");
    assert_eq!(world.log_in_with_key(&code, KEY).await.status, 200);
    assert_eq!(world.log_in_with_key(&code, "fedcba9876543210").await.problem(), "code_used");
    assert_eq!(world.log_in(&code).await.problem(), "code_used");
    let headers = [("content-type", "application/json"), ("idempotency-key", KEY)];
    let body = json!({"code": code, "device": {"id": "another"}}).to_string();
    let other = world.request("POST", "/api/login", &headers, body.as_bytes()).await;
    assert_eq!((other.status, other.problem().as_str()), (422, "idempotency_mismatch"));
    for wrong in ["short", &"x".repeat(129)] {
        assert_eq!(world.log_in_with_key(&world.code("alice"), wrong).await.problem(), "bad_request", "{wrong}");
    }
    assert!(!world.logs().contains(KEY), "a key is never logged");
}

async fn c3_after_a_logout_nothing_is_repeated(world: World) {
    let code = world.code("alice");
    let login = world.log_in_with_key(&code, KEY).await.json();
    assert_eq!(world.log_out(text(&login["access_token"])).await.status, 204);
    assert_eq!(world.second_node().log_in_with_key(&code, KEY).await.problem(), "code_used");
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}"))
}

fn base64_decoded(text: &str) -> Vec<u8> {
    use base64ct::{Base64UrlUnpadded, Encoding as _};
    Base64UrlUnpadded::decode_vec(text).expect("whole groups of base64url")
}
