//! `/internal/sweep`: what is over goes, and nothing else.

use super::{
    devices::{layout, sid},
    operators::{OPERATOR, operated},
    *,
};

const DAY: u64 = 86_400;
const SKEW: u64 = 300;

impl World {
    fn sweep(&self, wish: &Value) -> Value {
        let response = self.operate("sweep", wish);
        assert_eq!(response.status, 200, "{}", text(&response));
        body(&response)
    }
}

#[test]
fn what_is_over_goes_and_nothing_else() {
    let world = operated(&[("session_ttl", "1d")]);
    let login = world.logged_in("alice-1");
    world.refreshed(&login["refresh_token"]);
    let other = world.logged_in("bob-1");
    assert_eq!(world.with_token("POST", "/api/logout", &other["access_token"]).status, 204);
    assert_eq!(world.log_out_all(&world.logged_in("carol-1")).status, 204);
    let all = world.host.store.keys();
    for after in [0, DAY, SKEW] {
        world.pass(after);
        assert_eq!(world.sweep(&json!({})), json!({"removed": 0, "cursor": null}), "not before every clock agrees");
    }
    assert_eq!(world.host.store.keys(), all);
    world.pass(1);
    assert_eq!(world.sweep(&json!({}))["removed"], 4, "s of alice, l of three");
    let left: Vec<_> = ["s", "l", "g", "x", "e", "o", "f"].map(|kind| world.keys(kind).len()).into();
    assert_eq!(left, [0, 0, 1, 2, 1, 3, 1]);
    world.pass(DAY);
    assert_eq!(world.sweep(&json!({}))["removed"], 3, "g and x, a day after their session");
    let left: Vec<_> = ["g", "x", "e", "o", "f"].map(|kind| world.keys(kind).len()).into();
    assert_eq!(left, [0, 0, 1, 3, 1], "never an epoch, an identity, a fingerprint");
    world.pass(1000 * DAY);
    assert_eq!(world.sweep(&json!({}))["removed"], 0);
}

#[test]
fn a_tombstone_or_a_counter_stays_while_its_session_is_there() {
    let world = operated(&[("session_ttl", "1d")]);
    let login = world.logged_in("alice-1");
    world.refreshed(&login["refresh_token"]);
    let session = layout().session(sid(&login));
    // Only where somebody changed its head does a session outlive its tombstone.
    let mut outliving = world.host.store.value(&session).expect("stored");
    outliving[9..17].fill(0xff);
    assert_eq!(world.with_token("POST", "/api/logout", &login["access_token"]).status, 204);
    world.lose("l");
    for revived in [&outliving[..], b"unreadable", b"edgepass\x02\0\0\0\0\0\0\0\0newer"] {
        world.host.store.plant(&session, revived);
        world.pass(10 * DAY);
        assert_eq!(world.sweep(&json!({}))["removed"], 0);
        assert_eq!((world.keys("x").len(), world.keys("g").len()), (1, 1));
    }
    world.lose("s");
    assert_eq!(world.sweep(&json!({}))["removed"], 2);
}

#[test]
fn what_nobody_knows_is_left_alone() {
    let world = operated(&[]);
    let id = SessionId::from_bytes([1; 16]).text();
    let expired = |version: u8| [&b"edgepass"[..], &[version], &1_u64.to_be_bytes(), b"body"].concat();
    for key in [
        format!("edgepass/default/q/{id}"),
        format!("edgepass/default/e/{id}"),
        format!("edgepass/default/o/{id}"),
        format!("edgepass/default/y/{id}"),
        format!("edgepass/default/ss/{id}"),
        "edgepass/default/s/short".to_owned(),
        format!("edgepass/default/s/{id}/more"),
        format!("edgepass/default/other/s/{id}"),
        format!("edgepass/default/shadow/shadow/s/{id}"),
        format!("edgepass/default/{id}"),
        format!("edgepass/defaults/s/{id}"),
        format!("edgepass/other/s/{id}"),
        format!("other/s/{id}"),
    ] {
        world.host.store.plant(&key, expired(1));
    }
    let mut forever = expired(1);
    forever[9..17].fill(0);
    for (n, value) in [&b"not ours at all, but long enough"[..], b"", b"edgepass\x01", &forever].into_iter().enumerate()
    {
        let id = SessionId::from_bytes([u8::try_from(n).expect("few") + 9; 16]).text();
        world.host.store.plant(&format!("edgepass/default/s/{id}"), value);
    }
    let before = world.host.store.keys();
    assert_eq!(world.sweep(&json!({})), json!({"removed": 0, "cursor": null}));
    assert_eq!(world.host.store.keys(), before);
    // A newer build's session whose time has passed is over for every build.
    world.host.store.plant(&format!("edgepass/default/s/{id}"), expired(9));
    world.host.store.plant(&format!("edgepass/default/shadow/s/{id}"), expired(1));
    assert_eq!(world.sweep(&json!({}))["removed"], 2, "of users and of load tests");
    assert_eq!(world.host.store.keys(), before);
}

#[test]
fn a_sweep_is_bounded_and_goes_on_where_it_was() {
    let world = operated(&[("session_ttl", "1h")]);
    for n in 0..20 {
        world.logged_in(&format!("alice-{n}"));
    }
    let total = world.host.store.keys().len();
    world.pass(DAY);
    let (mut cursor, mut removed, mut calls) = (Value::Null, 0, 0);
    loop {
        let before = world.host.store.keys_read();
        let swept = world.sweep(&json!({"cursor": cursor, "limit": 3}));
        assert!(world.host.store.keys_read() - before <= 6, "at most two reads for a key");
        removed += swept["removed"].as_u64().expect("a number");
        calls += 1;
        assert!(calls < 20, "it comes to an end");
        cursor = swept["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!((removed, calls), (21, total / 3 + 1), "20 sessions and their list");
    assert_eq!(world.events("admin.sweep"), calls);
    // A cron job with nothing to say says nothing.
    let bare = world.send("POST", "/internal/sweep", &[("authorization", &format!("Bearer {OPERATOR}"))], "");
    assert_eq!(body(&bare), json!({"removed": 0, "cursor": null}));
}

#[test]
fn a_sweep_takes_its_own_cursors_and_limits() {
    let world = operated(&[]);
    for (wish, names) in [
        (json!({"limit": 0}), "limit:"),
        (json!({"limit": 1001}), "limit:"),
        (json!({"limit": -1}), "The body:"),
        (json!({"limit": "9"}), "The body:"),
        (json!({"cursor": ""}), "cursor:"),
        (json!({"cursor": "edgepass/other/s/x"}), "cursor:"),
        (json!({"cursor": format!("edgepass/default/{}", "x".repeat(200))}), "cursor:"),
        (json!({"cursor": 1}), "The body:"),
    ] {
        let refused = world.operate("sweep", &wish);
        assert_eq!(problem(&refused), failing("bad_request", 400), "{wish}");
        assert!(
            body(&refused)["detail"].as_str().is_some_and(|detail| detail.starts_with(names)),
            "{}",
            text(&refused)
        );
    }
    for wish in [json!({"limit": 1}), json!({"limit": 1000}), json!({"limit": null, "cursor": null})] {
        assert_eq!(world.operate("sweep", &wish).status, 200, "{wish}");
    }
    assert_eq!(world.sweep(&json!({"cursor": "edgepass/default/zzz"})), json!({"removed": 0, "cursor": null}));
}

#[test]
fn a_sweep_that_the_store_breaks_off_may_be_made_again() {
    let world = operated(&[("session_ttl", "1h")]);
    for n in 0..3 {
        world.logged_in(&format!("alice-{n}"));
    }
    world.pass(DAY);
    for good in 0..3 {
        world.host.store.fail_after(good, StoreError::Unavailable);
        assert_eq!(
            problem(&world.operate("sweep", &json!({}))),
            failing("store_unavailable", 503),
            "after {good} calls"
        );
        world.host.store.fail(None);
    }
    assert_eq!((world.keys("s").len(), world.events("admin.sweep")), (3, 0));
    world.host.store.cut_changes(2);
    assert_eq!(problem(&world.operate("sweep", &json!({}))), failing("store_unavailable", 503));
    assert_eq!(world.sweep(&json!({}))["removed"], 2, "what is left of s and l");
}
