//! Logins that may be sent again: `Idempotency-Key`.

use super::*;
use crate::{clock::Clock as _, outbound::SendError};

const KEY: &str = "0123456789abcdef";

impl World {
    fn log_in_as(&self, key: &str, wish: &Value) -> Response {
        self.send("POST", "/api/login", &[("idempotency-key", key)], wish.to_string())
    }
}

/// The platform takes each code once, as WeChat does.
fn once(world: &World) {
    let seen = std::cell::RefCell::new(std::collections::BTreeSet::new());
    world.answering(move |call| {
        let is_new = seen.borrow_mut().insert(call.url.clone());
        Ok(if is_new { accept(call) } else { reply(200, r#"{"errcode":40163,"errmsg":"code been used"}"#) })
    });
}

fn refresh_token(response: &Response) -> Value {
    assert_eq!(response.status, 200, "{}", text(response));
    body(response)["refresh_token"].clone()
}

#[test]
fn c3_the_same_wish_is_the_same_session_on_any_node() {
    let world = World::new();
    let wish = json!({"code": "alice-1", "device": {"id": "d-1"}});
    let first = world.log_in_as(KEY, &wish);
    world.host.clock.advance(Duration::from_mins(1));
    let again = world.beside(&[]).log_in_as(KEY, &wish);
    assert_eq!(refresh_token(&again), refresh_token(&first));
    let (first, again) = (body(&first), body(&again));
    assert_eq!((&again["session"], &again["user"]["id"]), (&first["session"], &first["user"]["id"]));
    assert_ne!(again["access_token"], first["access_token"]);
    assert_eq!(world.with_token("GET", "/api/session", &again["access_token"]).status, 200);
    assert_eq!((world.calls(), world.keys("s").len()), (1, 1));
    world.host.clock.advance(Duration::from_secs(1));
    assert_eq!(problem(&world.log_in_as(KEY, &wish)), failing("code_used", 401), "a minute later it is over");
}

#[test]
fn c3_another_key_or_none_gets_nothing() {
    let world = World::new();
    let wish = json!({"code": "alice-1"});
    refresh_token(&world.log_in_as(KEY, &wish));
    assert_eq!(problem(&world.log_in_as("0123456789abcdeF", &wish)), failing("code_used", 401));
    assert_eq!(problem(&world.log_in("alice-1")), failing("code_used", 401));
    let without = json!({"code": "bob-1"});
    assert_eq!(world.log_in("bob-1").status, 200);
    assert_eq!(problem(&world.log_in_as(KEY, &without)), failing("code_used", 401), "nor who sends one afterwards");
    assert_eq!(world.calls(), 2);
}

#[test]
fn c3_the_same_key_with_another_body_is_a_mistake() {
    let world = World::new();
    refresh_token(&world.log_in_as(KEY, &json!({"code": "alice-1", "device": {"id": "d-1", "label": "phone"}})));
    for other in [
        json!({"code": "alice-1"}),
        json!({"code": "alice-1", "device": {"id": "d-2", "label": "phone"}}),
        json!({"code": "alice-1", "device": {"id": "d-1"}}),
        json!({"code": "alice-1", "device": {"id": "phone", "label": "d-1"}}),
        json!({"code": "alice-1", "app": "wechat", "device": {"id": "d-1", "label": "phone"}}),
        json!({"code": "alice-1", "platform": "wechat", "device": {"id": "d-1", "label": "phone"}}),
    ] {
        assert_eq!(problem(&world.log_in_as(KEY, &other)), failing("idempotency_mismatch", 422), "{other}");
    }
    assert_eq!(world.calls(), 1);
}

#[test]
fn c3_nothing_is_answered_again_once_the_session_has_moved_on() {
    let world = World::new();
    let wish = |user: &str| json!({ "code": format!("{user}-1") });
    let refreshed = refresh_token(&world.log_in_as(KEY, &wish("alice")));
    world.send("POST", "/api/token/refresh", &[], json!({ "refresh_token": refreshed }).to_string());
    assert_eq!(problem(&world.log_in_as(KEY, &wish("alice"))), failing("code_used", 401), "refreshed");

    let ended = body(&world.log_in_as(KEY, &wish("bob")));
    assert_eq!(world.with_token("POST", "/api/logout", &ended["access_token"]).status, 204);
    assert_eq!(problem(&world.log_in_as(KEY, &wish("bob"))), failing("code_used", 401), "logged out");

    let dead = body(&world.log_in_as(KEY, &wish("carol")));
    let user = dead["user"]["id"].as_str().and_then(Subject::parse).expect("a user");
    let epoch = Layout::new("default", Realm::Live).epoch(user);
    world.host.store.plant(&epoch, envelope::plain(&Epoch(1), UnixSeconds(0)));
    assert_eq!(problem(&world.log_in_as(KEY, &wish("carol"))), failing("code_used", 401), "of an older epoch");

    world.host.store.plant(&epoch, "edgepass\u{2}\0\0\0\0\0\0\0\0from a newer build");
    assert_eq!(problem(&world.log_in_as(KEY, &wish("carol"))), failing("store_unavailable", 503));
}

#[test]
fn c3_a_twin_that_comes_meanwhile_waits_for_the_session() {
    let world = World::new();
    let fields = [("idempotency-key", KEY)];
    let login = |code: &str| request("POST", "/api/login", &fields, json!({ "code": code }).to_string());
    world.host.http.hold(true);
    let mut first = pin!(world.service.handle(login("alice-1")));
    assert!(poll_once(&mut first).is_pending());
    // The clock of the tests lets waits pass at once, so the twin gives up; then the first comes home.
    assert_eq!(problem(&world.send("POST", "/api/login", &fields, r#"{"code":"alice-1"}"#)), failing("code_used", 401));
    world.host.http.hold(false);
    let Poll::Ready(first) = poll_once(&mut first) else { unreachable!("nothing is held") };
    let twin = world.send("POST", "/api/login", &fields, r#"{"code":"alice-1"}"#);
    assert_eq!(refresh_token(&twin), refresh_token(&first));
    assert_eq!(world.calls(), 1);
}

#[test]
fn c3_a_session_made_on_another_node_is_found_after_the_platform_says_used() {
    let world = World::new();
    once(&world);
    let made = world.log_in_as(KEY, &json!({"code": "alice-1"}));
    let session = world.keys("s").pop().expect("a session");
    let value = world.host.store.value(&session).expect("a session");
    // Not visible yet on this node when it asks first; there while it waits.
    world.host.store.forget(&session);
    let (store, key) = (world.host.store.clone(), session.clone());
    world.answering(move |_| {
        store.plant(&key, value.clone());
        Ok(reply(200, r#"{"errcode":40163,"errmsg":"code been used"}"#))
    });
    let again = world.beside(&[]).log_in_as(KEY, &json!({"code": "alice-1"}));
    assert_eq!(refresh_token(&again), refresh_token(&made));
}

#[test]
fn c3_waiting_for_a_session_that_does_not_come_ends() {
    let world = World::new();
    world.answering(|_| Ok(reply(200, r#"{"errcode":40163,"errmsg":"code been used"}"#)));
    let began = world.host.clock.now();
    let response = world.log_in_as(KEY, &json!({"code": "alice-1"}));
    assert_eq!(problem(&response), failing("code_used", 401));
    assert_eq!(body(&response)["platform_code"], 40163);
    assert_eq!(world.host.clock.now().0 - began.0, 1500);
    let began = world.host.clock.now();
    assert_eq!(problem(&world.log_in("alice-1")), failing("code_used", 401));
    assert_eq!(world.host.clock.now(), began, "without a key nobody waits");
    world.answering(|_| Err(SendError { kind: SendErrorKind::Duplicate, sent: false }));
    let began = world.host.clock.now();
    assert_eq!(problem(&world.log_in_as(KEY, &json!({"code": "bob-1"}))), failing("code_used", 401));
    assert_eq!(world.host.clock.now().0 - began.0, 1500, "the node knows of the twin");
}

#[test]
fn an_idempotency_key_has_a_form() {
    let world = World::new();
    let wish = json!({"code": "alice-1"});
    for bad in ["", "0123456789abcde", &"k".repeat(129), "0123456789 abcdef", "0123456789abcdef\u{e9}"] {
        assert_eq!(problem(&world.log_in_as(bad, &wish)), failing("bad_request", 400), "{bad}");
    }
    let twice = [("idempotency-key", KEY), ("idempotency-key", KEY)];
    assert_eq!(problem(&world.send("POST", "/api/login", &twice, wish.to_string())), failing("bad_request", 400));
    assert_eq!(world.calls(), 0, "and the code is as good as before");
    assert_eq!(world.log_in_as(&"k".repeat(128), &wish).status, 200);
}

#[test]
fn h2_an_idempotency_key_is_neither_stored_nor_logged() {
    let world = World::new();
    refresh_token(&world.log_in_as("CanaryIdempotency", &json!({"code": "alice-1"})));
    world.log_in_as("CanaryIdempotency", &json!({"code": "alice-1", "app": "wechat"}));
    for key in world.host.store.keys() {
        let value = world.host.store.value(&key).expect("listed");
        assert!(!value.windows(6).any(|part| part == b"Canary"), "{key}");
    }
    assert!(!world.host.log_text().contains("CanaryIdempotency"));
}

#[test]
fn c3_a_key_in_the_middle_of_its_rotation_changes_nothing() {
    let world = World::with(&[("master_key", ACTIVE_KEY)]);
    let wish = json!({"code": "alice-1"});
    let first = world.log_in_as(KEY, &wish);
    let promoted = world.beside(&[("master_key", &format!("{OLDER_KEY},{ACTIVE_KEY}"))]);
    assert_eq!(refresh_token(&promoted.log_in_as(KEY, &wish)), refresh_token(&first));
}
