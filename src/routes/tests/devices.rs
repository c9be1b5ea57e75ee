//! `GET /api/session`, `GET /api/sessions`, `DELETE /api/sessions/{id}`.

use super::*;
use crate::session::Recent;

impl World {
    pub(super) fn devices(&self, login: &Value) -> Response {
        self.with_token("GET", "/api/sessions", &login["access_token"])
    }

    /// The ids of the list, in its order.
    pub(super) fn listed(&self, login: &Value) -> Vec<Value> {
        let response = self.devices(login);
        assert_eq!(response.status, 200, "{}", text(&response));
        let shown = body(&response);
        shown["sessions"].as_array().expect("a list").iter().map(|item| item["id"].clone()).collect()
    }

    pub(super) fn end(&self, login: &Value, id: &str) -> Response {
        self.with_token("DELETE", &format!("/api/sessions/{id}"), &login["access_token"])
    }

    pub(super) fn is_live(&self, login: &Value) -> bool {
        match self.with_token("GET", "/api/verify/", &login["access_token"]).status {
            200 => true,
            401 => false,
            other => unreachable!("neither yes nor no: {other}"),
        }
    }

    pub(super) fn plant_list(&self, login: &Value, sids: &[&Value]) {
        let sids = sids.iter().map(|login| sid(login)).collect();
        let value = envelope::plain(&Recent(sids), UnixSeconds(2_000_000_000));
        self.host.store.plant(&layout().recent(subject(login)), value);
    }
}

pub(super) fn layout() -> Layout {
    Layout::new("default", Realm::Live)
}

pub(super) fn sid(login: &Value) -> SessionId {
    login["session"]["id"].as_str().and_then(SessionId::parse).expect("a session")
}

pub(super) fn subject(login: &Value) -> Subject {
    login["user"]["id"].as_str().and_then(Subject::parse).expect("a subject")
}

fn without_trace(response: &Response) -> Value {
    let mut shown = body(response);
    shown.as_object_mut().expect("an object").remove("trace_id");
    shown
}

#[test]
fn e3_the_list_is_of_live_sessions_the_newest_first() {
    let world = World::with(&[("access_ttl", "40d"), ("session_idle_ttl", "10d")]);
    let idle = world.logged_in("alice-1");
    world.pass(5 * 86_400);
    let ended = world.logged_in("alice-2");
    let phone = world.send("POST", "/api/login", &[], r#"{"code":"alice-3","device":{"id":"d-1","label":"my phone"}}"#);
    let phone = body(&phone);
    world.pass(5 * 86_400 + 1);
    let last = world.logged_in("alice-4");
    world.pass(3 * 3600);
    assert_eq!(world.refresh(&last["refresh_token"]).status, 200);
    assert_eq!(world.with_token("POST", "/api/logout", &ended["access_token"]).status, 204);
    world.logged_in("bob-1");
    let shown = world.devices(&last);
    assert_eq!(
        body(&shown),
        json!({"sessions": [
            {"id": last["session"]["id"], "app": "wechat", "platform": "wechat", "current": true,
             "created_at": "2023-11-24T22:13:21Z", "last_seen_at": "2023-11-25T01:00:00Z"},
            {"id": phone["session"]["id"], "app": "wechat", "platform": "wechat", "current": false,
             "device": {"id": "d-1", "label": "my phone"},
             "created_at": "2023-11-19T22:13:20Z", "last_seen_at": "2023-11-19T22:13:20Z"},
        ]})
    );
    assert_eq!(shown.head.get("cache-control"), Some("no-store"));
    let own = body(&world.with_token("GET", "/api/session", &last["access_token"]));
    assert_eq!(own["session"]["last_seen_at"], "2023-11-25T01:00:00Z");
    assert_eq!(
        world.with_token("GET", "/api/sessions", &idle["access_token"]).status,
        401,
        "idle, and so is its token"
    );
}

#[test]
fn e3_a_session_is_never_seen_before_it_began() {
    let world = World::new();
    let login = world.logged_in("alice-1");
    world.pass(60);
    assert_eq!(world.refresh(&login["refresh_token"]).status, 200);
    let own = body(&world.with_token("GET", "/api/session", &login["access_token"]));
    assert_eq!(own["session"]["last_seen_at"], own["session"]["created_at"], "within its first hour");
}

#[test]
fn showing_sessions_costs_so_many_reads_and_no_write() {
    let world = World::new();
    let logins = ["alice-1", "alice-2", "alice-3"].map(|code| world.logged_in(code));
    let cost = |method: &str, target: &str| {
        let before = (world.host.store.keys_read(), world.host.store.changes_made());
        assert!(matches!(world.with_token(method, target, &logins[0]["access_token"]).status, 200 | 404));
        (world.host.store.keys_read() - before.0, world.host.store.changes_made() - before.1)
    };
    assert_eq!(cost("GET", "/api/verify/x"), (3, 0));
    assert_eq!(cost("GET", "/api/session"), (4, 0), "s, x, e; g");
    assert_eq!(cost("GET", "/api/sessions"), (12, 0), "s, x, e; g, l; e again and s, x, g of the two others");
    assert_eq!(cost("DELETE", "/api/sessions/AAAAAAAAAAAAAAAAAAAAAA"), (5, 0), "s, x, e; s, x of the other");
    assert_eq!(cost("DELETE", "/api/sessions/garbage"), (5, 0), "the same");
}

/// A list that two logins wrote at once has lost one of them; it may be lost as a whole.
#[test]
fn e3_a_list_that_is_lost_hides_others_and_never_the_callers_own() {
    let world = World::new();
    let [first, second] = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    let own = vec![first["session"]["id"].clone()];
    let list = layout().recent(subject(&first));
    for lost in [&b"edgepass\x02\0\0\0\0\0\0\0\x09from a newer build"[..], b"edgepass\x01\0\0\0\0\0\0\0\x09\xff", b""] {
        world.host.store.plant(&list, lost);
        assert_eq!(world.listed(&first), own);
    }
    world.lose("l");
    assert_eq!(world.listed(&first), own);
    // What refreshes names itself again.
    assert_eq!(world.refresh(&second["refresh_token"]).status, 200);
    assert_eq!(world.listed(&first).len(), 2);
}

#[test]
fn a_refresh_writes_the_list_only_where_it_is_not_named() {
    let world = World::new();
    let login = world.logged_in("alice-1");
    let renewed = world.refreshed(&login["refresh_token"]);
    let before = world.host.store.changes_made();
    world.refreshed(&renewed["refresh_token"]);
    assert_eq!(world.host.store.changes_made() - before, 1, "its counter");
}

#[test]
fn sessions_that_are_over_leave_a_full_list_first() {
    let world = World::new();
    let oldest = world.logged_in("alice-0");
    let ended: Vec<_> = (1..50).map(|n| world.logged_in(&format!("alice-{n}"))).collect();
    for login in &ended {
        assert_eq!(world.with_token("POST", "/api/logout", &login["access_token"]).status, 204);
    }
    let newest = world.logged_in("alice-50");
    assert_eq!(world.listed(&newest).len(), 2, "the oldest is still known");
    assert!(world.listed(&newest).contains(&oldest["session"]["id"]));
}

#[test]
fn e3_what_cannot_be_read_is_the_stores_fault_and_a_tombstone_counts_whatever_it_says() {
    let world = World::new();
    let [mine, other] = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    let unavailable = failing("store_unavailable", 503);
    let newer = |key: &str| {
        let mut value = world.host.store.value(key).expect("stored");
        value[8] = 2;
        value
    };
    for (key, value) in [
        (layout().session(sid(&other)), newer(&layout().session(sid(&other)))),
        (layout().moved(sid(&other)), b"not a counter".to_vec()),
        (layout().moved(sid(&mine)), b"edgepass\x02\0\0\0\0\0\0\0\0newer".to_vec()),
        (layout().epoch(subject(&mine)), b"not an epoch".to_vec()),
    ] {
        let kept = world.host.store.value(&key);
        world.host.store.plant(&key, value);
        assert_eq!(problem(&world.devices(&mine)), unavailable, "{key}");
        match kept {
            Some(kept) => world.host.store.plant(&key, kept),
            None => world.host.store.forget(&key),
        }
        assert_eq!(world.listed(&mine).len(), 2, "{key}");
    }
    world.host.store.plant(&layout().tombstone(sid(&other)), "whatever");
    assert_eq!(world.listed(&mine).len(), 1);
    for calls in 0..2 {
        world.host.store.fail_after(calls, StoreError::Timeout);
        // With one entry but the own there is a second read.
        world.plant_list(&mine, &[&mine, &other]);
        assert_eq!(problem(&world.devices(&mine)), unavailable, "after {calls} calls");
    }
}

#[test]
fn e3_a_session_is_ended_from_another_one() {
    let world = World::new();
    let [mine, other] = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    let id = other["session"]["id"].as_str().expect("an id");
    assert_eq!(world.end(&mine, id).status, 204);
    assert!(world.is_live(&mine) && !world.is_live(&other));
    assert_eq!(problem(&world.refresh(&other["refresh_token"])), failing("refresh_invalid", 401));
    assert_eq!(problem(&world.end(&mine, id)), failing("not_found", 404), "it is over");
    assert_eq!(world.events("session.revoke"), 1);
    let log = world.host.log_text();
    assert!(log.contains(r#""reason":"device""#) && !log.contains(id));
    assert_eq!(world.end(&mine, mine["session"]["id"].as_str().expect("an id")).status, 204, "the caller's own too");
    assert!(!world.is_live(&mine));
    assert_eq!(problem(&world.end(&mine, id)), failing("token_invalid", 401));
}

#[test]
fn e6_a_session_of_an_epoch_that_is_over_is_like_none() {
    let world = World::new();
    let [old, caller] = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    world.lose("l");
    assert_eq!(world.log_out_all(&caller).status, 204);
    let mine = world.logged_in("alice-3");
    assert!(world.keys("s").contains(&layout().session(sid(&old))), "only the epoch ended it");
    assert_eq!(problem(&world.end(&mine, old["session"]["id"].as_str().expect("an id"))), failing("not_found", 404));
}

#[test]
fn a_list_that_somebody_made_long_is_read_no_further() {
    let world = World::new();
    let login = world.logged_in("alice-1");
    world.plant_list(&login, &vec![&login; 4000]);
    let before = world.host.store.keys_read();
    assert_eq!(world.listed(&login).len(), 1);
    let unknown = envelope::plain(
        &Recent((0..=255).map(|n| SessionId::from_bytes([n; 16])).collect()),
        UnixSeconds(2_000_000_000),
    );
    world.host.store.plant(&layout().recent(subject(&login)), unknown);
    assert_eq!(world.listed(&login).len(), 1);
    world.logged_in("alice-2");
    assert!(world.host.store.keys_read() - before < 5 + 5 + 151 + 20);
    assert_eq!(world.log_out_all(&login).status, 204);
}

#[test]
fn e6_another_users_session_is_like_none() {
    let world = World::new();
    let [alice, bob] = ["alice-1", "bob-1"].map(|code| world.logged_in(code));
    let foreign = bob["session"]["id"].as_str().expect("an id");
    let unknown = SessionId::from_bytes([7; 16]).text();
    let malformed = ["", "x", "..", "a/b", "%2e%2e", &foreign[1..], &format!("{foreign}/x"), &"A".repeat(2000)];
    let writes = world.host.store.changes_made();
    let refused = world.end(&alice, foreign);
    assert_eq!(problem(&refused), failing("not_found", 404));
    for id in [unknown.as_str()].into_iter().chain(malformed) {
        let other = world.end(&alice, id);
        assert_eq!(without_trace(&other), without_trace(&refused), "{id}");
        let names = |response: &Response| response.head.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&other), names(&refused), "{id}");
    }
    assert!(world.is_live(&bob));
    assert_eq!((world.host.store.changes_made(), world.events("session.revoke")), (writes, 0));
    // Not even where a list was made to name it.
    world.plant_list(&alice, &[&bob, &alice]);
    assert_eq!(world.listed(&alice), [alice["session"]["id"].clone()]);
    assert_eq!(world.listed(&bob), [bob["session"]["id"].clone()]);
}

#[test]
fn ending_a_session_that_the_store_does_not_end_is_no_answer() {
    let world = World::new();
    let [mine, other] = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    let id = other["session"]["id"].as_str().expect("an id");
    for calls in 0..2 {
        world.host.store.fail_after(calls, StoreError::Unavailable);
        assert_eq!(problem(&world.end(&mine, id)), failing("store_unavailable", 503));
        world.host.store.fail(None);
        assert!(world.is_live(&other));
    }
    world.host.store.cut_changes(1);
    assert_eq!(problem(&world.end(&mine, id)), failing("store_unavailable", 503));
    assert!(!world.is_live(&other), "its tombstone goes first");
    assert_eq!(world.events("session.revoke"), 0);
}

#[test]
fn the_list_and_its_entries_need_a_token_and_their_methods() {
    let world = World::new();
    let id = world.logged_in("alice-1")["session"]["id"].as_str().expect("an id").to_owned();
    for (method, target) in [("GET", "/api/sessions".to_owned()), ("DELETE", format!("/api/sessions/{id}"))] {
        assert_eq!(problem(&world.send(method, &target, &[], "")), (401, String::new()));
        let bad = world.send(method, &target, &[("authorization", "Bearer x")], "");
        assert_eq!(problem(&bad), failing("token_invalid", 401));
    }
    for (method, target, allow) in [
        ("DELETE", "/api/sessions", "GET, HEAD"),
        ("GET", "/api/sessions/x", "DELETE"),
        ("GET", "/api/logout-all", "POST"),
    ] {
        let refused = world.send(method, target, &[], "");
        assert_eq!(problem(&refused), failing("method_not_allowed", 405));
        assert_eq!(refused.head.get("allow"), Some(allow));
    }
}
