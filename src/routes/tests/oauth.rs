//! Introspection and revocation, as properties F1 to F5 of the checklist have them.

use base64ct::{Base64, Encoding as _};

use super::*;

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// Two apps, a client for each and one for both. The third secret has what needs encoding.
fn world() -> World {
    World::with(&[
        (
            "apps",
            r#"[{"id":"one","platform":"wechat","appid":"wx-one","secret":"s","audience":"api-one"},
                {"id":"two","platform":"wechat","appid":"wx-two","secret":"s"}]"#,
        ),
        ("wechat_appid", ""),
        ("wechat_secret", ""),
        ("issuer", "https://login.example"),
        (
            "clients",
            &json!([
                {"id": "back-one", "secret": secret("one"), "apps": ["one"]},
                {"id": "back-two", "secret": secret("two"), "apps": ["two"]},
                {"id": "both", "secret": secret("a%2Bb+:"), "apps": ["one", "two"]},
            ])
            .to_string(),
        ),
    ])
}

fn secret(of: &str) -> String {
    format!("{of}-CanaryClientSecretOf32Characters")
}

fn basic(id: &str, secret: &str) -> String {
    format!("Basic {}", Base64::encode_string(format!("{id}:{secret}").as_bytes()))
}

impl World {
    fn logged_in_at(&self, app: &str, code: &str) -> Value {
        let response = self.send("POST", "/api/login", &[], json!({"app": app, "code": code}).to_string());
        assert_eq!(response.status, 200, "{}", text(&response));
        body(&response)
    }

    /// Posts a form as a client, or as nobody.
    fn form(&self, target: &str, client: Option<&str>, form: &str) -> Response {
        match client {
            Some(client) => self.send("POST", target, &[FORM, ("authorization", client)], form),
            None => self.send("POST", target, &[FORM], form),
        }
    }

    fn introspect(&self, client: &str, token: &Value) -> Value {
        let client = basic(client, &secret(if client == "both" { "a%2Bb+:" } else { &client[5..] }));
        let form = format!("token={}", token.as_str().unwrap_or_default());
        let response = self.form("/oauth/introspect", Some(&client), &form);
        assert_eq!(
            (response.status, response.head.get("cache-control")),
            (200, Some("no-store")),
            "{}",
            text(&response)
        );
        body(&response)
    }

    fn revoke(&self, token: &Value) -> Response {
        self.form("/oauth/revoke", None, &format!("token={}", token.as_str().unwrap_or_default()))
    }
}

/// Status and `error` of an OAuth error, which has these two members and no others.
fn oauth_error(response: &Response) -> (u16, String) {
    assert_eq!(response.head.get("content-type"), Some("application/json"), "{}", text(response));
    let shown = body(response);
    let members: Vec<_> = shown.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(members, ["error", "error_description"]);
    (response.status, shown["error"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn f2_an_active_access_token_says_whose_it_is_and_for_what() {
    let world = world();
    world.answering(|_| {
        Ok(reply(200, json!({"openid": "o-1", "unionid": "u-1", "session_key": SESSION_KEY}).to_string()))
    });
    let granted = world.logged_in_at("one", "alice-1");
    let mut shown = world.introspect("back-one", &granted["access_token"]);
    let jti = shown["jti"].take();
    assert!(jti.as_str().is_some_and(|jti| jti.len() >= 16), "{jti}");
    assert_eq!(
        shown,
        json!({
            "active": true, "sub": granted["user"]["id"], "sid": granted["session"]["id"], "client_id": "one",
            "iss": "https://login.example", "aud": "api-one", "iat": 1_700_000_000, "exp": 1_700_000_600,
            "token_type": "Bearer", "jti": null, "platform": "wechat", "appid": "wx-one", "openid": "o-1",
            "unionid": "u-1",
        })
    );
}

#[test]
fn f2_introspecting_a_refresh_token_is_not_a_use_of_it() {
    let world = world();
    let granted = world.logged_in_at("one", "alice-1");
    let first = &granted["refresh_token"];
    let refresh = |token: &Value| {
        let response = world.send("POST", "/api/token/refresh", &[], json!({"refresh_token": token}).to_string());
        (response.status, body(&response)["refresh_token"].clone())
    };
    let before = world.host.store.changes_made();
    let shown = world.introspect("back-one", first);
    assert_eq!((&shown["active"], &shown["token_type"]), (&json!(true), &json!("refresh_token")));
    assert_eq!((&shown["iat"], &shown["exp"]), (&json!(1_700_000_000), &json!(1_700_000_000 + 30 * 86_400)));
    assert_eq!((&shown["aud"], shown.get("jti")), (&json!("https://login.example"), None));
    assert_eq!(world.host.store.changes_made(), before);

    world.host.clock.advance(Duration::from_hours(1));
    let (status, second) = refresh(first);
    assert_eq!(status, 200);
    let shown = world.introspect("back-one", &second);
    assert_eq!((&shown["iat"], &shown["exp"]), (&json!(1_700_003_600), &json!(1_700_003_600 + 30 * 86_400)));
    assert_eq!(
        world.introspect("back-one", first)["active"],
        true,
        "within the grace time it still gives the successor"
    );
    world.host.clock.advance(Duration::from_secs(61));
    assert_eq!(world.introspect("back-one", first), json!({"active": false}));
    assert_eq!(refresh(&second).0, 200, "asking about the spent one has ended nothing");
}

#[test]
fn f2_an_inactive_token_says_nothing_else() {
    let world = world();
    let granted = world.logged_in_at("one", "alice-1");
    let ended = world.logged_in_at("one", "bob-1");
    assert_eq!(world.with_token("POST", "/api/logout", &ended["access_token"]).status, 204);
    let forged = format!("{}A", granted["refresh_token"].as_str().expect("a token"));
    for (client, token) in [
        ("back-one", &json!("unknown")),
        ("back-one", &json!("epr1_AAAA")),
        ("back-one", &json!(forged)),
        ("back-one", &ended["access_token"]),
        ("back-one", &ended["refresh_token"]),
        ("back-two", &granted["access_token"]),
        ("back-two", &granted["refresh_token"]),
    ] {
        assert_eq!(world.introspect(client, token), json!({"active": false}), "{client} {token}");
    }
    assert_eq!(world.introspect("both", &granted["access_token"])["active"], true);
    world.host.clock.advance(Duration::from_mins(10));
    assert_eq!(world.introspect("back-one", &granted["access_token"]), json!({"active": false}));
}

#[test]
fn f2_f9_a_caller_proves_who_it_is_before_anything_else_is_said() {
    let world = world();
    let token = world.logged_in_at("one", "alice-1")["access_token"].clone();
    let form = format!("token={}", token.as_str().expect("a token"));
    let bearer = format!("Bearer {}", token.as_str().expect("a token"));
    let good = basic("back-one", &secret("one"));
    let wrong = [
        basic("back-one", &secret("two")),
        basic("nobody", &secret("one")),
        basic("back-one", ""),
        basic("", ""),
        basic("BACK-ONE", &secret("one")),
        good.replace("Basic ", "Basic"),
        good.replace("Basic", "Bearer"),
        format!("{good}="),
        "Basic".to_owned(),
        "Basic %%%".to_owned(),
        "Basic YTpi/w==".to_owned(),
        bearer,
    ];
    let mut shapes = std::collections::BTreeSet::new();
    let mut refused = |response: &Response| {
        assert_eq!(oauth_error(response), failing("invalid_client", 401));
        assert_eq!(response.head.get("www-authenticate"), Some(r#"Basic realm="edgepass", charset="UTF-8""#));
        shapes.insert(text(response));
    };
    for wrong in &wrong {
        refused(&world.form("/oauth/introspect", Some(wrong), &form));
        refused(&world.form("/oauth/introspect", Some(wrong), "nothing"));
        refused(&world.form("/oauth/revoke", Some(wrong), &form));
    }
    refused(&world.form("/oauth/introspect", None, &form));
    refused(&world.form(
        "/oauth/introspect",
        None,
        &format!("{form}&client_id=back-one&client_secret={}", secret("one")),
    ));
    refused(&world.send(
        "POST",
        "/oauth/introspect",
        &[FORM, ("authorization", &good), ("authorization", &good)],
        form.clone(),
    ));
    assert_eq!(shapes.len(), 1, "which of it was wrong is not said: {shapes:?}");
    assert_eq!(world.with_token("GET", "/api/session", &token).status, 200, "nothing was revoked");

    let encoded = basic("both", &secret("a%2Bb+:").replace('%', "%25").replace('+', "%2B").replace(':', "%3A"));
    for proof in [good.clone(), good.replace("Basic", "bAsIc"), basic("both", &secret("a%2Bb+:")), encoded] {
        assert_eq!(world.form("/oauth/introspect", Some(&proof), &form).status, 200, "{proof}");
    }
}

#[test]
fn f2_a_token_is_taken_from_the_body_only() {
    let world = world();
    let token = world.logged_in_at("one", "alice-1")["access_token"].clone();
    let good = basic("back-one", &secret("one"));
    let target = format!("/oauth/introspect?token={}", token.as_str().expect("a token"));
    assert_eq!(oauth_error(&world.form(&target, Some(&good), "")), failing("invalid_request", 400));
    assert_eq!(body(&world.form(&target, Some(&good), "token=x")), json!({"active": false}));
}

#[test]
fn f1_either_token_ends_the_session_and_the_hint_is_only_a_hint() {
    let world = world();
    for (at, (token, hint)) in [
        ("access_token", ""),
        ("refresh_token", ""),
        ("access_token", "&token_type_hint=refresh_token"),
        ("refresh_token", "&token_type_hint=access_token"),
        ("refresh_token", "&token_type_hint=device_token&state=x"),
    ]
    .into_iter()
    .enumerate()
    {
        let granted = world.logged_in_at("one", &format!("alice-{at}"));
        let form = format!("token={}{hint}", granted[token].as_str().expect("a token"));
        let response = world.form("/oauth/revoke", None, &form);
        assert_eq!((response.status, response.body.len()), (200, 0), "{token}{hint}: {}", text(&response));
        assert_eq!(world.with_token("GET", "/api/session", &granted["access_token"]).status, 401, "{token}{hint}");
        assert_eq!(world.introspect("back-one", &granted["refresh_token"]), json!({"active": false}));
    }
    assert_eq!(world.host.log_text().matches(r#""event":"session.revoke""#).count(), 5);
}

#[test]
fn f1_a_token_that_is_unknown_expired_or_revoked_is_answered_200() {
    let world = world();
    let granted = world.logged_in_at("one", "alice-1");
    for token in [json!("unknown"), json!("a.b.c"), json!("epr1_AAAA"), granted["access_token"].clone()] {
        for _ in 0..2 {
            let response = world.revoke(&token);
            assert_eq!((response.status, response.body.len()), (200, 0), "{token}");
            assert_eq!(response.head.get("cache-control"), Some("no-store"));
        }
    }
    let expired = world.logged_in_at("one", "bob-1");
    world.host.clock.advance(Duration::from_hours(1));
    assert_eq!(world.revoke(&expired["access_token"]).status, 200);
    assert_eq!(
        world.introspect("back-one", &expired["refresh_token"]),
        json!({"active": false}),
        "its session ends all the same"
    );
}

#[test]
fn f1_a_client_that_names_itself_is_held_to_its_apps() {
    let world = world();
    let granted = world.logged_in_at("one", "alice-1");
    let foreign = basic("back-two", &secret("two"));
    for token in ["access_token", "refresh_token"] {
        let form = format!("token={}", granted[token].as_str().expect("a token"));
        let response = world.form("/oauth/revoke", Some(&foreign), &form);
        assert_eq!(oauth_error(&response), failing("unauthorized_client", 400));
        assert_eq!(world.with_token("GET", "/api/session", &granted["access_token"]).status, 200);
    }
    let unknown = world.form("/oauth/revoke", Some(&foreign), "token=unknown");
    assert_eq!(unknown.status, 200);
    let form = format!("token={}", granted["refresh_token"].as_str().expect("a token"));
    assert_eq!(world.form("/oauth/revoke", Some(&basic("back-one", &secret("one"))), &form).status, 200);
    assert_eq!(world.with_token("GET", "/api/session", &granted["access_token"]).status, 401);
}

#[test]
fn f1_while_the_store_is_down_the_token_must_be_taken_for_live() {
    let world = world();
    let granted = world.logged_in_at("one", "alice-1");
    let good = basic("back-one", &secret("one"));
    world.host.store.fail(Some(StoreError::Unavailable));
    for token in ["access_token", "refresh_token"] {
        let form = format!("token={}", granted[token].as_str().expect("a token"));
        for response in [world.form("/oauth/revoke", None, &form), world.form("/oauth/introspect", Some(&good), &form)]
        {
            assert_eq!(oauth_error(&response), failing("temporarily_unavailable", 503));
            assert_eq!(response.head.get("retry-after"), Some("1"));
        }
    }
    world.host.store.fail(None);
    assert_eq!(world.with_token("GET", "/api/session", &granted["access_token"]).status, 200);
}

#[test]
fn f5_every_error_of_an_oauth_route_has_oauths_form() {
    let world = world();
    let good = basic("back-one", &secret("one"));
    let long = format!("token={}", "a".repeat(16 * 1024));
    for target in ["/oauth/introspect", "/oauth/revoke"] {
        let posted = |form: &str| world.form(target, Some(&good), form);
        for form in [
            "",
            "token",
            "token=",
            "tokens=x",
            "token=a&token=a",
            "token=a&token_type_hint=x&token_type_hint=x",
            "{\"token\":\"a\"}",
        ] {
            assert_eq!(oauth_error(&posted(form)), failing("invalid_request", 400), "{target} {form}");
        }
        assert_eq!(oauth_error(&posted(&long)), failing("invalid_request", 413));
        for kind in ["application/json", "text/plain", "multipart/form-data; boundary=x"] {
            let response = world.send("POST", target, &[("content-type", kind), ("authorization", &good)], "token=a");
            assert_eq!(oauth_error(&response), failing("invalid_request", 415), "{target} {kind}");
        }
        let without = world.send("POST", target, &[("authorization", &good)], "token=a");
        assert_eq!(oauth_error(&without), failing("invalid_request", 415), "{target}");
        for method in ["GET", "PUT", "OPTIONS"] {
            let response = world.send(method, target, &[("authorization", &good)], "");
            assert_eq!(oauth_error(&response), failing("invalid_request", 405), "{method} {target}");
            assert_eq!(response.head.get("allow"), Some("POST"));
        }
    }
    let broken = World::with(&[("session_ttl", "never")]);
    for target in ["/oauth/introspect", "/oauth/revoke"] {
        assert_eq!(oauth_error(&broken.form(target, None, "token=a")), failing("server_error", 500));
    }
}

#[test]
fn f4_no_answer_of_a_route_that_tokens_travel_on_may_be_kept() {
    let world = world();
    let good = basic("back-one", &secret("one"));
    for response in [
        world.form("/oauth/introspect", Some(&good), "token=x"),
        world.form("/oauth/introspect", None, "token=x"),
        world.form("/oauth/revoke", None, "token=x"),
        world.form("/oauth/revoke", None, ""),
        world.send("POST", "/api/login", &[], json!({"app": "one", "code": "x-1"}).to_string()),
        world.send("POST", "/api/login", &[], ""),
        world.send("POST", "/api/token/refresh", &[], json!({"refresh_token": "x"}).to_string()),
    ] {
        assert_eq!(response.head.get("cache-control"), Some("no-store"), "{}", text(&response));
    }
}

#[test]
fn what_a_client_asks_is_logged_with_its_name_and_without_its_secret() {
    let world = world();
    let granted = world.logged_in_at("one", "alice-1");
    world.introspect("back-one", &granted["access_token"]);
    world.introspect("back-two", &granted["refresh_token"]);
    world.form("/oauth/introspect", Some(&basic("back-one", "CanaryWrong")), "token=CanaryToken");
    world.revoke(&granted["refresh_token"]);
    let log = world.host.log_text();
    assert!(
        [r#""client":"back-one""#, "client.other_app", "client.secret", "invalid_client"]
            .iter()
            .all(|part| log.contains(part)),
        "{log}"
    );
    for hidden in
        ["Canary", granted["access_token"].as_str().expect("one"), granted["refresh_token"].as_str().expect("one")]
    {
        assert!(!log.contains(hidden), "{hidden} in {log}");
    }
}
