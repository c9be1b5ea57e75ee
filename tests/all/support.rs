//! The world a behaviour plays in: a node with one of the three targets behind its front, a
//! simulated platform, and a client.

pub(crate) mod http;
pub(crate) mod store;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use edgepass::{
    message::MAX_TARGET_BYTES,
    testing::contract::{self, Contract},
};
use edgepass_bench::native::Native;
use edgepass_edge::{
    admin,
    kv::Backend as _,
    manifest::Manifest,
    metrics::Metrics,
    node::{self, Node},
    outbound::{self, Policy, Shared},
    revision::Surroundings,
    revisions,
    server::{self, Server},
    variables::Sources,
};
use edgepass_sim::{Entry, Fault, Kind, SAMPLE_APPID, SAMPLE_SECRET, SimConfig, Simulator};
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use self::{
    http::Answer,
    store::{Hold, Place, Switched, servers::Servers},
};

/// What is behind the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// The core, natively.
    Native,
    /// `target/edgepass-node.wasm`.
    Node,
    /// `target/edgepass.wasm`.
    Service,
}

/// Turns each behaviour, an `async fn(World)`, into three tests: one for every target.
macro_rules! behaviours {
    ($($name:ident),* $(,)?) => {
        $crate::support::behaviours!(@door native, Native, $($name)*);
        $crate::support::behaviours!(@door node, Node, $($name)*);
        $crate::support::behaviours!(@door service, Service, $($name)*);
    };
    (@door $module:ident, $door:ident, $($name:ident)*) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    use crate::support::{Door, WorldBuilder, run};
                    run(async { super::$name(WorldBuilder::new(Door::$door).start()).await });
                }
            )*
        }
    };
}
pub(crate) use behaviours;

/// As `behaviours!`, and once more with nodes that share a Redis.
macro_rules! shared_behaviours {
    ($($name:ident),* $(,)?) => {
        $crate::support::behaviours!($($name),*);

        mod redis {
            $(
                #[test]
                fn $name() {
                    use crate::support::{Door, PATIENT, WorldBuilder, run};
                    run(async { super::$name(WorldBuilder::new(Door::Node).redis(PATIENT).start()).await });
                }
            )*
        }
    };
}
pub(crate) use shared_behaviours;

/// For a call to a Redis that works, on a machine that is busy.
pub(crate) const PATIENT: Duration = Duration::from_secs(20);

/// Runs a test body. The node and the simulator have threads of their own.
pub(crate) fn run(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(body);
}

/// Names of an object's members, sorted.
pub(crate) fn keys_of(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// The claims of a JWT, unverified.
pub(crate) fn claims_of(token: &str) -> Value {
    use base64ct::Encoding as _;
    let claims = token.split('.').nth(1).expect("three parts");
    serde_json::from_slice(&base64ct::Base64UrlUnpadded::decode_vec(claims).expect("base64url")).expect("JSON")
}

/// How a world is set up.
pub(crate) struct WorldBuilder {
    door: Door,
    settings: BTreeMap<String, String>,
    keep_server_timing: bool,
    place: Option<Place>,
}

impl WorldBuilder {
    pub(crate) fn new(door: Door) -> Self {
        Self { door, settings: BTreeMap::new(), keep_server_timing: false, place: None }
    }

    /// On a Redis of its own, a call to which may take `timeout`; else in a folder.
    pub(crate) fn redis(mut self, timeout: Duration) -> Self {
        self.place = Some(Place::redis(timeout));
        self
    }

    /// The Redis it will be on, for what is to be done to it before there is a node.
    pub(crate) fn servers(&self) -> &Servers {
        self.place.as_ref().expect("it is asked for").servers()
    }

    pub(crate) fn door(&self) -> Door {
        self.door
    }

    /// Overrides a variable of the manifest.
    pub(crate) fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.into(), value.into());
        self
    }

    pub(crate) fn keep_server_timing(mut self) -> Self {
        self.keep_server_timing = true;
        self
    }

    pub(crate) fn start(self) -> World {
        self.prepare().unwrap_or_else(|error| panic!("the node starts: {}", chain(&*error)))
    }

    /// Why the node does not start.
    pub(crate) fn refused(self) -> String {
        chain(&*self.prepare().err().expect("the node does not start"))
    }

    fn prepare(self) -> Result<World, Box<dyn std::error::Error>> {
        let place = self.place.unwrap_or_else(Place::folder);
        let simulator = Arc::new(Simulator::start(SimConfig::default()).expect("the simulator starts"));
        let mut settings = BTreeMap::from([
            ("wechat_base_url".to_owned(), simulator.base_url()),
            ("wechat_appid".to_owned(), SAMPLE_APPID.to_owned()),
            ("wechat_secret".to_owned(), SAMPLE_SECRET.to_owned()),
            // Random bytes, made for these tests.
            ("master_key".to_owned(), "Zx2T1cBqk0bqVVnTg0mK9d3pJrI0hYp7cVqGmT5rF0Q".to_owned()),
            ("subject_key".to_owned(), "p8LkW3dYQm6nR0tVbX2zA5cE7gI9jK1oM4qS6uW8yB0".to_owned()),
            ("log_sample".to_owned(), "1".to_owned()),
            ("operator_tokens".to_owned(), OPERATOR.to_owned()),
        ]);
        settings.extend(self.settings);
        let store = place.open();
        let setup = Setup { door: self.door, settings, keep_server_timing: self.keep_server_timing };
        let node = setup.node(store.clone())?;
        Ok(World { setup, node, store, simulator, place: Arc::new(place), logs: logs() })
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// What a node is made from, so that a second one or a restarted one is the same.
#[derive(Clone)]
struct Setup {
    door: Door,
    settings: BTreeMap<String, String>,
    keep_server_timing: bool,
}

enum Running {
    Native(Server),
    Component(Node),
}

impl Setup {
    fn node(&self, store: Arc<Switched>) -> Result<Running, Box<dyn std::error::Error>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let manifest = Manifest::read(&root.join("spin.toml"))?;
        let arguments: Vec<String> = self.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let variables = Sources::new(&arguments, [], Path::new("no-such-file.env"))?.resolve(&manifest)?;
        // A wrong base URL is the component's to report; nothing goes out then.
        let policy = Policy::parse(&variables.allowed_outbound_hosts)
            .unwrap_or_else(|_| Policy::parse::<&str>(&[]).expect("an empty list"));
        let outbound = Shared::new(policy, outbound::Options::default())?;
        let mut limits = manifest.component.settings.front();
        limits.server_timing = self.keep_server_timing;
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let cores = std::num::NonZeroUsize::MIN;

        if self.door == Door::Native {
            let settings = variables.component.iter().map(|(name, value)| (name.into(), value.into())).collect();
            let config =
                server::Config { listen, options: server::Options::default(), cores, max_connections: 1000, limits };
            return Ok(Running::Native(Server::start(config, Arc::new(Native::new(settings, store, outbound)))?));
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let path = target.join(if self.door == Door::Node { "edgepass-node.wasm" } else { "edgepass.wasm" });
        let component = std::fs::read(&path)
            .map_err(|error| format!("{}: {error}; `cargo xtask component` makes it", path.display()))?;
        let node = Node::start(node::Config {
            listen,
            admin: Some(admin::Config { listen, token: admin::Token::new(ADMIN_TOKEN), routes: Vec::new() }),
            cores: Some(cores),
            max_connections: 1000,
            limits,
            component,
            // Shared by all tests: the first compiles, the others load.
            cache: Some(target.join("tests-compiled")),
            surroundings: Surroundings {
                variables: Arc::new(variables.component),
                store_labels: manifest.component.key_value_stores.clone(),
                store,
                outbound,
                limits: manifest.component.settings.pool(),
                metrics: Metrics::default(),
            },
            options: server::Options::default(),
            inherited_admin: None,
            revisions: revisions::Config::default(),
        })?;
        Ok(Running::Component(node))
    }
}

/// Of the node's own routes, which no behaviour asks for.
const ADMIN_TOKEN: &str = "the-behaviours-admin-token";

impl Running {
    fn addr(&self) -> SocketAddr {
        match self {
            Self::Native(server) => server.addr(),
            Self::Component(node) => node.addr(),
        }
    }

    /// Where `/internal/*` is: the native core has no front that would keep it apart.
    fn admin_addr(&self) -> SocketAddr {
        match self {
            Self::Native(server) => server.addr(),
            Self::Component(node) => node.admin_addr().expect("it is asked for"),
        }
    }

    async fn drain(self) {
        let limit = Duration::from_secs(20);
        let drained = match self {
            Self::Native(server) => server.drain(limit).await,
            Self::Component(node) => node.drain(limit).await,
        };
        assert_eq!(drained.cut, 0, "nothing is left when a node ends");
    }
}

/// One node, its store, its platform.
pub(crate) struct World {
    setup: Setup,
    node: Running,
    store: Arc<Switched>,
    simulator: Arc<Simulator>,
    place: Arc<Place>,
    logs: &'static Logs,
}

impl World {
    pub(crate) fn door(&self) -> Door {
        self.setup.door
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.node.addr()
    }

    /// Where `/internal/*` is served.
    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.node.admin_addr()
    }

    /// Another node over the same store and platform.
    pub(crate) fn second_node(&self) -> Self {
        self.second_node_with(&[])
    }

    /// Another node over the same store and platform, with some settings changed.
    pub(crate) fn second_node_with(&self, changes: &[(&str, &str)]) -> Self {
        let mut setup = self.setup.clone();
        setup.settings.extend(changes.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
        let store = self.place.open_beside(&self.store);
        let node = setup.node(store.clone()).unwrap_or_else(|error| panic!("{}", chain(&*error)));
        Self { setup, node, store, simulator: self.simulator.clone(), place: self.place.clone(), logs: self.logs }
    }

    /// The node stopped in order, its store closed, and both started again.
    pub(crate) async fn restarted(self) -> Self {
        self.node.drain().await;
        self.store.close().await.expect("the store closes");
        drop(self.store);
        let store = self.place.open();
        let node = self.setup.node(store.clone()).unwrap_or_else(|error| panic!("{}", chain(&*error)));
        Self { node, store, ..self }
    }

    // The client's side.

    pub(crate) async fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = ::http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = http::send(self.address(), request.body(body.to_vec()).expect("a valid request")).await;
        as_documented(method, path, &answer);
        answer
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.request("GET", path, headers, b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await
    }

    pub(crate) async fn log_in(&self, code: &str) -> Answer {
        self.post("/api/login", &serde_json::json!({"code": code})).await
    }

    /// The body of a login that succeeds.
    pub(crate) async fn logged_in(&self, user: &str) -> Value {
        let answer = self.log_in(&self.code(user)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Sends a login and hands back the connection, to be dropped before the answer.
    pub(crate) async fn log_in_and_leave(&self, code: &str) -> TcpStream {
        self.post_and_leave("/api/login", &[], &serde_json::json!({"code": code})).await
    }

    /// Sends a request and hands back the connection, to be dropped before the answer.
    pub(crate) async fn post_and_leave(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> TcpStream {
        let body = body.to_string();
        let headers: String = headers.iter().flat_map(|(name, value)| [name, ": ", value, "\r\n"]).collect();
        let mut stream = TcpStream::connect(self.address()).await.expect("the node listens");
        let length = body.len();
        let request = format!("POST {path} HTTP/1.1\r\nhost: node\r\n{headers}content-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.expect("the node reads");
        stream
    }

    /// A login with an `Idempotency-Key`.
    pub(crate) async fn log_in_with_key(&self, code: &str, key: &str) -> Answer {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        self.request("POST", "/api/login", &headers, serde_json::json!({"code": code}).to_string().as_bytes()).await
    }

    pub(crate) async fn refresh(&self, token: &Value) -> Answer {
        self.post("/api/token/refresh", &serde_json::json!({"refresh_token": token})).await
    }

    /// The body of a refresh that succeeds.
    pub(crate) async fn refreshed(&self, token: &Value) -> Value {
        let answer = self.refresh(token).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// What an operator asks for, where operators are listened to.
    pub(crate) async fn operate(&self, path: &str, body: &Value) -> Answer {
        let request = ::http::Request::builder()
            .method("POST")
            .uri(path)
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {OPERATOR}"));
        http::send(self.admin_address(), request.body(body.to_string().into_bytes()).expect("a valid request")).await
    }

    pub(crate) async fn bearer(&self, method: &str, path: &str, token: &str) -> Answer {
        self.request(method, path, &[("authorization", &format!("Bearer {token}"))], b"").await
    }

    pub(crate) async fn session(&self, token: &str) -> Answer {
        self.bearer("GET", "/api/session", token).await
    }

    pub(crate) async fn verify(&self, token: &str) -> Answer {
        self.bearer("GET", "/api/verify/any", token).await
    }

    pub(crate) async fn log_out(&self, token: &str) -> Answer {
        self.bearer("POST", "/api/logout", token).await
    }

    // The platform's side.

    pub(crate) fn code(&self, user: &str) -> String {
        self.simulator.log_in(user, None).expect("a code")
    }

    /// Arms a fault, in the simulator's own JSON.
    pub(crate) fn fault(&self, fault: Value) {
        let fault: Fault = serde_json::from_value(fault).expect("a fault the simulator knows");
        self.simulator.faults().arm(fault).expect("it can be armed");
    }

    /// The next call is answered with this.
    pub(crate) fn reply(&self, body: &Value) {
        let kind = Kind::Body { body: body.to_string(), status: None, content_type: None };
        self.simulator.faults().arm(Fault::new(kind).times(1)).expect("it can be armed");
    }

    pub(crate) fn upstream_calls(&self) -> usize {
        usize::try_from(self.simulator.journal().total()).expect("a count")
    }

    pub(crate) fn last_upstream_request(&self) -> Entry {
        self.simulator.journal().entries().pop().expect("something went upstream")
    }

    /// Until one call more than `before` has reached the platform.
    pub(crate) async fn upstream_call_arrived(&self, before: usize) {
        let simulator = self.simulator.clone();
        let total = u64::try_from(before + 1).expect("a count");
        let arrived = tokio::task::spawn_blocking(move || simulator.journal().wait(total, HANG)).await;
        assert!(arrived.expect("the wait ends"), "the call arrives");
    }

    // The store's side.

    /// How many keys hold `part`.
    pub(crate) async fn stored(&self, part: &str) -> usize {
        self.keys().await.iter().filter(|key| key.contains(part)).count()
    }

    /// Every key and value there is, one after the other.
    pub(crate) async fn stored_bytes(&self) -> Vec<u8> {
        self.entries().await.into_iter().flat_map(|(key, value)| [key.into_bytes(), value.into()].concat()).collect()
    }

    /// The Redis this world is on.
    pub(crate) fn servers(&self) -> &Servers {
        self.place.servers()
    }

    /// Every entry there is.
    pub(crate) async fn entries(&self) -> Vec<(String, Bytes)> {
        let keys = self.keys().await;
        let values = self.store.get(keys.clone()).await.expect("the store answers");
        keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?))).collect()
    }

    async fn keys(&self) -> Vec<String> {
        self.store.scan(String::new(), None, 10_000).await.expect("the store answers")
    }

    /// Every call of the store fails while `broken`.
    pub(crate) fn break_store(&self, broken: bool) {
        self.store.break_it(broken);
    }

    /// From now on what is put under keys that hold `part` waits. Dropping the hold lets it go on.
    pub(crate) fn hold_writes(&self, part: &str) -> Hold {
        self.store.hold(part)
    }

    /// Until something is written, from now on.
    pub(crate) fn next_write(&self) -> impl Future<Output = ()> {
        let written = self.store.written().notified();
        async { tokio::time::timeout(HANG, written).await.expect("something is written in time") }
    }

    /// Until a key that holds `part` has been written.
    pub(crate) async fn written(&self, part: &str) {
        let found = async {
            loop {
                let written = self.store.written().notified();
                if self.stored(part).await > 0 {
                    return;
                }
                written.await;
            }
        };
        tokio::time::timeout(HANG, found).await.expect("it is written in time");
    }

    /// Everything logged by this process so far.
    pub(crate) fn logs(&self) -> String {
        String::from_utf8_lossy(&self.logs.0.lock().expect("no writer panics")).into_owned()
    }
}

/// Every answer is one that `/openapi.json` has.
fn as_documented(method: &str, target: &str, answer: &Answer) {
    static CONTRACT: LazyLock<Contract> = LazyLock::new(Contract::new);
    let header = |name: &str| answer.header(name).map(str::to_owned);
    let judged = CONTRACT.judge(
        method,
        target,
        &contract::Answer { status: answer.status, header: &header, body: &answer.body },
    );
    assert!(judged.is_ok() || target.len() > MAX_TARGET_BYTES, "{method} {target}: {judged:?}");
}

/// Opens `/internal/*` in every world.
const OPERATOR: &str = "0123456789abcdef0123456789abcdef-operator";

/// Longer than any limit of the node.
pub(crate) const HANG: Duration = Duration::from_mins(1);

/// Everything the node would log if asked for all of it.
struct Logs(std::sync::Mutex<Vec<u8>>);

fn logs() -> &'static Logs {
    static LOGS: std::sync::OnceLock<Logs> = std::sync::OnceLock::new();
    LOGS.get_or_init(|| {
        let everything = tracing_subscriber::EnvFilter::new("trace");
        let subscriber = edgepass_edge::log::subscriber(everything, || Appender, false);
        tracing::subscriber::set_global_default(subscriber).expect("the only one of this process");
        Logs(std::sync::Mutex::default())
    })
}

struct Appender;

impl std::io::Write for Appender {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        logs().0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
