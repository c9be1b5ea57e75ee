//! `session_limit` and `session_limit_policy`.

use super::{
    devices::{layout, sid, subject},
    *,
};
use crate::config::LimitPolicy;

const KEY: (&str, &str) = ("idempotency-key", "0123456789abcdef");

fn world(limit: &str, policy: LimitPolicy) -> World {
    let policy = match policy {
        LimitPolicy::EvictOldest => "evict_oldest",
        LimitPolicy::Refuse => "refuse",
    };
    World::with(&[("session_limit", limit), ("session_limit_policy", policy)])
}

#[test]
fn a_login_above_the_limit_ends_the_oldest() {
    let world = world("2", LimitPolicy::EvictOldest);
    let mut logins = Vec::new();
    // All in one second: the list knows their order.
    for n in 0..4 {
        logins.push(world.logged_in(&format!("alice-{n}")));
        let bob = world.logged_in(&format!("bob-{n}"));
        assert!(world.is_live(&bob));
    }
    let live: Vec<_> = logins.iter().map(|login| world.is_live(login)).collect();
    assert_eq!(live, [false, false, true, true]);
    assert_eq!(problem(&world.refresh(&logins[1]["refresh_token"])), failing("refresh_invalid", 401));
    let ended = world.host.log_text().matches(r#""reason":"evicted""#).count();
    assert_eq!((ended, world.events("session.revoke")), (4, 4), "two of each user");
    assert_eq!(world.listed(&logins[3]).len(), 2);
}

#[test]
fn a_login_above_the_limit_is_refused_and_its_code_is_spent() {
    let world = world("2", LimitPolicy::Refuse);
    let logins = ["alice-1", "alice-2"].map(|code| world.logged_in(code));
    let writes = world.host.store.changes_made();
    let refused = world.log_in("alice-3");
    assert_eq!(problem(&refused), failing("session_limit", 403));
    let detail = body(&refused)["detail"].as_str().expect("text").to_owned();
    assert!(detail.contains("new code") && detail.contains("spent"), "{detail}");
    assert_eq!(body(&refused)["retryable"], false);
    assert_eq!((world.host.store.changes_made(), world.calls()), (writes, 3));
    let failed: Value = world
        .host
        .log_text()
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find(|line: &Value| line["event"] == "login.fail")
        .expect("an event");
    assert_eq!((&failed["code"], &failed["reason"]), (&json!("session_limit"), &json!("session.limit")));
    assert!(failed["uid_hash"].is_string(), "who it was is known");
    assert!(logins.iter().all(|login| world.is_live(login)));
    world.logged_in("bob-1");
    assert_eq!(world.with_token("POST", "/api/logout", &logins[0]["access_token"]).status, 204);
    world.logged_in("alice-4");
    assert_eq!(problem(&world.log_in("alice-5")), failing("session_limit", 403));
}

#[test]
fn only_live_sessions_count() {
    let world = World::with(&[
        ("session_limit", "1"),
        ("session_limit_policy", "refuse"),
        ("session_idle_ttl", "10d"),
        ("session_ttl", "15d"),
    ]);
    let idle = world.logged_in("alice-1");
    assert_eq!(problem(&world.log_in("alice-2")), failing("session_limit", 403));
    world.pass(10 * 86_400);
    let over = world.logged_in("alice-3");
    // One that is refreshed is not idle, and over all the same at its end.
    world.pass(9 * 86_400);
    let renewed = world.refreshed(&over["refresh_token"]);
    assert_eq!(problem(&world.log_in("alice-4")), failing("session_limit", 403));
    world.pass(6 * 86_400);
    let everywhere = world.logged_in("alice-5");
    assert_eq!(problem(&world.refresh(&renewed["refresh_token"])), failing("refresh_invalid", 401));
    world.log_out_all(&everywhere);
    world.lose("x");
    let last = world.logged_in("alice-6");
    // Another user's, one that is damaged, one whose counter is: none is known to be alice's and live.
    let bob = world.logged_in("bob-1");
    world.plant_list(&last, &[&bob, &idle, &last]);
    world.host.store.plant(&layout().moved(sid(&last)), "not a counter");
    let next = world.logged_in("alice-7");
    world.host.store.plant(&layout().session(sid(&next)), "edgepass\u{1}\0\0\0\0\0\0\0\0");
    world.logged_in("alice-8");
}

#[test]
fn a_limit_that_was_lowered_ends_all_above_it() {
    let many = World::new();
    let logins: Vec<_> = (0..5)
        .map(|n| {
            many.pass(1);
            many.logged_in(&format!("alice-{n}"))
        })
        .collect();
    let few = many.beside(&[("session_limit", "3")]);
    few.pass(1);
    let newest = few.logged_in("alice-5");
    let live: Vec<_> = logins.iter().map(|login| many.is_live(login)).collect();
    assert_eq!((live, many.is_live(&newest)), (vec![false, false, false, true, true], true));
}

#[test]
fn a_repeated_login_does_not_count_twice() {
    for policy in [LimitPolicy::EvictOldest, LimitPolicy::Refuse] {
        let world = world("2", policy);
        let first = world.logged_in("alice-1");
        for _ in 0..3 {
            let repeated = world.send("POST", "/api/login", &[KEY], r#"{"code":"alice-2"}"#);
            assert_eq!(repeated.status, 200);
        }
        assert!(world.is_live(&first));
        assert_eq!((world.keys("s").len(), world.events("session.revoke")), (2, 0));
    }
}

#[test]
fn the_limit_holds_where_one_code_logs_in_many_times() {
    let codes = ("reusable_codes", "true");
    let evicting = World::with(&[codes, ("session_limit", "2")]);
    for _ in 0..5 {
        evicting.logged_in("alice-1");
    }
    assert_eq!(evicting.keys("s").len(), 2);
    let refusing = World::with(&[codes, ("session_limit", "2"), ("session_limit_policy", "refuse")]);
    for _ in 0..2 {
        refusing.logged_in("alice-1");
    }
    assert_eq!(problem(&refusing.log_in("alice-1")), failing("session_limit", 403));
}

#[test]
fn a_limit_is_soft_where_the_list_is_lost() {
    let world = world("1", LimitPolicy::Refuse);
    world.logged_in("alice-1");
    world.lose("l");
    world.logged_in("alice-2");
}

#[test]
fn what_a_limit_costs_is_read_at_once() {
    let world = world("2", LimitPolicy::EvictOldest);
    for n in 0..10 {
        world.pass(1);
        let login = world.logged_in(&format!("alice-{n}"));
        if n % 2 == 0 {
            assert_eq!(world.with_token("POST", "/api/logout", &login["access_token"]).status, 204);
        }
    }
    world.pass(1);
    world.logged_in("alice-10");
    let before = (world.host.store.keys_read(), world.host.store.changes_made());
    let one_more = request("POST", "/api/login", &[], r#"{"code":"alice-11"}"#);
    assert_eq!(block_on(world.service.handle(one_more)).status, 200);
    assert_eq!(
        world.host.store.keys_read() - before.0,
        12,
        "4 of any login; l; e, and s, x, g of the two: what is over is forgotten"
    );
    assert_eq!(world.host.store.changes_made() - before.1, 3, "s; x and s of the oldest");
}

#[test]
fn a_login_whose_limit_cannot_be_known_is_not_made() {
    for policy in [LimitPolicy::EvictOldest, LimitPolicy::Refuse] {
        let world = world("1", policy);
        let first = world.logged_in("alice-1");
        let writes = world.host.store.changes_made();
        // After s and x, o and e: the list, and then what it names.
        for calls in [2, 3] {
            world.host.store.fail_after(calls, StoreError::Unavailable);
            let refused = world.log_in(&format!("alice-{calls}"));
            assert_eq!(problem(&refused), failing("store_unavailable", 503));
            assert!(body(&refused)["detail"].as_str().is_some_and(|detail| detail.contains("new code")));
            world.host.store.fail(None);
        }
        assert_eq!(world.host.store.changes_made(), writes);
        assert!(world.is_live(&first));
    }
    let world = world("1", LimitPolicy::EvictOldest);
    let first = world.logged_in("alice-1");
    world.host.store.cut_changes(1);
    assert_eq!(problem(&world.log_in("alice-2")), failing("store_unavailable", 503));
    assert!(world.is_live(&first), "nothing is ended before there is something in its place");
    assert_eq!(world.events("session.revoke"), 0);
    world.host.store.plant(&layout().epoch(subject(&first)), "not an epoch");
    assert_eq!(problem(&world.log_in("alice-3")), failing("store_unavailable", 503));
}
