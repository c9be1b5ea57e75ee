//! Each kind of fault as the other end of the wire sees it.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    time::{Duration, Instant},
};

use edgepass_sim::{Fault, Kind};
use serde_json::{Value, json};

use crate::support::{APPID, LONER, Reply, SISTER, Sim, connect, head, query, request};

/// What the wire brings for alice's code under `fault`, and the code.
fn under(sim: &Sim, fault: &str) -> (std::io::Result<Vec<u8>>, String) {
    sim.fault(fault);
    let code = sim.code();
    (request(sim.addr(), &head("GET", &query(APPID, &code), "")), code)
}

/// A whole HTTP answer under `fault`.
fn answer_under(sim: &Sim, fault: &str) -> Reply {
    Reply::read(&under(sim, fault).0.expect("a whole answer"))
}

#[test]
fn latency_delays_the_true_answer_and_adds_up() {
    let sim = Sim::start();
    sim.fault(r#"{"kind":"latency","ms":40,"times":1}"#);
    let started = Instant::now();
    let reply = answer_under(&sim, r#"{"kind":"latency","ms":60,"times":1}"#);
    assert!(started.elapsed() >= Duration::from_millis(100));
    reply.openid();
    assert_eq!(sim.journal().entries()[0].outcome.delay_ms, 100);
    sim.exchange(&sim.code()).openid();
    assert_eq!(sim.journal().entries()[1].outcome.delay_ms, 0);
}

#[test]
fn latency_comes_before_another_fault() {
    let sim = Sim::start();
    sim.fault(r#"{"kind":"latency","ms":50}"#);
    let started = Instant::now();
    assert_eq!(answer_under(&sim, r#"{"kind":"errcode","errcode":-1}"#).errcode(), -1);
    assert!(started.elapsed() >= Duration::from_millis(50));
}

#[test]
fn stall_sends_nothing_until_its_time_is_over() {
    let sim = Sim::start();
    let started = Instant::now();
    let (raw, _) = under(&sim, r#"{"kind":"stall","ms":80}"#);
    assert_eq!(raw.expect("an orderly end"), b"");
    assert!(started.elapsed() >= Duration::from_millis(80));
}

#[test]
fn stall_ends_when_the_client_goes() {
    let sim = Sim::start();
    sim.fault(r#"{"kind":"stall"}"#);
    let mut socket = connect(sim.addr());
    socket.write_all(head("GET", &query(APPID, "x"), "").as_bytes()).expect("written");
    socket.shutdown(Shutdown::Write).expect("shut down");
    let mut raw = Vec::new();
    socket.read_to_end(&mut raw).expect("the other half ends too");
    assert_eq!(raw, b"");
}

#[test]
fn stall_body_sends_half_and_waits() {
    let sim = Sim::start();
    let started = Instant::now();
    let (raw, code) = under(&sim, r#"{"kind":"stall_body","ms":60}"#);
    assert_half(&raw.expect("an orderly end"));
    assert!(started.elapsed() >= Duration::from_millis(60));
    sim.faults().clear();
    assert_eq!(sim.exchange(&code).errcode(), 40163, "the code is used up");
}

#[test]
fn truncate_announces_more_than_it_sends() {
    let sim = Sim::start();
    let (raw, code) = under(&sim, r#"{"kind":"truncate"}"#);
    assert_half(&raw.expect("an orderly end"));
    sim.faults().clear();
    assert_eq!(sim.exchange(&code).errcode(), 40163, "the code is used up");
}

fn assert_half(raw: &[u8]) {
    let reply = Reply::read(raw);
    let announced: usize = reply.header("content-length").expect("a length").parse().expect("it");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.body.len(), announced / 2);
    assert!(reply.text().starts_with(r#"{"session_key":""#), "{}", reply.text());
}

#[test]
fn drip_brings_the_true_answer_slowly() {
    let sim = Sim::start();
    let started = Instant::now();
    let reply = answer_under(&sim, r#"{"kind":"drip","ms":1}"#);
    let body_bytes = u64::try_from(reply.body.len()).expect("short");
    assert!(started.elapsed() >= Duration::from_millis(body_bytes));
    assert_eq!(reply.header("content-length"), Some(body_bytes.to_string().as_str()));
    reply.openid();
}

#[test]
fn reset_is_a_tcp_reset_and_leaves_the_code_alone() {
    let sim = Sim::start();
    let (raw, code) = under(&sim, r#"{"kind":"reset","times":1}"#);
    assert_eq!(raw.expect_err("no orderly end").kind(), ErrorKind::ConnectionReset);
    sim.exchange(&code).openid();
}

#[test]
fn a_fault_told_to_spend_uses_the_code_up() {
    let sim = Sim::start();
    for kind in [
        r#""kind":"reset""#,
        r#""kind":"stall","ms":1"#,
        r#""kind":"errcode","errcode":-1"#,
        r#""kind":"http_status","status":500"#,
    ] {
        let (_, code) = under(&sim, &format!(r#"{{{kind},"times":1,"spend":true}}"#));
        assert_eq!(sim.exchange(&code).errcode(), 40163, "{kind}");
    }
}

#[test]
fn reset_body_resets_in_the_middle() {
    let sim = Sim::start();
    let (raw, code) = under(&sim, r#"{"kind":"reset_body","times":1}"#);
    assert_eq!(raw.expect_err("no orderly end").kind(), ErrorKind::ConnectionReset);
    assert_eq!(sim.exchange(&code).errcode(), 40163, "the code is used up");
}

#[test]
fn close_ends_in_order_without_a_byte() {
    let sim = Sim::start();
    assert_eq!(under(&sim, r#"{"kind":"close"}"#).0.expect("an orderly end"), b"");
}

#[test]
fn garbage_is_not_http() {
    let sim = Sim::start();
    let raw = under(&sim, r#"{"kind":"garbage"}"#).0.expect("an orderly end");
    assert!(!raw.is_empty() && !raw.starts_with(b"HTTP/"));
}

#[test]
fn non_utf8_is_the_true_answer_but_for_one_member() {
    let sim = Sim::start();
    let reply = answer_under(&sim, r#"{"kind":"non_utf8"}"#);
    assert!(std::str::from_utf8(&reply.body).is_err());
    let lenient: Value = serde_json::from_str(&reply.text()).expect("JSON otherwise");
    assert_eq!(lenient["openid"], sim.identity("alice", APPID).expect("known").openid);
}

#[test]
fn html_huge_empty_and_status_answer_without_a_session() {
    let sim = Sim::start();
    let html = answer_under(&sim, r#"{"kind":"html","times":1}"#);
    assert_eq!((html.status, html.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(html.text().starts_with("<!doctype html>"));

    let huge = answer_under(&sim, r#"{"kind":"huge","times":1}"#);
    assert_eq!(huge.body.len(), 10_000_000);
    assert_eq!(huge.header("content-length"), Some("10000000"));
    assert!(huge.json()["padding"].is_string());

    let chunked = answer_under(&sim, r#"{"kind":"huge","bytes":70000,"chunked":true,"times":1}"#);
    assert_eq!(chunked.header("transfer-encoding"), Some("chunked"));
    assert_eq!(chunked.header("content-length"), None);
    assert!(chunked.body.len() > 70_000, "the bytes and the chunks' frames");

    let empty = answer_under(&sim, r#"{"kind":"empty","times":1}"#);
    assert_eq!((empty.status, empty.body.len()), (200, 0));

    for status in [204, 301, 429, 500, 503, 599] {
        let fault = json!({ "kind": "http_status", "status": status, "times": 1 });
        assert_eq!(answer_under(&sim, &fault.to_string()).status, status);
    }
    assert_eq!(sim.faults().armed(), 0);
}

#[test]
fn any_errcode_comes_as_a_number_or_as_a_string() {
    let sim = Sim::start();
    for errcode in [-1, 0, 40001, 40164, 40243, 45009, 45011, 48001, 50002, 99999, i64::MIN] {
        let fault = json!({ "kind": "errcode", "errcode": errcode, "times": 1 }).to_string();
        assert_eq!(answer_under(&sim, &fault).errcode(), errcode);
        let fault = json!({ "kind": "string_errcode", "errcode": errcode, "times": 1 }).to_string();
        assert_eq!(answer_under(&sim, &fault).json()["errcode"], errcode.to_string());
    }
}

#[test]
fn body_is_sent_as_given() {
    let sim = Sim::start();
    let fault = json!({
        "kind": "body", "body": "{\"openid\":\"\u{1}", "status": 418,
        "content_type": "application/json", "times": 1,
    });
    let reply = answer_under(&sim, &fault.to_string());
    assert_eq!((reply.status, reply.header("content-type")), (418, Some("application/json")));
    assert_eq!(reply.body, b"{\"openid\":\"\x01");
    let reply = answer_under(&sim, r#"{"kind":"body","body":""}"#);
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/plain")));
}

#[test]
fn patch_changes_members_of_the_true_answer() {
    let sim = Sim::start();
    let reply = answer_under(
        &sim,
        r#"{"kind":"patch","set":{"errcode":"0","unionid":"","extra":{"a":[1]}},"unset":["session_key"]}"#,
    );
    let alice = sim.identity("alice", APPID).expect("known");
    assert_eq!(reply.json(), json!({ "openid": alice.openid, "errcode": "0", "unionid": "", "extra": { "a": [1] } }));
}

#[test]
fn a_fault_hits_its_code_or_app_only_and_so_many_times() {
    let sim = Sim::start();
    let errcode = |errcode| Fault::new(Kind::Errcode { errcode });
    sim.faults().arm(errcode(1).on_code("a b").times(2)).expect("armed");
    sim.faults().arm(errcode(2).on_app(LONER)).expect("armed");
    sim.faults().arm(errcode(3).on_app(SISTER).on_code("c").times(1)).expect("armed");
    for (appid, code, expected) in [
        (APPID, "x", 40029),
        (APPID, "a%20b", 1),
        (SISTER, "a+b", 1),
        (APPID, "a+b", 40029),
        (LONER, "c", 2),
        (LONER, "c", 2),
        (APPID, "c", 40029),
        (SISTER, "c", 3),
        (SISTER, "c", 40029),
    ] {
        assert_eq!(sim.exchange_for(appid, code).errcode(), expected, "{appid} {code}");
    }
    assert_eq!(sim.faults().armed(), 1);
}

#[test]
fn the_oldest_match_decides_and_every_skips() {
    let sim = Sim::start();
    sim.fault(r#"{"kind":"errcode","errcode":7,"every":3,"times":2}"#);
    sim.fault(r#"{"kind":"errcode","errcode":8,"times":3}"#);
    let seen: Vec<i64> = (0..8).map(|_| sim.exchange("x").errcode()).collect();
    assert_eq!(seen, [8, 8, 7, 8, 40029, 7, 40029, 40029]);
}

#[test]
fn faults_are_listed_and_disarmed() {
    let sim = Sim::start();
    sim.fault(r#"{"kind":"stall","match":{"code":"never"}}"#);
    sim.fault(r#"{"kind":"errcode","errcode":45011,"times":2,"platform":"wechat"}"#);
    assert_eq!(sim.exchange("x").errcode(), 45011);
    assert_eq!(
        sim.get("/sim/faults").json(),
        json!({ "faults": [
            { "id": 1, "hits": 0, "kind": "stall", "platform": "wechat", "match": { "code": "never" } },
            { "id": 2, "hits": 1, "kind": "errcode", "errcode": 45011, "platform": "wechat",
              "match": {}, "times": 2 },
        ]})
    );
    assert_eq!(sim.send("DELETE", "/sim/faults", "").status, 204);
    assert_eq!(sim.get("/sim/faults").json(), json!({ "faults": [] }));
    assert_eq!(sim.exchange("x").errcode(), 40029);
}

#[test]
fn a_connection_lives_on_after_faults_that_are_http() {
    let sim = Sim::start();
    sim.fault(r#"{"kind":"errcode","errcode":-1,"times":1}"#);
    sim.fault(r#"{"kind":"latency","ms":1}"#);
    let mut socket = connect(sim.addr());
    for _ in 0..3 {
        let request = format!("GET {} HTTP/1.1\r\nhost: sim\r\n\r\n", query(APPID, "x"));
        socket.write_all(request.as_bytes()).expect("written");
        let mut raw = Vec::new();
        while !raw.ends_with(b"\"}") {
            let mut byte = [0];
            socket.read_exact(&mut byte).expect("an answer");
            raw.push(byte[0]);
        }
        assert_eq!(Reply::read(&raw).status, 200);
    }
    let connections: Vec<u64> = sim.journal().entries().iter().map(|e| e.connection).collect();
    assert!(connections.iter().all(|number| *number == connections[0]), "{connections:?}");
}
