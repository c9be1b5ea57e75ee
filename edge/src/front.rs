//! From HTTP to the flat request and back, within limits. One `Front` per core; connections are
//! served by it, accepted elsewhere ([`crate::server`]).

mod body;
mod guard;
mod metrics;
mod origin;
mod pace;
mod request;
mod trace;

use std::{
    convert::Infallible,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, StatusCode, Version, header, request::Parts};
use http_body::Body as _;
use http_body_util::Full;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use ipnet::IpNet;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    sync::watch,
    time::timeout_at,
};

use self::{
    body::Held,
    origin::Origin,
    pace::{Length, Pace, Paced, Times},
    trace::Names,
};
use crate::{
    fields::{self, is_hop_by_hop},
    handler::{Admission, CoreHandler, Head, Request, Response},
    kv::Health,
    manifest::{Route, Routes},
    observer::Observer,
    problem::{Own, Problem},
};

pub(crate) use self::{guard::Key, origin::is_trusted};
pub use self::{
    guard::{By, Guard, Limit, Rate},
    metrics::Metrics,
};

/// Limits on what a client may send, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest request body, in bytes; longer is 413.
    pub max_body_bytes: usize,
    /// Bytes of the bodies of all requests under way together, at most; more is 503. One that
    /// [`Limits::max_body_bytes`] allows is always possible alone.
    pub max_buffered_bytes: usize,
    /// Longest request head that is waited for, in bytes; longer is 431, unless it came in one piece
    /// with its end. At least 8192. Over HTTP/2 a head has 16 KiB at most, counted as RFC 9113 §6.5.2
    /// does.
    pub max_head_bytes: usize,
    /// Most header fields; more is 431.
    pub max_headers: usize,
    /// From a head's first byte, or a connection's begin, until it is there whole; then the
    /// connection is closed. A TLS handshake has as long.
    pub head_time: Duration,
    /// How long a connection may stay open between an answer and the next request. The default is
    /// above the 60 s after which nginx gives up an idle upstream connection.
    pub idle_time: Duration,
    /// Until the body is there whole; longer is 408.
    pub body_time: Duration,
    /// Slowest rate, in bytes a second, at which a body may come and an answer be taken, once it has
    /// taken five seconds, or [`Limits::write_time`].
    pub min_rate: u32,
    /// How long a client may leave an answer untaken; then the connection is closed.
    pub write_time: Duration,
    /// From the end of the body to the answer; longer is 504.
    pub request_time: Duration,
    /// `server-timing` of the component reaches the client. It tells which check failed, and when.
    pub server_timing: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 128 << 10,
            max_buffered_bytes: 64 << 20,
            max_head_bytes: 32 * 1024,
            max_headers: 100,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(75),
            body_time: Duration::from_secs(10),
            min_rate: 500,
            write_time: Duration::from_secs(10),
            request_time: Duration::from_secs(15),
            server_timing: false,
        }
    }
}

impl Limits {
    fn times(&self) -> Times {
        Times { head: self.head_time, idle: self.idle_time, write: self.write_time, min_rate: self.min_rate }
    }
}

/// What a front knows of its surroundings. Shared by all cores.
#[derive(Default)]
pub struct Context {
    /// Whose word about the client's address is taken: `X-Forwarded-For`, `X-Forwarded-Proto`.
    pub trusted_proxies: Vec<IpNet>,
    /// How often a client may ask.
    pub guard: Guard,
    /// The manifest's routes; a path that none matches is 404. Without any, everything passes.
    pub routes: Routes,
    /// What `/.well-known/spin/*` says; without it the handler is asked for these.
    pub application: Option<Application>,
    /// `/readyz` is 503 once this says so, whatever the handler would say.
    pub readiness: Readiness,
    /// What is counted.
    pub metrics: Metrics,
}

/// The application as `/.well-known/spin/info` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// Name of the manifest.
    pub name: String,
    /// Its version, where it has one.
    pub version: Option<String>,
}

/// Whether the node wants to be sent new clients. Clones say the same.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    leaving: Arc<AtomicBool>,
    store: Health,
}

impl Readiness {
    /// It does as long as this store does not fail.
    #[must_use]
    pub fn with(store: Health) -> Self {
        Self { store, ..Self::default() }
    }

    /// Why it does not, if it does not.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        if self.leaving.load(Relaxed) {
            return Some(Problem::Leaving);
        }
        self.store.is_failing().then_some(Problem::StoreUnavailable)
    }

    /// It does not any more.
    pub fn leave(&self) {
        self.leaving.store(true, Relaxed);
    }
}

/// How a connection is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Not at all.
    Stay,
    /// With its next answer: `connection: close`, GOAWAY.
    Leave,
    /// With the answer under way, or at once when there is none.
    Close,
}

/// The front of one core.
pub(crate) struct Front<C> {
    handler: C,
    limits: Limits,
    context: Arc<Context>,
    ids: Arc<AtomicU64>,
    http1: http1::Builder,
    http2: http2::Builder<OnCore>,
    observer: Option<Observer>,
}

/// A connection as it was accepted.
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    pub(crate) peer: SocketAddr,
    /// Whether `stream` is TLS.
    pub(crate) secure: bool,
    /// Whether HTTP/2 was agreed on; otherwise the first bytes tell.
    pub(crate) http2: bool,
}

impl<C: CoreHandler> Front<C> {
    pub(crate) fn new(handler: C, limits: Limits, context: Arc<Context>, ids: Arc<AtomicU64>) -> Self {
        let mut http1 = http1::Builder::new();
        // Heads are timed by `Pace`.
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            // A client that has said all may still listen; one that is gone is noticed when written to.
            .half_close(true)
            .max_buf_size(limits.max_head_bytes.max(8192))
            .max_headers(limits.max_headers);
        let mut http2 = http2::Builder::new(OnCore);
        http2
            .timer(TokioTimer::new())
            // nginx has 128, and RFC 9113 §6.5.2 wants 100 at least. Each may hold a body.
            .max_concurrent_streams(MAX_STREAMS)
            // Sent and not yet read: for a stream, and for a connection whatever its streams.
            .initial_stream_window_size(64 << 10)
            .initial_connection_window_size(256 << 10)
            .max_frame_size(16 << 10)
            // Also bounds CONTINUATION frames: h2 allows as many as such a head needs, and a few more.
            .max_header_list_size(16 << 10)
            // CVE-2023-44487 and its like: streams a client resets before they are accepted, and
            // streams it makes the node reset. More ends the connection.
            .max_pending_accept_reset_streams(20)
            .max_local_error_reset_streams(1024)
            .max_send_buf_size(64 << 10)
            // `Pace` ends what is idle; a ping would only find out sooner who has gone.
            .keep_alive_interval(None);
        Self { observer: handler.observer(), handler, limits, context, ids, http1, http2 }
    }

    pub(crate) fn handler(&self) -> &C {
        &self.handler
    }

    pub(crate) fn metrics(&self) -> Metrics {
        self.context.metrics.clone()
    }

    /// Serves a connection to its end, or until it has kept the node waiting for too long.
    pub(crate) async fn serve<S>(self: Rc<Self>, connection: Connection<S>, mut stage: watch::Receiver<Stage>)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let Connection { mut stream, peer, secure, http2 } = connection;
        let pace = Pace::new(self.limits.times());
        let mut first = BytesMut::new();
        let http2 = http2
            || tokio::select! {
                biased;
                http2 = is_http2(&mut stream, &mut first) => http2,
                waiting_for = pace.expired() => return self.context.metrics.expired(waiting_for),
                // What a client has sent before it could know is on its way already.
                () = async { closing(&mut stage).await; tokio::time::sleep(LATE_FIRST_BYTE).await } => return,
            };
        let stream = TokioIo::new(Paced::new(stream, pace.clone(), first.freeze()));
        let hop = Hop { peer, secure, pace: pace.clone(), stage: stage.clone() };
        let service = service_fn(|message| self.clone().exchange(message, hop.clone()));
        let ended = if http2 {
            pace.is_http2();
            let connection = self.http2.serve_connection(stream, service);
            tokio::pin!(connection);
            tokio::select! {
                biased;
                ended = connection.as_mut() => Some(ended),
                waiting_for = pace.expired() => { self.context.metrics.expired(waiting_for); None }
                // GOAWAY loses nothing, so it need not wait for an answer to go with.
                () = leaving(&mut stage) => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! { ended = connection => Some(ended), _ = pace.expired() => None }
                }
            }
        } else {
            let connection = self.http1.serve_connection(stream, service);
            tokio::pin!(connection);
            tokio::select! {
                biased;
                ended = connection.as_mut() => Some(ended),
                waiting_for = pace.expired() => { self.context.metrics.expired(waiting_for); None }
                () = closing(&mut stage) => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! { ended = connection => Some(ended), _ = pace.expired() => None }
                }
            }
        };
        if let Some(Err(error)) = ended {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }

    async fn exchange(
        self: Rc<Self>,
        message: http::Request<Incoming>,
        hop: Hop,
    ) -> Result<http::Response<Full<Bytes>>, Infallible> {
        let http2 = message.version() == Version::HTTP_2;
        self.context.metrics.request(if http2 { "2" } else { "1" });
        let _under_way = UnderWay::begin(&hop.pace, &message);
        let head_only = message.method() == Method::HEAD;
        let mut answer = self.answer(message, &hop).await;
        // After a message that is not quite one, what follows on HTTP/1 may not be what it seems.
        let unsure = answer.status() == StatusCode::BAD_REQUEST && answer.extensions().get::<Own>().is_some();
        if !http2 && (unsure || *hop.stage.borrow() >= Stage::Leave) {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // hyper leaves the body away itself for HTTP/1 only.
        Ok(answer.map(|body| Full::new(if http2 && head_only { Bytes::new() } else { body })))
    }

    async fn answer(&self, message: http::Request<Incoming>, hop: &Hop) -> Response {
        let id = self.ids.fetch_add(1, Relaxed);
        let names = Names::read(message.headers(), id);
        let origin = Origin::of(hop.peer, hop.secure, message.headers(), &self.context.trusted_proxies);
        let observed = self.observer.as_ref().map(|observer| observer.begin(&message));
        let mut answer = match self.read(message, origin, id, &names).await {
            // The body's share of the memory is held until the answer is there.
            Ok((request, _held)) => {
                if let Some(observed) = &observed {
                    observed.received(request.body.len());
                }
                let deadline = request.deadline;
                timeout_at(deadline.into(), self.handler.handle(request))
                    .await
                    .unwrap_or_else(|_| Problem::Deadline.answer(&names.trace_id))
            }
            Err(answer) => *answer,
        };
        if let Some(observed) = observed {
            observed.end(&answer, &names.trace_id);
        }
        if answer.status() == StatusCode::UNAUTHORIZED {
            self.context.guard.refused(origin.client.ip());
        }
        self.finish(&mut answer, &names);
        answer
    }

    /// The request, or its answer when it is none to hand on.
    async fn read(
        &self,
        message: http::Request<Incoming>,
        origin: Origin,
        id: u64,
        names: &Names,
    ) -> Result<(Request, Held), Box<Response>> {
        let refused = |problem: Problem| Box::new(problem.answer(&names.trace_id));
        let (mut parts, body) = message.into_parts();
        let target = request::target(&mut parts).map_err(refused)?;
        request::check_framing(&parts).map_err(refused)?;
        // hyper counts the fields of HTTP/1 only.
        if parts.headers.len() > self.limits.max_headers {
            return Err(refused(Problem::HeadTooLarge));
        }
        let Parts { method, mut headers, .. } = parts;
        let client = origin.client;
        let head = Head { method: &method, target: &target, headers: &headers, client, trace_id: &names.trace_id };
        let route = self.context.admit(&head)?;
        let buffered = &self.context.metrics.bodies;
        let admission = match self.handler.admit(&head) {
            Ok(admission) => admission,
            Err(answer) => {
                let nothing = Admission { max_body_bytes: Some(0), ..Admission::default() };
                drop(body::read(body, &self.limits, nothing, buffered).await);
                return Err(answer);
            }
        };
        let (body, held) = body::read(body, &self.limits, admission, buffered).await.map_err(refused)?;
        request::strip(&mut headers);
        names.write(&mut headers);
        let (secure, trace_id) = (origin.secure, names.trace_id.clone());
        let deadline = Instant::now() + admission.request_time.unwrap_or(self.limits.request_time);
        Ok((Request { id, method, target, headers, body, client, secure, route, trace_id, deadline }, held))
    }

    fn finish(&self, answer: &mut Response, names: &Names) {
        let bodiless = matches!(answer.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let length = answer.body().len();
        let head = answer.headers_mut();
        fields::remove(head, is_hop_by_hop);
        head.remove(header::CONTENT_LENGTH);
        if !bodiless {
            head.insert(header::CONTENT_LENGTH, length.into());
        }
        if !self.limits.server_timing {
            head.remove(SERVER_TIMING);
        }
        names.answer(head);
    }
}

impl Context {
    /// The manifest's route for a request, or the node's own answer to it.
    fn admit(&self, head: &Head<'_>) -> Result<Option<Arc<Route>>, Box<Response>> {
        let path = head.target.path();
        if let Some(answer) = self.own(head) {
            return Err(answer.into());
        }
        if let Err(exceeded) = self.guard.admit(head.client.ip(), path) {
            self.metrics.limited(exceeded.scope);
            return Err(Problem::RateLimited(exceeded.wait).answer(head.trace_id).into());
        }
        match self.routes.find(path) {
            None if !self.routes.is_empty() => Err(Problem::NotFound.answer(head.trace_id).into()),
            route => Ok(route.cloned()),
        }
    }

    /// Spin's paths, and that the node is not ready.
    fn own(&self, head: &Head<'_>) -> Option<Response> {
        let path = head.target.path();
        if path == "/readyz"
            && let Some(problem) = self.readiness.problem()
        {
            return Some(problem.answer(head.trace_id));
        }
        let application = self.application.as_ref()?;
        let (kind, body) = match path {
            "/.well-known/spin/health" => ("text/plain", "OK".to_owned()),
            "/.well-known/spin/info" => ("application/json", application.info()),
            _ => return None,
        };
        if !matches!(*head.method, Method::GET | Method::HEAD) {
            return None;
        }
        let mut answer = Response::new(body.into());
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        Some(answer)
    }
}

impl Application {
    /// As Spin writes it: without what there is not.
    fn info(&self) -> String {
        let mut info = serde_json::json!({ "name": self.name });
        if let Some(version) = &self.version {
            info["version"] = version.as_str().into();
        }
        info.to_string()
    }
}

/// The connection a message came over.
#[derive(Clone)]
struct Hop {
    peer: SocketAddr,
    secure: bool,
    pace: Rc<Pace>,
    stage: watch::Receiver<Stage>,
}

/// A request under way, also when it is dropped.
struct UnderWay(Rc<Pace>);

impl UnderWay {
    fn begin(pace: &Rc<Pace>, message: &http::Request<Incoming>) -> Self {
        pace.request_begins(message.body().size_hint().exact().map_or(Length::Chunked, Length::Known));
        Self(pace.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.request_ends();
    }
}

/// Runs the streams of a connection on its core.
#[derive(Clone, Copy)]
struct OnCore;

impl<F: Future + 'static> hyper::rt::Executor<F> for OnCore {
    fn execute(&self, stream: F) {
        tokio::task::spawn_local(async move { drop(stream.await) });
    }
}

/// Reads as much as it takes to tell; what it read is in `first`.
async fn is_http2(stream: &mut (impl AsyncRead + Unpin), first: &mut BytesMut) -> bool {
    while PREFACE.starts_with(first) && first.len() < PREFACE.len() {
        // The end and errors are hyper's to find, too.
        if !matches!(stream.read_buf(first).await, Ok(1..)) {
            return false;
        }
    }
    first.starts_with(PREFACE)
}

/// RFC 9113 §3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Above what a client that opened a connection takes to use it.
const LATE_FIRST_BYTE: Duration = Duration::from_millis(500);

const MAX_STREAMS: u32 = 100;

async fn leaving(stage: &mut watch::Receiver<Stage>) {
    drop(stage.wait_for(|stage| *stage >= Stage::Leave).await);
}

async fn closing(stage: &mut watch::Receiver<Stage>) {
    drop(stage.wait_for(|stage| *stage == Stage::Close).await);
}

const SERVER_TIMING: header::HeaderName = header::HeaderName::from_static("server-timing");
