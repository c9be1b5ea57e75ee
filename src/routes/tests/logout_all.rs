//! `POST /api/logout-all`: every session, whoever knows of it, and nothing by a token of the past.

use super::{
    devices::{layout, sid, subject},
    *,
};

/// Five minutes, as far as clocks may differ.
const SKEW: u64 = 5 * 60 * 1000;
const NOW: u64 = 1_700_000_000_000;

impl World {
    pub(super) fn log_out_all(&self, login: &Value) -> Response {
        self.with_token("POST", "/api/logout-all", &login["access_token"])
    }

    /// A node over the same store whose clock stands at `millis`.
    fn at(&self, millis: u64) -> Self {
        Self::on(TestHost::over(&self.host, millis, CannedHttp::answering(|call| Ok(accept(call)))), &[])
    }
}

/// By the refresh token, which carries no time: an access token of a clock that is ahead is refused.
fn by_refresh_token(login: &Value) -> Request {
    request("POST", "/api/logout-all", &[], json!({"refresh_token": login["refresh_token"]}).to_string())
}

#[test]
fn e2_every_session_ends_at_once() {
    let world = World::new();
    let logins = ["alice-1", "alice-2", "alice-3"].map(|code| world.logged_in(code));
    let bob = world.logged_in("bob-1");
    assert_eq!(world.log_out_all(&logins[1]).status, 204);
    for login in &logins {
        assert!(!world.is_live(login));
        assert_eq!(problem(&world.refresh(&login["refresh_token"])), failing("refresh_invalid", 401));
    }
    assert_eq!((world.keys("x").len(), world.keys("s").len()), (3, 1), "each by its own tombstone");
    assert!(world.is_live(&bob));
    assert!(world.is_live(&world.logged_in("alice-4")), "and a new one counts");
    let line = world.host.log_text().lines().find(|line| line.contains("session.revoke_all")).map(str::to_owned);
    let event: Value = serde_json::from_str(&line.expect("an event")).expect("JSON");
    assert_eq!((&event["count"], &event["reason"]), (&json!(3), &json!("logout_all")));
    assert!(event["uid_hash"].is_string() && event["sid_hash"].is_string());
}

/// A list of sessions that a get and a set keep together loses entries; that must not matter.
#[test]
fn e2_a_session_the_list_does_not_name_ends_too() {
    for list in ["lost", "partial", "damaged", "newer"] {
        let world = World::new();
        let logins = ["alice-1", "alice-2", "alice-3"].map(|code| world.logged_in(code));
        let key = layout().recent(subject(&logins[0]));
        match list {
            "lost" => world.lose("l"),
            "partial" => world.plant_list(&logins[0], &[&logins[1]]),
            "damaged" => world.host.store.plant(&key, "edgepass\u{1}\0"),
            _ => world.host.store.plant(&key, "edgepass\u{2}\0\0\0\0\0\0\0\0"),
        }
        assert_eq!(world.log_out_all(&logins[0]).status, 204);
        assert!(logins.iter().all(|login| !world.is_live(login)), "{list}");
        let tombstone = layout().tombstone(sid(&logins[0]));
        assert!(world.keys("x").contains(&tombstone), "{list}: the caller's own has one whatever the list says");
    }
}

#[test]
fn e2_a_login_under_way_is_caught() {
    let world = World::new();
    let mine = world.logged_in("alice-1");
    // At the platform, or about to be written: whoever it is has been asked for already.
    let login = |code: &str| request("POST", "/api/login", &[], json!({ "code": code }).to_string());
    world.host.store.hold_changes(true);
    let mut under_way = pin!(world.service.handle(login("alice-2")));
    assert!(poll_once(&mut under_way).is_pending(), "its epoch is read, its session is not written");
    world.host.store.hold_changes(false);
    assert_eq!(world.log_out_all(&mine).status, 204);
    let Poll::Ready(answer) = poll_once(&mut under_way) else { unreachable!("nothing holds it") };
    assert_eq!(answer.status, 200);
    assert!(!world.is_live(&body(&answer)), "it was over before it began");
    assert_eq!(problem(&world.refresh(&body(&answer)["refresh_token"])), failing("refresh_invalid", 401));
}

#[test]
fn e2_any_genuine_token_of_a_live_session_is_enough() {
    let world = World::new();
    let [first, second] = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    world.pass(86_400);
    assert_eq!(world.log_out_all(&first).status, 204, "an access token that has expired");
    assert_eq!(problem(&world.refresh(&second["refresh_token"])), failing("refresh_invalid", 401));
    let [first, second] = ["alice-3", "alice-4"].map(|code| world.logged_in(code));
    let wish = json!({"refresh_token": first["refresh_token"]}).to_string();
    assert_eq!(world.send("POST", "/api/logout-all", &[], wish).status, 204, "a refresh token");
    assert!(!world.is_live(&first) && !world.is_live(&second));
    for (sent, expected) in [
        ("{}", (401, String::new())),
        ("", (401, String::new())),
        (r#"{"refresh_token":"epr1_x"}"#, failing("refresh_invalid", 401)),
    ] {
        assert_eq!(problem(&world.send("POST", "/api/logout-all", &[], sent)), expected, "{sent}");
    }
    let bad = world.send("POST", "/api/logout-all", &[("authorization", "Bearer x")], "");
    assert_eq!(problem(&bad), failing("token_invalid", 401));
}

/// Or whoever finds an old token could keep a user out for ever.
#[test]
fn e2_a_token_of_the_past_changes_nothing() {
    let world = World::with(&[("session_idle_ttl", "10d"), ("session_ttl", "20d")]);
    let logged_out = world.logged_in("alice-1");
    assert_eq!(world.with_token("POST", "/api/logout", &logged_out["access_token"]).status, 204);
    let before = world.logged_in("alice-2");
    world.lose("l");
    let caller = world.logged_in("alice-3");
    assert_eq!(world.log_out_all(&caller).status, 204);
    let idle = world.logged_in("alice-4");
    world.pass(10 * 86_400);
    let used = world.logged_in("alice-5");
    let writes = world.host.store.changes_made();
    for (old, what) in [(&logged_out, "logged out"), (&before, "by its epoch"), (&caller, "by both"), (&idle, "idle")] {
        assert_eq!(world.log_out_all(old).status, 204, "{what}");
        let wish = json!({"refresh_token": old["refresh_token"]}).to_string();
        assert_eq!(world.send("POST", "/api/logout-all", &[], wish).status, 204, "{what}");
        assert!(world.is_live(&used), "{what}");
    }
    assert_eq!((world.host.store.changes_made(), world.events("session.revoke_all")), (writes, 1));
    world.pass(20 * 86_400);
    assert_eq!(world.log_out_all(&used).status, 204, "past its end");
    assert_eq!(world.host.store.changes_made(), writes);
}

#[test]
fn e2_clocks_that_differ_miss_no_session_and_kill_no_new_one() {
    let ahead = World::on(TestHost::new(CannedHttp::answering(|call| Ok(accept(call)))), &[]).at(NOW + SKEW);
    let behind = ahead.at(NOW - SKEW);
    for round in 0..3 {
        for (one, other) in [(&ahead, &behind), (&behind, &ahead)] {
            let code = |n: u32| format!("alice-{round}-{n}-{}", std::ptr::from_ref(one) as usize);
            let [first, second] = [one.logged_in(&code(1)), other.logged_in(&code(2))];
            one.lose("l");
            assert_eq!(one.log_out_all(&first).status, 204);
            assert!(!one.is_live(&first) && !other.is_live(&second));
            let new = other.logged_in(&code(3));
            assert!(other.is_live(&new), "though its clock may be behind that of the revocation");
            let renewed = one.refreshed(&new["refresh_token"]);
            assert_eq!(other.log_out_all(&new).status, 204);
            assert!(!one.is_live(&renewed) && !other.is_live(&new));
        }
    }
}

#[test]
fn e2_a_late_logout_all_does_not_take_the_epoch_back() {
    let ahead = World::new().at(NOW + SKEW);
    let behind = ahead.at(NOW - SKEW);
    let mine = ahead.logged_in("alice-1");
    behind.host.store.hold_changes(true);
    let mut late = pin!(behind.service.handle(by_refresh_token(&mine)));
    assert!(poll_once(&mut late).is_pending(), "it has read the epoch of before");
    behind.host.store.hold_changes(false);
    assert_eq!(ahead.log_out_all(&mine).status, 204);
    let new = ahead.logged_in("alice-2");
    assert!(poll_once(&mut late).is_ready());
    let newer = behind.logged_in("alice-3");
    behind.lose("l");
    assert_eq!(behind.log_out_all(&newer).status, 204);
    assert!(!ahead.is_live(&new) && !behind.is_live(&newer), "no session is above an epoch that came after it");
}

#[test]
fn e1_a_logout_all_that_was_cut_has_ended_all_or_none() {
    for cut in 0..=7 {
        let world = World::new();
        let logins = ["alice-1", "alice-2", "alice-3"].map(|code| world.logged_in(code));
        world.host.store.cut_changes(cut);
        assert_eq!(problem(&world.log_out_all(&logins[0])), failing("store_unavailable", 503), "{cut}");
        let live = logins.iter().filter(|login| world.is_live(login)).count();
        assert_eq!(live, if cut == 0 { 3 } else { 0 }, "after {cut} of 7 changes");
        assert_eq!(world.events("session.revoke_all"), 0);
        assert_eq!(world.log_out_all(&logins[0]).status, 204);
        assert!(logins.iter().all(|login| !world.is_live(login)));
    }
}

#[test]
fn a_logout_all_without_its_store_is_no_answer() {
    let world = World::new();
    let logins = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    for calls in 0..3 {
        world.host.store.fail_after(calls, StoreError::Timeout);
        assert_eq!(problem(&world.log_out_all(&logins[0])), failing("store_unavailable", 503), "after {calls} calls");
        world.host.store.fail(None);
        assert!(logins.iter().all(|login| world.is_live(login)), "after {calls} calls");
    }
    for key in [layout().epoch(subject(&logins[0])), layout().moved(sid(&logins[0]))] {
        world.host.store.plant(&key, "unreadable");
        assert_eq!(problem(&world.log_out_all(&logins[0])), failing("store_unavailable", 503), "{key}");
        world.host.store.forget(&key);
    }
    let before = (world.host.store.keys_read(), world.host.store.changes_made());
    assert_eq!(world.log_out_all(&logins[0]).status, 204);
    assert_eq!(world.host.store.keys_read() - before.0, 9, "s, x, e, g, l; s and x of the two");
    assert_eq!(world.host.store.changes_made() - before.1, 5, "e; x and s of the two");
}

#[test]
fn e6_a_list_that_names_another_users_session_does_not_end_it() {
    let world = World::new();
    let [alice, bob] = ["alice-1", "bob-1"].map(|code| world.logged_in(code));
    world.plant_list(&alice, &[&bob, &alice]);
    assert_eq!(world.log_out_all(&alice).status, 204);
    assert!(world.is_live(&bob) && !world.is_live(&alice));
}

#[test]
fn e1_a_lost_tombstone_or_a_lost_epoch_alone_revives_nothing() {
    for lost in ["x", "e"] {
        let world = World::new();
        let logins = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
        let kept: Vec<_> = world.keys("s").into_iter().map(|key| (key.clone(), world.host.store.value(&key))).collect();
        assert_eq!(world.log_out_all(&logins[0]).status, 204);
        // A backup brings the sessions back, and one of the two memories of their end is gone.
        for (key, value) in kept {
            world.host.store.plant(&key, value.expect("stored"));
        }
        world.lose(lost);
        assert!(logins.iter().all(|login| !world.is_live(login)), "without {lost}");
    }
}

#[test]
fn a_logout_all_where_the_session_may_not_have_arrived_is_to_be_asked_again() {
    let world = World::with(&[("store_lag", "10s")]);
    let login = world.logged_in("alice-1");
    world.lose("s");
    assert_eq!(problem(&world.log_out_all(&login)), failing("store_lagging", 503));
    world.pass(10);
    assert_eq!(world.log_out_all(&login).status, 204);
    assert!(world.keys("e").is_empty());
}
