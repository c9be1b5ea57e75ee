//! All sessions of a user: the list of devices, ending one or all, what operators do, and that
//! nobody reaches into what is another's.

use serde_json::{Value, json};

use crate::support::{World, shared_behaviours};

shared_behaviours! {
    e1_a_logout_ends_the_session_with_all_its_tokens,
    e2_logout_all_ends_every_session_and_no_later_one,
    e2_logout_all_ends_a_session_that_is_being_made,
    e3_a_user_sees_its_devices_and_ends_one,
    e4_a_blocked_user_is_out_until_unblocked,
    e4_an_operator_ends_one_session_or_all_of_a_user,
    e6_nobody_sees_or_ends_the_sessions_of_another,
    e7_session_ids_are_not_logged,
}

async fn e1_a_logout_ends_the_session_with_all_its_tokens(world: World) {
    let other = world.second_node();
    let login = world.logged_in("alice").await;
    let renewed = world.refreshed(&login["refresh_token"]).await;
    let body = json!({"refresh_token": renewed["refresh_token"]});
    assert_eq!(world.post("/api/logout", &body).await.status, 204);
    for node in [&world, &other] {
        for granted in [&login, &renewed] {
            assert_eq!(node.session(text(&granted["access_token"])).await.problem(), "token_invalid");
            assert_eq!(node.refresh(&granted["refresh_token"]).await.problem(), "refresh_invalid");
        }
        assert_eq!(node.post("/api/logout", &body).await.status, 204, "and again");
    }
}

async fn e2_logout_all_ends_every_session_and_no_later_one(world: World) {
    let other = world.second_node();
    let (one, two) = (world.logged_in("alice").await, other.logged_in("alice").await);
    let bob = world.logged_in("bob").await;
    assert_eq!(other.bearer("POST", "/api/logout-all", text(&two["access_token"])).await.status, 204);
    for granted in [&one, &two] {
        assert_eq!(world.session(text(&granted["access_token"])).await.status, 401);
        assert_eq!(other.refresh(&granted["refresh_token"]).await.problem(), "refresh_invalid");
    }
    let later = world.logged_in("alice").await;
    assert_eq!(other.session(text(&later["access_token"])).await.status, 200, "a later login is none of them");
    assert_eq!(world.session(text(&bob["access_token"])).await.status, 200, "nor is another user's");

    // A token of a session that is over changes nothing any more.
    assert_eq!(world.post("/api/logout-all", &json!({"refresh_token": one["refresh_token"]})).await.status, 204);
    assert_eq!(world.session(text(&later["access_token"])).await.status, 200);
}

async fn e2_logout_all_ends_a_session_that_is_being_made(world: World) {
    let other = world.second_node();
    let first = world.logged_in("alice").await;
    let code = world.code("alice");
    let mut hold = world.hold_writes("/s/");
    // The login has read whose it is, and its session is about to be written.
    let all = async {
        hold.arrived().await;
        assert_eq!(other.bearer("POST", "/api/logout-all", text(&first["access_token"])).await.status, 204);
        drop(hold);
    };
    let (login, ()) = tokio::join!(world.log_in(&code), all);
    if login.status == 200 {
        let granted = login.json();
        assert_eq!(world.session(text(&granted["access_token"])).await.problem(), "token_invalid");
        assert_eq!(other.refresh(&granted["refresh_token"]).await.problem(), "refresh_invalid");
    }
}

async fn e3_a_user_sees_its_devices_and_ends_one(world: World) {
    let mut logins = Vec::new();
    for label in ["phone", "tablet", "desk"] {
        let body = json!({"code": world.code("alice"), "device": {"id": label, "label": label}});
        logins.push(world.post("/api/login", &body).await.json());
    }
    // The list is written after the answer.
    let own = text(&logins[0]["access_token"]);
    let list = until_listed(&world, own, 3).await;
    for (login, label) in logins.iter().zip(["phone", "tablet", "desk"]) {
        let shown = list.iter().find(|shown| shown["id"] == login["session"]["id"]).expect("it is listed");
        assert_eq!(shown["device"]["label"], label);
        assert_eq!((&shown["app"], &shown["platform"]), (&json!("wechat"), &json!("wechat")));
        assert_eq!(shown["created_at"], login["session"]["created_at"]);
        assert!(shown["last_seen_at"].is_string());
        assert_eq!(shown["current"], label == "phone");
    }

    let path = format!("/api/sessions/{}", text(&logins[1]["session"]["id"]));
    assert_eq!(world.bearer("DELETE", &path, own).await.status, 204);
    assert_eq!(world.session(text(&logins[1]["access_token"])).await.status, 401);
    assert_eq!(world.session(text(&logins[2]["access_token"])).await.status, 200);
    let left = world.bearer("GET", "/api/sessions", own).await.json();
    assert_eq!(left["sessions"].as_array().map(Vec::len), Some(2));
}

async fn e4_a_blocked_user_is_out_until_unblocked(world: World) {
    let login = world.logged_in("alice").await;
    let bob = world.logged_in("bob").await;
    let user = json!({"user_id": login["user"]["id"]});
    assert_eq!(world.operate("/internal/block", &user).await.status, 204);
    assert_eq!(world.session(text(&login["access_token"])).await.status, 401);
    assert_eq!(world.refresh(&login["refresh_token"]).await.problem(), "refresh_invalid");
    let refused = world.log_in(&world.code("alice")).await;
    assert_eq!((refused.status, refused.problem().as_str()), (403, "user_blocked"));
    // The blocked cannot free themselves.
    world.post("/api/logout-all", &json!({"refresh_token": login["refresh_token"]})).await;
    assert_eq!(world.log_in(&world.code("alice")).await.problem(), "user_blocked");
    assert_eq!(world.session(text(&bob["access_token"])).await.status, 200);

    assert_eq!(world.operate("/internal/unblock", &user).await.status, 204);
    assert_eq!(world.logged_in("alice").await["user"]["id"], login["user"]["id"]);
    assert_eq!(world.refresh(&login["refresh_token"]).await.problem(), "refresh_invalid", "what is over stays over");
}

async fn e4_an_operator_ends_one_session_or_all_of_a_user(world: World) {
    let (one, two) = (world.logged_in("alice").await, world.logged_in("alice").await);
    let answer = world.operate("/internal/revoke", &json!({"session_id": one["session"]["id"]})).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(world.session(text(&one["access_token"])).await.status, 401);
    assert_eq!(world.session(text(&two["access_token"])).await.status, 200);
    let answer = world.operate("/internal/revoke", &json!({"user_id": one["user"]["id"]})).await;
    assert_eq!(answer.status, 204, "{answer:?}");
    assert_eq!(world.session(text(&two["access_token"])).await.status, 401);
    assert_eq!(world.log_in(&world.code("alice")).await.status, 200, "ended is not blocked");
}

async fn e6_nobody_sees_or_ends_the_sessions_of_another(world: World) {
    let (alice, mallory) = (world.logged_in("alice").await, world.logged_in("mallory").await);
    let own = text(&mallory["access_token"]);
    let list = until_listed(&world, own, 1).await;
    assert!(list.iter().all(|shown| shown["id"] == mallory["session"]["id"]));

    // A foreign id, one that never was, and what is no id: the same answer.
    let mut shapes = std::collections::BTreeSet::new();
    for id in [text(&alice["session"]["id"]), "AAAAAAAAAAAAAAAAAAAAAA", "no-id", "%2e%2e"] {
        let answer = world.bearer("DELETE", &format!("/api/sessions/{id}"), own).await;
        assert_eq!((answer.status, answer.problem().as_str()), (404, "not_found"), "{id}");
        let mut shape = answer.json();
        shape["trace_id"] = json!(null);
        shapes.insert(shape.to_string());
    }
    assert_eq!(shapes.len(), 1, "{shapes:?}");
    assert_eq!(world.session(text(&alice["access_token"])).await.status, 200);
    assert_eq!(world.refresh(&alice["refresh_token"]).await.status, 200);
}

async fn e7_session_ids_are_not_logged(world: World) {
    let login = world.logged_in("alice").await;
    world.refreshed(&login["refresh_token"]).await;
    assert_eq!(world.log_out(text(&login["access_token"])).await.status, 204);
    let logs = world.logs();
    assert!(logs.contains("sid_hash"));
    assert!(!logs.contains(text(&login["session"]["id"])) && !logs.contains(text(&login["user"]["id"])));
}

/// The list once it names `count` sessions: it is written after the answers, and the next write of
/// one follows the last.
async fn until_listed(world: &World, token: &str, count: usize) -> Vec<Value> {
    loop {
        let written = world.next_write();
        let list = world.bearer("GET", "/api/sessions", token).await.json();
        let sessions = list["sessions"].as_array().expect("a list").clone();
        if sessions.len() >= count {
            return sessions;
        }
        written.await;
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}"))
}
