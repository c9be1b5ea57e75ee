//! Threads and sockets: one thread that accepts, N cores that serve.
//!
//! Each core is a thread with a runtime of its own; a connection stays on the core it was given
//! to, the one with the fewest. Draining closes the listener, lets every connection finish the
//! answer under way, and waits for the work after answers; at its limit what is left is cut.

use std::{
    io,
    net::{SocketAddr, TcpStream as StdStream},
    num::NonZeroUsize,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    runtime,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::{JoinSet, LocalSet},
};

use crate::{
    front::{self, Front},
    handler::{CoreHandler, Handler},
};

/// How a server is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Threads that serve.
    pub cores: NonZeroUsize,
    /// Most connections at once. More wait in the system's queue.
    pub max_connections: usize,
    /// Limits of a request.
    pub limits: front::Limits,
}

/// A running server. Dropping it cuts everything off; [`Server::drain`] does not.
pub struct Server {
    addr: SocketAddr,
    phase: watch::Sender<Phase>,
    connections: Arc<[AtomicUsize]>,
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
    Drain,
    Cut,
}

type Socket = (StdStream, SocketAddr, OwnedSemaphorePermit);

impl Server {
    /// Binds, starts the threads, and serves with `handler` until drained or dropped. The listener
    /// stands when this returns.
    ///
    /// # Errors
    /// When the address cannot be bound or a thread cannot be started.
    #[expect(clippy::needless_pass_by_value, reason = "every core takes a share of it")]
    pub fn start<H: Handler>(config: Config, handler: Arc<H>) -> io::Result<Self> {
        let listener = bind(config.listen)?;
        let addr = listener.local_addr()?;
        let (phase, phases) = watch::channel(Phase::Serve);
        let (alive, ended) = mpsc::channel::<()>(1);
        let connections: Arc<[AtomicUsize]> = (0..config.cores.get()).map(|_| AtomicUsize::new(0)).collect();
        let ids = Arc::new(AtomicU64::new(0));
        let mut server = Self { addr, phase, connections: connections.clone(), threads: Vec::new(), ended };
        let mut cores = Vec::new();
        for number in 0..config.cores.get() {
            let (sockets, inbox) = mpsc::unbounded_channel();
            cores.push(sockets);
            let (handler, ids) = (handler.clone(), ids.clone());
            let (connections, phases, alive) = (connections.clone(), phases.clone(), alive.clone());
            server.spawn(format!("core-{number}"), move |runtime| {
                let serve = serve(number, &*handler, config.limits, ids, connections, inbox, phases);
                LocalSet::new().block_on(runtime, serve);
                drop(alive);
            })?;
        }
        server.spawn("accept".into(), move |runtime| {
            runtime.block_on(accept(listener, config.max_connections, &cores, &connections, phases));
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

    /// Stops accepting, finishes what is under way, ends. What is left after `limit` is cut.
    pub async fn drain(mut self, limit: Duration) -> Drained {
        self.phase.send_replace(Phase::Drain);
        let in_time = tokio::time::timeout(limit, self.ended.recv()).await.is_ok();
        Drained { cut: if in_time { 0 } else { self.connections() } }
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

async fn accept(
    listener: std::net::TcpListener,
    max_connections: usize,
    cores: &[mpsc::UnboundedSender<Socket>],
    connections: &[AtomicUsize],
    mut phases: watch::Receiver<Phase>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot accept"),
    };
    let places = Arc::new(Semaphore::new(max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let mut failing = false;
    let next = async |failing: &mut bool| {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let socket = listener.accept().await.and_then(|(stream, client)| Ok((stream.into_std()?, client)));
        match socket {
            Ok((stream, client)) => {
                *failing = false;
                let fewest = connections.iter().zip(cores).min_by_key(|(count, _)| count.load(Relaxed));
                if let Some((count, core)) = fewest {
                    count.fetch_add(1, Relaxed);
                    if core.send((stream, client, place)).is_err() {
                        // Its thread is gone; so counted, it is never again the one with the fewest.
                        count.store(usize::MAX / 2, Relaxed);
                        tracing::error!("a core is gone; its connections go to the others");
                    }
                }
            }
            // Of one connection only; the listener is well.
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {
            }
            // No descriptors or no memory: the queued connection stays queued, so wait before trying again.
            Err(error) => {
                if !std::mem::replace(failing, true) {
                    tracing::error!(%error, "cannot accept connections; trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    };
    loop {
        tokio::select! {
            biased;
            _ = phases.wait_for(|phase| *phase >= Phase::Drain) => return,
            () = next(&mut failing) => {}
        }
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

async fn serve<H: Handler>(
    number: usize,
    handler: &H,
    limits: front::Limits,
    ids: Arc<AtomicU64>,
    connections: Arc<[AtomicUsize]>,
    mut sockets: mpsc::UnboundedReceiver<Socket>,
    mut phases: watch::Receiver<Phase>,
) {
    let front = Rc::new(Front::new(handler.core(number), limits, ids));
    let mut open = JoinSet::new();
    let (closing, closed) = watch::channel(false);
    let work = async {
        // Ends when the listener is closed and every accepted socket is taken: a client whose idle
        // connection ends then must not find its way back in.
        loop {
            let (stream, client, place) = tokio::select! {
                socket = sockets.recv() => match socket { Some(socket) => socket, None => break },
                Some(_) = open.join_next() => continue,
            };
            let (front, connections, mut closed) = (front.clone(), connections.clone(), closed.clone());
            open.spawn_local(async move {
                let _open = Open { connections, number, _place: place };
                match TcpStream::from_std(stream) {
                    Ok(stream) => {
                        let drain = async { drop(closed.wait_for(|closed| *closed).await) };
                        front.serve(stream, client, drain).await;
                    }
                    Err(error) => tracing::error!(%error, "accepted socket is unusable"),
                }
            });
        }
        closing.send_replace(true);
        while open.join_next().await.is_some() {}
        front.handler().drained().await;
    };
    tokio::select! {
        biased;
        _ = phases.wait_for(|phase| *phase == Phase::Cut) => {}
        () = work => {}
    }
}

/// An open connection, counted.
struct Open {
    connections: Arc<[AtomicUsize]>,
    number: usize,
    _place: OwnedSemaphorePermit,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(count) = self.connections.get(self.number) {
            count.fetch_sub(1, Relaxed);
        }
    }
}
