//! Load tests on a live service, and the fingerprint of `subject_key`.

use super::*;

const TOKEN: &str = "a-load-token-of-32-characters-xx";
const MARKED: [(&str, &str); 2] = [("x-env", "load"), ("x-edgepass-load-token", TOKEN)];

fn world() -> World {
    World::with(&[("shadow_mark", "load"), ("load_token", TOKEN)])
}

impl World {
    fn shadow(&self, method: &str, target: &str, token: Option<&Value>, wish: &Value) -> Response {
        let bearer = token.and_then(Value::as_str).map(|token| format!("Bearer {token}"));
        let mut fields = MARKED.to_vec();
        fields.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
        self.send(method, target, &fields, wish.to_string())
    }
}

#[test]
fn shadow_traffic_shares_nothing_with_users() {
    let world = world();
    let user = world.logged_in("alice-1");
    let keys = world.host.store.keys();
    let load = body(&world.shadow("POST", "/api/login", None, &json!({"code": "alice-1"})));
    assert_ne!(load["user"]["id"], user["user"]["id"], "the same person at the platform");
    assert_ne!(load["session"]["id"], user["session"]["id"], "the same code");
    let added: Vec<_> = world.host.store.keys().into_iter().filter(|key| !keys.contains(key)).collect();
    assert!(!added.is_empty() && added.iter().all(|key| key.starts_with("edgepass/default/shadow/")), "{added:?}");
    for key in keys {
        assert!(!key.contains("/shadow/"), "{key}");
    }
    // Neither realm takes the other's tokens.
    assert_eq!(world.shadow("GET", "/api/session", Some(&load["access_token"]), &Value::Null).status, 200);
    assert_eq!(world.with_token("GET", "/api/session", &load["access_token"]).status, 401);
    assert_eq!(world.with_token("GET", "/api/verify/x", &load["access_token"]).status, 401);
    assert_eq!(world.shadow("GET", "/api/session", Some(&user["access_token"]), &Value::Null).status, 401);
    let renew = |token: &Value| json!({ "refresh_token": token });
    let refresh = |token: &Value| world.send("POST", "/api/token/refresh", &[], renew(token).to_string()).status;
    assert_eq!((refresh(&load["refresh_token"]), refresh(&user["refresh_token"])), (401, 200));
    let shadow = world.shadow("POST", "/api/token/refresh", None, &renew(&user["refresh_token"]));
    assert_eq!(shadow.status, 401);
    let shadow = world.shadow("POST", "/api/token/refresh", None, &renew(&load["refresh_token"]));
    assert_eq!(shadow.status, 200);
}

#[test]
fn a_shadow_logout_ends_no_users_session() {
    let world = world();
    let user = world.logged_in("alice-1");
    let load = body(&world.shadow("POST", "/api/login", None, &json!({"code": "alice-1"})));
    for (token, status) in [(&user["access_token"], 401), (&load["access_token"], 204)] {
        assert_eq!(world.shadow("POST", "/api/logout", Some(token), &Value::Null).status, status);
    }
    assert_eq!(world.with_token("GET", "/api/session", &user["access_token"]).status, 200);
}

#[test]
fn a_mark_needs_its_token() {
    let world = world();
    let refused = failing("load_token_invalid", 403);
    let wish = r#"{"code":"alice-1"}"#;
    for fields in [
        &[("x-env", "load")][..],
        &[("x-env", "load"), ("x-edgepass-load-token", "wrong")],
        &[("x-env", "load"), ("x-edgepass-load-token", "")],
        &[("x-env", "load"), ("x-edgepass-load-token", TOKEN), ("x-edgepass-load-token", TOKEN)],
        &[("x-env", "production"), ("x-env", "load"), ("x-edgepass-load-token", TOKEN)],
    ] {
        assert_eq!(problem(&world.send("POST", "/api/login", fields, wish)), refused, "{fields:?}");
    }
    assert_eq!((world.calls(), world.host.store.keys().len()), (0, 0));
    assert_eq!(world.send("POST", "/api/login", &[("x-env", "production")], wish).status, 200, "another mark is none");
    let plain = World::new();
    assert_eq!(
        plain.send("POST", "/api/login", &[("x-env", "load")], wish).status,
        200,
        "nor is any where none is set"
    );
    assert!(plain.keys("s").len() == 1 && !world.host.log_text().contains(TOKEN));
}

#[test]
fn a_store_filled_with_another_subject_key_is_left_alone() {
    let world = World::new();
    let login = world.logged_in("alice-1");
    let other = world.beside(&[("subject_key", OLDER_KEY)]);
    let before = world.host.store.keys();
    assert_eq!(problem(&other.log_in("bob-1")), failing("config", 500));
    assert_eq!(world.host.store.keys(), before);
    assert_eq!(world.calls(), 1, "and the code is as good as before");
    let ready = other.send("GET", "/readyz", &[], "");
    assert_eq!((ready.status, &body(&ready)["settings"]), (503, &json!(["subject_key"])));
    assert_eq!(other.with_token("GET", "/api/session", &login["access_token"]).status, 200, "sessions do not need it");
    assert_eq!(world.log_in("bob-1").status, 200);
}

#[test]
fn of_two_nodes_that_begin_with_two_subject_keys_one_notices() {
    let world = World::new();
    let other = world.beside(&[("subject_key", OLDER_KEY)]);
    world.host.http.hold(true);
    let login = |code: &str| request("POST", "/api/login", &[], json!({ "code": code }).to_string());
    let mut first = pin!(world.service.handle(login("alice-1")));
    let mut second = pin!(other.service.handle(login("bob-1")));
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    world.host.http.hold(false);
    let answers = [poll_once(&mut first), poll_once(&mut second)].map(|answer| match answer {
        Poll::Ready(response) => response.status,
        Poll::Pending => unreachable!("nothing is held"),
    });
    assert_eq!(answers.iter().filter(|status| **status == 500).count(), 1, "{answers:?}");
}
