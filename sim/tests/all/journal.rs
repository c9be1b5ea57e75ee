//! What the journal tells of a request, and what it never tells.

use edgepass_sim::{Outcome, Platform};

use crate::support::{APPID, SECRET, SECRET_ESCAPED, Sim, query};

#[test]
fn an_entry_tells_the_request_as_it_came_and_what_was_answered() {
    let sim = Sim::start();
    let code = sim.code();
    sim.exchange(&code);
    let entries = sim.journal().entries();
    let [entry] = &entries[..] else { panic!("one request: {entries:?}") };
    assert_eq!((entry.number, entry.unix_ms), (1, 1_700_000_000_000));
    assert_eq!(entry.platform, Some(Platform::Wechat));
    assert_eq!((entry.method.as_str(), entry.path.as_str()), ("GET", "/sns/jscode2session"));
    assert_eq!(entry.query, format!("appid={APPID}&secret=***&js_code={code}&grant_type=authorization_code"));
    let parameters: Vec<(&str, &str)> =
        entry.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        parameters,
        [("appid", APPID), ("secret", "***"), ("js_code", code.as_str()), ("grant_type", "authorization_code"),]
    );
    assert_eq!(entry.secret_ok, Some(true));
    assert_eq!(entry.headers, ["host", "connection", "content-length"]);
    assert_eq!(entry.body_bytes, 0);
    let expected = Outcome { status: Some(200), user: Some("alice".to_owned()), ..Outcome::default() };
    assert_eq!(entry.outcome, expected);
}

#[test]
fn the_query_is_kept_byte_for_byte_and_repeats_are_seen() {
    let sim = Sim::start();
    let query = "js_code=a%2bb+c&js_code=%e4%bd%a0%ff&&appid&secret=wrong";
    sim.get(&format!("/sns/jscode2session?{query}"));
    let entry = &sim.journal().entries()[0];
    assert_eq!(entry.query, query.replace("wrong", "***"));
    let values: Vec<&str> = entry.parameters.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["a+b c", "你\u{fffd}", "", "***"]);
    assert_eq!(entry.secret_ok, None, "no app is named");
    assert_eq!((entry.outcome.status, entry.outcome.errcode), (Some(200), Some(41002)));
}

#[test]
fn the_secret_is_shown_only_as_right_or_wrong() {
    let sim = Sim::start();
    sim.exchange("x");
    sim.get(&query(APPID, "x").replace(SECRET_ESCAPED, "%77rong-s3cret"));
    sim.get(&query(APPID, "x").replace("secret", "%73ecret"));
    sim.get(&query(APPID, "x").replace("&secret=", "&other="));
    let correct: Vec<_> = sim.journal().entries().iter().map(|entry| entry.secret_ok).collect();
    assert_eq!(correct, [Some(true), Some(false), Some(true), None]);
    sim.journal().clear();
    sim.exchange("x");
    sim.get(&query(APPID, "x").replace(SECRET_ESCAPED, "%77rong-s3cret"));
    let shown = sim.get("/sim/journal").text();
    for canary in [SECRET, SECRET_ESCAPED, "s3cret"] {
        assert!(!shown.contains(canary), "{shown}");
    }
}

#[test]
fn faults_and_unknown_paths_are_in_it_and_controls_are_not() {
    let sim = Sim::start();
    sim.fault(r#"{"kind":"http_status","status":503,"times":1}"#);
    sim.exchange("x");
    sim.fault(r#"{"kind":"close","times":1,"spend":true}"#);
    let code = sim.code();
    let raw = crate::support::request(sim.addr(), &crate::support::head("GET", &query(APPID, &code), ""));
    assert_eq!(raw.expect("an orderly end"), b"");
    assert_eq!(sim.post("/cgi-bin/token?grant_type=client_credential", "abc").status, 404);
    sim.get("/sim/healthz");
    sim.get("/");

    let entries = sim.journal().entries();
    let outcomes: Vec<_> = entries
        .iter()
        .map(|entry| (entry.outcome.status, entry.outcome.fault, entry.outcome.user.as_deref()))
        .collect();
    assert_eq!(
        outcomes,
        [(Some(503), Some("http_status"), None), (None, Some("close"), Some("alice")), (Some(404), None, None),]
    );
    let unknown = &entries[2];
    assert_eq!(unknown.platform, None);
    assert_eq!((unknown.method.as_str(), unknown.path.as_str()), ("POST", "/cgi-bin/token"));
    assert_eq!(unknown.body_bytes, 3);
}

#[test]
fn it_keeps_the_newest_counts_all_and_can_be_cleared() {
    let sim = Sim::with(|config| config.journal_capacity = 2);
    for _ in 0..5 {
        sim.exchange("x");
    }
    let shown = sim.get("/sim/journal").json();
    assert_eq!((shown["total"].as_u64(), shown["capacity"].as_u64()), (Some(5), Some(2)));
    let numbers: Vec<_> = shown["entries"].as_array().expect("a list").iter().collect();
    assert_eq!(numbers.len(), 2);
    assert_eq!((&numbers[0]["number"], &numbers[1]["number"]), (&4.into(), &5.into()));

    assert_eq!(sim.send("DELETE", "/sim/journal", "").status, 204);
    assert_eq!(sim.journal().total(), 0);
    sim.exchange("x");
    assert_eq!(sim.journal().entries()[0].number, 1);
}

#[test]
fn without_capacity_it_only_counts() {
    let sim = Sim::with(|config| config.journal_capacity = 0);
    sim.exchange("x");
    sim.get("/nothing");
    assert_eq!(sim.journal().total(), 2);
    assert!(sim.journal().entries().is_empty());
}
