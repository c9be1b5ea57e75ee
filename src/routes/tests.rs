//! The routes over a store in memory, a platform that answers from a script and a standing clock.

mod cors;
mod devices;
mod idempotency;
mod limit;
mod logout_all;
mod oauth;
mod openapi;
mod operators;
mod refresh;
mod shadow;
mod sweep;
mod verify;

use std::{cell::Cell, pin::pin, task::Poll, time::Duration};

use serde_json::{Value, json};

use crate::{
    clock::UnixSeconds,
    config::{
        Realm,
        tests::{ACTIVE_KEY, OLDER_KEY, SUBJECT_KEY, settings},
    },
    host::Level,
    message::{Head, MAX_TARGET_BYTES, Request, Response},
    outbound::{Call, Reply, SendError, SendErrorKind},
    service::Service,
    session::{Epoch, SessionId},
    store::{StoreError, envelope, key::Layout},
    testing::{
        CannedHttp, SeededRandom, TestHost, block_on,
        contract::{Answer, Contract},
        poll_once, reply,
    },
    token::keys::Subject,
};

const OPENID: &str = "oCanaryOpenid";
const UNIONID: &str = "CanaryUnionid";
const SESSION_KEY: &str = "Q2FuYXJ5U2Vzc2lvbg==";
const SECRET: &str = "CanarySecret";

/// A service, and what is around it.
struct World {
    host: TestHost,
    service: Service<TestHost>,
}

impl World {
    fn with(changes: &[(&str, &str)]) -> Self {
        Self::on(TestHost::new(CannedHttp::answering(|call| Ok(accept(call)))), changes)
    }

    fn new() -> Self {
        Self::with(&[])
    }

    fn on(host: TestHost, changes: &[(&str, &str)]) -> Self {
        let mut all = settings(changes);
        for (name, value) in [
            ("master_key", ACTIVE_KEY),
            ("subject_key", SUBJECT_KEY),
            ("wechat_appid", "wx1"),
            ("wechat_secret", SECRET),
            ("wechat_base_url", "http://127.0.0.1:9"),
            ("log_sample", "1"),
        ] {
            if !changes.iter().any(|(changed, _)| *changed == name) {
                all.push((name.to_owned(), value.to_owned()));
            }
        }
        let service = Service::new(host.clone(), &all);
        Self { host, service }
    }

    /// Another node over the same store.
    fn beside(&self, changes: &[(&str, &str)]) -> Self {
        Self::on(self.host.clone(), changes)
    }

    fn send(&self, method: &str, target: &str, fields: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Response {
        let response = block_on(self.service.handle(request(method, target, fields, body)));
        as_documented(method, target, &response);
        self.host.settle();
        response
    }

    fn log_in(&self, code: &str) -> Response {
        self.send("POST", "/api/login", &[], json!({ "code": code }).to_string())
    }

    fn logged_in(&self, code: &str) -> Value {
        let response = self.log_in(code);
        assert_eq!(response.status, 200, "{}", text(&response));
        body(&response)
    }

    fn with_token(&self, method: &str, target: &str, token: &Value) -> Response {
        let bearer = format!("Bearer {}", token.as_str().unwrap_or_default());
        self.send(method, target, &[("authorization", &bearer)], "")
    }

    fn answering(&self, answer: impl Fn(&Call) -> Result<Reply, SendError> + 'static) -> &Self {
        self.host.http.now_answers(answer);
        self
    }

    fn calls(&self) -> usize {
        self.host.http.urls().len()
    }

    fn keys(&self, kind: &str) -> Vec<String> {
        let prefix = format!("edgepass/default/{kind}/");
        self.host.store.keys().into_iter().filter(|key| key.starts_with(&prefix)).collect()
    }
}

fn request(method: &str, target: &str, fields: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Request {
    let mut head = Head::new();
    for (name, value) in fields {
        head.push(name, value);
    }
    Request { method: method.to_owned(), target: target.to_owned(), head, body: body.into() }
}

/// Every answer is one `/openapi.json` has; a target that is too long is refused before its
/// path is looked at.
fn as_documented(method: &str, target: &str, response: &Response) {
    thread_local!(static CONTRACT: Contract = Contract::new());
    let header = |name: &str| response.head.get(name).map(str::to_owned);
    let answer = Answer { status: response.status, header: &header, body: &response.body };
    let judged = CONTRACT.with(|contract| contract.judge(method, target, &answer));
    assert!(judged.is_ok() || target.len() > MAX_TARGET_BYTES, "{method} {target}: {judged:?}");
}

/// The platform takes any code; the user is in it, before the first dash.
fn accept(call: &Call) -> Reply {
    let code = call.url.split("js_code=").nth(1).and_then(|rest| rest.split(['-', '&']).next()).unwrap_or_default();
    reply(200, json!({"openid": format!("{OPENID}{code}"), "session_key": SESSION_KEY}).to_string())
}

/// The same for an owner's app: the user is known across apps.
fn accept_with_unionid(call: &Call) -> Reply {
    let mut answer: Value = serde_json::from_slice(&accept(call).body).expect("JSON");
    answer["unionid"] = UNIONID.into();
    reply(200, answer.to_string())
}

fn text(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

fn body(response: &Response) -> Value {
    serde_json::from_slice(&response.body).expect("JSON")
}

/// Status and code of a problem.
fn problem(response: &Response) -> (u16, String) {
    assert_eq!(response.head.get("content-type"), Some("application/problem+json"), "{}", text(response));
    (response.status, body(response)["code"].as_str().unwrap_or_default().to_owned())
}

fn failing(code: &str, status: u16) -> (u16, String) {
    (status, code.to_owned())
}

#[test]
fn a_code_becomes_a_session() {
    let world = World::new();
    let response = world.log_in("alice-1");
    let granted = body(&response);
    let names: Vec<_> = granted.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["access_token", "expires_in", "refresh_expires_in", "refresh_token", "session", "token_type", "user"]
    );
    assert_eq!((&granted["token_type"], &granted["expires_in"]), (&json!("Bearer"), &json!(600)));
    assert_eq!(granted["refresh_expires_in"], 30 * 86_400, "unused, a session ends before its absolute end");
    assert_eq!(granted["session"]["created_at"], "2023-11-14T22:13:20Z");
    assert_eq!(granted["session"]["expires_at"], "2024-02-12T22:13:20Z");
    let user = &granted["user"];
    assert_eq!((&user["is_new"], &user["app"], &user["platform"]), (&json!(true), &json!("wechat"), &json!("wechat")));
    assert_eq!(response.head.get("cache-control"), Some("no-store"));

    let shown = body(&world.with_token("GET", "/api/session", &granted["access_token"]));
    assert_eq!(
        shown,
        json!({
            "session": {
                "id": granted["session"]["id"], "app": "wechat", "platform": "wechat",
                "created_at": "2023-11-14T22:13:20Z", "last_seen_at": "2023-11-14T22:13:20Z",
                "expires_at": "2024-02-12T22:13:20Z",
            },
            "user": {"id": user["id"]},
        })
    );
}

#[test]
fn the_platform_is_asked_once_and_with_four_parameters() {
    let world = World::new();
    world.log_in("x&appid=other");
    assert_eq!(
        world.host.http.urls(),
        [format!(
            "http://127.0.0.1:9/sns/jscode2session?appid=wx1&secret={SECRET}&js_code=x%26appid%3Dother\
             &grant_type=authorization_code"
        )]
    );
    let call = world.host.http.last().expect("a call");
    assert!(call.exclusive.is_some() && call.body.is_empty() && call.method == "GET");
}

#[test]
fn a_spent_code_is_known_on_every_node_and_under_every_key() {
    let world = World::new();
    let granted = world.logged_in("alice-1");
    let nodes = [
        world.beside(&[]),
        world.beside(&[("master_key", &format!("{ACTIVE_KEY},{OLDER_KEY}"))]),
        world.beside(&[("master_key", &format!("{OLDER_KEY},{ACTIVE_KEY}"))]),
    ];
    for node in &nodes {
        assert_eq!(problem(&node.log_in("alice-1")), failing("code_used", 401));
        assert_eq!(
            node.with_token("GET", "/api/session", &granted["access_token"]).status,
            200,
            "and reads its tokens"
        );
    }
    assert_eq!(world.with_token("POST", "/api/logout", &granted["access_token"]).status, 204);
    assert!(world.keys("s").is_empty() && world.keys("x").len() == 1);
    for node in &nodes {
        assert_eq!(problem(&node.log_in("alice-1")), failing("code_used", 401), "a tombstone is memory enough");
    }
    assert_eq!(world.calls(), 1);
    assert_eq!(nodes[2].logged_in("alice-2")["user"]["id"], granted["user"]["id"], "users outlive keys");
}

#[test]
fn a_code_under_way_is_not_sent_again() {
    let world = World::new();
    world.host.http.hold(true);
    let login = || request("POST", "/api/login", &[], r#"{"code":"alice-1"}"#);
    let mut first = pin!(world.service.handle(login()));
    assert!(poll_once(&mut first).is_pending());
    let second = block_on(world.service.handle(login()));
    assert_eq!(problem(&second), failing("code_used", 401));
    assert_eq!(world.calls(), 1);
    world.host.http.hold(false);
    match poll_once(&mut first) {
        Poll::Ready(response) => assert_eq!(response.status, 200),
        Poll::Pending => unreachable!("the platform answers now"),
    }
}

#[test]
fn a_login_that_is_dropped_leaves_its_code_free() {
    let world = World::new();
    world.host.http.hold(true);
    {
        let mut left = pin!(world.service.handle(request("POST", "/api/login", &[], r#"{"code":"alice-1"}"#)));
        assert!(poll_once(&mut left).is_pending());
    }
    world.host.http.hold(false);
    assert_eq!(world.log_in("alice-1").status, 200);
}

#[test]
fn exchanges_of_an_app_are_capped() {
    let world = World::with(&[("app_concurrency", "1")]);
    world.host.http.hold(true);
    let mut first = pin!(world.service.handle(request("POST", "/api/login", &[], r#"{"code":"alice-1"}"#)));
    assert!(poll_once(&mut first).is_pending());
    let second = world.log_in("bob-1");
    assert_eq!(problem(&second), failing("overloaded", 503));
    assert_eq!((second.head.get("retry-after"), world.calls()), (Some("1"), 1));
}

#[test]
fn a_first_login_and_a_later_one_cost_so_many_store_calls() {
    let world = World::new();
    let cost = |code: &str| {
        let before = (world.host.store.keys_read(), world.host.store.changes_made());
        let response =
            block_on(world.service.handle(request("POST", "/api/login", &[], json!({ "code": code }).to_string())));
        assert_eq!(response.status, 200);
        (world.host.store.keys_read() - before.0, world.host.store.changes_made() - before.1)
    };
    assert_eq!(cost("zoe-1"), (8, 3), "the very first: f before, again, and read back; f written");
    assert_eq!(cost("alice-1"), (5, 2), "s, x, o, e, o again; o and s written");
    assert_eq!(cost("alice-2"), (4, 1));
    world.host.settle();
    let token = world.logged_in("alice-3")["access_token"].clone();
    let before = world.host.store.keys_read();
    assert_eq!(world.with_token("GET", "/api/verify/x", &token).status, 200);
    assert_eq!(world.host.store.keys_read() - before, 3);
    assert_eq!(world.keys("l").len(), 2, "the lists are written behind the answers");

    world.answering(|call| Ok(accept_with_unionid(call)));
    assert_eq!(cost("bob-1"), (5, 3), "s, x, o, e, y; o, y and s written");
    assert_eq!(cost("bob-2"), (4, 1));
}

#[test]
fn a_flood_of_bad_codes_writes_nothing() {
    let world = World::new();
    world.answering(|_| Ok(reply(200, r#"{"errcode":40029,"errmsg":"invalid code, rid: 1a-2b-3c"}"#)));
    for n in 0..500 {
        assert_eq!(problem(&world.log_in(&format!("garbage-{n}"))), failing("code_invalid", 401));
    }
    assert_eq!((world.host.store.keys().len(), world.host.store.changes_made()), (0, 0));
}

#[test]
fn every_refusal_has_its_code_and_keeps_the_platforms_words_to_itself() {
    for (errcode, code, status) in [
        (40029, "code_invalid", 401),
        (41008, "code_invalid", 401),
        (40163, "code_used", 401),
        (40226, "user_blocked", 403),
        (45011, "rate_limited", 429),
        (45009, "rate_limited", 429),
        (-1, "platform_busy", 503),
        (40013, "config", 500),
        (40125, "config", 500),
        (40164, "config", 500),
        (40243, "config", 500),
        (50002, "config", 500),
        (99_999, "platform_error", 502),
    ] {
        let world = World::new();
        let answer = json!({"errcode": errcode, "errmsg": "CanaryText, rid: 65f0-1a2b-3c4d"}).to_string();
        let response = world.answering(move |_| Ok(reply(200, answer.clone()))).log_in("alice-1");
        assert_eq!(problem(&response), failing(code, status), "{errcode}");
        let shown = body(&response);
        assert_eq!(
            (&shown["platform_code"], &shown["platform_request_id"]),
            (&json!(errcode), &json!("65f0-1a2b-3c4d"))
        );
        assert_eq!(response.head.get("retry-after").is_some(), matches!(status, 429 | 503));
        assert!(!text(&response).contains("Canary") && !world.host.log_text().contains("Canary"));
        let event: Value = serde_json::from_str(&world.host.lines.borrow()[0].1).expect("JSON");
        assert_eq!(
            (&event["event"], &event["code"], &event["platform_code"]),
            (&json!("login.fail"), &json!(code), &json!(errcode))
        );
        assert!(world.host.store.keys().is_empty());
    }
}

#[test]
fn what_is_no_answer_is_told_apart() {
    for (status, code, outward) in [
        (500, "platform_busy", 503),
        (503, "platform_busy", 503),
        (429, "rate_limited", 429),
        (302, "platform_error", 502),
    ] {
        let world = World::new();
        let response = world.answering(move |_| Ok(reply(status, "<html>"))).log_in("alice-1");
        assert_eq!(problem(&response), failing(code, outward), "{status}");
    }
    for (kind, code, status) in [
        (SendErrorKind::Timeout, "platform_timeout", 504),
        (SendErrorKind::Duplicate, "code_used", 401),
        (SendErrorKind::Unreachable, "platform_unavailable", 503),
        (SendErrorKind::Unresolved, "platform_unavailable", 503),
        (SendErrorKind::Broken, "platform_error", 502),
        (SendErrorKind::TooLarge, "platform_error", 502),
        (SendErrorKind::Tls, "platform_error", 502),
        (SendErrorKind::Busy, "overloaded", 503),
        (SendErrorKind::Denied, "config", 500),
    ] {
        let world = World::new();
        let response = world.answering(move |_| Err(SendError { kind, sent: true })).log_in("alice-1");
        assert_eq!(problem(&response), failing(code, status), "{kind}");
        assert_eq!(world.calls(), 1, "nothing is sent again");
        assert!(world.host.store.keys().is_empty());
    }
}

#[test]
fn a_kept_connection_that_was_closed_costs_no_login() {
    let world = World::new();
    let broken = Cell::new(true);
    let response = world
        .answering(move |_| {
            if broken.replace(false) {
                Err(SendError { kind: SendErrorKind::Broken, sent: false })
            } else {
                Ok(reply(200, r#"{"openid":"o-1","session_key":"a2V5"}"#))
            }
        })
        .log_in("alice-1");
    assert_eq!((response.status, world.calls()), (200, 2));
    // Once more, and no more than that.
    let world = World::new();
    let response = world.answering(|_| Err(SendError { kind: SendErrorKind::Broken, sent: false })).log_in("alice-1");
    assert_eq!((problem(&response), world.calls()), (failing("platform_error", 502), 2));
}

#[test]
fn users_are_joined_by_unionid_within_an_owner_only() {
    let apps = r#"[{"id":"a","platform":"wechat","appid":"wxa","secret":"s","owner":"us"},
                   {"id":"b","platform":"wechat","appid":"wxb","secret":"s","owner":"us"},
                   {"id":"c","platform":"wechat","appid":"wxc","secret":"s"}]"#;
    let world = World::with(&[("apps", apps), ("wechat_appid", ""), ("wechat_secret", "")]);
    world.answering(|call| {
        let openid = call.url.split("appid=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default();
        let unionid = if call.url.contains("js_code=plain") { "" } else { UNIONID };
        Ok(reply(200, json!({"openid": openid, "session_key": "k", "unionid": unionid}).to_string()))
    });
    let user = |app: &str, code: &str| {
        let response = world.send("POST", "/api/login", &[], json!({"app": app, "code": code}).to_string());
        let user = body(&response)["user"].clone();
        (user["id"].as_str().expect("a user").to_owned(), user["is_new"] == true)
    };
    let (first, new) = user("a", "1");
    assert!(new);
    assert_eq!(user("b", "2"), (first.clone(), false), "another app of one owner");
    assert_ne!(user("c", "3").0, first, "another owner");
    assert_eq!(user("a", "plain-4"), (first.clone(), false), "what is stored decides, also without a unionid");
    assert_eq!(user("a", "5"), (first, false));
}

#[test]
fn a_blocked_user_is_refused_and_nothing_is_written() {
    let world = World::new();
    let user = world.logged_in("alice-1")["user"]["id"].as_str().and_then(Subject::parse).expect("a subject");
    let epoch_key = Layout::new("default", Realm::Live).epoch(user);
    world.host.store.plant(&epoch_key, envelope::plain(&Epoch(0).blocked(), UnixSeconds(0)));
    let before = world.host.store.changes_made();
    assert_eq!(problem(&world.log_in("alice-2")), failing("user_blocked", 403));
    assert_eq!(world.host.store.changes_made(), before);

    // Blocked before the first login: the identity is not written either.
    for kind in ["o", "s", "l"] {
        for key in world.keys(kind) {
            block_on(crate::store::Store::apply(&world.host.store, vec![crate::store::Change::Delete { key }]))
                .expect("memory");
        }
    }
    assert_eq!(problem(&world.log_in("alice-3")), failing("user_blocked", 403));
    assert!(world.keys("o").is_empty());
}

#[test]
fn an_epoch_ends_the_sessions_before_it() {
    let world = World::new();
    let granted = world.logged_in("alice-1");
    let user = granted["user"]["id"].as_str().and_then(Subject::parse).expect("a subject");
    let epoch_key = Layout::new("default", Realm::Live).epoch(user);
    world.host.store.plant(&epoch_key, envelope::plain(&Epoch(5), UnixSeconds(0)));
    assert_eq!(
        problem(&world.with_token("GET", "/api/session", &granted["access_token"])),
        failing("token_invalid", 401)
    );
    let later = world.logged_in("alice-2");
    assert_eq!(world.with_token("GET", "/api/session", &later["access_token"]).status, 200);
    world.host.store.plant(&epoch_key, "not an epoch");
    let unreadable = world.with_token("GET", "/api/session", &later["access_token"]);
    assert_eq!(problem(&unreadable), failing("store_unavailable", 503), "never taken for absent");
    assert_eq!(problem(&world.log_in("alice-3")), failing("store_unavailable", 503));
}

#[test]
fn a_session_counts_only_where_it_was_written_and_while_it_lasts() {
    let world = World::with(&[("session_ttl", "20m")]);
    let granted = world.logged_in("alice-1");
    let other = world.logged_in("bob-1");
    let seen = |token: &Value| problem(&world.with_token("GET", "/api/session", token)).0;
    let key = |login: &Value| {
        Layout::new("default", Realm::Live)
            .session(login["session"]["id"].as_str().and_then(SessionId::parse).expect("a session"))
    };
    let kept = world.host.store.value(&key(&granted)).expect("stored");
    world.host.store.plant(&key(&granted), world.host.store.value(&key(&other)).expect("stored"));
    assert_eq!(seen(&granted["access_token"]), 401, "another's session in its place");
    let mut newer = kept.clone();
    newer[8] = 2;
    world.host.store.plant(&key(&granted), newer);
    assert_eq!(seen(&granted["access_token"]), 503, "a newer build's session may be good");
    world.host.store.plant(&key(&granted), kept);
    assert_eq!(world.with_token("GET", "/api/session", &granted["access_token"]).status, 200);
    let tombstone = key(&granted).replace("/s/", "/x/");
    world.host.store.plant(&tombstone, "whatever it says");
    assert_eq!(seen(&granted["access_token"]), 401);
    world.host.clock.advance(Duration::from_mins(10));
    assert_eq!(seen(&other["access_token"]), 401, "the token has ended");
}

#[test]
fn an_access_token_never_outlives_its_session() {
    let world = World::with(&[("session_ttl", "5m")]);
    let granted = world.logged_in("alice-1");
    assert_eq!((&granted["expires_in"], &granted["refresh_expires_in"]), (&json!(300), &json!(300)));
}

#[test]
fn verify_names_the_caller_or_nobody() {
    let apps = r#"[{"id":"shop","platform":"wechat","appid":"wx2","secret":"s"}]"#;
    let world = World::with(&[("apps", apps)]);
    let login = world.send("POST", "/api/login", &[], r#"{"code":"alice-1","app":"shop"}"#);
    let granted = body(&login);
    for method in ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "BREW"] {
        for target in ["/api/verify/", "/api/verify/a/b?mode=offline", "/api/verify/app/shop", "/api/verify/app/shop/x"]
        {
            let response = world.with_token(method, target, &granted["access_token"]);
            assert_eq!((response.status, response.body.len()), (200, 0), "{method} {target}");
            assert_eq!(response.head.get("x-edgepass-user"), granted["user"]["id"].as_str());
            assert_eq!(response.head.get("x-edgepass-session"), granted["session"]["id"].as_str());
            assert_eq!(response.head.get("x-edgepass-app"), Some("shop"));
        }
    }
    for target in ["/api/verify/app/wechat", "/api/verify/app/", "/api/verify/app/shop2/x", "/api/verify/app/sho%70/x"]
    {
        let response = world.with_token("GET", target, &granted["access_token"]);
        assert_eq!(problem(&response), failing("token_invalid", 401), "{target}");
        assert!(response.head.iter().all(|(name, _)| !name.starts_with("x-edgepass")));
    }
    assert_eq!(world.send("GET", "/api/verify", &[], "").status, 404);
}

#[test]
fn a22_f3_bearer_failures_have_one_shape_and_no_credentials_have_none() {
    let world = World::new();
    let granted = world.logged_in("alice-1");
    let good = format!("Bearer {}", granted["access_token"].as_str().unwrap_or_default());
    for target in ["/api/session", "/api/session?access_token=x", "/api/verify/"] {
        let bare = world.send("GET", target, &[], "");
        assert_eq!((bare.status, bare.head.get("www-authenticate")), (401, Some("Bearer")));
        assert!(body(&bare).get("code").is_none());
    }
    let refused = [
        world.send("GET", "/api/session", &[("authorization", "Bearer x")], ""),
        world.send("GET", "/api/session", &[("authorization", "Bearer ")], ""),
        world.send("GET", "/api/session", &[("authorization", &format!("{good}x"))], ""),
        world.send("GET", "/api/session", &[("authorization", &good), ("authorization", &good)], ""),
        world.send("GET", "/api/session", &[("authorization", &format!("Bearer {}", granted["refresh_token"]))], ""),
    ];
    for response in &refused {
        assert_eq!(response.head.get("www-authenticate"), Some(r#"Bearer error="invalid_token""#));
        let mut shown = body(response);
        shown["trace_id"] = Value::Null;
        assert_eq!(shown["code"], "token_invalid");
        assert_eq!(shown["detail"], body(&refused[0])["detail"]);
    }
}

#[test]
fn a_logout_ends_one_session_and_may_be_repeated() {
    let world = World::new();
    let (first, second) = (world.logged_in("alice-1"), world.logged_in("alice-2"));
    world.host.clock.advance(Duration::from_hours(24));
    for _ in 0..2 {
        assert_eq!(
            world.with_token("POST", "/api/logout", &first["access_token"]).status,
            204,
            "an expired token is enough"
        );
    }
    assert_eq!(world.host.log_text().matches("session.revoke").count(), 1);
    let refresh = |login: &Value| json!({"refresh_token": login["refresh_token"]}).to_string();
    assert_eq!((world.keys("s").len(), world.keys("x").len()), (1, 1));
    assert_eq!(world.send("POST", "/api/logout", &[], refresh(&second)).status, 204);
    assert_eq!(world.send("POST", "/api/logout", &[], refresh(&second)).status, 204);
    assert_eq!((world.keys("s").len(), world.keys("x").len()), (0, 2));
    for (sent, expected) in [
        ("{}", (401, String::new())),
        ("", (401, String::new())),
        (r#"{"refresh_token":"epr1_x"}"#, failing("refresh_invalid", 401)),
        (r#"{"refresh_token":1}"#, failing("bad_request", 400)),
    ] {
        assert_eq!(problem(&world.send("POST", "/api/logout", &[], sent)), expected, "{sent}");
    }
}

#[test]
fn a_logout_holds_where_the_session_is_not_seen_yet_and_writes_nothing_for_one_long_over() {
    let world = World::with(&[("session_ttl", "1h")]);
    let granted = world.logged_in("alice-1");
    let session = world.keys("s").remove(0);
    let value = world.host.store.value(&session).expect("stored");
    let hide = || {
        block_on(crate::store::Store::apply(
            &world.host.store,
            vec![crate::store::Change::Delete { key: session.clone() }],
        ))
    };
    hide().expect("memory");
    assert_eq!(world.with_token("POST", "/api/logout", &granted["access_token"]).status, 204);
    world.host.store.plant(&session, value);
    assert_eq!(
        world.with_token("GET", "/api/session", &granted["access_token"]).status,
        401,
        "a late write revives nothing"
    );

    let old = world.logged_in("bob-1");
    for key in world.keys("s") {
        block_on(crate::store::Store::apply(&world.host.store, vec![crate::store::Change::Delete { key }]))
            .expect("memory");
    }
    world.host.clock.advance(Duration::from_hours(2));
    let before = world.host.store.changes_made();
    assert_eq!(world.with_token("POST", "/api/logout", &old["access_token"]).status, 204);
    assert_eq!(world.host.store.changes_made(), before);
}

#[test]
fn a_store_that_fails_is_never_an_empty_one() {
    let world = World::new();
    let token = world.logged_in("alice-1")["access_token"].clone();
    let calls = world.calls();
    for failure in [StoreError::Unavailable, StoreError::Timeout, StoreError::Denied, StoreError::TooLarge] {
        world.host.store.fail(Some(failure));
        for response in [
            world.log_in("bob-1"),
            world.with_token("GET", "/api/session", &token),
            world.with_token("GET", "/api/verify/", &token),
            world.with_token("POST", "/api/logout", &token),
        ] {
            assert_eq!(problem(&response), failing("store_unavailable", 503));
            assert_eq!(response.head.get("retry-after"), Some("1"));
        }
    }
    assert_eq!(world.calls(), calls, "a code is not spent while nothing can be stored");
    world.host.store.fail(None);
    assert_eq!(world.log_in("bob-1").status, 200);
}

#[test]
fn readiness_names_settings_and_asks_the_store_once_a_second() {
    let world = World::new();
    assert_eq!(body(&world.send("GET", "/readyz", &[], ""))["status"], "ready");
    world.host.store.fail(Some(StoreError::Unavailable));
    assert_eq!(world.send("GET", "/readyz", &[], "").status, 200, "remembered for a second");
    world.host.clock.advance(Duration::from_secs(1));
    let unready = world.send("GET", "/readyz", &[], "");
    assert_eq!((unready.status, body(&unready)["store"].as_str()), (503, Some("unavailable")));
    assert_eq!(world.send("GET", "/healthz", &[], "").status, 200);
}

#[test]
fn a_wrong_setting_is_named_and_nothing_is_called() {
    let world = World::with(&[("master_key", "Canary1"), ("session_ttl", "Canary2"), ("canary_setting", "Canary3")]);
    let ready = world.send("GET", "/readyz", &[], "");
    assert_eq!(ready.status, 503);
    assert_eq!(
        body(&ready),
        json!({"status": "not_ready", "settings": ["master_key", "session_ttl"], "unknown_settings": 1, "store": "unchecked"})
    );
    for response in [
        world.log_in("alice-1"),
        world.send("GET", "/api/session", &[("authorization", "Bearer x")], ""),
        world.send("POST", "/api/logout", &[("authorization", "Bearer x")], ""),
    ] {
        assert_eq!(problem(&response), failing("config", 500));
    }
    assert_eq!((world.calls(), world.host.store.keys().len()), (0, 0));
    let log = world.host.log_text();
    assert_eq!(log.matches("config.problem").count(), 1);
    assert!(["master_key", "session_ttl", "canary_setting"].iter().all(|name| log.contains(name)));
    assert!(!log.contains("Canary"), "{log}");
    assert_eq!(world.service.describe().problems.len(), 3);
}

#[test]
fn the_description_names_what_is_read_and_what_apps_refer_to() {
    let apps = r#"[{"id":"shop","platform":"wechat","appid":"wx2","secret_variable":"shop_secret"}]"#;
    let world = World::with(&[("apps", apps), ("shop_secret", "s")]);
    let described = world.service.describe();
    assert!(described.problems.is_empty() && described.settings.contains(&"shop_secret".to_owned()));
    assert!(described.settings.contains(&"master_key".to_owned()));
    for field in ["authorization", "content-type", "idempotency-key", "if-none-match", "x-env", "x-edgepass-load-token"]
    {
        assert!(described.reads.iter().any(|name| name == field), "{field}");
    }
    assert!(described.reads.iter().all(|name| *name == name.to_ascii_lowercase()), "hosts compare in lower case");
    assert_eq!(body(&world.send("GET", "/version", &[], ""))["version"], described.version.as_str());
}

#[test]
fn one_code_logs_in_many_times_where_that_was_asked_for() {
    let world = World::with(&[("reusable_codes", "true")]);
    let (first, second) = (world.logged_in("0a1b2c3d"), world.logged_in("0a1b2c3d"));
    assert_ne!(first["session"]["id"], second["session"]["id"]);
    assert_eq!(first["user"]["id"], second["user"]["id"]);
    assert!(world.host.http.last().is_some_and(|call| call.exclusive.is_none()), "nor is one call kept from another");
}

#[test]
fn f8_routes_methods_and_bodies_that_are_none_are_told() {
    let world = World::new();
    for target in
        ["/", "", "*", "/api", "/api/login/", "/API/login", "//api/login", "/api/verify", "/api/verify-offline"]
    {
        assert_eq!(problem(&world.send("GET", target, &[], "")), failing("not_found", 404), "{target}");
    }
    for (method, target, allow) in [
        ("GET", "/api/login", "POST"),
        ("PUT", "/api/logout", "POST"),
        ("POST", "/api/session", "GET, HEAD"),
        ("", "/readyz", "GET, HEAD"),
    ] {
        let response = world.send(method, target, &[], "");
        assert_eq!(problem(&response), failing("method_not_allowed", 405));
        assert_eq!(response.head.get("allow"), Some(allow), "{method} {target}");
    }
    assert_eq!(world.send("HEAD", "/version", &[], "").status, 200);
    assert_eq!(world.send("GET", &format!("/version?{}", "q".repeat(5000)), &[], "").status, 400);
    let long = format!(r#"{{"code":"{}"}}"#, "c".repeat(16 * 1024));
    assert_eq!(problem(&world.send("POST", "/api/login", &[], long)), failing("payload_too_large", 413));
    let xml = world.send("POST", "/api/login", &[("content-type", "text/xml")], r#"{"code":"a"}"#);
    assert_eq!(problem(&xml), failing("unsupported_media_type", 415));
    for sent in [
        r#"{"code":""}"#.to_owned(),
        r#"{"code":"a\u0000"}"#.to_owned(),
        r#"{"code":"a\n"}"#.to_owned(),
        json!({"code": "c".repeat(513)}).to_string(),
        json!({"code": "c", "device": {"id": "d".repeat(129)}}).to_string(),
        json!({"code": "c", "device": {"label": "\u{7f}"}}).to_string(),
        json!({"code": "c", "device": "d"}).to_string(),
        json!({"code": "c", "app": 1}).to_string(),
        r#"{"code":"c","code":"c"}"#.to_owned(),
        r#"{"code":"c","x":{"y":1,"y":2}}"#.to_owned(),
        format!(r#"{{"code":"c","x":{}{}}}"#, "[".repeat(32), "]".repeat(32)),
    ] {
        assert_eq!(
            problem(&world.send("POST", "/api/login", &[], sent.clone())),
            failing("bad_request", 400),
            "{sent:.60}"
        );
    }
    for sent in [
        r#"{"code":"c","app":"nobody"}"#,
        r#"{"code":"c","platform":"alipay"}"#,
        r#"{"code":"c","app":"wechat","platform":"alipay"}"#,
    ] {
        assert_eq!(problem(&world.send("POST", "/api/login", &[], sent)), failing("app_unknown", 400), "{sent}");
    }
    assert_eq!((world.calls(), world.host.store.keys().len()), (0, 0));
}

#[test]
fn any_bytes_as_a_request_get_a_clear_4xx() {
    let world = World::new();
    let random = SeededRandom::new(11);
    let pieces: [&[u8]; 16] = [
        b"{",
        b"}",
        b"[",
        b"]",
        b"\"code\"",
        b":",
        b",",
        b"\"a\"",
        b"null",
        b"1e999",
        b"\\u0000",
        b"\xff",
        b"\"",
        b" ",
        b"\"device\"",
        b"-",
    ];
    for _ in 0..5000 {
        let length = random.next() % 24;
        let sent: Vec<u8> =
            (0..length).flat_map(|_| pieces[usize::try_from(random.next() % 16).expect("small")]).copied().collect();
        let is_login = serde_json::from_slice::<Value>(&sent).is_ok_and(|value| value["code"].as_str().is_some());
        let response = world.send("POST", "/api/login", &[], sent.clone());
        if !is_login {
            assert_eq!(problem(&response), failing("bad_request", 400), "{:?}", String::from_utf8_lossy(&sent));
        }
        let as_token = String::from_utf8_lossy(&sent).into_owned();
        let response = world.send("GET", "/api/session", &[("authorization", &format!("Bearer {as_token}"))], "");
        assert_eq!(response.status, 401);
    }
}

#[test]
fn every_answer_carries_the_trace() {
    let world = World::new();
    for target in ["/healthz", "/nowhere", "/api/session"] {
        let response = world.send("GET", target, &[("x-trace-id", "t-1")], "");
        assert_eq!(response.head.get("x-trace-id"), Some("t-1"));
        assert!(response.head.get("traceparent").is_some_and(|parent| parent.len() == 55));
    }
    assert_eq!(body(&world.send("GET", "/nowhere", &[("x-trace-id", "t-2")], ""))["trace_id"], "t-2");
}

#[test]
fn stages_are_told_only_when_asked_for() {
    assert_eq!(World::new().log_in("alice-1").head.get("server-timing"), None);
    let world = World::with(&[("server_timing", "true")]);
    let told = world.log_in("alice-1");
    let told = told.head.get("server-timing").expect("asked for");
    assert!(
        ["parse;dur=", "platform;dur=", "store;dur=", "sign;dur="].iter().all(|stage| told.contains(stage)),
        "{told}"
    );
}

#[test]
fn successes_are_sampled_and_failures_are_not() {
    let world = World::with(&[("log_sample", "0")]);
    world.logged_in("alice-1");
    world.send("GET", "/healthz", &[], "");
    world.send("BREW\n", "/nowhere\u{1b}[31m", &[("x-trace-id", "t-1")], "");
    let lines = world.host.lines.borrow();
    let events: Vec<Value> = lines.iter().map(|(_, line)| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["login.ok", "request"]);
    assert_eq!((lines[0].0, lines[1].0), (Level::Info, Level::Warn));
    let failed = &events[1];
    assert_eq!(
        (&failed["status"], &failed["route"], &failed["method"]),
        (&json!(404), &json!("none"), &json!("_OTHER"))
    );
    assert_eq!((&failed["trace_id"], &failed["code"]), (&json!("t-1"), &json!("not_found")));
}

#[test]
fn nothing_secret_is_answered_logged_or_stored_in_clear() {
    let world = World::new();
    world.answering(|_| {
        Ok(reply(200, json!({"openid": OPENID, "session_key": SESSION_KEY, "unionid": UNIONID}).to_string()))
    });
    let login = world.log_in("CanaryCode");
    let granted = body(&login);
    let token = &granted["access_token"];
    let mut seen = vec![
        world.with_token("GET", "/api/session", token),
        world.with_token("GET", "/api/verify/", token),
        world.log_in("CanaryCode"),
        world.send("GET", "/api/session", &[("authorization", "Bearer CanaryToken")], ""),
    ];
    world.answering(|_| Ok(reply(200, r#"{"errcode":40125,"errmsg":"CanarySecret"}"#)));
    seen.push(world.log_in("CanaryCode2"));
    seen.push(world.with_token("POST", "/api/logout", token));
    seen.push(world.send("GET", "/CanaryPath?CanaryQuery", &[("x-trace-id", "Canary Trace")], ""));
    seen.push(login);

    let claims = token.as_str().and_then(|token| token.split('.').nth(1)).expect("three parts");
    let claims = <base64ct::Base64UrlUnpadded as base64ct::Encoding>::decode_vec(claims).expect("base64url");
    let sid = granted["session"]["id"].as_str().expect("a session");
    let hidden = ["Canary", SESSION_KEY];
    for canary in hidden {
        for response in &seen {
            assert!(
                !text(response).contains(canary)
                    && !format!("{:?}", response.head.iter().collect::<Vec<_>>()).contains(canary)
            );
        }
        assert!(!String::from_utf8_lossy(&claims).contains(canary));
        for key in world.host.store.keys() {
            let value = world.host.store.value(&key).expect("listed");
            assert!(!key.contains(canary) && !value.windows(canary.len()).any(|window| window == canary.as_bytes()));
        }
    }
    let log = world.host.log_text();
    for secret in [
        SESSION_KEY,
        "Canary",
        token.as_str().expect("a token"),
        granted["refresh_token"].as_str().expect("one"),
        sid,
        granted["user"]["id"].as_str().expect("a user"),
    ] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
    assert!(["login.ok", "login.fail", "session.revoke", "sid_hash", "uid_hash"].iter().all(|part| log.contains(part)));
}
