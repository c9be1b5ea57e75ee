//! The front: what clients may send.

use std::time::Duration;

use crate::{
    client::{Client, ask, start},
    guest::Accomplice,
    http2::an_instance_each,
};

pub(crate) async fn sent(addr: std::net::SocketAddr, bytes: &[u8]) -> crate::client::Answer {
    let mut client = Client::connect(addr).await;
    client.send(bytes).await;
    client.answer().await.expect("an answer")
}

#[tokio::test]
async fn a_request_names_its_host_once() {
    let node = start(Accomplice::new(), |_| {});
    for head in [&b"GET /other HTTP/1.1\r\n\r\n"[..], b"GET /other HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"] {
        let answer = sent(node.addr(), head).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "bad_request"));
    }
}

#[tokio::test]
async fn a_body_has_a_longest_length() {
    let node = start(Accomplice::new(), |config| config.limits.max_body_bytes = 1000);
    assert_eq!(ask(node.addr(), "POST", "/echo", &"x".repeat(1000)).await.body.len(), 1000);
    for length in [1001, 1 << 20] {
        let answer = ask(node.addr(), "POST", "/echo", &"x".repeat(length)).await;
        assert_eq!((answer.status, answer.code().as_str()), (413, "payload_too_large"));
    }
    let mut chunked = b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..3 {
        chunked.extend_from_slice(format!("190\r\n{}\r\n", "x".repeat(400)).as_bytes());
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(sent(node.addr(), &chunked).await.status, 413);
    let huge = b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999\r\n\r\n";
    assert_eq!(sent(node.addr(), huge).await.status, 413, "without waiting for it");
}

#[tokio::test]
async fn a_chunked_body_arrives_whole() {
    let node = start(Accomplice::new(), |_| {});
    let chunked =
        b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    assert_eq!(sent(node.addr(), chunked).await.body, b"abcde");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408() {
    let node = start(Accomplice::new(), |config| config.limits.body_time = Duration::from_millis(50));
    let answer = sent(node.addr(), b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nab").await;
    assert_eq!((answer.status, answer.code().as_str()), (408, "bad_request"));
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let node = start(Accomplice::new(), |config| config.limits.head_time = Duration::from_millis(50));
    for begun in ["", "GET /other HTTP/1.1\r\nhost:"] {
        let mut client = Client::connect(node.addr()).await;
        client.send(begun).await;
        assert!(client.ends().await);
    }
}

#[tokio::test]
async fn an_idle_connection_ends() {
    let node = start(Accomplice::new(), |config| config.limits.idle_time = Duration::from_millis(50));
    let mut client = Client::connect(node.addr()).await;
    client.send("GET /other HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.answer().await.expect("an answer").status, 200);
    assert!(client.ends().await);
}

#[tokio::test]
async fn a_head_has_a_longest_length() {
    let node = start(Accomplice::new(), |config| config.limits.max_headers = 10);
    let many = "x-many: 1\r\n".repeat(20);
    let long = format!("x-long: {}\r\n", "x".repeat(100_000));
    for fields in [many, long] {
        let head = format!("GET /other HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        assert_eq!(sent(node.addr(), head.as_bytes()).await.status, 431);
    }
}

#[tokio::test]
async fn what_is_no_http_is_400_and_the_node_goes_on() {
    let node = start(Accomplice::new(), |_| {});
    for junk in [&b"\x16\x03\x01\x02\x00\x01\xfc\r\n\r\n"[..], b"GET\r\n\r\n", b"GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n"] {
        assert_eq!(sent(node.addr(), junk).await.status, 400);
    }
    let answer = sent(node.addr(), b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "bad_request"));
    assert_eq!(ask(node.addr(), "GET", "/other", "").await.status, 200);
}

#[tokio::test]
async fn a_trace_id_comes_back() {
    let node = start(Accomplice::new(), |_| {});
    let mine = sent(node.addr(), b"GET /other HTTP/1.1\r\nhost: a\r\nx-trace-id: mine-1\r\n\r\n").await;
    assert_eq!(mine.field("x-trace-id"), Some("mine-1"));
    let made = sent(node.addr(), b"GET /trap HTTP/1.1\r\nhost: a\r\nx-trace-id: a b\r\n\r\n").await;
    assert_eq!(made.field("x-trace-id").map(str::len), Some(32));
    assert_eq!(made.code(), "instance_lost");
}

#[tokio::test]
async fn a_head_request_has_a_length_and_no_body() {
    let node = start(Accomplice::new(), |_| {});
    let mut client = Client::connect(node.addr()).await;
    client
        .send("HEAD /wrong HTTP/1.1\r\nhost: a\r\n\r\nGET /other HTTP/1.1\r\nhost: a\r\nx-trace-id: next\r\n\r\n")
        .await;
    let head = client.head().await;
    assert!(head.contains("500"), "{head}");
    assert_eq!(client.answer().await.expect("the next answer").field("x-trace-id"), Some("next"));
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let node = start(Accomplice::new(), |config| config.max_connections = 1);
    let mut first = Client::connect(node.addr()).await;
    first.send("GET /other HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(first.answer().await.expect("an answer").status, 200);
    let mut second = Client::connect(node.addr()).await;
    second.send("GET /other HTTP/1.1\r\nhost: a\r\n\r\n").await;
    drop(first);
    assert_eq!(second.answer().await.expect("an answer after its turn").status, 200);
}

#[tokio::test]
async fn who_waits_in_the_queue_at_the_end_is_answered() {
    let node = start(Accomplice::new(), |config| config.max_connections = 1);
    let mut first = Client::connect(node.addr()).await;
    first.send("GET /other HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(first.answer().await.expect("an answer").status, 200);
    // The only place is taken: these have been accepted by the system, and by nobody else.
    let mut asking = Client::connect(node.addr()).await;
    asking.send("GET /other HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let silent = Client::connect(node.addr()).await;
    let drained = node.drain(Duration::from_secs(20)).await;
    let answer = asking.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
    for mut client in [first, asking, silent] {
        assert!(client.ends().await, "closed, and not reset");
    }
    assert_eq!(drained.cut, 0);
}

#[tokio::test]
async fn bodies_have_a_longest_length_together() {
    let store = Accomplice::new();
    let node = start(store.clone(), |config| {
        an_instance_each(config);
        config.limits.max_body_bytes = 800;
        config.limits.max_buffered_bytes = 1000;
    });
    let post = |path: &str, length: usize| {
        format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{}", "b".repeat(length))
    };
    let mut slow = Client::connect(node.addr()).await;
    slow.send(post("/slow", 800)).await;
    store.waiting.acquire().await.expect("open").forget();
    let mut client = Client::connect(node.addr()).await;
    client.send(post("/echo", 200)).await;
    assert_eq!(client.answer().await.expect("it fits").status, 200);
    client.send(post("/echo", 201)).await;
    let refused = client.answer().await.expect("an answer");
    assert_eq!((refused.status, refused.code().as_str()), (503, "overloaded"));
    assert!(refused.field("retry-after").is_some());
    store.go.add_permits(1);
    assert_eq!(slow.answer().await.expect("an answer").status, 200);
    client.send(post("/echo", 800)).await;
    assert_eq!(client.answer().await.expect("on the same connection").status, 200, "what was held is given back");
}
