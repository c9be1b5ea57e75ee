//! Nodes on a Redis that comes and goes, and one that others write to. What nodes that share a Redis do
//! while it works, the session suite asks.

use std::time::{Duration, Instant};

use crate::support::{Door, HANG, World, WorldBuilder, http::Answer, run};

/// For a call to a Redis that may not answer.
const LIMIT: Duration = Duration::from_millis(800);
/// No answer takes longer: one limit for each call, and a slow machine.
const AT_MOST: Duration = Duration::from_secs(15);

macro_rules! through_both_doors {
    ($($name:ident),* $(,)?) => {
        through_both_doors!(@door node, Node, $($name)*);
        through_both_doors!(@door service, Service, $($name)*);
    };
    (@door $module:ident, $door:ident, $($name:ident)*) => {
        mod $module {
            use super::*;

            $(
                #[test]
                fn $name() {
                    run(on::$name(WorldBuilder::new(Door::$door).redis(LIMIT)));
                }
            )*
        }
    };
}

through_both_doors! {
    a_redis_that_is_killed_is_said_and_comes_back,
    a_redis_that_is_paused_is_said_and_comes_back,
    a_node_starts_without_its_redis_and_finds_it,
    sessions_that_lie_there_as_spin_has_them_are_read,
}

mod on {
    use super::*;

    pub(super) async fn a_redis_that_is_killed_is_said_and_comes_back(world: WorldBuilder) {
        let world = world.start();
        let tokens = until_logged_in(&world).await;
        let server = &world.servers().nodes[0];
        server.done(&["SAVE"]);
        server.kill();
        is_said(&world, &tokens).await;
        server.restart();
        until_back(&world, &tokens[0]).await;
    }

    pub(super) async fn a_redis_that_is_paused_is_said_and_comes_back(world: WorldBuilder) {
        let world = world.start();
        let tokens = until_logged_in(&world).await;
        // It takes no command before that is over, not even one to end it.
        world.servers().nodes[0].done(&["CLIENT", "PAUSE", "12000", "ALL"]);
        is_said(&world, &tokens).await;
        until_back(&world, &tokens[0]).await;
    }

    pub(super) async fn a_node_starts_without_its_redis_and_finds_it(world: WorldBuilder) {
        world.servers().nodes[0].kill();
        let world = world.start();
        let ready = world.get("/readyz", &[]).await;
        assert_eq!((ready.status, ready.json()["store"].as_str()), (503, Some("unavailable")), "{ready:?}");
        assert_eq!(world.get("/healthz", &[]).await.status, 200);
        let refused = world.log_in(&world.code("alice")).await;
        assert_eq!((refused.status, refused.problem().as_str()), (503, "store_unavailable"));
        assert_eq!(world.upstream_calls(), 0, "the code is kept for when the store is there");
        world.servers().nodes[0].restart();
        until("it is ready", async || world.get("/readyz", &[]).await.status == 200).await;
        assert_eq!(world.log_in(&world.code("alice")).await.status, 200);
    }

    pub(super) async fn sessions_that_lie_there_as_spin_has_them_are_read(there: WorldBuilder) {
        // Spin's backend sets a key to a value, with nothing around either, and no expiry.
        let elsewhere = WorldBuilder::new(there.door()).start();
        let login = elsewhere.logged_in("alice").await;
        elsewhere.written("/s/").await;
        for (key, value) in elsewhere.entries().await {
            there.servers().nodes[0].set(&key, &value);
        }
        let here = there.start();
        let token = login["access_token"].as_str().unwrap();
        until("the store is there", async || here.get("/readyz", &[]).await.status == 200).await;
        let session = here.session(token).await;
        assert_eq!(session.status, 200, "{session:?}");
        assert_eq!(session.json()["session"]["id"], login["session"]["id"]);
        here.refreshed(&login["refresh_token"]).await;
        assert_eq!(here.log_out(token).await.status, 204);
        assert_eq!(here.session(token).await.problem(), "token_invalid");
    }
}

/// Tokens of two sessions on a node that may not have its store yet.
async fn until_logged_in(world: &World) -> [String; 2] {
    until("the store is there", async || world.get("/readyz", &[]).await.status == 200).await;
    [world.logged_in("alice").await, world.logged_in("alice").await]
        .map(|login| login["access_token"].as_str().unwrap().to_owned())
}

/// What needs the store says that it is away, in time; what does not goes on. Whether the second session
/// has ended is not known then: a logout that was answered 503 may have been made.
async fn is_said(world: &World, [token, other]: &[String; 2]) {
    let code = world.code("bob");
    let calls = world.upstream_calls();
    let path = "/api/verify-offline/orders";
    for _ in 0..3 {
        let begun = Instant::now();
        let answers: [Answer; 4] = [
            world.session(token).await,
            world.verify(token).await,
            world.log_out(other).await,
            world.log_in(&code).await,
        ];
        for answer in answers {
            assert_eq!((answer.status, answer.problem().as_str()), (503, "store_unavailable"), "{answer:?}");
            assert!(answer.header("retry-after").is_some(), "{answer:?}");
        }
        assert!(begun.elapsed() < AT_MOST, "{:?}", begun.elapsed());
        assert_eq!(world.bearer("GET", path, token).await.status, 200);
    }
    assert_eq!(world.upstream_calls(), calls, "the code is kept for when the store is back");
}

/// Until the node has its store again, which nobody tells it.
async fn until_back(world: &World, token: &str) {
    until("the session is read again", async || {
        let answer = world.session(token).await;
        assert!(answer.status == 200 || answer.problem() == "store_unavailable", "{answer:?}");
        answer.status == 200
    })
    .await;
    assert_eq!(world.log_in(&world.code("bob")).await.status, 200);
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < HANG, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
