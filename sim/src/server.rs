//! A running simulator: the listening socket, the threads, the connections, and their end.

use std::{
    error::Error as _,
    net::{self, SocketAddr},
    pin,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime,
    sync::{mpsc, watch},
    time,
};

use crate::{
    Clock, ControlError, Faults, Identity, Journal, SimConfig, StartError, codes::CodeKind, routes::World, wire::Script,
};

/// A running simulator, until it is stopped or dropped.
pub struct Simulator {
    addr: SocketAddr,
    world: Arc<World>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Simulator {
    /// Listens and serves, on threads of its own: the caller needs no runtime.
    ///
    /// # Errors
    /// When `config` is not sound, names an address that is not loopback without allowing that, or
    /// names one that cannot be listened on.
    #[expect(clippy::needless_pass_by_value, reason = "a simulator is started once")]
    pub fn start(config: SimConfig) -> Result<Self, StartError> {
        config.check()?;
        let bind = |source| StartError::Bind { addr: config.listen, source };
        let listener = listen(config.listen).map_err(bind)?;
        let addr = listener.local_addr().map_err(bind)?;
        let (stop, stopped) = watch::channel(false);
        let mut simulator = Self { addr, world: Arc::new(World::new(&config)), stop, threads: Vec::new() };

        let mut inboxes = Vec::new();
        for number in 0..config.threads.get() {
            let (inbox, sockets) = mpsc::unbounded_channel();
            inboxes.push(inbox);
            let (world, stopped) = (Arc::clone(&simulator.world), stopped.clone());
            simulator.spawn(format!("sim-{number}"), move || serve(sockets, world, stopped))?;
        }
        simulator.spawn("sim-accept".to_owned(), move || accept(listener, inboxes, stopped))?;

        tracing::warn!(
            %addr,
            reusable_codes = config.reusable_codes,
            "SIMULATED PLATFORM: anyone who reaches this address logs in as anyone"
        );
        Ok(simulator)
    }

    /// Where it listens; the port is the one taken when 0 was asked for.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The base URL to give as a platform's.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The faults armed.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.world.faults
    }

    /// The requests received.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.world.journal
    }

    /// The time codes live by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.world.clock
    }

    /// A fresh code for `user` of the app named, or of the first: `wx.login` without HTTP.
    ///
    /// # Errors
    /// When no app has that id, the name is not a user's, or there is no room for the user.
    pub fn log_in(&self, user: &str, appid: Option<&str>) -> Result<String, ControlError> {
        let code = self.world.wechat.log_in(user, appid, CodeKind::Login, None)?;
        Ok(code.to_string())
    }

    /// What the app with this id is told about `user`; `None` when there is no such app.
    #[must_use]
    pub fn identity(&self, user: &str, appid: &str) -> Option<Identity> {
        self.world.wechat.identity(user, appid)
    }

    /// Takes no more connections, lets calls in flight end for up to a second, and waits for that.
    pub fn stop(self) {
        drop(self);
    }

    /// Runs what `work` makes on a thread with a runtime of its own.
    fn spawn<F: Future<Output = ()>>(
        &mut self,
        name: String,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<(), StartError> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(StartError::Thread)?;
        let thread = thread::Builder::new().name(name).spawn(move || runtime.block_on(work()));
        self.threads.push(thread.map_err(StartError::Thread)?);
        Ok(())
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // A panic there has been reported there.
            let _ = thread.join();
        }
    }
}

/// Bound here and not by tokio: the port is known before any thread runs, and the queue is long
/// enough for a load generator that connects all at once.
fn listen(addr: SocketAddr) -> std::io::Result<net::TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    // The same address again right after a restart.
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A socket and the number of its connection, from 1.
type Accepted = (u64, net::TcpStream);

/// Hands each socket to the next thread in turn, so that they have equally many.
async fn accept(
    listener: net::TcpListener,
    inboxes: Vec<mpsc::UnboundedSender<Accepted>>,
    mut stopped: watch::Receiver<bool>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot accept connections"),
    };
    for (number, inbox) in (1..).zip(inboxes.iter().cycle()) {
        let socket = tokio::select! {
            accepted = listener.accept() => accepted.and_then(|(socket, _)| socket.into_std()),
            () = stop(&mut stopped) => return,
        };
        match socket {
            Ok(socket) => drop(inbox.send((number, socket))),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                // Out of descriptors, most likely: the listener stays ready, so do not spin.
                time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Serves the sockets of one thread until no more come and the last has ended.
async fn serve(mut sockets: mpsc::UnboundedReceiver<Accepted>, world: Arc<World>, stopped: watch::Receiver<bool>) {
    // Nothing is ever sent: the channel ends when the last connection has dropped its half.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    while let Some((number, socket)) = sockets.recv().await {
        let (world, stopped, open) = (Arc::clone(&world), stopped.clone(), open.clone());
        tokio::spawn(async move {
            match TcpStream::from_std(socket) {
                Ok(socket) => connection(number, socket, world, stopped).await,
                Err(error) => tracing::warn!(%error, "cannot serve a connection"),
            }
            drop(open);
        });
    }
    drop(open);
    all_closed.recv().await;
}

async fn connection(number: u64, socket: TcpStream, world: Arc<World>, mut stopped: watch::Receiver<bool>) {
    // An answer is one write; waiting for more would only add Nagle's delay to the platform's.
    let _ = socket.set_nodelay(true);
    let service = service_fn(move |request| {
        let world = Arc::clone(&world);
        async move { world.handle(number, request).await }
    });
    let mut http = http1::Builder::new().max_buf_size(MAX_HEAD_BYTES).serve_connection(TokioIo::new(socket), service);
    let ended = tokio::select! {
        ended = &mut http => ended,
        () = stop(&mut stopped) => {
            pin::Pin::new(&mut http).graceful_shutdown();
            time::timeout(DRAIN, &mut http).await.unwrap_or(Ok(()))
        }
    };
    let Err(error) = ended else { return };
    let Some(script) = error.source().and_then(|source| source.downcast_ref::<Script>()) else {
        return tracing::debug!(%error, "connection broken");
    };
    let socket = http.into_parts().io.into_inner();
    tokio::select! {
        () = script.clone().play(socket) => {}
        () = stop(&mut stopped) => {}
    }
}

/// Ends when the simulator stops.
async fn stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// How long calls in flight may take to end once the simulator stops.
const DRAIN: Duration = Duration::from_secs(1);

/// Longest request head, in bytes: a 10 kB code, escaped, fits three times over.
const MAX_HEAD_BYTES: usize = 128 << 10;
