//! Threads and sockets: one thread that accepts, N cores that serve.
//!
//! Each core is a thread with a runtime of its own; a connection stays on the core it was given
//! to, the one with the fewest, and shakes hands there, so that a slow client holds nobody up.
//!
//! An end comes in steps. First answers take leave of their clients, who come back on new
//! connections, here or elsewhere; then the listener is closed, or handed over, every connection
//! finishes the answer under way, and the work after answers ends. At the limit what is left is cut.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    num::NonZeroUsize,
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    net::{TcpListener, TcpStream},
    runtime,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::{JoinSet, LocalSet},
};

use crate::{
    front::{self, Connection, Front, Key, Stage, is_trusted},
    handler::{CoreHandler, Handler},
    tls::{self, Certificates},
};

/// How a server is set up.
pub struct Config {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Beyond what every server has.
    pub options: Options,
    /// Threads that serve.
    pub cores: NonZeroUsize,
    /// Most connections at once. More wait in the system's queue.
    pub max_connections: usize,
    /// Limits of a request.
    pub limits: front::Limits,
}

/// What a server may have; by default it has none of it.
#[derive(Default)]
pub struct Options {
    /// A socket that listens already, instead of one on [`Config::listen`].
    pub inherited: Option<StdListener>,
    /// Speaks TLS with these.
    pub tls: Option<Arc<Certificates>>,
    /// Most connections of one client, an IPv4 address or an IPv6 network of 64 bits, but not of a
    /// trusted proxy; one more is closed at once. `None` is as many as there may be.
    pub max_per_client: Option<NonZeroUsize>,
    /// What the front knows.
    pub context: Arc<front::Context>,
}

/// A running server. Dropping it cuts everything off; [`Server::drain`] does not.
pub struct Server {
    addr: SocketAddr,
    phase: watch::Sender<Phase>,
    connections: Arc<[AtomicUsize]>,
    /// Another handle of the listening socket, so that it can outlive the accept thread.
    listener: Option<StdListener>,
    context: Arc<front::Context>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Ends when every thread has ended.
    ended: mpsc::Receiver<()>,
}

/// How a drain went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were still open at the limit, and were cut.
    pub cut: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serve,
    /// Answers say goodbye.
    Leave,
    /// Nothing new is accepted; what waits in the system's queue is taken first.
    Drain,
    /// Nothing new is accepted; what waits is for whoever listens next.
    HandOver,
    Cut,
}

/// A connection that was accepted, and the places it takes.
struct Socket {
    stream: StdStream,
    peer: SocketAddr,
    places: Places,
}

/// What a connection takes of what there is; given back when it ends.
struct Places {
    /// Beyond `max_connections` only who waited at the end.
    _of_all: Option<OwnedSemaphorePermit>,
    _of_client: Option<OfClient>,
    context: Arc<front::Context>,
}

impl Drop for Places {
    fn drop(&mut self) {
        self.context.metrics.open.dec();
    }
}

/// Connections of each client that has any.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<HashMap<Key, usize>>>);

/// A place of a client.
struct OfClient {
    clients: Clients,
    key: Key,
}

impl Clients {
    /// `None` when this one has `max`.
    fn enter(&self, address: IpAddr, max: NonZeroUsize) -> Option<OfClient> {
        let key = Key::of(address);
        let mut counts = self.counts();
        let count = counts.entry(key).or_default();
        if *count >= max.get() {
            return None;
        }
        *count += 1;
        Some(OfClient { clients: self.clone(), key })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Key, usize>> {
        // A count is changed in one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OfClient {
    fn drop(&mut self) {
        let mut counts = self.clients.counts();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

impl Server {
    /// Binds, starts the threads, and serves with `handler` until drained or dropped. The listener
    /// stands when this returns.
    ///
    /// # Errors
    /// When the address cannot be bound or a thread cannot be started.
    #[expect(clippy::needless_pass_by_value, reason = "every core takes a share of it")]
    pub fn start<H: Handler>(config: Config, handler: Arc<H>) -> io::Result<Self> {
        let Options { inherited, tls, max_per_client, context } = config.options;
        let listener = match inherited {
            Some(listener) => {
                listener.set_nonblocking(true)?;
                listener
            }
            None => bind(config.listen)?,
        };
        let addr = listener.local_addr()?;
        let other = listener.try_clone()?;
        let (phase, phases) = watch::channel(Phase::Serve);
        let (alive, ended) = mpsc::channel::<()>(1);
        let connections: Arc<[AtomicUsize]> = (0..config.cores.get()).map(|_| AtomicUsize::new(0)).collect();
        let ids = Arc::new(AtomicU64::new(0));
        let mut server = Self {
            addr,
            phase,
            connections: connections.clone(),
            listener: Some(other),
            context: context.clone(),
            threads: Vec::new(),
            ended,
        };
        let mut cores = Vec::new();
        for number in 0..config.cores.get() {
            let (sockets, inbox) = mpsc::unbounded_channel();
            cores.push(sockets);
            let (handler, ids, context, tls) = (handler.clone(), ids.clone(), context.clone(), tls.clone());
            let (connections, phases, alive) = (connections.clone(), phases.clone(), alive.clone());
            server.spawn(format!("core-{number}"), move |runtime| {
                let work = async {
                    let front = Rc::new(Front::new(handler.core(number), config.limits, context, ids));
                    let core = Core { number, front, tls, handshake_time: config.limits.head_time, connections };
                    core.serve(inbox, phases).await;
                };
                LocalSet::new().block_on(runtime, work);
                drop(alive);
            })?;
        }
        let door = Door {
            places: Arc::new(Semaphore::new(config.max_connections.clamp(1, Semaphore::MAX_PERMITS))),
            max_per_client,
            clients: Clients::default(),
            cores,
            connections,
            context,
            tls,
        };
        server.spawn("accept".into(), move |runtime| {
            runtime.block_on(door.accept(listener, phases));
            drop(alive);
        })?;
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Connections open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// Takes leave, stops accepting, finishes what is under way, ends. What is left after `limit` is
    /// cut.
    pub async fn drain(mut self, limit: Duration) -> Drained {
        self.listener = None;
        self.end(Phase::Drain, limit).await
    }

    /// As [`Server::drain`], but the socket goes on listening: whoever connects from now on waits in
    /// the system's queue for the next who accepts. `None` if the system has no handle to give.
    pub async fn hand_over(mut self, limit: Duration) -> (Drained, Option<StdListener>) {
        let listener = self.listener.take();
        (self.end(Phase::HandOver, limit).await, listener)
    }

    async fn end(&mut self, last: Phase, limit: Duration) -> Drained {
        let end = Instant::now() + limit;
        self.step(Phase::Leave);
        let leave = Instant::now() + LEAVE.min(limit / 4);
        while self.connections() > 0 && Instant::now() < leave {
            tokio::time::sleep(LOOK).await;
        }
        self.step(last);
        let in_time = tokio::time::timeout_at(end.into(), self.ended.recv()).await.is_ok();
        Drained { cut: if in_time { 0 } else { self.connections() } }
    }

    fn step(&self, phase: Phase) {
        self.context.metrics.drain_state.set(match phase {
            Phase::Serve => 0,
            Phase::Leave => 1,
            Phase::Drain | Phase::HandOver | Phase::Cut => 2,
        });
        self.phase.send_replace(phase);
    }

    fn spawn(&mut self, name: String, run: impl FnOnce(&runtime::Runtime) + Send + 'static) -> io::Result<()> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name(name).spawn(move || {
            run(&runtime);
            // Not waiting for look-ups on the runtime's blocking threads.
            runtime.shutdown_background();
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Cut);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the server panicked");
            }
        }
    }
}

/// The queue holds a burst of connections until the one accept thread has taken them.
fn bind(addr: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

const BACKLOG: i32 = 4096;

/// How long answers say goodbye before connections that wait for a request are closed: a client that
/// sends one at that moment would lose it.
const LEAVE: Duration = Duration::from_secs(1);
/// How often it is looked whether everybody has left.
const LOOK: Duration = Duration::from_millis(10);

/// Where connections come in.
struct Door {
    places: Arc<Semaphore>,
    max_per_client: Option<NonZeroUsize>,
    clients: Clients,
    cores: Vec<mpsc::UnboundedSender<Socket>>,
    connections: Arc<[AtomicUsize]>,
    context: Arc<front::Context>,
    tls: Option<Arc<Certificates>>,
}

impl Door {
    async fn accept(self, listener: StdListener, mut phases: watch::Receiver<Phase>) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot accept"),
        };
        let mut failing = false;
        let mut sweep = tokio::time::interval(SWEEP);
        let mut certificates = tokio::time::interval(CERTIFICATES);
        let last = loop {
            tokio::select! {
                biased;
                last = phases.wait_for(|phase| *phase >= Phase::Drain) => break last.map_or(Phase::Cut, |phase| *phase),
                _ = sweep.tick() => self.context.guard.sweep(),
                _ = certificates.tick(), if self.tls.is_some() => self.look_at_certificates(),
                () = self.next(&listener, &mut failing) => {}
            }
        };
        if last == Phase::Drain {
            self.take_queue(listener);
        }
    }

    async fn next(&self, listener: &TcpListener, failing: &mut bool) {
        // The semaphore is never closed.
        let Ok(place) = self.places.clone().acquire_owned().await else { return };
        match listener.accept().await.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
            Ok((stream, peer)) => {
                *failing = false;
                self.enter(stream, peer, Some(place));
            }
            // Of one connection only; the listener is well.
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {
            }
            // No descriptors or no memory: the queued connection stays queued, so wait before trying again.
            Err(error) => {
                self.context.metrics.refused("accept");
                if !std::mem::replace(failing, true) {
                    tracing::error!(%error, "cannot accept connections; trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// Closing a socket that listens resets who waits in its queue, and some have sent a request. At
    /// the end they are taken even beyond `max_connections`: nobody comes after them.
    fn take_queue(&self, listener: TcpListener) {
        let Ok(listener) = listener.into_std() else { return };
        for _ in 0..BACKLOG {
            match listener.accept() {
                Ok((stream, peer)) if stream.set_nonblocking(true).is_ok() => {
                    self.enter(stream, peer, self.places.clone().try_acquire_owned().ok());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // Nobody waits any more, or there are no descriptors.
                Err(_) => return,
            }
        }
    }

    fn enter(&self, stream: StdStream, peer: SocketAddr, place: Option<OwnedSemaphorePermit>) {
        let metrics = &self.context.metrics;
        metrics.accepted.inc();
        let limited = self.max_per_client.filter(|_| !is_trusted(peer.ip(), &self.context.trusted_proxies));
        let of_client = match limited.map(|max| self.clients.enter(peer.ip(), max)) {
            None => None,
            Some(Some(place)) => Some(place),
            Some(None) => return metrics.refused("client"),
        };
        metrics.open.inc();
        let places = Places { _of_all: place, _of_client: of_client, context: self.context.clone() };
        let fewest = self.connections.iter().zip(&self.cores).min_by_key(|(count, _)| count.load(Relaxed));
        if let Some((count, core)) = fewest {
            count.fetch_add(1, Relaxed);
            if core.send(Socket { stream, peer, places }).is_err() {
                // Its thread is gone; so counted, it is never again the one with the fewest.
                count.store(usize::MAX / 2, Relaxed);
                tracing::error!("a core is gone; its connections go to the others");
            }
        }
    }

    /// Whoever renews a certificate writes files and should not have to tell anybody.
    fn look_at_certificates(&self) {
        if let Some(certificates) = self.tls.clone() {
            tokio::task::spawn_blocking(move || match certificates.reload() {
                Ok(true) => tracing::info!("new TLS certificate"),
                Ok(false) => {}
                Err(error) => tracing::error!(error = %error, "TLS files have changed and are not taken"),
            });
        }
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often limits forget who is as good as new.
const SWEEP: Duration = Duration::from_secs(10);
/// How often it is looked whether the TLS files have changed.
const CERTIFICATES: Duration = Duration::from_secs(10);

/// One core.
struct Core<C> {
    number: usize,
    front: Rc<Front<C>>,
    tls: Option<Arc<Certificates>>,
    handshake_time: Duration,
    connections: Arc<[AtomicUsize]>,
}

impl<C: CoreHandler> Core<C> {
    async fn serve(self, mut sockets: mpsc::UnboundedReceiver<Socket>, mut phases: watch::Receiver<Phase>) {
        let core = Rc::new(self);
        let mut open = JoinSet::new();
        let (stages, stage) = watch::channel(Stage::Stay);
        let mut leaving = phases.clone();
        let work = async {
            // Ends when the listener is closed and every accepted socket is taken: a client whose idle
            // connection ends then must not find its way back in.
            loop {
                let socket = tokio::select! {
                    socket = sockets.recv() => match socket { Some(socket) => socket, None => break },
                    Some(_) = open.join_next() => continue,
                    Ok(_) = leaving.wait_for(|phase| *phase >= Phase::Leave), if *stage.borrow() == Stage::Stay => {
                        stages.send_replace(Stage::Leave);
                        continue;
                    }
                };
                let (core, stage) = (core.clone(), stage.clone());
                open.spawn_local(async move { core.connection(socket, stage).await });
            }
            stages.send_replace(Stage::Close);
            while open.join_next().await.is_some() {}
            core.front.handler().drained().await;
        };
        tokio::select! {
            biased;
            _ = phases.wait_for(|phase| *phase == Phase::Cut) => {}
            () = work => {}
        }
    }

    async fn connection(&self, socket: Socket, stage: watch::Receiver<Stage>) {
        let Socket { stream, peer, places } = socket;
        let _open = Open { connections: self.connections.clone(), number: self.number, _places: places };
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => return tracing::error!(%error, "accepted socket is unusable"),
        };
        // Answers are written in one piece; Nagle's wait for the client's acknowledgement buys nothing.
        drop(stream.set_nodelay(true));
        let front = self.front.clone();
        let Some(certificates) = &self.tls else {
            return front.serve(Connection { stream, peer, secure: false, http2: false }, stage).await;
        };
        let metrics = front.metrics();
        match tokio::time::timeout(self.handshake_time, certificates.accept(stream)).await {
            Ok(Ok(stream)) => {
                metrics.handshake(if tls::is_resumed(&stream) { "resumed" } else { "full" });
                let http2 = tls::is_http2(&stream);
                front.serve(Connection { stream, peer, secure: true, http2 }, stage).await;
            }
            Ok(Err(error)) => {
                metrics.handshake("failed");
                tracing::debug!(%peer, %error, "no TLS");
            }
            Err(_) => metrics.handshake("timeout"),
        }
    }
}

/// An open connection, counted.
struct Open {
    connections: Arc<[AtomicUsize]>,
    number: usize,
    _places: Places,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(count) = self.connections.get(self.number) {
            count.fetch_sub(1, Relaxed);
        }
    }
}
