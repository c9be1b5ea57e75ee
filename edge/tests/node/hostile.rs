//! Clients that are slow on purpose, take more than their share, or send what two readers would
//! read differently. Each gets a defined answer or none, and others are served.

use std::{num::NonZeroU32, num::NonZeroUsize, sync::Arc, time::Duration};

use edgepass_edge::{
    front::{Application, By, Context, Guard, Limit, Rate},
    node::Config,
};
use tokio::{io::AsyncWriteExt as _, net::TcpSocket};

use crate::{
    client::{Client, PATIENCE, ask, request, start, with_admin},
    front::sent,
    guest::Accomplice,
};

/// The same bytes as `GET /other` on a connection, after whatever came before it.
const NEXT: &str = "GET /other HTTP/1.1\r\nhost: a\r\nx-trace-id: smuggled\r\n\r\n";

#[tokio::test]
async fn what_two_readers_would_read_differently_is_refused_and_nothing_after_it_is_read() {
    let node = start(Accomplice::new(), |_| {});
    for head in [
        "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ncontent-length: 4\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0, 4\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: +4\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: -4\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 0x4\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\nx-a: b\r\n transfer-encoding: chunked\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\nx-a: b\0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\nx-a: b\rx-c: d\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n-1\r\na\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n10000000000000000\r\na\r\n0\r\n\r\n",
    ] {
        let mut client = Client::connect(node.addr()).await;
        client.send(format!("{head}{NEXT}")).await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!(answer.status, 400, "{head:?}: {answer:?}");
        assert!(client.answer().await.is_none(), "nothing more: {head:?}");
    }
    assert_eq!(ask(node.addr(), "GET", "/other", "").await.status, 200);
}

/// RFC 9112 §6.1: what is chunked may be read as that, and then the connection has to end.
#[tokio::test]
async fn a_length_beside_chunks_counts_for_nothing_and_ends_the_connection() {
    let node = start(Accomplice::new(), |_| {});
    for fields in ["content-length: 4\r\ntransfer-encoding: chunked", "transfer-encoding: chunked\r\ncontent-length: 4"]
    {
        let mut client = Client::connect(node.addr()).await;
        client.send(format!("POST /echo HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n0\r\n\r\n{NEXT}")).await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!(
            (answer.status, answer.body.len(), answer.field("connection")),
            (200, 0, Some("close")),
            "{fields:?}"
        );
        assert!(client.answer().await.is_none(), "nothing more: {fields:?}");
    }
}

#[tokio::test]
async fn what_is_lax_and_means_one_thing_is_read_as_that() {
    let node = start(Accomplice::new(), |_| {});
    for (head, body) in [
        // RFC 9112 §2.2: a line may end in LF alone. §7.1.1: extensions are ignored.
        ("GET /other HTTP/1.1\nhost: a\n\n", ""),
        (
            "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;a=b;c=\"d\"\r\nabc\r\n0;e\r\n\r\n",
            "abc",
        ),
        ("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc", "abc"),
    ] {
        let mut client = Client::connect(node.addr()).await;
        client.send(format!("{head}{NEXT}")).await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.body.as_slice()), (200, body.as_bytes()), "{head:?}");
        assert_eq!(client.answer().await.expect("the next").field("x-trace-id"), Some("smuggled"), "{head:?}");
    }
}

#[tokio::test]
async fn half_a_second_head_has_no_more_time_than_a_first() {
    let node = start(Accomplice::new(), |config| config.limits.head_time = Duration::from_millis(100));
    let mut client = Client::connect(node.addr()).await;
    client.send("GET /other HTTP/1.1\r\nhost: a\r\n\r\nGET /oth").await;
    assert_eq!(client.answer().await.expect("an answer").status, 200);
    assert!(client.ends().await, "long before it would count as idle");
}

#[tokio::test]
async fn a_client_that_takes_no_answer_is_let_go() {
    let node = start(Accomplice::new(), |config| {
        config.limits.max_body_bytes = 16 << 20;
        config.limits.write_time = Duration::from_millis(100);
        config.limits.min_rate = u32::MAX;
        config.surroundings.limits.max_memory_bytes = 256 << 20;
    });
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut stream = socket.connect(node.addr()).await.expect("the node accepts");
    stream.write_all(request("POST", "/echo", &"x".repeat(16 << 20)).as_bytes()).await.expect("it reads");
    let gone = async {
        while node.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the connection is closed");
}

#[tokio::test]
async fn a_body_that_trickles_is_408_although_it_has_time() {
    let node = start(Accomplice::new(), |config| {
        config.limits.body_time = Duration::from_hours(1);
        config.limits.min_rate = 1 << 20;
    });
    let answer = sent(node.addr(), b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 50\r\n\r\nab").await;
    assert_eq!((answer.status, answer.code().as_str()), (408, "bad_request"));
}

#[tokio::test]
async fn one_client_has_a_share_of_the_connections() {
    let node = start(Accomplice::new(), |config| config.options.max_per_client = NonZeroUsize::new(2));
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(node.addr()).await;
        client.send(request("GET", "/other", "")).await;
        assert_eq!(client.answer().await.expect("an answer").status, 200);
        kept.push(client);
    }
    assert!(Client::connect(node.addr()).await.ends().await, "one more is closed");
    kept.pop();
    let again = async {
        loop {
            let mut client = Client::connect(node.addr()).await;
            client.send(request("GET", "/other", "")).await;
            if client.answer().await.is_some_and(|answer| answer.status == 200) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, again).await.expect("a place that is given up is there for the next");
}

fn limited(config: &mut Config, by: By) {
    let rate = Rate { period: Duration::from_hours(1), burst: NonZeroU32::new(2).expect("two") };
    config.options.context = Arc::new(Context {
        guard: Guard::new(vec![Limit { path: "/other".into(), by, rate }], None),
        trusted_proxies: vec!["127.0.0.0/8".parse().expect("a network")],
        application: Some(Application { name: "app".into(), version: Some("1.2".into()) }),
        ..Context::default()
    });
}

#[tokio::test]
async fn g1_each_client_has_a_limit_and_only_a_proxy_says_who_it_is() {
    let node = start(Accomplice::new(), |config| limited(config, By::Client));
    let asked = async |of: &str| {
        let head = format!("GET /other HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {of}\r\n\r\n");
        sent(node.addr(), head.as_bytes()).await
    };
    for _ in 0..2 {
        assert_eq!(asked("192.0.2.1").await.status, 200);
    }
    let refused = asked("6.6.6.6, 192.0.2.1").await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (429, "rate_limited"),
        "what stands left of it changes nothing"
    );
    let wait: u64 = refused.field("retry-after").expect("when to come back").parse().expect("seconds");
    assert!((1..=3600).contains(&wait), "{wait}");
    assert_eq!(asked("192.0.2.2").await.status, 200, "another client");
    let elsewhere = b"POST /echo HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(sent(node.addr(), elsewhere).await.status, 200, "another path");
}

#[tokio::test]
async fn a_limit_may_be_one_for_all() {
    let node = start(Accomplice::new(), |config| limited(config, By::All));
    let mut statuses = Vec::new();
    for client in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        let head = format!("GET /other HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\n\r\n");
        statuses.push(sent(node.addr(), head.as_bytes()).await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn spins_own_paths_are_there() {
    let node = start(Accomplice::new(), |config| limited(config, By::All));
    let health = ask(node.addr(), "GET", "/.well-known/spin/health", "").await;
    assert_eq!((health.status, health.body.as_slice()), (200, &b"OK"[..]));
    let info = ask(node.addr(), "GET", "/.well-known/spin/info", "").await;
    let body: serde_json::Value = serde_json::from_slice(&info.body).expect("JSON");
    assert_eq!(body, serde_json::json!({"name": "app", "version": "1.2"}));
}

#[tokio::test]
async fn a_node_that_leaves_says_so_and_serves() {
    let node = start(Accomplice::new(), with_admin);
    assert_eq!(ask(node.addr(), "GET", "/readyz", "").await.field("x-guest"), Some("yes"), "the component's to say");
    let admin = node.admin_addr().expect("it is asked for");
    assert_eq!(ask(admin, "GET", "/readyz", "").await.status, 200);
    node.leave();
    assert_eq!(ask(admin, "GET", "/readyz", "").await.code(), "overloaded");
    let answer = ask(node.addr(), "GET", "/readyz", "").await;
    assert_eq!((answer.status, answer.code().as_str()), (503, "overloaded"));
    assert_eq!(ask(node.addr(), "GET", "/other", "").await.status, 200);
}
