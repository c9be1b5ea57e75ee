//! The client against upstreams that behave badly, each a script on a raw socket.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Mutex,
};

use bytes::Bytes;
use futures::{FutureExt, future::poll_fn};
use http_body::Body as _;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use super::*;

/// What an upstream does once it has read a request.
#[derive(Clone)]
enum Step {
    Say(Vec<u8>),
    /// Says it and waits for the client to close.
    Stall(Vec<u8>),
    Close(Vec<u8>),
    Reset,
}

/// An upstream with one script per connection, in the order in which they are accepted.
struct Upstream {
    address: SocketAddr,
    /// Connection number and request.
    received: Arc<Mutex<Vec<(usize, String)>>>,
    /// A stalled connection was closed by the client.
    closed: Arc<Notify>,
}

impl Upstream {
    async fn start(scripts: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("binds");
        let upstream = Self {
            address: listener.local_addr().expect("is bound"),
            received: Arc::default(),
            closed: Arc::default(),
        };
        let (received, closed) = (upstream.received.clone(), upstream.closed.clone());
        tokio::spawn(async move {
            for (n, script) in scripts.into_iter().enumerate() {
                let (stream, _) = listener.accept().await.expect("accepts");
                tokio::spawn(play(n, script, stream, received.clone(), closed.clone()));
            }
        });
        upstream
    }

    fn client(&self) -> Client {
        client_with(&[&format!("http://{}", self.address)], Options::default())
    }

    fn call(&self) -> Call {
        Call {
            method: "GET".into(),
            url: format!("http://{}/path?code=a%26b", self.address),
            head: Vec::new(),
            body: Vec::new(),
            limits: LIMITS,
            exclusive: None,
        }
    }

    fn requests(&self) -> Vec<usize> {
        self.received.lock().expect("is not poisoned").iter().map(|(n, _)| *n).collect()
    }
}

async fn play(
    n: usize,
    script: Vec<Step>,
    mut stream: TcpStream,
    received: Arc<Mutex<Vec<(usize, String)>>>,
    closed: Arc<Notify>,
) {
    for step in script {
        let Some(request) = read_request(&mut stream).await else { return };
        received.lock().expect("is not poisoned").push((n, request));
        match step {
            Step::Say(bytes) => stream.write_all(&bytes).await.expect("writes"),
            Step::Stall(bytes) => {
                stream.write_all(&bytes).await.expect("writes");
                while stream.read(&mut [0; 1024]).await.is_ok_and(|count| count > 0) {}
                closed.notify_one();
                return;
            }
            Step::Close(bytes) => return stream.write_all(&bytes).await.expect("writes"),
            Step::Reset => return stream.set_zero_linger().expect("resets when dropped"),
        }
    }
    // Nothing more is answered, and nothing closed either.
    _ = stream.read(&mut [0]).await;
}

/// The next request with its body; `None` when the client has closed.
async fn read_request(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Option<String> {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let whole = match length {
                Some(length) => body.len() >= length.parse::<usize>().expect("is a number"),
                None => !head.contains("transfer-encoding: chunked") || body.ends_with("0\r\n\r\n"),
            };
            if whole {
                return Some(text.into_owned());
            }
        }
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
    }
}

fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nx-a: b\r\n\r\n{body}", body.len()).into_bytes()
}

fn client_with(entries: &[&str], options: Options) -> Client {
    let policy = Policy::parse(entries).expect("are entries");
    Client::new(Shared::new(policy, options).expect("has its file"))
}

async fn failure(client: &Client, call: Call) -> Failure {
    client.send(call).await.err().expect("fails")
}

const LIMITS: Limits = Limits {
    connect: Duration::from_secs(5),
    first_byte: Duration::from_secs(5),
    total: Duration::from_secs(5),
    max_body_bytes: 1000,
};
const SHORT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn an_exchange_is_flat_both_ways_and_reuses_its_connection() {
    let upstream = Upstream::start(vec![vec![Step::Say(ok("one")), Step::Say(ok("two"))]]).await;
    let client = upstream.client();
    let head = b"accept: a/b\ntraceparent: 00-1-2-01\nconnection: close\n".to_vec();
    let reply = client.send(Call { head, ..upstream.call() }).await.expect("is answered");
    assert_eq!((reply.status, &*reply.body), (200, &b"one"[..]));
    assert_eq!(reply.head, b"content-length: 3\nx-a: b\n");
    let call = Call { method: "POST".into(), body: b"sent".to_vec(), ..upstream.call() };
    assert_eq!(client.send(call).await.expect("is answered").body, b"two");

    assert_eq!(upstream.requests(), [0, 0]);
    let received = upstream.received.lock().expect("is not poisoned");
    let host = upstream.address;
    assert_eq!(received[0].1, format!("GET /path?code=a%26b HTTP/1.1\r\naccept: a/b\r\nhost: {host}\r\n\r\n"));
    assert_eq!(
        received[1].1,
        format!("POST /path?code=a%26b HTTP/1.1\r\nhost: {host}\r\ncontent-length: 4\r\n\r\nsent")
    );
}

#[tokio::test]
async fn a_failure_after_sending_is_told_apart_and_makes_no_second_request() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec();
    let half_chunk = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nha".to_vec();
    let chunks = |count| {
        let mut reply = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        (0..count).for_each(|_| reply.extend_from_slice(b"64\r\n0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\r\n"));
        reply
    };
    let long_head = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'a'; 100_000]].concat();
    let many_heads = b"HTTP/1.1 100 Continue\r\n\r\n".to_vec();
    for (name, step, expected) in [
        ("stall before the head", Step::Stall(Vec::new()), Kind::Timeout),
        ("stall in the head", Step::Stall(b"HTTP/1.1 200 OK\r\n".to_vec()), Kind::Timeout),
        ("stall after 100", Step::Stall(many_heads), Kind::Timeout),
        ("stall in the body", Step::Stall(half.clone()), Kind::Timeout),
        ("reset", Step::Reset, Kind::Broken),
        ("close", Step::Close(Vec::new()), Kind::Broken),
        ("half a head", Step::Close(b"HTTP/1.1 200 OK\r\nx".to_vec()), Kind::Broken),
        ("half a body", Step::Close(half), Kind::Broken),
        ("half a chunk", Step::Close(half_chunk), Kind::Broken),
        ("not HTTP", Step::Close(b"\x00\x01garbage\r\n\r\n".to_vec()), Kind::Broken),
        ("another protocol", Step::Close(b"SSH-2.0-x\r\n".to_vec()), Kind::Broken),
        (
            "two lengths",
            Step::Close(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab".to_vec()),
            Kind::Broken,
        ),
        ("a long length", Step::Stall(b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n".to_vec()), Kind::TooLarge),
        (
            "a huge length",
            Step::Stall(b"HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551613\r\n\r\n".to_vec()),
            Kind::TooLarge,
        ),
        ("long chunks", Step::Stall(chunks(11)), Kind::TooLarge),
        ("a long head", Step::Stall(long_head), Kind::TooLarge),
    ] {
        let upstream = Upstream::start(vec![vec![step], vec![Step::Say(ok("again"))]]).await;
        let client = upstream.client();
        // Long enough for what is there to arrive, short where nothing will.
        let wait = if expected == Kind::Timeout { SHORT } else { LIMITS.total };
        let limits = Limits { first_byte: wait, total: wait, ..LIMITS };
        let failed = failure(&client, Call { limits, ..upstream.call() }).await;
        assert_eq!(failed, Failure { kind: expected, sent: true }, "{name}");
        assert_eq!(upstream.requests(), [0], "{name}");
        let reply = client.send(upstream.call()).await.expect(name);
        assert_eq!(reply.body, b"again", "{name}: the next exchange has a connection of its own");
        assert_eq!(upstream.requests(), [0, 1], "{name}");
    }
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_taken() {
    let upstream = Upstream::start(vec![vec![Step::Say(ok(&"a".repeat(1000)))]]).await;
    assert_eq!(upstream.client().send(upstream.call()).await.expect("is answered").body.len(), 1000);
}

#[tokio::test]
async fn a_reused_connection_that_closes_before_the_reply_gets_no_second_request() {
    for last in [Step::Close(Vec::new()), Step::Reset] {
        let scripts = vec![vec![Step::Say(ok("one")), last], vec![Step::Say(ok("three"))]];
        let upstream = Upstream::start(scripts).await;
        let client = upstream.client();
        client.send(upstream.call()).await.expect("is answered");
        assert_eq!(failure(&client, upstream.call()).await, Kind::Broken.sent());
        assert_eq!(upstream.requests(), [0, 0]);
        assert_eq!(client.send(upstream.call()).await.expect("is answered").body, b"three");
    }
}

#[tokio::test]
async fn interim_replies_are_skipped() {
    let reply =
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n".to_vec(), ok("body")].concat();
    let upstream = Upstream::start(vec![vec![Step::Say(reply)]]).await;
    assert_eq!(upstream.client().send(upstream.call()).await.expect("is answered").body, b"body");
}

#[tokio::test]
async fn a_reply_nobody_asked_for_answers_nothing() {
    let forged = [ok("one"), ok("forged")].concat();
    let upstream = Upstream::start(vec![vec![Step::Say(forged)], vec![Step::Say(ok("two"))]]).await;
    let client = upstream.client();
    assert_eq!(client.send(upstream.call()).await.expect("is answered").body, b"one");
    assert_eq!(client.send(upstream.call()).await.expect("is answered").body, b"two");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Upstream::start(vec![vec![Step::Say(ok("secret"))]]).await;
    let redirect = format!("HTTP/1.1 302 Found\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n", other.address);
    let upstream = Upstream::start(vec![vec![Step::Say(redirect.into_bytes())]]).await;
    let entries = [&*format!("http://{}", upstream.address), &*format!("http://{}", other.address)];
    let reply = client_with(&entries, Options::default()).send(upstream.call()).await.expect("is answered");
    assert_eq!(reply.status, 302);
    assert!(other.requests().is_empty());
}

#[tokio::test]
async fn what_is_not_allowed_is_not_connected_to() {
    let upstream = Upstream::start(vec![vec![Step::Say(ok("secret"))]]).await;
    let port = upstream.address.port();
    let anywhere = "*://*:*";
    for (entries, url) in [
        (&[][..], format!("http://127.0.0.1:{port}/")),
        (&[anywhere], format!("http://127.0.0.1:{port}/")),
        (&[anywhere], format!("http://localhost:{port}/")),
        (&[anywhere], format!("http://inside.example:{port}/")),
        (&[anywhere], format!("http://[::ffff:127.0.0.1]:{port}/")),
        (&[anywhere], format!("http://[::1]:{port}/")),
        (&["http://*.example:*"], format!("http://inside.example:{port}/")),
        (&["http://a.example:*"], format!("http://a.example@127.0.0.1:{port}/")),
        (&["http://a.example:*"], format!("http://a.example:80@127.0.0.1:{port}/")),
        (&["http://a.example:*"], format!("http://127.0.0.1:{port}#http://a.example/")),
        (&["http://a.example:*"], format!("http://127.0.0.1:{port}\\@a.example/")),
        (&["http://127.0.0.1:*"], format!("https://127.0.0.1:{port}/")),
        (&["http://127.0.0.1:*"], format!("ftp://127.0.0.1:{port}/")),
        (&["http://127.0.0.1:*"], format!("//127.0.0.1:{port}/")),
        (&["http://127.0.0.1:*"], "http://127.0.0.1:/".into()),
        (&["http://127.0.0.1:*"], "http://127.0.0.1:0/".into()),
        (&["http://127.0.0.1:*"], format!("http://127.0.0.1:{port}/a b\r\nx: y")),
        (&["http://127.0.0.1:*"], String::new()),
    ] {
        let client = client_with(entries, Options::default());
        client.shared.resolver.set("inside.example", vec![upstream.address.ip()]);
        let denied = failure(&client, Call { url: url.clone(), ..upstream.call() }).await;
        assert_eq!(denied, Kind::Denied.unsent(), "{url}");
    }
    assert!(upstream.requests().is_empty());
}

/// Ways to write an address or a name that lists have been tricked with.
#[tokio::test]
async fn an_allow_list_is_not_talked_around() {
    let upstream = Upstream::start(vec![vec![Step::Say(ok("secret"))]]).await;
    let port = upstream.address.port();
    let client = client_with(&["http://api.example:*", "http://*.open.example:*", "*://*:*"], Options::default());
    // Whatever name is looked up leads inside.
    let names =
        ["localhost.", "api.example.", "0x7f000001", "2130706433", "0177.0.0.1", "127.1", "0x7f.1", "xn--1-0ga"];
    for name in names {
        client.shared.resolver.set(name, vec![upstream.address.ip()]);
    }
    for authority in [
        "api.example:80@127.0.0.1:{}",
        "api.example%00@127.0.0.1:{}",
        "127.0.0.1:{}%2f.open.example",
        "127.0.0.1:{}\\.open.example",
        "127.0.0.1:{}\t.open.example",
        "localhost.:{}",
        "LOCALHOST.:{}",
        "api.example.:{}",
        "0x7f000001:{}",
        "2130706433:{}",
        "0177.0.0.1:{}",
        "127.1:{}",
        "0X7F.1:{}",
        "xn--1-0ga:{}",
        "[::ffff:127.0.0.1]:{}",
        "[::FFFF:7f00:1]:{}",
        "[::127.0.0.1]:{}",
        "[64:ff9b::7f00:1]:{}",
        "[2002:7f00:1::1]:{}",
        "[::1%25lo]:{}",
        "[fe80::1%25eth0]:{}",
        "[::]:{}",
        "0.0.0.0:{}",
        "①②⑦.⓪.⓪.①:{}",
        "ａpi.example:{}",
        "127.0.0.1:+{}",
        "127.0.0.1:0{}",
        "127.0.0.1:{} ",
        " 127.0.0.1:{}",
        "127.0.0.1::{}",
        "127.0.0.1:{}:80",
    ] {
        let url = format!("http://{}/", authority.replace("{}", &port.to_string()));
        let failed = failure(&client, Call { url: url.clone(), ..upstream.call() }).await;
        // What is no name the resolver knows may also be unknown; it is not reached either way.
        assert!(matches!(failed, Failure { kind: Kind::Denied, sent: false }), "{url:?}: {failed}");
        // The other door takes parsed addresses only.
        let Ok(streamed) = http::Request::get(&url).body(Full::<Bytes>::default()) else { continue };
        let failed = client.send_http(streamed, STREAM).await.err().expect("fails");
        assert_eq!(failed, Kind::Denied.unsent(), "{url:?} by the other door");
    }
    assert!(upstream.requests().is_empty());
}

#[tokio::test]
async fn a_redirect_to_a_private_address_is_handed_back() {
    let inside = Upstream::start(vec![vec![Step::Say(ok("secret"))]]).await;
    for status in
        ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        let location = format!("location: http://{}/\r\nrefresh: 0; url=http://{}/", inside.address, inside.address);
        let reply = format!("HTTP/1.1 {status}\r\n{location}\r\ncontent-length: 0\r\n\r\n");
        let upstream = Upstream::start(vec![vec![Step::Say(reply.clone().into()), Step::Say(reply.into())]]).await;
        let client = upstream.client();
        let flat = client.send(upstream.call()).await.expect("is answered").status;
        let streamed =
            client.send_http(request(&upstream, Full::from("")), STREAM).await.expect("is answered").status();
        assert_eq!((Some(flat), status.split(' ').next()), (Some(streamed.as_u16()), Some(streamed.as_str())));
    }
    assert!(inside.requests().is_empty());
}

#[tokio::test]
async fn an_upstream_that_keeps_failing_is_left_alone_by_the_whole_node() {
    let fails = || vec![Step::Close(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n".to_vec())];
    let upstream = Upstream::start(vec![fails(), fails(), fails(), fails(), vec![Step::Reset], fails()]).await;
    let options = Options::default();
    let entry = format!("http://{}", upstream.address);
    // Two cores, two revisions.
    let (one, other) = (client_with(&[&entry], options.clone()), client_with(&[&entry], options.clone()));
    for client in [&one, &other, &one, &other] {
        assert_eq!(client.send(upstream.call()).await.expect("is answered").status, 502);
    }
    assert_eq!(failure(&one, upstream.call()).await, Kind::Broken.sent());
    for client in [&one, &other] {
        assert_eq!(failure(client, upstream.call()).await, Kind::Down.unsent());
        let streamed = client.send_http(request(&upstream, Full::from("")), STREAM).await;
        assert_eq!(streamed.err(), Some(Kind::Down.unsent()));
    }
    assert_eq!(upstream.requests(), [0, 1, 2, 3, 4]);
    let elsewhere = Upstream::start(vec![vec![Step::Say(ok("one"))]]).await;
    let client = client_with(&[&format!("http://{}", elsewhere.address)], options);
    assert_eq!(client.send(elsewhere.call()).await.expect("has a guard of its own").status, 200);
}

#[tokio::test]
async fn an_upstream_that_says_no_is_not_down() {
    let said = (0..50).map(|_| Step::Say(ok(r#"{"errcode":40029,"errmsg":"invalid code"}"#)));
    let upstream = Upstream::start(vec![said.collect()]).await;
    let client = upstream.client();
    for _ in 0..50 {
        assert_eq!(client.send(upstream.call()).await.expect("is answered").status, 200);
    }
}

#[tokio::test]
async fn an_upstream_that_is_back_is_used_again() {
    let fails = vec![Step::Close(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".to_vec())];
    let upstream = Upstream::start(vec![fails, vec![Step::Say(ok("two")), Step::Say(ok("three"))]]).await;
    let rules = Rules { failures: 1, first_wait: SHORT, ..Rules::default() };
    let client =
        client_with(&[&format!("http://{}", upstream.address)], Options { breaker: rules, ..Options::default() });
    assert_eq!(client.send(upstream.call()).await.expect("is answered").status, 500);
    let mut refused = 0;
    let reply = loop {
        match client.send(upstream.call()).await {
            Ok(reply) => break reply,
            Err(failed) => assert_eq!(failed, Kind::Down.unsent()),
        }
        refused += 1;
        tokio::task::yield_now().await;
    };
    assert!(refused > 0 && reply.body == b"two");
    assert_eq!(client.send(upstream.call()).await.expect("is answered").body, b"three");
}

#[tokio::test]
async fn exchanges_with_one_upstream_are_counted_on_the_whole_node() {
    let upstream = Upstream::start(vec![vec![Step::Stall(Vec::new())], vec![Step::Say(ok("two"))]]).await;
    let options = Options { in_flight: 1, ..Options::default() };
    let entry = format!("http://{}", upstream.address);
    let (one, other) = (client_with(&[&entry], options.clone()), client_with(&[&entry], options));
    let mut first = Box::pin(one.send(upstream.call()));
    assert!(tokio::time::timeout(SHORT, &mut first).await.is_err());
    assert_eq!(failure(&other, upstream.call()).await, Kind::Busy.unsent());
    drop(first);
    assert_eq!(other.send(upstream.call()).await.expect("has its place").body, b"two");
}

/// Its queue of connections is full, so that nobody is answered: what a dead machine looks like.
#[tokio::test]
async fn a_silent_address_does_not_hold_up_the_next() {
    let upstream = Upstream::start(vec![vec![Step::Say(ok("one"))]]).await;
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("is made");
    let dead = SocketAddr::new(Ipv4Addr::new(127, 0, 0, 2).into(), upstream.address.port());
    silent.bind(&dead.into()).expect("the other address has the port free");
    silent.listen(0).expect("listens");
    let mut filling = Vec::new();
    while let Ok(stream) = tokio::time::timeout(SHORT, TcpStream::connect(dead)).await {
        filling.push(stream.expect("is queued"));
    }
    let entries = ["http://inside.example:*", "http://127.0.0.0/8:*"];
    let client = client_with(&entries, Options::default());
    client.shared.resolver.set("inside.example", vec![dead.ip(), upstream.address.ip()]);
    let url = format!("http://inside.example:{}/", dead.port());
    let limits = Limits { connect: Duration::from_mins(1), total: Duration::from_mins(1), ..LIMITS };
    let started = tokio::time::Instant::now();
    assert_eq!(client.send(Call { url, limits, ..upstream.call() }).await.expect("is answered").body, b"one");
    // A fair share of the minute would have been half of it.
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_name_reaches_a_private_address_that_is_named_too() {
    let upstream = Upstream::start(vec![vec![Step::Say(ok("one"))]]).await;
    let port = upstream.address.port();
    let entries = ["http://inside.example:*", &format!("http://127.0.0.0/8:{port}")];
    let client = client_with(&entries, Options::default());
    // Nothing listens on the first; the second is tried.
    let dead = IpAddr::from(Ipv4Addr::new(127, 0, 0, 2));
    client.shared.resolver.set("inside.example", vec![dead, upstream.address.ip()]);
    let url = format!("http://Inside.Example:{port}?q#fragment");
    assert_eq!(client.send(Call { url, ..upstream.call() }).await.expect("is answered").body, b"one");
    let request = format!("GET /?q HTTP/1.1\r\nhost: inside.example:{port}\r\n\r\n");
    assert_eq!(upstream.received.lock().expect("is not poisoned")[0].1, request);
}

#[tokio::test]
async fn a_failure_to_connect_says_that_nothing_was_sent() {
    let upstream = Upstream::start(Vec::new()).await;
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("binds").local_addr().expect("is bound");
    let client = client_with(&["http://127.0.0.1:*", "http://*:*"], Options::default());
    let url = format!("http://{free}/");
    assert_eq!(failure(&client, Call { url, ..upstream.call() }).await, Kind::Unreachable.unsent());
    // Refused by the resolver before it asks anybody.
    let url = format!("http://{}.example/", "a".repeat(300));
    assert_eq!(failure(&client, Call { url, ..upstream.call() }).await, Kind::Unresolved.unsent());
}

#[tokio::test]
async fn one_exchange_with_a_key_at_a_time_on_the_node() {
    let upstream = Upstream::start(vec![vec![Step::Stall(Vec::new())]]).await;
    let options = Options::default();
    let entry = format!("http://{}", upstream.address);
    let (one, other) = (client_with(&[&entry], options.clone()), client_with(&[&entry], options));
    let keyed = || Call { exclusive: Some(b"key".to_vec()), ..upstream.call() };
    let mut first = Box::pin(one.send(keyed()));
    assert!(poll_fn(|cx| std::task::Poll::Ready(first.poll_unpin(cx).is_pending())).await);
    assert_eq!(failure(&other, keyed()).await, Kind::Duplicate.unsent());
    let closed = upstream.closed.notified();
    // Lets the first reach its upstream, then gives it up.
    assert!(tokio::time::timeout(SHORT, &mut first).await.is_err());
    drop(first);
    closed.await;
    assert_eq!(failure(&other, keyed()).await, Kind::Duplicate.unsent(), "it may have been taken");
    assert_eq!(upstream.requests(), [0]);
}

#[tokio::test]
async fn waiting_for_a_connection_counts_as_connecting() {
    let scripts = vec![vec![Step::Stall(Vec::new())], vec![Step::Say(ok("three"))]];
    let upstream = Upstream::start(scripts).await;
    let options = Options { connections: 1, ..Options::default() };
    let client = client_with(&[&format!("http://{}", upstream.address)], options);
    let mut first = Box::pin(client.send(upstream.call()));
    assert!(tokio::time::timeout(SHORT, &mut first).await.is_err());
    let limits = Limits { connect: SHORT, ..LIMITS };
    assert_eq!(failure(&client, Call { limits, ..upstream.call() }).await, Kind::Busy.unsent());
    let third = client.send(upstream.call());
    drop(first);
    assert_eq!(third.await.expect("has the connection's place").body, b"three");
}

#[tokio::test]
async fn a_connection_is_not_reused_after_the_upstreams_idle_limit() {
    let reply = b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=0\r\ncontent-length: 0\r\n\r\n".to_vec();
    let upstream = Upstream::start(vec![vec![Step::Say(reply)], vec![Step::Say(ok("two"))]]).await;
    let client = upstream.client();
    client.send(upstream.call()).await.expect("is answered");
    client.send(upstream.call()).await.expect("is answered");
    assert_eq!(upstream.requests(), [0, 1]);
}

fn request<B>(upstream: &Upstream, body: B) -> http::Request<B> {
    let builder = http::Request::post(format!("http://{}/stream", upstream.address));
    builder.header("traceparent", "t").header("x-a", "b").body(body).expect("is a request")
}

const STREAM: StreamLimits =
    StreamLimits { connect: LIMITS.connect, first_byte: LIMITS.first_byte, between_bytes: LIMITS.total };

#[tokio::test]
async fn bodies_are_streamed_both_ways() {
    let reply = b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=60\r\ntransfer-encoding: chunked\r\n\r\n2\r\non\r\n1\r\ne\r\n0\r\n\r\n";
    let upstream = Upstream::start(vec![vec![Step::Say(reply.to_vec()), Step::Say(ok("two"))]]).await;
    let client = upstream.client();
    let frames = ["a", "bc"].map(|data| Ok::<_, io::Error>(http_body::Frame::data(Bytes::from(data))));
    let body = StreamBody::new(futures::stream::iter(frames));
    let response = client.send_http(request(&upstream, body), STREAM).await.expect("is answered");
    assert_eq!(response.headers().len(), 0);
    assert_eq!(response.into_body().collect().await.expect("ends").to_bytes(), "one");
    let response = client.send_http(request(&upstream, Full::from("x")), STREAM).await.expect("is answered");
    assert!(!response.body().is_end_stream());
    assert_eq!(response.into_body().collect().await.expect("ends").to_bytes(), "two");
    assert_eq!(upstream.requests(), [0, 0]);
    let received = upstream.received.lock().expect("is not poisoned");
    assert!(received[0].1.ends_with("1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"), "{}", received[0].1);
    assert!(!received[0].1.contains("traceparent") && received[0].1.contains("x-a: b"));
}

#[tokio::test]
async fn a_streamed_reply_that_breaks_or_stalls_ends_with_a_failure() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec();
    for (step, kind) in [(Step::Close(half.clone()), Kind::Broken), (Step::Stall(half), Kind::Timeout)] {
        let upstream = Upstream::start(vec![vec![step], vec![Step::Say(ok("two"))]]).await;
        let client = upstream.client();
        let limits = StreamLimits { between_bytes: SHORT, ..STREAM };
        let response = client.send_http(request(&upstream, Full::from("")), limits).await.expect("is answered");
        let mut body = response.into_body();
        let first = body.frame().await.expect("has a frame").expect("has arrived");
        assert_eq!(first.into_data().ok(), Some(Bytes::from("half")));
        assert_eq!(body.frame().await.expect("does not just end").err(), Some(kind.sent()));
        client.send(upstream.call()).await.expect("has a connection of its own");
        assert_eq!(upstream.requests(), [0, 1]);
    }
}

#[tokio::test]
async fn tls_trusts_the_named_authorities_and_nobody_else() {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("makes a certificate");
    let folder = tempfile::tempdir().expect("has a temporary folder");
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, cert.pem()).expect("writes");
    let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).expect("is a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("has versions").with_no_client_auth();
    let config = config.with_single_cert(vec![cert.der().clone()], key).expect("is a pair");

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("binds");
    let address = listener.local_addr().expect("is bound");
    tokio::spawn(async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            read_request(&mut stream).await.expect("has a request");
            stream.write_all(&ok("sealed")).await.expect("writes");
        }
    });

    let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("binds");
    let plain_url = format!("https://{}/", plain.local_addr().expect("is bound"));
    tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.expect("accepts");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("writes");
        while stream.read(&mut [0; 1024]).await.is_ok_and(|count| count > 0) {}
    });

    let upstream = Upstream::start(Vec::new()).await;
    let entries = ["https://localhost:*", "https://127.0.0.1:*"];
    let trusting = client_with(&entries, Options { extra_roots: Some(roots.clone()), ..Options::default() });
    let to = |url| Call { url, ..upstream.call() };
    let named = || to(format!("https://localhost:{}/", address.port()));
    assert_eq!(trusting.send(named()).await.expect("is answered").body, b"sealed");
    let by_address = to(format!("https://{address}/"));
    assert_eq!(failure(&trusting, by_address).await, Kind::Tls.unsent(), "the certificate is for another name");
    let other = client_with(&entries, Options::default());
    assert_eq!(failure(&other, named()).await, Kind::Tls.unsent(), "nobody vouches for it");
    assert_eq!(failure(&other, to(plain_url)).await, Kind::Tls.unsent(), "it speaks plain text");

    std::fs::write(&roots, "no certificate").expect("writes");
    let options = Options { extra_roots: Some(roots), ..Options::default() };
    assert!(Shared::new(Policy::default(), options).is_err());
}

/// What the hooks of `wasi:http` ask of it.
#[test]
fn exchanges_can_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let client = Client::new(Shared::new(Policy::default(), Options::default()).expect("needs no file"));
    let call = Call {
        method: String::new(),
        url: String::new(),
        head: Vec::new(),
        body: Vec::new(),
        limits: LIMITS,
        exclusive: None,
    };
    is_send(&client.send(call));
    is_send(&client.send_http(http::Request::new(Full::<Bytes>::default()), STREAM));
}
