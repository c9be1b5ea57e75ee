//! Shadow traffic: a load test on a live node can touch and imitate no real user.

use serde_json::{Value, json};

use crate::support::{World, WorldBuilder, behaviours};

behaviours! {
    a_mark_without_its_token_is_refused,
    shadow_tokens_and_real_ones_do_not_open_each_others_sessions,
    a_shadow_user_is_another_user,
    a_shadow_logout_all_touches_no_real_session,
}

const MARK: &str = "load-test-7";
const TOKEN: &str = "load-token-0123456789abcdef-0123456789";
const SHADOW: [(&str, &str); 2] = [("x-env", MARK), ("x-edgepass-load-token", TOKEN)];

fn marked(world: &World) -> World {
    WorldBuilder::new(world.door()).setting("shadow_mark", MARK).setting("load_token", TOKEN).start()
}

async fn post(world: &World, path: &str, body: &Value, shadow: bool) -> crate::support::http::Answer {
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(SHADOW.iter().filter(|_| shadow));
    world.request("POST", path, &headers, body.to_string().as_bytes()).await
}

async fn logged_in(world: &World, shadow: bool) -> Value {
    let answer = post(world, "/api/login", &json!({"code": world.code("alice")}), shadow).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

async fn status(world: &World, granted: &Value, shadow: bool) -> u16 {
    let bearer = format!("Bearer {}", granted["access_token"].as_str().unwrap());
    let mut headers = vec![("authorization", bearer.as_str())];
    headers.extend(SHADOW.iter().filter(|_| shadow));
    world.get("/api/session", &headers).await.status
}

async fn a_mark_without_its_token_is_refused(world: World) {
    let world = marked(&world);
    let body = json!({"code": world.code("alice")}).to_string();
    for headers in [vec![("x-env", MARK)], vec![("x-env", MARK), ("x-edgepass-load-token", "guessed")]] {
        let answer = world.request("POST", "/api/login", &headers, body.as_bytes()).await;
        assert_eq!((answer.status, answer.problem().as_str()), (403, "load_token_invalid"));
    }
    assert_eq!(world.upstream_calls(), 0);
    let other = world.request("POST", "/api/login", &[("x-env", "production")], body.as_bytes()).await;
    assert_eq!(other.status, 200, "another mark means nothing here");
}

async fn shadow_tokens_and_real_ones_do_not_open_each_others_sessions(world: World) {
    let world = marked(&world);
    let (real, shadow) = (logged_in(&world, false).await, logged_in(&world, true).await);
    assert_eq!((status(&world, &real, false).await, status(&world, &shadow, true).await), (200, 200));
    assert_eq!((status(&world, &real, true).await, status(&world, &shadow, false).await), (401, 401));
    for (granted, wrong) in [(&real, true), (&shadow, false)] {
        let body = json!({"refresh_token": granted["refresh_token"]});
        assert_eq!(post(&world, "/api/token/refresh", &body, wrong).await.problem(), "refresh_invalid");
        assert_eq!(post(&world, "/api/logout", &body, wrong).await.status, 401);
        assert_eq!(post(&world, "/api/token/refresh", &body, !wrong).await.status, 200, "nothing was touched");
    }
}

async fn a_shadow_user_is_another_user(world: World) {
    let world = marked(&world);
    let real = logged_in(&world, false).await;
    let shadow = logged_in(&world, true).await;
    assert_ne!(real["user"]["id"], shadow["user"]["id"]);
    assert_eq!(shadow["user"]["is_new"], true, "whom the real ones know nothing of");
    for kind in ["s", "o"] {
        let all = world.stored(&format!("/{kind}/")).await;
        let shadows = world.stored(&format!("edgepass/default/shadow/{kind}/")).await;
        assert_eq!((all, shadows), (2, 1), "{kind}");
    }
}

async fn a_shadow_logout_all_touches_no_real_session(world: World) {
    let world = marked(&world);
    let (real, shadow) = (logged_in(&world, false).await, logged_in(&world, true).await);
    let body = json!({"refresh_token": shadow["refresh_token"]});
    assert_eq!(post(&world, "/api/logout-all", &body, true).await.status, 204);
    assert_eq!((status(&world, &real, false).await, status(&world, &shadow, true).await), (200, 401));
}
