//! The login core without a guest: mounted in the node's own front, over the node's own store and
//! outbound client. The first rung of the ladder: what the next one costs more, WebAssembly costs.

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use edgepass::{
    Service,
    clock::{Clock, Sleep, UnixMillis},
    host::{Host, Level},
    message::{self, Head},
    outbound::{Call, HttpClient, Reply, SendError, SendErrorKind},
    random::Random,
    routes,
    store::{Change, Store, StoreError},
};
use edgepass_edge::{
    handler::{CoreHandler, Handler, Request, Response},
    kv::{self, SharedBackend},
    outbound,
};
use tokio_util::task::TaskTracker;

/// The core as a handler of the edge: one [`Service`] per core thread.
pub struct Native {
    settings: Vec<(String, String)>,
    store: SharedBackend,
    outbound: Arc<outbound::Shared>,
}

/// The part on one core.
pub struct NativeCore {
    service: Rc<Service<NativeHost>>,
    /// Requests and the work after them.
    tasks: TaskTracker,
}

/// The edge's store and client as the core's ports.
#[derive(Clone)]
pub struct NativeHost(Rc<Parts>);

struct Parts {
    store: NativeStore,
    http: NativeHttp,
    started: Instant,
    tasks: TaskTracker,
}

/// [`kv::Backend`] as the core's store.
#[derive(Clone)]
pub struct NativeStore(SharedBackend);

/// The edge's client as the core's.
pub struct NativeHttp(outbound::Client);

impl Native {
    /// The core with `settings`, over `store`, going out by `outbound`.
    #[must_use]
    pub fn new(settings: Vec<(String, String)>, store: SharedBackend, outbound: Arc<outbound::Shared>) -> Self {
        Self { settings, store, outbound }
    }
}

impl Handler for Native {
    type Core = NativeCore;

    fn core(&self, _: usize) -> NativeCore {
        NativeCore::new(&self.settings, self.store.clone(), self.outbound.clone())
    }
}

impl NativeCore {
    /// One core's service. Requests spawn on the current `LocalSet`.
    #[must_use]
    pub fn new(settings: &[(String, String)], store: SharedBackend, outbound: Arc<outbound::Shared>) -> Self {
        let tasks = TaskTracker::new();
        let parts = Parts {
            store: NativeStore(store),
            http: NativeHttp(outbound::Client::new(outbound)),
            started: Instant::now(),
            tasks: tasks.clone(),
        };
        Self { service: Rc::new(Service::new(NativeHost(Rc::new(parts)), settings)), tasks }
    }
}

impl CoreHandler for NativeCore {
    fn handle(&self, request: Request) -> impl Future<Output = Response> + 'static {
        let service = self.service.clone();
        // A task of its own: a client that leaves drops this future, and the login goes on.
        let answer = self.tasks.spawn_local(async move { service.handle(flat(&request)).await });
        async move { http(answer.await.unwrap_or_else(|_| message::Response { status: 500, ..Default::default() })) }
    }

    fn drained(&self) -> impl Future<Output = ()> + 'static {
        let tasks = self.tasks.clone();
        async move {
            tasks.close();
            tasks.wait().await;
        }
    }
}

fn flat(request: &Request) -> message::Request {
    let mut head = Head::new();
    for &name in routes::READS {
        for value in request.headers.get_all(name) {
            head.push_bytes(name, value.as_bytes());
        }
    }
    message::Request {
        method: request.method.as_str().to_owned(),
        target: request.target.as_str().to_owned(),
        head,
        body: request.body.to_vec(),
    }
}

fn http(answer: message::Response) -> Response {
    let mut response = Response::new(Bytes::from(answer.body));
    *response.status_mut() = http::StatusCode::from_u16(answer.status).unwrap_or(http::StatusCode::BAD_GATEWAY);
    for (name, value) in answer.head.iter() {
        if let (Ok(name), Ok(value)) = (http::HeaderName::try_from(name), http::HeaderValue::from_bytes(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

impl Host for NativeHost {
    type Store = NativeStore;
    type Http = NativeHttp;

    fn store(&self) -> &NativeStore {
        &self.0.store
    }

    fn http(&self) -> &NativeHttp {
        &self.0.http
    }

    fn clock(&self) -> &dyn Clock {
        self
    }

    fn random(&self) -> &dyn Random {
        self
    }

    fn log(&self, level: Level, line: String) {
        match level {
            Level::Debug => tracing::debug!(target: edgepass_edge::log::COMPONENT, "{line}"),
            Level::Info => tracing::info!(target: edgepass_edge::log::COMPONENT, "{line}"),
            Level::Warn => tracing::warn!(target: edgepass_edge::log::COMPONENT, "{line}"),
            Level::Error => tracing::error!(target: edgepass_edge::log::COMPONENT, "{line}"),
        }
    }

    fn later(&self, work: impl Future<Output = ()> + 'static) {
        self.0.tasks.spawn_local(async {
            tokio::task::yield_now().await;
            work.await;
        });
    }
}

impl Clock for NativeHost {
    fn now(&self) -> UnixMillis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn tick_ns(&self) -> u64 {
        u64::try_from(self.0.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

impl Random for NativeHost {
    fn fill(&self, buffer: &mut [u8]) {
        getrandom::fill(buffer).expect("the system gives random bytes");
    }
}

impl Store for NativeStore {
    async fn get(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let keys = keys.iter().map(ToString::to_string).collect();
        let values = self.0.get(keys).await.map_err(store_error)?;
        Ok(values.into_iter().map(|value| value.map(Vec::from)).collect())
    }

    async fn apply(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let changes = changes.into_iter().map(|change| match change {
            Change::Put { key, value, expires } => kv::Change::Put(kv::Entry { key, value: value.into(), expires }),
            Change::PutIfGreater { key, value, expires } => {
                kv::Change::PutIfGreater(kv::Entry { key, value: value.into(), expires })
            }
            Change::Delete { key } => kv::Change::Delete(key),
        });
        self.0.apply(changes.collect()).await.map(|_| ()).map_err(store_error)
    }

    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, StoreError> {
        self.0.scan(prefix.to_owned(), after.map(str::to_owned), limit).await.map_err(store_error)
    }
}

const fn store_error(failure: kv::Failure) -> StoreError {
    match failure {
        kv::Failure::Unavailable => StoreError::Unavailable,
        kv::Failure::Timeout => StoreError::Timeout,
        kv::Failure::Denied => StoreError::Denied,
        kv::Failure::TooLarge => StoreError::TooLarge,
    }
}

impl HttpClient for NativeHttp {
    async fn send(&self, call: Call) -> Result<Reply, SendError> {
        let sent = self.0.send(outbound::Call {
            method: call.method.to_owned(),
            url: call.url,
            head: call.head.into_lines(),
            body: call.body,
            limits: outbound::Limits {
                connect: call.limits.connect,
                first_byte: call.limits.first_byte,
                total: call.limits.total,
                max_body_bytes: usize::try_from(call.limits.max_body_bytes).unwrap_or(usize::MAX),
            },
            exclusive: call.exclusive.map(Vec::from),
        });
        match sent.await {
            Ok(reply) => Ok(Reply { status: reply.status, head: Head::from_lines(reply.head), body: reply.body }),
            Err(failure) => Err(SendError { kind: kind(failure.kind), sent: failure.sent }),
        }
    }
}

const fn kind(kind: outbound::Kind) -> SendErrorKind {
    match kind {
        outbound::Kind::Denied => SendErrorKind::Denied,
        outbound::Kind::Unresolved => SendErrorKind::Unresolved,
        outbound::Kind::Unreachable | outbound::Kind::Down => SendErrorKind::Unreachable,
        outbound::Kind::Tls => SendErrorKind::Tls,
        outbound::Kind::Timeout => SendErrorKind::Timeout,
        outbound::Kind::Broken => SendErrorKind::Broken,
        outbound::Kind::TooLarge => SendErrorKind::TooLarge,
        outbound::Kind::Busy => SendErrorKind::Busy,
        outbound::Kind::Duplicate => SendErrorKind::Duplicate,
    }
}
