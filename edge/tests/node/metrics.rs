//! What a node says of itself: numbers, status, store, page.

use std::{sync::Arc, time::Duration};

use edgepass_edge::node::Node;
use serde_json::Value;

use crate::{
    client::{Answer, Client, ask, begun, order, start, with_admin},
    guest::Accomplice,
};

/// The value of one series, by name and labels as they are written; 0 of one that is not there. All
/// that is asked for here are counts.
async fn value(node: &Node, series: &str) -> u64 {
    let text = metrics(node, "").await.1;
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().expect("a whole number"))
}

async fn metrics(node: &Node, fields: &str) -> (Answer, String) {
    let mut client = Client::connect(node.admin_addr().expect("operators are served")).await;
    client.send(format!("GET /metrics HTTP/1.1\r\nhost: test\r\n{fields}\r\n")).await;
    let answer = client.answer().await.expect("an answer");
    let text = String::from_utf8(answer.body.clone()).expect("text");
    (answer, text)
}

/// Waits until a series has a value: instances end, and gauges are set, a moment after an answer.
async fn reaches(node: &Node, series: &str, expected: u64) {
    for _ in 0..600 {
        if value(node, series).await == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(value(node, series).await, expected, "{series}");
}

#[tokio::test]
async fn answers_are_counted_the_nodes_own_too() {
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.limits.max_body_bytes = 10;
    });
    ask(node.addr(), "POST", "/api/login", "{}").await;
    ask(node.addr(), "POST", "/api/login", &"x".repeat(11)).await;
    ask(node.addr(), "GET", "/api/verify/a/b?token=secret", "").await;
    ask(node.addr(), "BREW", "/pot/of/tea", "").await;
    let (answer, text) = metrics(&node, "").await;
    assert_eq!(answer.status, 200, "without a token");
    assert_eq!(answer.field("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for series in [
        r#"edgepass_http_server_request_duration_seconds_count{route="/api/login",method="POST",status_class="2xx"} 1"#,
        r#"edgepass_http_server_request_duration_seconds_count{route="/api/login",method="POST",status_class="4xx"} 1"#,
        r#"edgepass_http_server_request_duration_seconds_count{route="/api/verify/*",method="GET",status_class="2xx"} 1"#,
        r#"edgepass_http_server_request_duration_seconds_count{route="other",method="_OTHER",status_class="2xx"} 1"#,
        r#"edgepass_outcomes_total{operation="login",outcome="ok",fault="none"} 1"#,
        r#"edgepass_outcomes_total{operation="login",outcome="payload_too_large",fault="client"} 1"#,
        "edgepass_http_server_active_requests 0",
        "edgepass_http_server_request_body_bytes_total 2",
        r#"edgepass_pool_lost_instances_total{cause="trap"} 0"#,
    ] {
        assert!(text.lines().any(|line| line == series), "{series}\n{text}");
    }
    assert!(!text.contains("secret") && !text.contains("tea"), "a client's text is no label");

    let (open, text) = metrics(&node, "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n").await;
    assert_eq!(open.field("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_lost_instance_has_its_cause() {
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.surroundings.limits.max_cpu = Duration::from_millis(50);
    });
    assert_eq!(ask(node.addr(), "POST", "/trap", "").await.code(), "instance_lost");
    reaches(&node, r#"edgepass_pool_lost_instances_total{cause="trap"}"#, 1).await;
    assert_eq!(ask(node.addr(), "POST", "/loop", "").await.code(), "instance_lost");
    reaches(&node, r#"edgepass_pool_lost_instances_total{cause="cpu"}"#, 1).await;
    assert_eq!(
        value(&node, r#"edgepass_outcomes_total{operation="other",outcome="instance_lost",fault="node"}"#).await,
        2
    );
}

#[tokio::test]
async fn a_busy_pool_shows_its_places_and_who_waits() {
    let store = Accomplice::new();
    let node = start(store.clone(), |config| {
        with_admin(config);
        let limits = &mut config.surroundings.limits;
        (limits.max_instances, limits.in_flight, limits.max_in_flight) = (1, 1, 1);
        limits.queue_wait = Duration::from_secs(20);
    });
    let mut slow = begun(node.addr(), &store, "/slow", "").await;
    reaches(&node, "edgepass_pool_taken_places", 1).await;
    let mut waits = Client::connect(node.addr()).await;
    waits.send("POST /other HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await;
    reaches(&node, "edgepass_pool_waiting_requests", 1).await;
    assert_eq!(value(&node, "edgepass_http_server_active_requests").await, 2);
    let status: Value = serde_json::from_slice(&order(&node, "GET", "/status", "").await.body).expect("JSON");
    assert_eq!((&status["pool"]["waiting"], &status["in_flight"]), (&1.into(), &2.into()));

    store.go.add_permits(1);
    assert_eq!(slow.answer().await.expect("an answer").status, 200);
    assert_eq!(waits.answer().await.expect("an answer").status, 200);
    reaches(&node, "edgepass_pool_waiting_requests", 0).await;
    assert_eq!(value(&node, "edgepass_pool_wait_seconds_count").await, 1);
}

#[tokio::test]
async fn status_wants_the_token_and_the_page_has_nothing_to_hide() {
    let node = start(Accomplice::new(), with_admin);
    let admin = node.admin_addr().expect("operators are served");
    ask(node.addr(), "POST", "/api/login", "{}").await;
    for target in ["/status", "/logs", "/kv", "/kv/value?key=a"] {
        assert_eq!(ask(admin, "GET", target, "").await.code(), "token_invalid", "{target}");
    }
    let status: Value = serde_json::from_slice(&order(&node, "GET", "/status", "").await.body).expect("JSON");
    assert_eq!(status["revisions"]["active"]["digest"].as_str(), Some(&*node.revision().digest().to_string()));
    let login = &status["operations"][0];
    assert_eq!((&login["name"], &login["count"]), (&"login".into(), &1.into()));
    assert!(login["p50_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{login}");
    assert_eq!(status["faults"]["none"], 1);

    let page = ask(admin, "GET", "/", "").await;
    assert_eq!((page.status, page.field("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.field("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(ask(node.addr(), "GET", "/metrics", "").await.field("x-guest"), Some("yes"), "not on the public side");
}

#[tokio::test]
async fn the_store_is_shown_by_key_and_never_by_value() {
    let store: Arc<dyn edgepass_edge::kv::Backend> = Arc::new(edgepass_edge::kv::Memory::new());
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.surroundings.store = store.clone();
    });
    let mut value = b"edgepass\x02".to_vec();
    value.extend_from_slice(&4_000_000_000_u64.to_be_bytes());
    value.extend_from_slice(b"private");
    let put = |key: &str, value: &[u8]| {
        let (key, value) = (key.to_owned(), value.to_vec().into());
        edgepass_edge::kv::Change::Put(edgepass_edge::kv::Entry { key, value, expires: 0 })
    };
    store.apply(vec![put("s/1", &value), put("s/2", b"other"), put("x/1", b"")]).await.expect("it writes");

    let json = async |target: &str| {
        let answer = order(&node, "GET", target, "").await;
        assert_eq!(answer.status, 200, "{target}");
        let text = String::from_utf8(answer.body).expect("text");
        assert!(!text.contains("private"), "{text}");
        serde_json::from_str::<Value>(&text).expect("JSON")
    };
    assert_eq!(json("/kv?prefix=s/&limit=1").await, serde_json::json!({"keys": ["s/1"], "after": "s/1"}));
    assert_eq!(json("/kv?prefix=s/&after=s/1").await, serde_json::json!({"keys": ["s/2"], "after": null}));
    let seen = json("/kv/value?key=s%2F1").await;
    assert_eq!((&seen["bytes"], &seen["envelope_version"]), (&24.into(), &2.into()));
    assert_eq!(seen["expires_at"], 4_000_000_000_u64);
    assert_eq!(json("/kv/value?key=s/2").await["envelope_version"], Value::Null);
    assert_eq!(order(&node, "GET", "/kv/value?key=none", "").await.code(), "not_found");
}
