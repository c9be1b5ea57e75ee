//! What an operator sees: health, readiness, version, settings, overload.

use crate::support::{Door, World, WorldBuilder, behaviours, http, keys_of};

behaviours! {
    a_node_says_that_it_lives,
    a_node_says_which_build_it_is,
    a_ready_node_has_its_settings_and_its_store,
    a_store_that_fails_is_said_and_never_taken_for_empty,
    stages_are_told_when_asked_for,
    what_is_for_operators_is_not_on_the_public_address,
}

async fn a_node_says_that_it_lives(world: World) {
    let answer = world.get("/healthz", &[]).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["status"], "ok");
}

async fn a_node_says_which_build_it_is(world: World) {
    let body = world.get("/version", &[]).await.json();
    assert_eq!(keys_of(&body), ["built", "commit", "spin_sdk", "version", "wasi"]);
    assert_eq!(body["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(body["wasi"], "0.3.0");
    assert_eq!(body["spin_sdk"], "7.0.0");
}

async fn a_ready_node_has_its_settings_and_its_store(world: World) {
    let answer = world.get("/readyz", &[]).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["status"], "ready");
}

async fn a_store_that_fails_is_said_and_never_taken_for_empty(world: World) {
    let login = world.logged_in("alice").await;
    let token = login["access_token"].as_str().unwrap();
    let code = world.code("alice");
    let calls = world.upstream_calls();
    world.break_store(true);

    for answer in
        [world.session(token).await, world.verify(token).await, world.log_out(token).await, world.log_in(&code).await]
    {
        assert_eq!((answer.status, answer.problem().as_str()), (503, "store_unavailable"));
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(world.upstream_calls(), calls, "the code is kept for when the store is back");

    world.break_store(false);
    assert_eq!(world.session(token).await.status, 200);
    assert_eq!(world.log_in(&code).await.status, 200);
}

async fn stages_are_told_when_asked_for(world: World) {
    assert_eq!(world.log_in(&world.code("alice")).await.header("server-timing"), None);

    let told = WorldBuilder::new(world.door()).setting("server_timing", "true").keep_server_timing().start();
    let answer = told.log_in(&told.code("alice")).await;
    let stages = answer.header("server-timing").expect("asked for").to_owned();
    for stage in ["parse", "platform", "store", "sign"] {
        assert!(stages.split(',').any(|part| part.trim().starts_with(&format!("{stage};dur="))), "{stage} in {stages}");
    }
}

/// A wrong setting is named, its value is not, and no login reaches the platform.
#[test]
fn a_wrong_setting_is_named_and_nothing_is_called() {
    let wrong = [
        ("master_key", "short-CANARY"),
        ("subject_key", ""),
        ("session_ttl", "ninety days CANARY"),
        ("wechat_base_url", "ftp://CANARY"),
        ("apps", "[{\"id\":\"CANARY\""),
    ];
    for door in [Door::Native, Door::Service] {
        crate::support::run(async {
            let mut builder = WorldBuilder::new(door);
            for (name, value) in wrong {
                builder = builder.setting(name, value);
            }
            let world = builder.start();
            let ready = world.get("/readyz", &[]).await;
            assert_eq!(ready.status, 503, "{door:?}");
            let text = String::from_utf8_lossy(&ready.body).into_owned();
            for (name, _) in wrong {
                assert!(text.contains(name), "{door:?}: {name} in {text}");
            }
            assert!(!text.contains("CANARY"), "{door:?}: {text}");

            let answer = world.log_in("some-code").await;
            assert_eq!((answer.status, answer.problem().as_str()), (500, "config"), "{door:?}");
            assert_eq!(world.upstream_calls(), 0, "{door:?}");
        });
    }
    // A `node` component says so before it takes traffic, and the node does not start it.
    crate::support::run(async {
        let mut builder = WorldBuilder::new(Door::Node);
        for (name, value) in wrong {
            builder = builder.setting(name, value);
        }
        let refused = builder.refused();
        for (name, _) in wrong {
            assert!(refused.contains(name), "{name} in {refused}");
        }
        assert!(!refused.contains("CANARY"), "{refused}");
    });
}

async fn what_is_for_operators_is_not_on_the_public_address(world: World) {
    let token = "0123456789abcdef0123456789abcdef";
    let world = WorldBuilder::new(world.door()).setting("operator_tokens", token).start();
    let status = async |address, target: &str| {
        let bytes = format!(
            "POST {target} HTTP/1.1\r\nhost: node\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        let answer = http::raw(address, bytes.as_bytes()).await;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
        assert_eq!(status == Some(404), answer.contains("\"not_found\""), "{target}: {answer}");
        status
    };
    assert_eq!(status(world.admin_address(), "/internal/sweep").await, Some(200));
    // What no route is called, however a proxy in front may read it.
    for target in ["//internal/sweep", "/internal%2fsweep", "/%69nternal/sweep", "/INTERNAL/sweep", "/./internal/sweep"]
    {
        assert_eq!(status(world.address(), target).await, Some(404), "{target}");
    }
    // The native core stands behind no gate.
    if world.door() != Door::Native {
        for target in ["/internal/sweep", "/internal/revoke", "http://node/internal/sweep", "/internal", "/internal/"] {
            assert_eq!(status(world.address(), target).await, Some(404), "{target}");
        }
        let other = status(world.admin_address(), "/api/login").await;
        assert_eq!(other, Some(401), "the rest there is the node's, and opened with the node's own token");
    }
}
