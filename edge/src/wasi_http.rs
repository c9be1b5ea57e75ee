//! The door for `wasi:http` components, ours or anyone's: one [`ProxyHandler`] per revision and
//! core. Its workers make and reuse instances; this module gives them limits and surroundings.

use std::{
    collections::BTreeSet,
    io,
    pin::Pin,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError, Weak, atomic::AtomicU64},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, Full, Limited};
use tokio::{
    io::AsyncWrite,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Sleep, sleep_until},
};
use wasmtime::{
    Store, StoreContextMut,
    component::{Component, GuestTaskId, HasData, Linker, ResourceTable},
};
use wasmtime_wasi::{
    WasiCtx, WasiCtxView, WasiView,
    cli::{IsTerminal, StdoutStream},
};
use wasmtime_wasi_http::{
    Error as HttpError, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
    handler::{
        ExpirationError, HandlerState, Instance, InstantiationError, Proxy, ProxyHandler, ShouldAccept,
        WorkerExpiration, WorkerState, WorkerStatus,
    },
    p3::bindings::{ServicePre, http::types::ErrorCode},
};

use crate::{
    bindings::spin,
    engine::{Engine, ticks_in},
    handler::{Request, Response},
    host::one_line,
    kv::SharedBackend,
    manifest::Route,
    meter::{Limiter, MAX_HANDLES, Meter, Metered},
    metrics::{
        Events,
        pool::{Cause, Levels, Pool},
    },
    outbound,
    pool::{self, Limits},
    problem::{Problem, SecondTry},
    queue::Queue,
    revision::{Error, Surroundings, refuse_unknown_imports},
    variables::Snapshot,
};

/// What the door keeps of a revision.
pub(crate) struct HttpRevision {
    pre: ServicePre<HttpHost>,
    world: Arc<HttpWorld>,
    outbound: Arc<outbound::Shared>,
    limits: Limits,
    ticks: Arc<AtomicU64>,
}

/// What all instances of a revision share.
pub(crate) struct HttpWorld {
    pub(crate) variables: Arc<Snapshot>,
    pub(crate) store: SharedBackend,
    pub(crate) store_labels: BTreeSet<String>,
    events: Arc<Events>,
    counts: Pool,
}

impl HttpRevision {
    pub(crate) fn load(engine: &Engine, component: &Component, around: Surroundings) -> Result<Self, Error> {
        refuse_unknown_imports(component, LINKED)?;
        let mut linker = Linker::new(engine.inner());
        let pre = wasmtime_wasi_http::p3::add_to_linker(&mut linker)
            // Most guests' standard libraries import files and sockets. The context grants neither:
            // no folder is open, no address is allowed.
            .and_then(|()| wasmtime_wasi::p3::add_to_linker(&mut linker))
            .and_then(|()| spin::Imports::add_to_linker::<HttpHost, HttpHost>(&mut linker, |host| host))
            .and_then(|()| linker.instantiate_pre(component))
            .and_then(ServicePre::new);
        Ok(Self {
            pre: pre.map_err(Error::Link)?,
            world: Arc::new(HttpWorld {
                variables: around.variables,
                store: around.store,
                store_labels: around.store_labels,
                events: around.metrics.events().clone(),
                counts: around.metrics.pool().clone(),
            }),
            outbound: around.outbound,
            limits: around.limits,
            ticks: engine.ticks(),
        })
    }
}

/// The packages this door offers.
const LINKED: &[&str] = &[
    "wasi:http/types@0.3.",
    "wasi:http/client@0.3.",
    "wasi:cli/",
    "wasi:clocks/",
    "wasi:random/",
    "wasi:filesystem/",
    "wasi:sockets/",
    "spin:key-value/key-value@3.",
    "spin:variables/variables@3.",
];

/// The instances of one revision on one core.
pub(crate) struct HttpCore {
    revision: Arc<HttpRevision>,
    handler: ProxyHandler<State>,
    queue: Rc<Queue>,
    /// Each worker holds a receiver until it is gone.
    phase: watch::Sender<Phase>,
}

/// What the workers of a core are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serve,
    /// Go as soon as there is nothing to do.
    End,
    /// Go.
    Cut,
}

impl HttpCore {
    /// Call inside the core's runtime.
    pub(crate) fn new(revision: Arc<HttpRevision>) -> Self {
        let phase = watch::Sender::new(Phase::Serve);
        let client = outbound::Client::new(revision.outbound.clone());
        let queue = Queue::new(revision.limits.places(), revision.limits.queue_wait);
        let meters = Arc::new(Meters::default());
        tokio::task::spawn_local(look_regularly(revision.clone(), Arc::downgrade(queue.places()), meters.clone()));
        Self {
            handler: ProxyHandler::new(State { revision: revision.clone(), client, phase: phase.clone(), meters }),
            queue,
            revision,
            phase,
        }
    }

    pub(crate) fn answer(&self, request: Request) -> impl Future<Output = Response> + use<> {
        let (handler, queue, counts) = (self.handler.clone(), self.queue.clone(), self.revision.world.counts.clone());
        let phase = self.phase.clone();
        async move {
            let tries = if matches!(request.method, Method::GET | Method::HEAD) { 2 } else { 1 };
            let mut problem = Problem::InstanceLost;
            for number in 1..=tries {
                let mut place = queue.try_take();
                if place.is_none() {
                    let _waiting = counts.wait();
                    place = queue.take().await;
                }
                let Some(place) = place else {
                    counts.refuse();
                    return Problem::Overloaded.answer(&request.trace_id);
                };
                if *phase.borrow() == Phase::Cut {
                    break;
                }
                let Some(message) = message(&request) else {
                    return Problem::BadRequest("the Host header is no authority").answer(&request.trace_id);
                };
                match handler.handle(Ticket { deadline: request.deadline, place }, message).await {
                    Ok(response) => match whole(response).await {
                        Some(mut response) => {
                            if number > 1 {
                                response.extensions_mut().insert(SecondTry);
                            }
                            return response;
                        }
                        None => problem = Problem::InstanceLost,
                    },
                    Err(error) => problem = classify(&error),
                }
                if problem != Problem::InstanceLost {
                    break;
                }
            }
            problem.answer(&request.trace_id)
        }
    }

    /// Ends the workers, each when it is idle, and waits until the last one is gone.
    pub(crate) fn drained(&self) -> impl Future<Output = ()> + use<> {
        let phase = self.phase.clone();
        async move {
            phase.send_if_modified(|phase| std::mem::replace(phase, Phase::End.max(*phase)) == Phase::Serve);
            phase.closed().await;
        }
    }

    /// Ends the workers whatever they do, and takes no more calls.
    pub(crate) fn cut(&self) {
        self.phase.send_replace(Phase::Cut);
    }
}

fn classify(error: &wasmtime::Error) -> Problem {
    if error.is::<InstantiationError<Ticket>>() {
        tracing::error!(error = %format_args!("{error:#}"), "no instance");
        Problem::Overloaded
    } else if error.is::<ExpirationError>() {
        Problem::Deadline
    } else if error.is::<ErrorCode>() {
        tracing::warn!(error = %format_args!("{error:#}"), "the component failed");
        Problem::Internal
    } else {
        Problem::InstanceLost
    }
}

/// The request as the guest sees it, with the fields Spin adds.
fn message(request: &Request) -> Option<http::Request<WasiBody>> {
    let host = request.headers.get(http::header::HOST)?.to_str().ok()?;
    let scheme = if request.secure { "https" } else { "http" };
    let url =
        http::Uri::builder().scheme(scheme).authority(host).path_and_query(request.target.clone()).build().ok()?;
    let body = Full::new(request.body.clone()).map_err(|never| match never {}).boxed_unsync();
    let mut message = http::Request::new(body);
    *message.method_mut() = request.method.clone();
    let head = message.headers_mut();
    head.clone_from(&request.headers);
    let route = request.route.as_deref();
    let raw = route.map_or("/...", Route::raw);
    let added = [
        ("spin-full-url", url.to_string()),
        ("spin-path-info", route.map_or(url.path(), |route| route.path_info(url.path())).to_owned()),
        ("spin-matched-route", raw.to_owned()),
        ("spin-base-path", "/".to_owned()),
        ("spin-raw-component-route", raw.to_owned()),
        ("spin-component-route", raw.strip_suffix("/...").unwrap_or(raw).to_owned()),
        ("spin-client-addr", request.client.to_string()),
    ];
    for (name, value) in added {
        head.insert(HeaderName::from_static(name), HeaderValue::try_from(value).ok()?);
    }
    for (name, value) in route.into_iter().flat_map(|route| route.captures(url.path())) {
        let name = HeaderName::try_from(format!("spin-path-match-{name}")).ok()?;
        head.insert(name, HeaderValue::try_from(value).ok()?);
    }
    *message.uri_mut() = url;
    Some(message)
}

/// Reads the body to its end; `None` when the guest does not bring it there.
async fn whole(response: http::Response<WasiBody>) -> Option<Response> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.ok()?.to_bytes();
    Some(http::Response::from_parts(head, body))
}

/// Longest answer of a component, in bytes.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Meters of the instances of one core.
type Meters = Mutex<Vec<Weak<Meter>>>;

/// Says how a core looks, until its places are gone.
async fn look_regularly(revision: Arc<HttpRevision>, places: Weak<Semaphore>, meters: Arc<Meters>) {
    let seen = revision.world.counts.part();
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(places) = places.upgrade() else { return };
        let mut meters = meters.lock().unwrap_or_else(PoisonError::into_inner);
        meters.retain(|meter| meter.strong_count() > 0);
        let most = revision.limits.places();
        seen.say(Levels {
            instances: meters.len(),
            memory_bytes: meters.iter().filter_map(Weak::upgrade).map(|meter| meter.memory()).sum(),
            places: most,
            taken: most.saturating_sub(places.available_permits()),
            ..Levels::default()
        });
    }
}

/// As often as the other door looks.
const LOOK: Duration = Duration::from_millis(100);

struct State {
    revision: Arc<HttpRevision>,
    client: outbound::Client,
    phase: watch::Sender<Phase>,
    meters: Arc<Meters>,
}

impl HandlerState for State {
    type StoreData = HttpHost;
    type WorkerExpiration = Expiration;
    type WorkerState = Worker;

    async fn instantiate(&self) -> wasmtime::Result<Instance<HttpHost, Expiration, Worker>> {
        let limits = self.revision.limits;
        let meter = Meter::new(self.revision.ticks.clone(), ticks_in(limits.max_cpu), limits.max_memory_bytes);
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_HANDLES);
        let host = HttpHost {
            wasi: WasiCtx::builder().stdout(self.lines()).stderr(self.lines()).build(),
            http: WasiHttpCtx::new(),
            table,
            hooks: Hooks { client: self.client.clone() },
            world: self.revision.world.clone(),
            limiter: Limiter(meter.clone()),
        };
        let mut store = Store::new(self.revision.pre.engine(), host);
        meter.watch(&mut store);
        let counts = &self.revision.world.counts;
        let guest = self.revision.pre.instantiate_async(&mut store).await;
        let guest = guest.inspect_err(|_| counts.lose(Cause::Instantiate))?;
        counts.start();
        self.meters.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&meter));
        let now = Instant::now();
        let latest = Arc::new(Mutex::new(now));
        Ok(Instance {
            store,
            proxy: Proxy::P3(guest),
            view: HttpHost::http,
            expiration: Expiration {
                limits,
                meter: meter.clone(),
                latest: latest.clone(),
                timer: Box::pin(sleep_until(now.into())),
                told: [Phase::End, Phase::Cut].map(|phase| Some(told(self.phase.subscribe(), phase))),
            },
            state: Worker {
                limits,
                meter,
                latest,
                reuse: pool::reuse(&limits, getrandom::u32().unwrap_or_default()),
                born: now,
                _alive: self.phase.subscribe(),
            },
        })
    }
}

impl State {
    fn lines(&self) -> Lines {
        Lines { begun: Vec::new(), events: self.revision.world.events.clone() }
    }
}

/// When an instance ends although it has not finished. Polled whenever its store has been polled.
struct Expiration {
    limits: Limits,
    meter: Arc<Meter>,
    /// Deadline of the request that was taken last.
    latest: Arc<Mutex<Instant>>,
    timer: Pin<Box<Sleep>>,
    /// For [`Phase::End`] and for [`Phase::Cut`]; `None` once it was told.
    told: [Option<Told>; 2],
}

type Told = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// Is ready when the core's workers are told `phase`, or at [`Phase::End`] when the core is gone.
fn told(mut phases: watch::Receiver<Phase>, phase: Phase) -> Told {
    Box::pin(async move {
        if phases.wait_for(|told| *told >= phase).await.is_err() && phase == Phase::Cut {
            std::future::pending::<()>().await;
        }
    })
}

impl WorkerExpiration for Expiration {
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>, status: WorkerStatus, since: Instant) -> Poll<()> {
        self.meter.turn_ends();
        for told in &mut self.told {
            if told.as_mut().is_some_and(|told| told.as_mut().poll(cx).is_ready()) {
                *told = None;
            }
        }
        let [ending, cut] = self.told.each_ref().map(Option::is_none);
        let end = match status {
            _ if cut => return Poll::Ready(()),
            WorkerStatus::Idle if ending => return Poll::Ready(()),
            WorkerStatus::Idle => since + self.limits.max_idle,
            WorkerStatus::Requests => *self.latest.lock().unwrap_or_else(PoisonError::into_inner) + self.limits.grace,
            WorkerStatus::PostReturn => since + self.limits.grace,
        };
        if self.timer.deadline() != end.into() {
            self.timer.as_mut().reset(end.into());
        }
        self.timer.as_mut().poll(cx)
    }
}

/// What goes with a request: its place is held until its guest has answered, also when the client
/// has gone, or the queue behind the instances would have no end.
struct Ticket {
    deadline: Instant,
    place: OwnedSemaphorePermit,
}

struct Worker {
    limits: Limits,
    meter: Arc<Meter>,
    latest: Arc<Mutex<Instant>>,
    reuse: u32,
    born: Instant,
    _alive: watch::Receiver<Phase>,
}

impl WorkerState for Worker {
    type StoreData = HttpHost;
    type RequestData = Ticket;

    fn should_accept_request(&self, under_way: usize, total: usize) -> ShouldAccept {
        let spent = total >= self.reuse as usize
            || self.born.elapsed() >= self.limits.max_age
            || self.meter.memory() > self.limits.max_memory_bytes / 2;
        if spent {
            ShouldAccept::Never
        } else if under_way < self.limits.in_flight {
            ShouldAccept::Yes
        } else {
            ShouldAccept::No
        }
    }

    fn on_request_start(
        &self,
        _: StoreContextMut<'_, HttpHost>,
        Ticket { deadline, place }: Ticket,
        _: GuestTaskId,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + Sync>> {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
        Box::pin(async move {
            let _place = place;
            sleep_until(deadline.into()).await;
        })
    }

    fn drop(&self, store: Store<HttpHost>, result: wasmtime::Result<()>) {
        let counts = &store.data().world.counts;
        match result {
            Ok(()) => counts.retire(),
            Err(error) => {
                let cause = if error.is::<ExpirationError>() { Cause::Deadline } else { self.meter.cause(&error) };
                counts.lose(cause);
                tracing::error!(%cause, error = %format_args!("{error:#}"), "instance lost");
            }
        }
        drop(store);
    }
}

/// The data of one instance's store.
pub(crate) struct HttpHost {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    pub(crate) table: ResourceTable,
    hooks: Hooks,
    pub(crate) world: Arc<HttpWorld>,
    limiter: Limiter,
}

impl HasData for HttpHost {
    type Data<'a> = &'a mut Self;
}

impl Metered for HttpHost {
    fn limiter(&mut self) -> &mut Limiter {
        &mut self.limiter
    }
}

impl WasiView for HttpHost {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for HttpHost {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

/// The guest's way out.
struct Hooks {
    client: outbound::Client,
}

type Io = Box<dyn Future<Output = Result<(), HttpError>> + Send>;

impl WasiHttpHooks for Hooks {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Io,
    ) -> Box<dyn Future<Output = Result<(http::Response<WasiBody>, Io), HttpError>> + Send> {
        let client = self.client.clone();
        let options = options.unwrap_or_default();
        let limits = outbound::StreamLimits {
            connect: options.connect_timeout.unwrap_or(CONNECT),
            first_byte: options.first_byte_timeout.unwrap_or(FIRST_BYTE),
            between_bytes: options.between_bytes_timeout.unwrap_or(BETWEEN_BYTES),
        };
        Box::new(async move {
            let response = client.send_http(request, limits).await.map_err(http_error)?;
            let response = response.map(|body| body.map_err(http_error).boxed_unsync());
            // Nothing is left to drive: the client's connections have tasks of their own.
            Ok((response, Box::new(std::future::ready(Ok(()))) as Io))
        })
    }
}

/// Limits where the guest names none; the interface's own are ten minutes.
const CONNECT: Duration = Duration::from_secs(3);
const FIRST_BYTE: Duration = Duration::from_secs(10);
const BETWEEN_BYTES: Duration = Duration::from_secs(10);

fn http_error(failure: outbound::Failure) -> HttpError {
    use outbound::Kind;
    match failure.kind {
        Kind::Denied => HttpError::HttpRequestDenied,
        Kind::Unresolved => HttpError::DnsError { rcode: None, info_code: None },
        // Down, as far as anybody knows: the guest hears what it would hear had it been tried.
        Kind::Unreachable | Kind::Down => HttpError::ConnectionRefused,
        Kind::Tls => HttpError::TlsProtocolError,
        Kind::Timeout if failure.sent => HttpError::ConnectionReadTimeout,
        Kind::Timeout => HttpError::ConnectionTimeout,
        Kind::Broken => HttpError::ConnectionTerminated,
        Kind::TooLarge => HttpError::HttpResponseBodySize(None),
        Kind::Busy | Kind::Duplicate => HttpError::ConnectionLimitReached,
    }
}

/// Standard output and error as log lines.
#[derive(Clone)]
struct Lines {
    begun: Vec<u8>,
    events: Arc<Events>,
}

impl Lines {
    fn put(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") || self.begun.len() >= MAX_LINE_BYTES {
                self.end();
            }
        }
    }

    fn end(&mut self) {
        if !self.begun.is_empty() {
            let line = one_line(&String::from_utf8_lossy(&self.begun));
            self.events.count(&line);
            // A stream has no levels; a component that writes JSON may say one.
            match ["error", "warn", "debug"].into_iter().find(|level| line.contains(&format!(r#""level":"{level}""#))) {
                Some("error") => tracing::error!(target: crate::log::COMPONENT, "{line}"),
                Some("warn") => tracing::warn!(target: crate::log::COMPONENT, "{line}"),
                Some("debug") => tracing::debug!(target: crate::log::COMPONENT, "{line}"),
                _ => tracing::info!(target: crate::log::COMPONENT, "{line}"),
            }
            self.begun.clear();
        }
    }
}

/// A longer line is cut in two.
const MAX_LINE_BYTES: usize = 8192;

impl Drop for Lines {
    fn drop(&mut self) {
        self.end();
    }
}

impl IsTerminal for Lines {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Lines {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(Self { begun: Vec::new(), events: self.events.clone() })
    }
}

impl AsyncWrite for Lines {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.put(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}
