//! What a gateway is told, with a look at the session and without.

use super::*;

const PATHS: [&str; 4] =
    ["/api/verify/", "/api/verify/app/wechat/", "/api/verify-offline/", "/api/verify-offline/app/wechat/"];

#[test]
fn a_gateway_is_told_who_it_is_whatever_method_and_path_it_forwards() {
    let world = World::new();
    let granted = world.logged_in("alice-1");
    for path in PATHS {
        for (method, suffix) in [
            ("GET", ""),
            ("POST", "orders/1"),
            ("OPTIONS", "%2e%2e/?app=two"),
            ("PROPFIND", "../../internal"),
            ("HEAD", "apps/two/"),
        ] {
            let response = world.with_token(method, &format!("{path}{suffix}"), &granted["access_token"]);
            assert_eq!((response.status, response.body.len()), (200, 0), "{method} {path}{suffix}");
            assert_eq!(response.head.get("x-edgepass-user"), granted["user"]["id"].as_str());
            assert_eq!(response.head.get("x-edgepass-session"), granted["session"]["id"].as_str());
            assert_eq!(response.head.get("x-edgepass-app"), Some("wechat"));
        }
    }
}

#[test]
fn a_path_for_one_app_takes_the_tokens_of_no_other() {
    let world = World::new();
    let token = world.logged_in("alice-1")["access_token"].clone();
    for grade in ["/api/verify", "/api/verify-offline"] {
        for path in ["app/other/", "app/other", "app/", "app//wechat", "app/WECHAT/", "app/wechat%2f", "app/wech%61t/"]
        {
            let response = world.with_token("GET", &format!("{grade}/{path}"), &token);
            assert_eq!(problem(&response), failing("token_invalid", 401), "{grade}/{path}");
            assert!(response.head.iter().all(|(name, _)| !name.starts_with("x-edgepass-")), "{grade}/{path}");
        }
        assert_eq!(world.with_token("GET", &format!("{grade}/app/wechat"), &token).status, 200);
    }
}

#[test]
fn offline_reads_no_store_and_online_at_most_three_keys() {
    let world = World::new();
    let token = world.logged_in("alice-1")["access_token"].clone();
    let cost = |path: &str| {
        let before = world.host.store.keys_read();
        assert_eq!(world.with_token("GET", path, &token).status, 200);
        world.host.store.keys_read() - before
    };
    assert_eq!(
        [cost("/api/verify-offline/x"), cost("/api/verify-offline/app/wechat/x"), cost("/api/verify/x")],
        [0, 0, 3]
    );
    world.host.store.fail(Some(StoreError::Unavailable));
    assert_eq!(world.with_token("GET", "/api/verify-offline/x", &token).status, 200, "an outage does not reach it");
    assert_eq!(problem(&world.with_token("GET", "/api/verify/x", &token)), failing("store_unavailable", 503));
}

#[test]
fn a_logout_is_seen_online_at_once_and_offline_when_the_token_ends() {
    let world = World::new();
    let token = world.logged_in("alice-1")["access_token"].clone();
    assert_eq!(world.with_token("POST", "/api/logout", &token).status, 204);
    assert_eq!(world.with_token("GET", "/api/verify/x", &token).status, 401);
    assert_eq!(world.with_token("GET", "/api/verify-offline/x", &token).status, 200);
    world.host.clock.advance(Duration::from_mins(10));
    assert_eq!(world.with_token("GET", "/api/verify-offline/x", &token).status, 401);
}

#[test]
fn f3_a_gateway_gets_one_challenge_and_a_token_from_one_place() {
    let world = World::new();
    let token = world.logged_in("alice-1")["access_token"].clone();
    let token = token.as_str().expect("a token");
    for path in PATHS {
        let nothing = world.send("GET", path, &[], "");
        assert_eq!((nothing.status, nothing.head.get("www-authenticate")), (401, Some("Bearer")), "{path}");
        for place in [
            world.send("GET", &format!("{path}?access_token={token}"), &[], ""),
            world.send(
                "POST",
                path,
                &[("content-type", "application/x-www-form-urlencoded")],
                format!("access_token={token}"),
            ),
        ] {
            assert_eq!((place.status, place.head.get("www-authenticate")), (401, Some("Bearer")), "{path}");
        }
        let bearer = format!("Bearer {token}");
        let twice = world.send("GET", path, &[("authorization", &bearer), ("authorization", &bearer)], "");
        assert_eq!(twice.head.get("www-authenticate"), Some(r#"Bearer error="invalid_token""#), "{path}");
    }
}

#[test]
fn a22_every_refusal_of_a_gateway_looks_the_same() {
    let world = World::new();
    let granted = world.logged_in("alice-1");
    let ended = world.logged_in("bob-1");
    assert_eq!(world.with_token("POST", "/api/logout", &ended["access_token"]).status, 204);
    let mut shapes = std::collections::BTreeSet::new();
    let mut refused = |path: &str, token: &Value| {
        let response = world.with_token("GET", path, token);
        let mut shown = body(&response);
        assert_eq!(response.status, 401, "{path}");
        shown["trace_id"] = Value::Null;
        shapes.insert((shown.to_string(), response.head.get("www-authenticate").map(str::to_owned)));
    };
    for path in PATHS {
        refused(path, &json!("a.b.c"));
        refused(path, &granted["refresh_token"]);
        refused(&path.replace("wechat", "other"), &json!("x"));
    }
    refused("/api/verify/", &ended["access_token"]);
    refused("/api/verify/app/other/", &granted["access_token"]);
    refused("/api/verify-offline/app/other/", &granted["access_token"]);
    world.host.clock.advance(Duration::from_mins(10));
    for path in PATHS {
        refused(path, &granted["access_token"]);
    }
    assert_eq!(shapes.len(), 1, "{shapes:?}");
}
