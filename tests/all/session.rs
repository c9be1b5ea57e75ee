//! Bearer routes: `GET /api/session`, `/api/verify/*`, `POST /api/logout`.

use serde_json::json;

use crate::support::{World, keys_of, shared_behaviours};

shared_behaviours! {
    a_session_shows_what_the_owner_may_see,
    a_device_is_shown_with_its_session,
    bearer_routes_say_what_they_want,
    a_changed_token_is_refused_in_one_shape,
    verify_sets_every_identity_header,
    verify_takes_any_method_and_suffix,
    a_logout_ends_the_session_at_once,
    a_logout_takes_a_refresh_token,
    a_logout_is_idempotent,
    a_restart_keeps_the_session,
}

async fn a_session_shows_what_the_owner_may_see(world: World) {
    let login = world.logged_in("alice").await;
    let answer = world.session(login["access_token"].as_str().unwrap()).await;

    let body = answer.json();
    assert_eq!(keys_of(&body), ["session", "user"]);
    assert_eq!(keys_of(&body["session"]), ["app", "created_at", "expires_at", "id", "last_seen_at", "platform"]);
    assert_eq!(keys_of(&body["user"]), ["id"]);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
}

async fn a_device_is_shown_with_its_session(world: World) {
    let code = world.code("alice");
    let body = json!({"code": code, "device": {"id": "d-1", "label": "小明的手机"}});
    let login = world.post("/api/login", &body).await.json();

    let session = world.session(login["access_token"].as_str().unwrap()).await.json();
    assert_eq!(session["session"]["device"], json!({"id": "d-1", "label": "小明的手机"}));
}

async fn bearer_routes_say_what_they_want(world: World) {
    for path in ["/api/session", "/api/verify/x"] {
        let nothing = world.get(path, &[]).await;
        assert_eq!(nothing.status, 401, "{path}");
        assert_eq!(nothing.header("www-authenticate"), Some("Bearer"), "{path}: no error code without credentials");

        let wrong = world.get(path, &[("authorization", "Bearer nonsense")]).await;
        assert_eq!(wrong.status, 401, "{path}");
        assert!(wrong.header("www-authenticate").unwrap().contains(r#"error="invalid_token""#), "{path}");
        assert_eq!(wrong.problem(), "token_invalid");
    }
    let basic = world.get("/api/session", &[("authorization", "Basic YTpi")]).await;
    assert_eq!(basic.status, 401);
    let query = world.get("/api/session?access_token=x", &[]).await;
    assert_eq!(query.header("www-authenticate"), Some("Bearer"), "a token in the query is none");
}

async fn a_changed_token_is_refused_in_one_shape(world: World) {
    let login = world.logged_in("alice").await;
    let token = login["access_token"].as_str().unwrap();
    let mut shapes = std::collections::BTreeSet::new();
    for at in (0..token.len()).step_by(7) {
        let mut changed = token.as_bytes().to_vec();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        let answer = world.session(&changed).await;
        assert_eq!(answer.status, 401, "byte {at} of {} changed", token.len());
        let mut problem = answer.json();
        problem["trace_id"] = json!(null);
        shapes.insert(problem.to_string());
    }
    for wrong in [format!("{token}="), format!("{token}.x"), token.replace('.', ""), format!("{token}{token}")] {
        let answer = world.session(&wrong).await;
        assert_eq!(answer.status, 401);
        let mut problem = answer.json();
        problem["trace_id"] = json!(null);
        shapes.insert(problem.to_string());
    }
    assert_eq!(shapes.len(), 1, "{shapes:?}");
}

async fn verify_sets_every_identity_header(world: World) {
    let login = world.logged_in("alice").await;
    let bearer = format!("Bearer {}", login["access_token"].as_str().unwrap());
    // What a client sends under those names is not an identity.
    let forged = [("authorization", bearer.as_str()), ("x-edgepass-user", "root"), ("x-edgepass-app", "root")];
    let answer = world.get("/api/verify/orders/1?any=query", &forged).await;

    assert_eq!((answer.status, answer.body.len()), (200, 0));
    assert_eq!(answer.header("x-edgepass-user"), login["user"]["id"].as_str());
    assert_eq!(answer.header("x-edgepass-session"), login["session"]["id"].as_str());
    assert_eq!(answer.header("x-edgepass-app"), Some("wechat"));

    let refused = world.get("/api/verify/orders/1", &[("x-edgepass-user", "root")]).await;
    assert_eq!(refused.status, 401);
    assert!(refused.headers.keys().all(|name| !name.as_str().starts_with("x-edgepass-")));
}

async fn verify_takes_any_method_and_suffix(world: World) {
    let login = world.logged_in("alice").await;
    let bearer = format!("Bearer {}", login["access_token"].as_str().unwrap());
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"] {
        for path in ["/api/verify/", "/api/verify/a/b/c", "/api/verify/%2e%2e/x?mode=offline"] {
            let answer = world.request(method, path, &[("authorization", &bearer)], b"").await;
            assert_eq!(answer.status, 200, "{method} {path}");
        }
    }
}

async fn a_logout_ends_the_session_at_once(world: World) {
    let login = world.logged_in("alice").await;
    let other = world.logged_in("alice").await;
    let token = login["access_token"].as_str().unwrap();

    let answer = world.log_out(token).await;
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    assert_eq!(world.session(token).await.problem(), "token_invalid");
    assert_eq!(world.verify(token).await.status, 401);
    assert_eq!(world.session(other["access_token"].as_str().unwrap()).await.status, 200, "only that session");
}

async fn a_logout_takes_a_refresh_token(world: World) {
    let login = world.logged_in("alice").await;
    let body = json!({"refresh_token": login["refresh_token"]});

    assert_eq!(world.post("/api/logout", &body).await.status, 204);
    assert_eq!(world.session(login["access_token"].as_str().unwrap()).await.status, 401);

    let mut forged = login["refresh_token"].as_str().unwrap().to_owned();
    forged.replace_range(10..11, if &forged[10..11] == "A" { "B" } else { "A" });
    assert_eq!(world.post("/api/logout", &json!({"refresh_token": forged})).await.problem(), "refresh_invalid");
}

async fn a_logout_is_idempotent(world: World) {
    let login = world.logged_in("alice").await;
    let token = login["access_token"].as_str().unwrap();
    assert_eq!(world.log_out(token).await.status, 204);
    assert_eq!(world.log_out(token).await.status, 204, "a valid signature is enough");
    assert_eq!(world.request("POST", "/api/logout", &[], b"").await.status, 401);
}

async fn a_restart_keeps_the_session(world: World) {
    let login = world.logged_in("alice").await;
    let world = world.restarted().await;
    assert_eq!(world.session(login["access_token"].as_str().unwrap()).await.status, 200);
}
