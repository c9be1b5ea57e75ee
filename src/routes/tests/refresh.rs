//! `POST /api/token/refresh`: the rule, step by step, on a standing clock.

use super::*;

/// Grace, idle and absolute lifetime at their defaults, in seconds.
const GRACE: u64 = 60;
const IDLE: u64 = 30 * 86_400;
const ABSOLUTE: u64 = 90 * 86_400;

impl World {
    pub(super) fn refresh(&self, token: &Value) -> Response {
        self.send("POST", "/api/token/refresh", &[], json!({ "refresh_token": token }).to_string())
    }

    pub(super) fn refreshed(&self, token: &Value) -> Value {
        let response = self.refresh(token);
        assert_eq!(response.status, 200, "{}", text(&response));
        body(&response)
    }

    pub(super) fn pass(&self, seconds: u64) {
        self.host.clock.advance(Duration::from_secs(seconds));
    }

    pub(super) fn lose(&self, kind: &str) {
        for key in self.keys(kind) {
            self.host.store.forget(&key);
        }
    }

    pub(super) fn events(&self, name: &str) -> usize {
        self.host.log_text().matches(&format!(r#""event":"{name}""#)).count()
    }
}

fn refresh_invalid(response: &Response) -> bool {
    response.status == 401 && body(response)["code"] == "refresh_invalid"
}

#[test]
fn d1_a_refresh_rotates_and_keeps_whose_session_it_is() {
    let world = World::new();
    let login = world.logged_in("alice-1");
    let renewed = world.refreshed(&login["refresh_token"]);
    assert_ne!(renewed["refresh_token"], login["refresh_token"]);
    assert_ne!(renewed["access_token"], login["access_token"]);
    assert_eq!((&renewed["session"], &renewed["user"]["id"]), (&login["session"], &login["user"]["id"]));
    assert_eq!(renewed["user"].get("is_new"), None);
    assert_eq!(renewed["expires_in"], 600);
    assert_eq!(world.with_token("GET", "/api/session", &renewed["access_token"]).status, 200);
    assert_eq!(world.events("token.refresh"), 1);
}

#[test]
fn d7_d8_a_token_is_answered_with_one_successor_within_the_grace_time() {
    let world = World::new();
    let first = world.logged_in("alice-1")["refresh_token"].clone();
    let second = world.refreshed(&first)["refresh_token"].clone();
    world.pass(GRACE);
    let writes = world.host.store.changes_made();
    let again = block_on(world.service.handle(request(
        "POST",
        "/api/token/refresh",
        &[],
        json!({ "refresh_token": first }).to_string(),
    )));
    assert_eq!(body(&again)["refresh_token"], second);
    assert_eq!(world.host.store.changes_made(), writes, "a replay writes nothing before its answer");
    assert_eq!((world.events("token.replay"), world.events("token.reuse")), (1, 0));
    assert_ne!(world.refreshed(&second)["refresh_token"], second, "and the chain goes on");
}

#[test]
fn d2_d9_reuse_after_the_grace_time_ends_the_session() {
    let world = World::new();
    let first = world.logged_in("alice-1")["refresh_token"].clone();
    let renewed = world.refreshed(&first);
    world.pass(GRACE / 2);
    assert_eq!(world.refresh(&first).status, 200, "a replay does not move the window");
    world.pass(GRACE / 2 + 1);
    assert!(refresh_invalid(&world.refresh(&first)));
    assert_eq!(world.events("token.reuse"), 1);
    assert!(refresh_invalid(&world.refresh(&renewed["refresh_token"])));
    assert_eq!(world.with_token("GET", "/api/session", &renewed["access_token"]).status, 401);
    assert_eq!((world.keys("s").len(), world.keys("x").len()), (0, 1));
}

#[test]
fn d9_the_window_closes_when_the_successor_is_used() {
    let world = World::new();
    let first = world.logged_in("alice-1")["refresh_token"].clone();
    let second = world.refreshed(&first)["refresh_token"].clone();
    let third = world.refreshed(&second)["refresh_token"].clone();
    assert!(refresh_invalid(&world.refresh(&first)), "two behind is reuse at once");
    assert!(refresh_invalid(&world.refresh(&third)), "and ends the session");
}

#[test]
fn d2_without_grace_every_second_use_is_reuse() {
    let world = World::with(&[("refresh_grace", "0")]);
    let first = world.logged_in("alice-1")["refresh_token"].clone();
    let second = world.refreshed(&first)["refresh_token"].clone();
    assert!(refresh_invalid(&world.refresh(&first)));
    assert!(refresh_invalid(&world.refresh(&second)));
}

#[test]
fn d2_reuse_whose_tombstone_cannot_be_written_is_no_answer() {
    let world = World::new();
    let first = world.logged_in("alice-1")["refresh_token"].clone();
    world.refreshed(&first);
    world.pass(GRACE + 1);
    world.host.store.fail_changes(Some(StoreError::Unavailable));
    assert_eq!(problem(&world.refresh(&first)), failing("store_unavailable", 503));
    world.host.store.fail_changes(None);
    assert!(refresh_invalid(&world.refresh(&first)));
}

#[test]
fn d4_a_session_ends_when_idle_and_ends_whatever_happens() {
    let world = World::new();
    let idle = world.logged_in("alice-1")["refresh_token"].clone();
    let mut used = world.logged_in("bob-1")["refresh_token"].clone();
    let mut age = 0;
    while age + IDLE - 1 < ABSOLUTE {
        world.pass(IDLE - 1);
        age += IDLE - 1;
        let renewed = world.refreshed(&used);
        let left = renewed["refresh_expires_in"].as_u64().expect("a number");
        assert_eq!(left, IDLE.min(ABSOLUTE - age));
        used = renewed["refresh_token"].clone();
    }
    world.pass(ABSOLUTE - age);
    let writes = world.host.store.changes_made();
    assert!(refresh_invalid(&world.refresh(&used)), "past its absolute end");
    assert!(refresh_invalid(&world.refresh(&idle)), "idle for too long");
    assert_eq!(world.host.store.changes_made(), writes, "neither writes");
}

#[test]
fn d4_an_idle_session_is_over_while_its_absolute_end_is_far() {
    let world = World::new();
    let token = world.logged_in("alice-1")["refresh_token"].clone();
    world.pass(IDLE - 1);
    let renewed = world.refreshed(&token)["refresh_token"].clone();
    world.pass(IDLE);
    assert!(refresh_invalid(&world.refresh(&renewed)));
}

#[test]
fn d4_an_access_token_ends_with_its_session() {
    let world = World::with(&[("session_ttl", "100s")]);
    let login = world.logged_in("alice-1");
    assert_eq!((&login["expires_in"], &login["refresh_expires_in"]), (&json!(100), &json!(100)));
    world.pass(60);
    let renewed = world.refreshed(&login["refresh_token"]);
    assert_eq!((&renewed["expires_in"], &renewed["refresh_expires_in"]), (&json!(40), &json!(40)));
    assert_eq!(renewed["session"], login["session"], "the end does not move");
}

#[test]
fn d6_a_token_is_of_one_app() {
    let apps = r#"[{"id":"one","platform":"wechat","appid":"wx2","secret":"s"}]"#;
    let world = World::with(&[("apps", apps)]);
    let login = body(&world.send("POST", "/api/login", &[], r#"{"code":"alice-1","app":"one"}"#));
    let with_app = |app: &str| {
        let wish = json!({"refresh_token": login["refresh_token"], "app": app});
        world.send("POST", "/api/token/refresh", &[], wish.to_string())
    };
    assert!(refresh_invalid(&with_app("wechat")) && refresh_invalid(&with_app("two")));
    assert_eq!(with_app("one").status, 200, "and being tried elsewhere harmed nothing");
    assert!(refresh_invalid(&world.beside(&[]).refresh(&login["refresh_token"])), "an app nobody knows any more");
}

#[test]
fn a_session_of_a_device_is_renewed_by_that_device() {
    let world = World::new();
    let login = world.send("POST", "/api/login", &[], r#"{"code":"alice-1","device":{"id":"d-1","label":"phone"}}"#);
    let token = body(&login)["refresh_token"].clone();
    let by = |device: Value| {
        let wish = json!({"refresh_token": token, "device_id": device});
        world.send("POST", "/api/token/refresh", &[], wish.to_string())
    };
    let writes = world.host.store.changes_made();
    for other in [Value::Null, json!("d-2"), json!("")] {
        assert_eq!(problem(&by(other)), failing("device_mismatch", 401));
    }
    assert_eq!(world.host.store.changes_made(), writes);
    assert_eq!(by(json!("d-1")).status, 200);
    let labelled = world.send("POST", "/api/login", &[], r#"{"code":"alice-2","device":{"label":"phone"}}"#);
    assert_eq!(world.refresh(&body(&labelled)["refresh_token"]).status, 200, "a label binds nothing");
}

#[test]
fn d10_a_logout_beats_a_refresh_in_flight() {
    let world = World::new();
    let login = world.logged_in("alice-1");
    let wish = json!({"refresh_token": login["refresh_token"]}).to_string();
    // Every record is read, and nothing is written yet.
    world.host.store.hold_changes(true);
    let mut refresh = pin!(world.service.handle(request("POST", "/api/token/refresh", &[], wish)));
    assert!(poll_once(&mut refresh).is_pending());
    world.host.store.hold_changes(false);
    assert_eq!(world.with_token("POST", "/api/logout", &login["access_token"]).status, 204);
    let Poll::Ready(renewed) = poll_once(&mut refresh) else { unreachable!("nothing is held") };
    world.host.settle();
    let renewed = body(&renewed);
    assert_eq!(world.with_token("GET", "/api/session", &renewed["access_token"]).status, 401);
    assert!(refresh_invalid(&world.refresh(&renewed["refresh_token"])));
    assert!(refresh_invalid(&world.refresh(&login["refresh_token"])));
}

#[test]
fn d11_what_is_stored_is_no_token() {
    let world = World::new();
    let login = world.logged_in("alice-1");
    let renewed = world.refreshed(&login["refresh_token"]);
    let tokens = [&login, &renewed].map(|answer| answer["refresh_token"].as_str().expect("a token").to_owned());
    for key in world.host.store.keys() {
        let value = world.host.store.value(&key).expect("listed");
        let stored = [key.as_bytes(), &value].concat();
        for token in &tokens {
            assert!(!stored.windows(20).any(|part| token.as_bytes().windows(20).any(|of| of == part)), "{key}");
        }
    }
}

#[test]
fn d12_the_stores_fault_is_not_the_tokens() {
    let world = World::new();
    let token = world.logged_in("alice-1")["refresh_token"].clone();
    for failure in [StoreError::Unavailable, StoreError::Timeout] {
        world.host.store.fail(Some(failure));
        assert_eq!(problem(&world.refresh(&token)), failing("store_unavailable", 503));
        assert_eq!(world.refresh(&token).head.get("retry-after"), Some("1"));
    }
    world.host.store.fail(None);
    for kind in ["e", "g"] {
        let id = if kind == "e" { body(&world.log_in("alice-9"))["user"]["id"].clone() } else { session_of(&token) };
        let key = format!("edgepass/default/{kind}/{}", id.as_str().expect("an id"));
        for unreadable in [&b"edgepass\x02\0\0\0\0\0\0\0\0from a newer build"[..], b"", b"edgepass\x01\0\0\0\0\0\0\0\0"]
        {
            world.host.store.plant(&key, unreadable);
            assert_eq!(problem(&world.refresh(&token)), failing("store_unavailable", 503), "{kind}");
        }
        world.host.store.forget(&key);
    }
    assert_eq!(world.refresh(&token).status, 200, "and the token is as good as before");
}

/// The session id a refresh token names.
fn session_of(token: &Value) -> Value {
    let text = token.as_str().and_then(|text| text.strip_prefix("epr1_")).expect("a refresh token");
    let bytes = <base64ct::Base64UrlUnpadded as base64ct::Encoding>::decode_vec(text).expect("base64url");
    SessionId::from_bytes(bytes[4..20].try_into().expect("16 bytes")).text().into()
}

#[test]
fn a_lost_counter_never_refuses_the_owner() {
    let world = World::new();
    let first = world.logged_in("alice-1")["refresh_token"].clone();
    let second = world.refreshed(&first)["refresh_token"].clone();
    world.lose("g");
    let third = world.refreshed(&second)["refresh_token"].clone();
    assert_eq!(world.events("token.ahead"), 1);
    assert_eq!(world.refreshed(&second)["refresh_token"], third, "one successor, again and again");
    world.refreshed(&third);
    assert!(refresh_invalid(&world.refresh(&second)), "and the next use out of turn ends the session");
}

#[test]
fn a_lost_counter_does_not_make_a_session_idle() {
    let world = World::new();
    let first = world.logged_in("alice-1")["refresh_token"].clone();
    world.pass(IDLE - 1);
    let renewed = world.refreshed(&first);
    world.lose("g");
    world.pass(10);
    assert_eq!(world.refresh(&renewed["refresh_token"]).status, 200, "it was used ten seconds ago, as it shows itself");
    world.lose("g");
    assert_eq!(world.with_token("POST", "/api/logout-all", &renewed["access_token"]).status, 204);
    assert!(refresh_invalid(&world.refresh(&renewed["refresh_token"])), "and so it ends what it asked to end");
}

#[test]
fn an_access_token_ends_when_its_session_is_idle() {
    let world = World::with(&[("access_ttl", "2h"), ("session_idle_ttl", "1h")]);
    let login = world.logged_in("alice-1");
    assert_eq!((&login["expires_in"], &login["refresh_expires_in"]), (&json!(3600), &json!(3600)));
    world.pass(3600);
    assert_eq!(world.with_token("GET", "/api/verify-offline/x", &login["access_token"]).status, 401);
}

#[test]
fn a_counter_that_arrives_late_takes_nothing_back() {
    let world = World::new();
    let first = world.logged_in("alice-1")["refresh_token"].clone();
    let second = world.refreshed(&first)["refresh_token"].clone();
    let key = world.keys("g").pop().expect("a counter");
    let late = world.host.store.value(&key).expect("a counter");
    let third = world.refreshed(&second)["refresh_token"].clone();
    // The first refresh's write once more, over the second's.
    world.host.store.plant(&key, late);
    assert_eq!(world.refreshed(&third).get("refresh_token").and_then(Value::as_str).map(str::len), Some(96));
}

#[test]
fn a_clock_that_is_behind_does_not_end_a_session() {
    let world = World::new();
    let first = world.logged_in("alice-1")["refresh_token"].clone();
    world.pass(300);
    let second = world.refreshed(&first)["refresh_token"].clone();
    let behind =
        World::on(TestHost::over(&world.host, 1_700_000_000_000, CannedHttp::answering(|call| Ok(accept(call)))), &[]);
    assert_eq!(behind.refreshed(&first)["refresh_token"], second, "a negative age counts as none");
}

#[test]
fn a_refresh_costs_four_reads_and_a_write() {
    let world = World::new();
    let token = world.logged_in("alice-1")["refresh_token"].clone();
    let cost = |token: &Value| {
        let before = (world.host.store.keys_read(), world.host.store.changes_made());
        let wish = json!({ "refresh_token": token }).to_string();
        let response = block_on(world.service.handle(request("POST", "/api/token/refresh", &[], wish)));
        let after = (world.host.store.keys_read(), world.host.store.changes_made());
        (response.status, after.0 - before.0, after.1 - before.1)
    };
    assert_eq!(cost(&token), (200, 4, 1));
    assert_eq!(cost(&token), (200, 4, 0), "a replay");
    assert_eq!(cost(&json!("epr1_x")), (401, 0, 0), "what is not ours asks nothing");
}

#[test]
fn sessions_from_before_a_restored_backup_are_over() {
    let world = World::new();
    let old = world.logged_in("alice-1");
    world.pass(10);
    let restored = world.beside(&[("sessions_valid_after", "2023-11-14T22:13:25Z")]);
    let new = restored.logged_in("alice-2");
    assert!(refresh_invalid(&restored.refresh(&old["refresh_token"])));
    assert_eq!(restored.with_token("GET", "/api/session", &old["access_token"]).status, 401);
    assert_eq!(restored.with_token("GET", "/api/session", &new["access_token"]).status, 200);
}

#[test]
fn where_writes_arrive_late_an_absent_session_is_not_over() {
    let world = World::with(&[("store_lag", "5s")]);
    let login = world.logged_in("alice-1");
    let key = world.keys("s").pop().expect("a session");
    let value = world.host.store.value(&key).expect("a session");
    world.host.store.forget(&key);
    let lagging = failing("store_lagging", 503);
    assert_eq!(problem(&world.with_token("GET", "/api/session", &login["access_token"])), lagging);
    assert_eq!(problem(&world.refresh(&login["refresh_token"])), lagging);
    world.pass(5);
    assert_eq!(world.with_token("GET", "/api/session", &login["access_token"]).status, 401);
    world.host.store.plant(&key, value);
    assert_eq!(world.refresh(&login["refresh_token"]).status, 200);
    assert_eq!(world.with_token("POST", "/api/logout", &login["access_token"]).status, 204);
    assert!(refresh_invalid(&world.refresh(&login["refresh_token"])), "a tombstone is no lag");
}

#[test]
fn master_keys_are_rotated_without_logging_anyone_out() {
    let (old, both) = (ACTIVE_KEY, format!("{ACTIVE_KEY},{OLDER_KEY}"));
    let promoted = format!("{OLDER_KEY},{ACTIVE_KEY}");
    let world = World::with(&[("master_key", old)]);
    let token = world.logged_in("alice-1")["refresh_token"].clone();
    let appended = world.beside(&[("master_key", &both)]);
    let promoted = world.beside(&[("master_key", &promoted)]);
    let successor = world.refreshed(&token)["refresh_token"].clone();
    assert_eq!(appended.refreshed(&token)["refresh_token"], successor);
    assert_eq!(promoted.refreshed(&token)["refresh_token"], successor, "one successor, whichever key is active");
    let later = promoted.logged_in("bob-1")["refresh_token"].clone();
    let successor = appended.refreshed(&later)["refresh_token"].clone();
    assert_eq!(promoted.refreshed(&later)["refresh_token"], successor);
    assert_eq!(problem(&appended.log_in("bob-1")), failing("code_used", 401), "a spent code is spent under every key");
    let dropped = world.beside(&[("master_key", OLDER_KEY)]);
    assert_eq!(dropped.refresh(&successor).status, 200);
    assert!(refresh_invalid(&dropped.refresh(&token)), "what a dropped key made is nobody's");
}

#[test]
fn what_is_no_refresh_token_is_refused_alike() {
    let world = World::new();
    let login = world.logged_in("alice-1");
    let mut changed = login["refresh_token"].as_str().expect("a token").to_owned();
    changed.replace_range(40..41, if changed[40..].starts_with('A') { "B" } else { "A" });
    let reads = world.host.store.keys_read();
    for token in ["", "epr1_", &changed, login["access_token"].as_str().expect("a token"), &"e".repeat(9000)] {
        assert!(refresh_invalid(&world.refresh(&json!(token))), "{token}");
    }
    assert_eq!(world.host.store.keys_read(), reads);
    for wish in ["{}", "[]", "", r#"{"refresh_token":1}"#, r#"{"refresh_token":"a","refresh_token":"b"}"#] {
        assert_eq!(problem(&world.send("POST", "/api/token/refresh", &[], wish)), failing("bad_request", 400));
    }
}
