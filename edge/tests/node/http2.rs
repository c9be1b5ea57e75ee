//! HTTP/2: the same requests by other means, and frames that no honest client sends.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    client::{PATIENCE, ask, start},
    guest::Accomplice,
};

type Sender = http2::SendRequest<Full<Bytes>>;

async fn connect(addr: SocketAddr) -> Sender {
    let stream = TcpStream::connect(addr).await.expect("the node accepts");
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("an HTTP/2 connection");
    tokio::spawn(connection);
    sender
}

fn request(method: &str, path: &str, body: &'static str) -> http::Request<Full<Bytes>> {
    http::Request::builder().method(method).uri(format!("http://test{path}")).body(Full::from(body)).expect("a request")
}

/// The guest does one thing at a time.
pub(crate) fn an_instance_each(config: &mut edgepass_edge::node::Config) {
    let limits = &mut config.surroundings.limits;
    (limits.in_flight, limits.max_in_flight) = (1, 1);
}

async fn exchange(sender: &mut Sender, request: http::Request<Full<Bytes>>) -> http::Response<Bytes> {
    sender.ready().await.expect("the connection is open");
    let (head, body) = sender.send_request(request).await.expect("an answer").into_parts();
    http::Response::from_parts(head, body.collect().await.expect("a body").to_bytes())
}

#[tokio::test]
async fn a_request_goes_in_and_its_answer_comes_out() {
    let node = start(Accomplice::new(), |_| {});
    let mut client = connect(node.addr()).await;
    let mut sent = request("POST", "/echo?a=b", "hello");
    sent.headers_mut().insert("x-echo", "a b".parse().expect("a value"));
    sent.headers_mut().insert("x-trace-id", "mine".parse().expect("a value"));
    let answer = exchange(&mut client, sent).await;
    assert_eq!((answer.status().as_u16(), &answer.body()[..]), (200, &b"hello"[..]));
    assert_eq!(answer.headers()["x-echo"], "a b");
    assert_eq!(answer.headers()["x-trace-id"], "mine");
    assert_eq!(answer.headers()["content-length"], "5");

    let head = exchange(&mut client, request("HEAD", "/wrong", "")).await;
    assert_eq!((head.status().as_u16(), head.body().len()), (500, 0));
    assert_ne!(head.headers()["content-length"], "0", "the length of what GET would give");
}

#[tokio::test]
async fn streams_of_one_connection_do_not_wait_for_each_other() {
    let store = Accomplice::new();
    let node = start(store.clone(), an_instance_each);
    let mut client = connect(node.addr()).await;
    client.ready().await.expect("open");
    let slow = client.send_request(request("POST", "/slow", ""));
    let slow = tokio::spawn(slow);
    store.waiting.acquire().await.expect("open").forget();
    for _ in 0..10 {
        assert_eq!(exchange(&mut client, request("GET", "/other", "")).await.status(), 200);
    }
    assert!(!slow.is_finished());
    store.go.add_permits(1);
    assert_eq!(slow.await.expect("ended").expect("an answer").status(), 200);
}

#[tokio::test]
async fn the_limits_are_those_of_http1() {
    let node = start(Accomplice::new(), |config| {
        config.limits.max_body_bytes = 3;
        config.limits.max_headers = 5;
        config.limits.request_time = Duration::from_millis(100);
    });
    let mut client = connect(node.addr()).await;
    assert_eq!(exchange(&mut client, request("POST", "/echo", "long")).await.status(), 413);
    let mut many = request("GET", "/other", "");
    for n in 0..6 {
        many.headers_mut()
            .insert(http::HeaderName::try_from(format!("x-{n}")).expect("a name"), http::HeaderValue::from_static("1"));
    }
    assert_eq!(exchange(&mut client, many).await.status(), 431);
    assert_eq!(exchange(&mut client, request("POST", "/never", "")).await.status(), 504);
    let mut smuggled = request("GET", "/other", "");
    smuggled.headers_mut().insert("host", "elsewhere".parse().expect("a value"));
    assert_eq!(exchange(&mut client, smuggled).await.status(), 400);
    assert_eq!(exchange(&mut client, request("GET", "/other", "")).await.status(), 200, "one connection all along");
}

#[tokio::test]
async fn a_drain_lets_streams_end_and_no_request_be_lost() {
    let store = Accomplice::new();
    let node = start(store.clone(), an_instance_each);
    let mut client = connect(node.addr()).await;
    client.ready().await.expect("open");
    let slow = tokio::spawn(client.send_request(request("POST", "/slow", "")));
    store.waiting.acquire().await.expect("open").forget();
    let draining = tokio::spawn(node.drain(Duration::from_secs(20)));
    // Until GOAWAY is here requests are answered; then the client knows that none was taken.
    while client.ready().await.is_ok() {
        match client.send_request(request("GET", "/other", "")).await {
            Ok(answer) => assert_eq!(answer.status(), 200),
            Err(error) => assert!(error.is_canceled() || is_refused(&error), "{error:?}"),
        }
    }
    store.go.add_permits(1);
    assert_eq!(slow.await.expect("ended").expect("the answer under way").status(), 200);
    assert_eq!(draining.await.expect("drained").cut, 0);
}

/// Not taken by the other side (RFC 9113 §8.7), or known to be lost before it was sent.
fn is_refused(error: &hyper::Error) -> bool {
    let text = format!("{error:?}");
    text.contains("REFUSED_STREAM") || text.contains("NO_ERROR") || text.contains("GoAway") || error.is_closed()
}

/// Frames as they are.
struct Raw(TcpStream);

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 11;
const PROTOCOL_ERROR: u32 = 1;

impl Raw {
    async fn connect(addr: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(addr).await.expect("the node accepts");
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("the preface");
        let mut raw = Self(stream);
        raw.send(SETTINGS, 0, 0, &[]).await;
        raw
    }

    /// False once the node takes no more.
    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.0.write_all(&frame(kind, flags, stream, payload)).await.is_ok()
    }

    /// Reads to the end; the error code of the GOAWAY and those of resets that came.
    async fn end(mut self) -> (Option<u32>, Vec<u32>) {
        tokio::time::timeout(PATIENCE, async {
            let (mut goaway, mut resets) = (None, Vec::new());
            while let Some((kind, payload)) = self.next().await {
                match kind {
                    GOAWAY => goaway = payload.get(4..8).map(code),
                    RST_STREAM => resets.push(code(&payload)),
                    _ => {}
                }
            }
            (goaway, resets)
        })
        .await
        .expect("the node ends the connection")
    }

    async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
        self.0.read_exact(&mut payload).await.ok()?;
        Some((head[3], payload))
    }
}

fn code(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields as HPACK literals without indexing (RFC 7541 §6.2.2).
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("short"));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

fn get(more: &[(&str, &str)]) -> Vec<u8> {
    let mut all = vec![(":method", "GET"), (":scheme", "http"), (":path", "/other"), (":authority", "test")];
    all.extend_from_slice(more);
    fields(&all)
}

async fn serves_others(addr: SocketAddr) {
    assert_eq!(ask(addr, "GET", "/other", "").await.status, 200, "others are served");
    assert_eq!(exchange(&mut connect(addr).await, request("GET", "/other", "")).await.status(), 200);
}

/// CVE-2023-44487.
#[tokio::test]
async fn streams_that_are_reset_at_once_end_the_connection() {
    let node = start(Accomplice::new(), |_| {});
    let mut raw = Raw::connect(node.addr()).await;
    let begun = get(&[]);
    let mut sent = 0;
    // Many in one write, so that the node finds them all before it has accepted one.
    'flood: for round in 0..200_u32 {
        let mut burst = Vec::new();
        for n in 0..100 {
            let stream = (round * 100 + n) * 2 + 1;
            burst.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &begun));
            burst.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        if raw.0.write_all(&burst).await.is_err() {
            break 'flood;
        }
        sent += 100;
    }
    let (goaway, _) = raw.end().await;
    assert!(goaway.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{goaway:?} after {sent}");
    serves_others(node.addr()).await;
}

/// CVE-2024-27316 and its like.
#[tokio::test]
async fn a_head_that_goes_on_and_on_ends_the_connection() {
    let node = start(Accomplice::new(), |_| {});
    for piece in [&fields(&[("x-a", "b")])[..], &[]] {
        let mut raw = Raw::connect(node.addr()).await;
        raw.send(HEADERS, END_STREAM, 1, &get(&[])).await;
        let mut taken = 0;
        while taken < 100_000 && raw.send(CONTINUATION, 0, 1, piece).await {
            taken += 1;
        }
        assert!(taken < 100_000, "the node stopped it");
        let (goaway, _) = raw.end().await;
        assert!(goaway.is_none_or(|code| code == ENHANCE_YOUR_CALM || code == PROTOCOL_ERROR), "{goaway:?}");
        serves_others(node.addr()).await;
    }
}

#[tokio::test]
async fn pings_and_settings_keep_no_connection() {
    let node = start(Accomplice::new(), |config| {
        config.limits.head_time = Duration::from_millis(200);
        config.limits.idle_time = Duration::from_millis(200);
    });
    for (kind, payload) in [(PING, &[0; 8][..]), (SETTINGS, &[][..])] {
        let mut raw = Raw::connect(node.addr()).await;
        let flood = frame(kind, 0, 0, payload).repeat(1000);
        // Answers are not read, as an attacker would not; the writes end when the node hangs up.
        let ended = tokio::time::timeout(PATIENCE, async { while raw.0.write_all(&flood).await.is_ok() {} }).await;
        assert!(ended.is_ok(), "the node hung up");
        serves_others(node.addr()).await;
    }
}

#[tokio::test]
async fn half_a_preface_or_none_of_a_request_ends_the_connection() {
    let node = start(Accomplice::new(), |config| config.limits.head_time = Duration::from_millis(50));
    for begun in [&b"PRI * HTT"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(node.addr()).await.expect("the node accepts");
        stream.write_all(begun).await.expect("it reads");
        let mut rest = Vec::new();
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "the node hung up");
    }
    // What only begins like one is HTTP/1.
    let answer = crate::front::sent(node.addr(), b"PRI * HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(answer.status, 400);
}

#[tokio::test]
async fn what_would_be_another_message_over_http1_is_refused() {
    let node = start(Accomplice::new(), |_| {});
    for smuggled in [
        &[("x-a", "b\r\nx-injected: 1")][..],
        &[("x-a", "b\0")],
        &[("x a", "b")],
        &[("X-A", "b")],
        &[("x-a:", "b")],
        &[("connection", "close")],
        &[("transfer-encoding", "chunked")],
        &[("upgrade", "h2c")],
        &[("te", "gzip")],
        &[(":path", "/twice")],
        &[(":unknown", "1")],
        &[("content-length", "5")],
    ] {
        let mut raw = Raw::connect(node.addr()).await;
        raw.send(HEADERS, END_STREAM | END_HEADERS, 1, &get(smuggled)).await;
        // A request after it on the same connection tells a refused stream from a hung one.
        raw.send(HEADERS, END_STREAM | END_HEADERS, 3, &get(&[])).await;
        raw.send(GOAWAY, 0, 0, &[0; 8]).await;
        let (goaway, resets) = raw.end().await;
        let refused = resets.contains(&PROTOCOL_ERROR) || goaway == Some(PROTOCOL_ERROR);
        assert!(refused, "{smuggled:?}: {goaway:?} {resets:?}");
    }
    let mut raw = Raw::connect(node.addr()).await;
    raw.send(HEADERS, END_HEADERS, 1, &get(&[("content-length", "5")])).await;
    raw.send(0, END_STREAM, 1, b"abc").await;
    raw.send(GOAWAY, 0, 0, &[0; 8]).await;
    let (goaway, resets) = raw.end().await;
    assert!(resets.contains(&PROTOCOL_ERROR) || goaway == Some(PROTOCOL_ERROR), "{goaway:?} {resets:?}");
    serves_others(node.addr()).await;
}
