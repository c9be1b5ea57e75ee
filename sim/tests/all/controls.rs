//! The control routes: what they accept, and that bad input is a clear 4xx.

use serde_json::json;

use crate::support::{APPID, LONER, SISTER, Sim, request};

#[test]
fn login_issues_a_code_of_the_app_named_or_of_the_first() {
    let sim = Sim::start();
    let code = |body: &str| {
        let reply = sim.post("/sim/wechat/login", body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("content-type"), Some("application/json"));
        reply.json()["code"].as_str().expect("a code").to_owned()
    };
    let first = code(r#"{"user":"alice"}"#);
    let named = code(&format!(r#"{{"user":"alice","appid":"{LONER}","kind":"login"}}"#));
    assert_eq!(sim.exchange(&first).openid(), sim.identity("alice", APPID).expect("known").openid);
    assert_eq!(sim.exchange_for(LONER, &named).openid(), sim.identity("alice", LONER).expect("known").openid);
}

#[test]
fn users_shows_how_every_app_sees_the_user() {
    let sim = Sim::start();
    let reply = sim.post("/sim/wechat/users", r#"{"user":"alice"}"#);
    let apps: Vec<_> = [APPID, SISTER, LONER]
        .map(|appid| {
            let alice = sim.identity("alice", appid).expect("known");
            json!({
                "appid": appid, "openid": alice.openid, "unionid": alice.unionid,
                "session_key": alice.session_key,
            })
        })
        .into();
    assert_eq!(reply.json(), json!({ "user": "alice", "errcode": null, "apps": apps }));
}

#[test]
fn bad_bodies_are_refused_with_a_reason() {
    let sim = Sim::start();
    let long_user = json!({ "user": "x".repeat(129) }).to_string();
    let deep = "[".repeat(10_000);
    for (path, body, status) in [
        ("/sim/wechat/login", "", 400),
        ("/sim/wechat/login", "not json", 400),
        ("/sim/wechat/login", "[]", 400),
        ("/sim/wechat/login", "{}", 400),
        ("/sim/wechat/login", r#"{"user":1}"#, 400),
        ("/sim/wechat/login", r#"{"user":""}"#, 400),
        ("/sim/wechat/login", r#"{"user":"a\u0000b"}"#, 400),
        ("/sim/wechat/login", r#"{"user":"a","user":"b"}"#, 400),
        ("/sim/wechat/login", r#"{"user":"a","usr":"b"}"#, 400),
        ("/sim/wechat/login", r#"{"user":"a","kind":"other"}"#, 400),
        ("/sim/wechat/login", r#"{"user":"a","appid":"wxunknown"}"#, 404),
        ("/sim/wechat/login", &long_user, 400),
        ("/sim/wechat/login", &deep, 400),
        ("/sim/wechat/users", r#"{"blocked":true}"#, 400),
        ("/sim/wechat/users", r#"{"user":"a","blocked":"yes"}"#, 400),
        ("/sim/wechat/users", r#"{"user":""}"#, 400),
        ("/sim/faults", "{}", 400),
        ("/sim/faults", r#"{"kind":"unheard_of"}"#, 400),
        ("/sim/faults", r#"{"kind":"latency"}"#, 400),
        ("/sim/faults", r#"{"kind":"latency","ms":-1}"#, 400),
        ("/sim/faults", r#"{"kind":"latency","ms":1,"status":500}"#, 400),
        ("/sim/faults", r#"{"kind":"reset","tmies":1}"#, 400),
        ("/sim/faults", r#"{"kind":"reset","times":0}"#, 400),
        ("/sim/faults", r#"{"kind":"reset","every":0}"#, 400),
        ("/sim/faults", r#"{"kind":"reset","platform":"unheard_of"}"#, 400),
        ("/sim/faults", r#"{"kind":"reset","match":{"user":"a"}}"#, 400),
        ("/sim/faults", r#"{"kind":"http_status","status":100}"#, 400),
        ("/sim/faults", r#"{"kind":"http_status","status":600}"#, 400),
        ("/sim/faults", r#"{"kind":"body","body":"","status":101}"#, 400),
        ("/sim/faults", r#"{"kind":"body","body":"","content_type":"a\nb"}"#, 400),
        ("/sim/faults", r#"{"kind":"huge","bytes":67108865}"#, 400),
        ("/sim/faults", r#"{"kind":"truncate","spend":false}"#, 400),
        ("/sim/clock", r#"{"advance_ms":-1}"#, 400),
        ("/sim/clock", "1", 400),
    ] {
        let reply = sim.post(path, body);
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text());
        let reason = reply.json()["error"].as_str().map(str::len);
        assert!(reason.is_some_and(|length| length > 5), "{path} {body}: {}", reply.text());
    }
    assert_eq!(sim.faults().armed(), 0);
    assert_eq!(sim.get("/sim/healthz").status, 200);
}

#[test]
fn wrong_methods_and_paths_are_told_apart() {
    let sim = Sim::start();
    for (method, path, allow) in [
        ("POST", "/sim/healthz", "get, head"),
        ("GET", "/sim/wechat/login", "post"),
        ("DELETE", "/sim/wechat/users", "post"),
        ("PUT", "/sim/faults", "get, head, post, delete"),
        ("POST", "/sim/journal", "get, head, delete"),
        ("DELETE", "/sim/clock", "get, head, post"),
    ] {
        let reply = sim.send(method, path, "");
        assert_eq!((reply.status, reply.header("allow")), (405, Some(allow)), "{method} {path}");
    }
    for path in ["/sim/", "/sim/nothing", "/sim/wechat/", "/sns/jscode2session/", "/nothing"] {
        assert_eq!(sim.get(path).status, 404, "{path}");
    }
    let head = sim.send("HEAD", "/sim/healthz", "");
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[test]
fn bodies_and_heads_have_a_limit_and_the_next_request_is_served() {
    let sim = Sim::start();
    for bytes in [(64 << 10) + 1, 1 << 20] {
        assert_eq!(sim.post("/sim/wechat/login", &"x".repeat(bytes)).status, 413);
    }
    let padded = format!("{{\"user\":\"a\"}}{}", " ".repeat(60 << 10));
    assert_eq!(sim.post("/sim/wechat/login", &padded).status, 200);
    let head = format!("GET /?{} HTTP/1.1\r\n\r\n", "x".repeat(200 << 10));
    // Refused while it is still being written: the client sees 4xx or a broken connection.
    if let Ok(raw) = request(sim.addr(), &head) {
        assert!(raw.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&raw));
    }
    assert!(request(sim.addr(), "\0\r\n\r\n").expect("an answer").starts_with(b"HTTP/1.1 400"));
    assert_eq!(sim.exchange(&"x".repeat(30_000)).errcode(), 40029);
    sim.exchange(&sim.code()).openid();
}

#[test]
fn the_page_says_loudly_what_it_is() {
    let sim = Sim::start();
    let page = sim.get("/").text();
    assert!(page.starts_with("THIS IS A SIMULATOR. It logs anyone in as anyone."), "{page}");
}

#[test]
fn users_beyond_the_capacity_are_refused() {
    let sim = Sim::with(|config| config.capacity = 2);
    for (user, status) in [("a", 200), ("b", 200), ("c", 507), ("a", 200)] {
        let reply = sim.post("/sim/wechat/login", &json!({ "user": user }).to_string());
        assert_eq!(reply.status, status, "{user}");
    }
}

#[test]
fn no_more_than_a_thousand_faults_are_armed() {
    let sim = Sim::start();
    for _ in 0..1000 {
        let fault = edgepass_sim::Fault::new(edgepass_sim::Kind::Reset {});
        sim.faults().arm(fault).expect("room");
    }
    assert_eq!(sim.post("/sim/faults", r#"{"kind":"reset"}"#).status, 409);
}
