//! `/internal/revoke`, `/internal/block`, `/internal/unblock`.

use super::{
    devices::{layout, sid, subject},
    *,
};

pub(super) const OPERATOR: &str = "operator-token-of-32-characters-x";
const NEXT: &str = "the-one-that-is-rotated-in-32-chars";
const ROUTES: [&str; 4] = ["revoke", "block", "unblock", "sweep"];

pub(super) fn operated(changes: &[(&str, &str)]) -> World {
    let tokens = format!("{OPERATOR}, {NEXT}");
    let mut all = vec![("operator_tokens", tokens.as_str())];
    all.extend_from_slice(changes);
    World::with(&all)
}

impl World {
    pub(super) fn operate(&self, what: &str, wish: &Value) -> Response {
        self.operate_as(OPERATOR, what, &wish.to_string())
    }

    fn operate_as(&self, token: &str, what: &str, wish: &str) -> Response {
        self.send("POST", &format!("/internal/{what}"), &[("authorization", &format!("Bearer {token}"))], wish)
    }
}

#[test]
fn without_operators_there_are_no_routes_for_them() {
    let world = World::new();
    let nowhere = problem(&world.send("POST", "/internal/nowhere", &[], ""));
    assert_eq!(nowhere, failing("not_found", 404));
    for what in ROUTES {
        for method in ["GET", "POST", "OPTIONS", "DELETE"] {
            let answer = world.send(method, &format!("/internal/{what}"), &[("authorization", "Bearer x")], "{}");
            assert_eq!((problem(&answer), answer.head.get("allow")), (nowhere.clone(), None), "{method} {what}");
        }
    }
    let world = operated(&[]);
    assert_eq!(problem(&world.send("GET", "/internal/revoke", &[], "")), failing("method_not_allowed", 405));
}

#[test]
fn an_operator_proves_to_be_one_before_anything_is_read() {
    let world = operated(&[]);
    let user = world.logged_in("alice-1");
    let access = user["access_token"].as_str().expect("a token");
    let reads = world.host.store.keys_read();
    let mut refused = 0;
    for what in ROUTES {
        for token in [
            "x",
            access,
            &OPERATOR[1..],
            &format!("{OPERATOR}x"),
            &OPERATOR.to_uppercase(),
            &format!("{OPERATOR}, {NEXT}"),
        ] {
            assert_eq!(problem(&world.operate_as(token, what, "not JSON")), failing("token_invalid", 401), "{what}");
            refused += 1;
        }
        let bare = world.send("POST", &format!("/internal/{what}"), &[], "{}");
        assert_eq!((problem(&bare), bare.head.get("www-authenticate")), ((401, String::new()), Some("Bearer")));
        refused += 1;
    }
    assert_eq!(world.host.store.keys_read(), reads);
    assert_eq!(world.events("admin.refused"), refused);
    let wish = json!({"user_id": user["user"]["id"]}).to_string();
    for token in [OPERATOR, NEXT] {
        assert_eq!(world.operate_as(token, "revoke", &wish).status, 204, "either of two, while one is rotated");
    }
    assert!(!world.host.log_text().contains(OPERATOR));
}

#[test]
fn what_is_named_badly_is_said_and_changes_nothing() {
    let world = operated(&[]);
    let login = world.logged_in("alice-1");
    let (sid, user) = (login["session"]["id"].clone(), login["user"]["id"].clone());
    let writes = world.host.store.changes_made();
    for (what, wish, names) in [
        ("revoke", json!({}), "session_id, user_id:"),
        ("revoke", json!({"session_id": sid, "user_id": user}), "session_id, user_id:"),
        ("revoke", json!({"session_id": null}), "session_id, user_id:"),
        ("revoke", json!({"session_id": ""}), "session_id:"),
        ("revoke", json!({"session_id": "A".repeat(23)}), "session_id:"),
        ("revoke", json!({"user_id": "../x"}), "user_id:"),
        ("block", json!({}), "user_id:"),
        ("block", json!({"session_id": sid}), "user_id:"),
        ("unblock", json!({"user_id": "A".repeat(22).replace('A', "B")}), "user_id:"),
        ("unblock", json!({"user_id": 1}), "The body:"),
    ] {
        let refused = world.operate(what, &wish);
        assert_eq!(problem(&refused), failing("bad_request", 400), "{what} {wish}");
        assert!(
            body(&refused)["detail"].as_str().is_some_and(|detail| detail.starts_with(names)),
            "{}",
            text(&refused)
        );
    }
    assert_eq!(world.host.store.changes_made(), writes);
}

#[test]
fn e3_an_operator_ends_a_session_and_may_repeat_it() {
    let world = operated(&[]);
    let [one, other] = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    let wish = json!({"session_id": one["session"]["id"]});
    for _ in 0..2 {
        assert_eq!(world.operate("revoke", &wish).status, 204);
        assert!(!world.is_live(&one) && world.is_live(&other));
    }
    assert_eq!(problem(&world.log_in("alice-1")), failing("code_used", 401), "its code stays spent");
    let unknown = json!({"session_id": SessionId::from_bytes([3; 16]).text()});
    assert_eq!(world.operate("revoke", &unknown).status, 204, "nothing to learn");
    let counts: Vec<_> = world
        .host
        .log_text()
        .lines()
        .filter(|line| line.contains("admin.revoke"))
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["count"].clone())
        .collect();
    assert_eq!(counts[..2], [json!(1), json!(0)]);
    assert!(!world.host.log_text().contains(one["session"]["id"].as_str().expect("an id")));
}

#[test]
fn e4_a_blocked_user_is_out_until_unblocked_and_what_was_over_stays_over() {
    let world = operated(&[]);
    let logins = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    let bob = world.logged_in("bob-1");
    let wish = json!({"user_id": logins[0]["user"]["id"]});
    world.plant_list(&logins[0], &[&logins[0]]);
    for _ in 0..2 {
        assert_eq!(world.operate("block", &wish).status, 204);
    }
    assert!(logins.iter().all(|login| !world.is_live(login)), "the list names one of two");
    assert_eq!(problem(&world.refresh(&logins[1]["refresh_token"])), failing("refresh_invalid", 401));
    assert_eq!(problem(&world.log_in("alice-3")), failing("user_blocked", 403));
    assert!(world.is_live(&bob));
    assert_eq!(world.log_out_all(&logins[0]).status, 204);
    assert_eq!(world.operate("revoke", &wish).status, 204);
    assert_eq!(problem(&world.log_in("alice-4")), failing("user_blocked", 403), "whatever else is done");

    assert_eq!(world.operate("unblock", &wish).status, 204);
    world.lose("x");
    assert!(logins.iter().all(|login| !world.is_live(login)));
    let back = world.logged_in("alice-5");
    assert_eq!(world.operate("unblock", &wish).status, 204, "who is not blocked");
    assert!(world.is_live(&back), "keeps every session");
    let names = ["admin.block", "admin.revoke", "admin.unblock"].map(|name| world.events(name));
    assert_eq!(names, [2, 1, 2]);
}

#[test]
fn e4_a_login_under_way_does_not_get_past_a_block() {
    let world = operated(&[]);
    let user = world.logged_in("alice-1")["user"]["id"].clone();
    world.host.store.hold_changes(true);
    let mut under_way = pin!(world.service.handle(request("POST", "/api/login", &[], r#"{"code":"alice-2"}"#)));
    assert!(poll_once(&mut under_way).is_pending());
    world.host.store.hold_changes(false);
    assert_eq!(world.operate("block", &json!({"user_id": user})).status, 204);
    let Poll::Ready(answer) = poll_once(&mut under_way) else { unreachable!("nothing holds it") };
    assert!(!world.is_live(&body(&answer)));
    assert_eq!(world.operate("unblock", &json!({"user_id": user})).status, 204);
    assert!(!world.is_live(&body(&answer)), "nor past its end");
}

#[test]
fn e4_a_late_logout_all_does_not_lift_a_block() {
    let world = operated(&[]);
    let mine = world.logged_in("alice-1");
    let bearer = format!("Bearer {}", mine["access_token"].as_str().expect("a token"));
    world.host.store.hold_changes(true);
    let all = request("POST", "/api/logout-all", &[("authorization", &bearer)], "");
    let mut late = pin!(world.service.handle(all));
    assert!(poll_once(&mut late).is_pending(), "it has read that nobody is blocked");
    world.host.store.hold_changes(false);
    assert_eq!(world.operate("block", &json!({"user_id": mine["user"]["id"]})).status, 204);
    assert!(poll_once(&mut late).is_ready());
    assert_eq!(problem(&world.log_in("alice-2")), failing("user_blocked", 403));
}

#[test]
fn a_user_nobody_knows_is_blocked_before_the_first_login() {
    let known = operated(&[]);
    let user = known.logged_in("alice-1")["user"]["id"].clone();
    let world = operated(&[]);
    assert_eq!(world.operate("unblock", &json!({"user_id": user})).status, 204);
    assert!(world.host.store.keys().is_empty());
    assert_eq!(world.operate("block", &json!({"user_id": user})).status, 204);
    assert_eq!(problem(&world.log_in("alice-2")), failing("user_blocked", 403));
}

#[test]
fn what_the_store_does_not_do_is_not_reported_done() {
    for (what, calls) in [("revoke", 3), ("block", 3), ("unblock", 2)] {
        let world = operated(&[]);
        let login = world.logged_in("alice-1");
        let wish = json!({"user_id": login["user"]["id"]});
        if what == "unblock" {
            assert_eq!(world.operate("block", &wish).status, 204);
        }
        let epoch = world.keys("e").first().and_then(|key| world.host.store.value(key));
        for good in 0..calls {
            world.host.store.fail_after(good, StoreError::Unavailable);
            assert_eq!(problem(&world.operate(what, &wish)), failing("store_unavailable", 503), "{what} {good}");
            world.host.store.fail(None);
            let now = world.keys("e").first().and_then(|key| world.host.store.value(key));
            assert_eq!(now, epoch, "{what} {good}");
        }
        assert_eq!(world.events(&format!("admin.{what}")), 0);
        world.host.store.plant(&layout().epoch(subject(&login)), "not an epoch");
        assert_eq!(problem(&world.operate(what, &wish)), failing("store_unavailable", 503), "{what}");
    }
    let world = operated(&[]);
    let login = world.logged_in("alice-1");
    let wish = json!({"session_id": login["session"]["id"]});
    for good in 0..2 {
        world.host.store.fail_after(good, StoreError::Timeout);
        assert_eq!(problem(&world.operate("revoke", &wish)), failing("store_unavailable", 503));
        world.host.store.fail(None);
        assert!(world.is_live(&login));
    }
    assert!(world.host.store.value(&layout().tombstone(sid(&login))).is_none());
}
