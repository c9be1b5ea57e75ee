//! A node under test, and a client that sends exactly what it is told to.

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use edgepass_edge::{
    admin, front,
    metrics::Metrics,
    node::{Config, Node},
    outbound, pool,
    revision::Surroundings,
    revisions, server,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::guest::{self, Accomplice};

/// A node on a free port, with one core, so that neighbours are neighbours.
pub(crate) fn config(component: Vec<u8>, store: Arc<Accomplice>) -> Config {
    let policy = outbound::Policy::parse::<&str>(&[]).expect("an empty list");
    Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        admin: None,
        cores: Some(NonZeroUsize::MIN),
        max_connections: 100,
        limits: front::Limits::default(),
        component,
        cache: None,
        surroundings: Surroundings {
            variables: Arc::default(),
            store_labels: guest::labels(),
            store,
            outbound: outbound::Shared::new(policy, outbound::Options::default()).expect("no files to read"),
            limits: pool::Limits { max_instances: 8, max_memory_bytes: 32 << 20, ..pool::Limits::default() },
            metrics: Metrics::default(),
        },
        options: server::Options::default(),
        inherited_admin: None,
        revisions: revisions::Config::default(),
    }
}

/// Starts the hostile guest with changed settings.
pub(crate) fn start(store: Arc<Accomplice>, change: impl FnOnce(&mut Config)) -> Node {
    let mut config = config(guest::component(), store);
    change(&mut config);
    Node::start(config).expect("the node starts")
}

/// Adds a listener for operators, which `order` knows the token of.
pub(crate) fn with_admin(config: &mut Config) {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.admin = Some(admin::Config { listen, token: admin::Token::new(TOKEN), routes: Vec::new() });
}

const TOKEN: &str = "test-admin-token";

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The `code` of a problem.
    pub(crate) fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).expect("a problem is JSON");
        assert_eq!(self.field("content-type"), Some("application/problem+json"));
        assert_eq!(body["status"], self.status);
        assert_eq!(body["trace_id"].as_str(), self.field("x-trace-id"));
        body["code"].as_str().expect("a problem has a code").to_owned()
    }
}

/// A connection.
pub(crate) struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(addr).await.expect("the node accepts"), read: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("the node reads");
    }

    /// Reads one answer; `None` at the end of the connection.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        tokio::time::timeout(PATIENCE, self.read_answer()).await.expect("the node answers in time")
    }

    /// Reads the head of an answer that has no body, whatever its fields say.
    pub(crate) async fn head(&mut self) -> String {
        loop {
            if let Some(head) = self.take_head() {
                return head;
            }
            assert_ne!(self.stream.read_buf(&mut self.read).await.expect("a head comes"), 0, "a whole head");
        }
    }

    /// Reads to the end of the connection.
    pub(crate) async fn ends(&mut self) -> bool {
        let end = self.stream.read_to_end(&mut self.read);
        tokio::time::timeout(PATIENCE, end).await.is_ok() && self.read.is_empty()
    }

    fn take_head(&mut self) -> Option<String> {
        let end = self.read.windows(4).position(|four| four == b"\r\n\r\n")?;
        Some(String::from_utf8(self.read.drain(..end + 4).collect()).expect("a head is text"))
    }

    async fn read_answer(&mut self) -> Option<Answer> {
        loop {
            if let Some(head) = self.take_head() {
                let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
                let mut answer = Answer { status, head, body: Vec::new() };
                let length = answer.field("content-length").map_or(0, |length| length.parse().expect("a length"));
                while self.read.len() < length {
                    assert_ne!(self.stream.read_buf(&mut self.read).await.expect("the body comes"), 0, "a whole body");
                }
                answer.body = self.read.drain(..length).collect();
                return Some(answer);
            }
            if self.stream.read_buf(&mut self.read).await.ok()? == 0 {
                return None;
            }
        }
    }
}

/// One request on a connection of its own.
pub(crate) async fn ask(addr: SocketAddr, method: &str, target: &str, body: &str) -> Answer {
    let mut client = Client::connect(addr).await;
    client.send(request(method, target, body)).await;
    client.answer().await.expect("an answer")
}

/// One request of an operator.
pub(crate) async fn order(node: &Node, method: &str, target: &str, body: &str) -> Answer {
    order_bytes(node, method, target, "", body.as_bytes()).await
}

/// [`order`] with more fields, and with bytes that need be no text.
pub(crate) async fn order_bytes(node: &Node, method: &str, target: &str, fields: &str, body: &[u8]) -> Answer {
    let mut client = Client::connect(node.admin_addr().expect("operators are served")).await;
    let length = body.len();
    client
        .send(format!(
            "{method} {target} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {TOKEN}\r\n{fields}content-length: {length}\r\n\r\n"
        ))
        .await;
    client.send(body).await;
    client.answer().await.expect("an answer")
}

/// A request that waits inside the guest: `/slow` until the test says so, `/nap` for a while.
pub(crate) async fn begun(addr: SocketAddr, store: &Accomplice, target: &str, body: &str) -> Client {
    let mut client = Client::connect(addr).await;
    client.send(request("POST", target, body)).await;
    store.waiting.acquire().await.expect("open").forget();
    client
}

pub(crate) fn request(method: &str, target: &str, body: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Far beyond what any test waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
