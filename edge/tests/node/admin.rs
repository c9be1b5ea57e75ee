//! The admin listener: what only operators reach, and that they reach it.

use std::{net::SocketAddr, num::NonZeroUsize, time::Duration};

use edgepass_edge::{
    admin::{Asked, Fault, MAX_BODY_BYTES, Route, json},
    node::Node,
};
use http::{Method, StatusCode};

use crate::{
    client::{Client, ask, begun, order, start, with_admin},
    guest::Accomplice,
};

fn admin(node: &Node) -> SocketAddr {
    node.admin_addr().expect("it is asked for")
}

#[tokio::test]
async fn each_listener_has_its_own_routes() {
    let node = start(Accomplice::new(), with_admin);
    let answer = ask(admin(&node), "POST", "/internal/sweep?a=b", "{}").await;
    assert_eq!((answer.status, answer.field("x-guest")), (200, Some("yes")), "the component answers");
    for target in ["/internal/sweep", "/internal", "http://test/internal/sweep"] {
        let answer = ask(node.addr(), "POST", target, "{}").await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"), "{target}");
    }
    for target in ["/other", "//internal/sweep", "/internally"] {
        let answer = order(&node, "POST", target, "{}").await;
        assert_eq!((answer.status, answer.code().as_str()), (404, "not_found"), "{target}");
    }
    assert_eq!(
        ask(node.addr(), "GET", "//internal/sweep", "").await.status,
        200,
        "another path, the component's to refuse"
    );
}

#[tokio::test]
async fn a_route_of_the_node_wants_the_token_unless_it_is_open() {
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        let greet = async |asked: Asked| {
            let name = asked.parameter("name");
            if name == "nobody" { Err(Fault::not_found("nobody is there")) } else { Ok(json(StatusCode::OK, &name)) }
        };
        let routes = &mut config.admin.as_mut().expect("it is asked for").routes;
        routes.push(Route::new(Method::POST, "/greet/{name}", greet));
    });
    let answer = ask(admin(&node), "GET", "/healthz", "").await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, &br#"{"status":"ok"}"#[..]));
    let answer = order(&node, "POST", "/greet/b%C3%A9", "").await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, "\"bé\"".as_bytes()));
    assert_eq!(order(&node, "POST", "/greet/nobody", "").await.code(), "not_found");
    let answer = order(&node, "DELETE", "/greet/b", "").await;
    assert_eq!((answer.status, answer.code().as_str()), (405, "method_not_allowed"));
    assert_eq!(answer.field("allow"), Some("POST"));
    for target in ["/greet/b", "/no-such-route"] {
        let answer = ask(admin(&node), "POST", target, "").await;
        assert_eq!((answer.status, answer.code().as_str()), (401, "token_invalid"), "{target}");
        assert_eq!(answer.field("www-authenticate"), Some("Bearer"));
    }
    for wrong in
        ["Bearer", "Bearer other", "Basic test-admin-token", "Bearer x\r\nauthorization: Bearer test-admin-token"]
    {
        let mut client = Client::connect(admin(&node)).await;
        client.send(format!("POST /greet/b HTTP/1.1\r\nhost: a\r\nauthorization: {wrong}\r\n\r\n")).await;
        assert_eq!(client.answer().await.expect("an answer").status, 401, "{wrong}");
    }
}

#[tokio::test]
async fn a_body_is_kept_only_of_whom_is_known_and_as_long_as_its_route_takes() {
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        let length = async |asked: Asked| Ok(json(StatusCode::OK, &asked.request.body.len()));
        let routes = &mut config.admin.as_mut().expect("it is asked for").routes;
        routes.push(Route::new(Method::PUT, "/upload", length).body(1 << 20));
        routes.push(Route::new(Method::PUT, "/note", length));
    });
    let large = "x".repeat(1 << 20);
    assert_eq!(order(&node, "PUT", "/upload", &large).await.body, b"1048576");
    assert_eq!(order(&node, "PUT", "/upload", &format!("{large}x")).await.code(), "payload_too_large");
    assert_eq!(order(&node, "PUT", "/note", &"x".repeat(MAX_BODY_BYTES)).await.status, 200);
    assert_eq!(order(&node, "PUT", "/note", &"x".repeat(MAX_BODY_BYTES + 1)).await.code(), "payload_too_large");
    assert_eq!(ask(admin(&node), "PUT", "/upload", &large).await.code(), "token_invalid");

    // A body that is declared longer than anybody reads on is not waited for.
    let mut client = Client::connect(admin(&node)).await;
    client.send("PUT /upload HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n\r\n").await;
    assert_eq!(client.answer().await.expect("an answer").status, 401);
}

#[tokio::test]
async fn a_route_has_a_time_limit_of_its_own() {
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.limits.request_time = Duration::from_millis(1);
        let never = async |_: Asked| std::future::pending().await;
        let later = async |_: Asked| {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(json(StatusCode::OK, &()))
        };
        let routes = &mut config.admin.as_mut().expect("it is asked for").routes;
        routes.push(Route::new(Method::POST, "/never", never).time(Duration::from_millis(50)));
        routes.push(Route::new(Method::POST, "/later", later));
    });
    let answer = order(&node, "POST", "/never", "").await;
    assert_eq!((answer.status, answer.code().as_str()), (504, "deadline"));
    assert_eq!(order(&node, "POST", "/later", "").await.status, 200, "the public limit is not this one's");
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
        with_admin(config);
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
        with_admin(config);
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
    let node = start(Accomplice::new(), with_admin);
    assert_eq!(ask(admin(&node), "POST", "/internal/any", &"x".repeat(16 << 10)).await.status, 200);
    assert_eq!(
        ask(admin(&node), "POST", "/internal/any", &"x".repeat((16 << 10) + 1)).await.code(),
        "payload_too_large"
    );
}

#[tokio::test]
async fn a_drain_ends_both_listeners_and_operators_last() {
    let store = Accomplice::new();
    let node = start(store.clone(), with_admin);
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
