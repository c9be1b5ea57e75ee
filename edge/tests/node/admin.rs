//! The admin listener: what only operators reach, and that they reach it.

use std::{net::SocketAddr, num::NonZeroUsize, time::Duration};

use edgepass_edge::node::Node;

use crate::{
    client::{Client, ask, begun, start},
    guest::Accomplice,
};

fn admin(node: &Node) -> SocketAddr {
    node.admin_addr().expect("it is asked for")
}

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

#[tokio::test]
async fn each_listener_has_its_own_routes() {
    let node = start(Accomplice::new(), |config| config.admin = Some(ANYWHERE));
    let answer = ask(admin(&node), "POST", "/internal/sweep?a=b", "{}").await;
    assert_eq!((answer.status, answer.field("x-guest")), (200, Some("yes")), "the component answers");
    for (address, target) in [
        (node.addr(), "/internal/sweep"),
        (node.addr(), "/internal"),
        (node.addr(), "http://test/internal/sweep"),
        (admin(&node), "/other"),
        (admin(&node), "//internal/sweep"),
        (admin(&node), "/"),
    ] {
        let answer = ask(address, "POST", target, "{}").await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"), "{target}");
    }
    assert_eq!(
        ask(node.addr(), "GET", "//internal/sweep", "").await.status,
        200,
        "another path, the component's to refuse"
    );
}

#[tokio::test]
async fn without_an_admin_listener_nobody_reaches_what_is_internal() {
    let node = start(Accomplice::new(), |_| {});
    assert_eq!(node.admin_addr(), None);
    assert_eq!(ask(node.addr(), "POST", "/internal/sweep", "").await.status, 404);
}

#[tokio::test]
async fn operators_are_served_when_the_public_is_full() {
    let store = Accomplice::new();
    let node = start(store.clone(), |config| {
        config.admin = Some(ANYWHERE);
        config.max_connections = 2;
        config.cores = NonZeroUsize::new(2);
        let limits = &mut config.surroundings.limits;
        (limits.max_instances, limits.in_flight, limits.max_in_flight) = (1, 1, 1);
        limits.queue_wait = Duration::from_millis(10);
    });
    let mut slow = Vec::new();
    for _ in 0..2 {
        slow.push(begun(node.addr(), &store, "/slow", "").await);
    }
    for _ in 0..20 {
        assert_eq!(ask(admin(&node), "POST", "/internal/any", "").await.status, 200);
    }
    store.go.add_permits(2);
    for mut client in slow {
        assert_eq!(client.answer().await.expect("an answer").status, 200);
    }
}

#[tokio::test]
async fn a_full_public_core_does_not_use_the_admins() {
    let store = Accomplice::new();
    let node = start(store.clone(), |config| {
        config.admin = Some(ANYWHERE);
        let limits = &mut config.surroundings.limits;
        (limits.max_instances, limits.in_flight, limits.max_in_flight) = (1, 1, 1);
        limits.queue_wait = Duration::from_millis(10);
    });
    let mut slow = begun(node.addr(), &store, "/slow", "").await;
    assert_eq!(ask(node.addr(), "GET", "/other", "").await.code(), "overloaded");
    store.go.add_permits(1);
    assert_eq!(slow.answer().await.expect("an answer").status, 200);
}

#[tokio::test]
async fn an_admin_body_is_small() {
    let node = start(Accomplice::new(), |config| config.admin = Some(ANYWHERE));
    assert_eq!(ask(admin(&node), "POST", "/internal/any", &"x".repeat(16 << 10)).await.status, 200);
    assert_eq!(
        ask(admin(&node), "POST", "/internal/any", &"x".repeat((16 << 10) + 1)).await.code(),
        "payload_too_large"
    );
}

#[tokio::test]
async fn a_drain_ends_both_listeners_and_operators_last() {
    let store = Accomplice::new();
    let node = start(store.clone(), |config| config.admin = Some(ANYWHERE));
    let (public, admin) = (node.addr(), admin(&node));
    let mut busy = begun(public, &store, "/slow", "").await;
    let mut idle = Client::connect(public).await;
    let draining = tokio::spawn(node.drain(Duration::from_secs(20)));
    assert!(idle.ends().await, "the public listener is closed");
    assert_eq!(ask(admin, "POST", "/internal/any", "").await.status, 200, "the other is not yet");
    store.go.add_permits(1);
    assert_eq!(busy.answer().await.expect("the answer under way").status, 200);
    assert_eq!(draining.await.expect("drained").cut, 0);
    assert!(tokio::net::TcpStream::connect(admin).await.is_err());
}
