//! The edge node as one value: a component, its surroundings and a server.

use std::{
    net::{SocketAddr, TcpListener},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::runtime;

use crate::{
    admin::{self, Admin, Asked, Fault, Public, Route, Table},
    engine::{self, Capacity, Compiler, Engine},
    front,
    handler::Handler,
    kv, log, metrics,
    observer::Observing,
    revision::{self, Revision, Surroundings},
    revisions::{self, By, Change, Done, Found, Keeper, Live, Office, Refusal, Slot, Standing},
    server::{self, Drained, Server},
    status,
};

/// How a node is set up.
pub struct Config {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The listener for operators, which has a thread and instances of its own; `None` is none.
    pub admin: Option<admin::Config>,
    /// Threads that serve; `None` takes one per processor.
    pub cores: Option<NonZeroUsize>,
    /// Most connections at once. More wait in the system's queue.
    pub max_connections: usize,
    /// Limits of a request.
    pub limits: front::Limits,
    /// The component, as WebAssembly.
    pub component: Vec<u8>,
    /// Folder for compiled code; `None` compiles at every start.
    pub cache: Option<PathBuf>,
    /// What the component is given.
    pub surroundings: Surroundings,
    /// How the public listener is, beyond that.
    pub options: server::Options,
    /// A socket that listens already, for the admin listener.
    pub inherited_admin: Option<TcpListener>,
    /// How the component may become another one.
    pub revisions: revisions::Config,
}

/// Most connections at once, where nothing else is said.
pub const MAX_CONNECTIONS: usize = 10_000;

/// A running edge node. Dropping it cuts everything off; [`Node::drain`] does not.
pub struct Node {
    server: Server,
    admin: Option<Server>,
    context: Arc<front::Context>,
    slot: Arc<Slot>,
    office: Office,
    /// Ends after the last office, so it stands behind it.
    _keeper: Keeper,
    /// Outlives every instance.
    _engine: Arc<Engine>,
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The component cannot be compiled.
    #[error("component refused")]
    Engine(#[from] engine::Error),
    /// The component is not taken.
    #[error("component refused")]
    Revision(#[from] revision::Error),
    /// It did not describe itself in time.
    #[error("component does not start within {} s", START_TIME.as_secs())]
    Timeout,
    /// The state folder cannot be used, or the thread that changes revisions not started.
    #[error("cannot keep revisions")]
    Revisions(#[source] std::io::Error),
    /// The address cannot be bound, or a thread not started.
    #[error("cannot listen on {listen}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Node {
    /// Compiles the component or takes it from the cache, checks it, and serves. Blocks for as
    /// long as that takes; may be called inside or outside a runtime.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub fn start(config: Config) -> Result<Self, StartError> {
        let cores = config.cores.unwrap_or_else(|| thread::available_parallelism().unwrap_or(NonZeroUsize::MIN));
        let capacity = Capacity::for_instances(config.surroundings.limits, cores);
        let around = config.surroundings;
        let (metrics, store) = (around.metrics.clone(), around.store.clone());
        let (cache, keeping) = (config.cache.as_deref(), config.revisions);
        let mut found = Found::look(keeping.state_dir.as_deref(), keeping.keep, &config.component)
            .map_err(StartError::Revisions)?;
        let last = found.component.take();
        let (engine, revision) = off_runtime(|| {
            let load = |component: &[u8]| load(component, cache, capacity, around.clone());
            let Some(last) = last else { return load(&config.component) };
            load(&last).or_else(|error| {
                let error = anyhow::Error::from(error);
                tracing::error!(error = %format_args!("{error:#}"), "what served last is not taken; the manifest's serves");
                found.fall_back();
                load(&config.component)
            })
        })?;
        let (engine, revision) = (Arc::new(engine), Arc::new(revision));
        let slot = Slot::new(revision, keeping.thresholds.window);
        let (office, keeper) =
            Office::open(slot.clone(), engine.clone(), cache, around, found, keeping).map_err(StartError::Revisions)?;
        let public = server::Config {
            listen: config.listen,
            options: config.options,
            cores,
            max_connections: config.max_connections,
            limits: config.limits,
        };
        let context = public.options.context.clone();
        metrics.register(|registry| context.metrics.register(registry));
        let server = listen(public, Public::new(Observing::new(Live::new(slot.clone()), metrics.clone())))?;
        let admin = config.admin.map(|admin::Config { listen: address, token, routes }| {
            let private = server::Config {
                listen: address,
                options: server::Options { inherited: config.inherited_admin, ..server::Options::default() },
                cores: NonZeroUsize::MIN,
                max_connections: admin::MAX_CONNECTIONS,
                limits: admin::limits(config.limits),
            };
            let table = Table::default()
                .with(own_routes(context.readiness.clone()))
                .with(metrics::routes(&metrics))
                .with(log::routes())
                .with(kv::browse::routes(&store))
                .with(status::routes(&metrics, shown(&office)))
                .with(revisions::routes(&office))
                .with(routes);
            listen(private, Admin::new(Live::apart(slot.clone()), table, token))
        });
        Ok(Self { server, admin: admin.transpose()?, context, slot, office, _keeper: keeper, _engine: engine })
    }

    /// Whether [`Node::start`] would start, up to what it listens on. Leaves compiled code in the cache.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn check(config: Config) -> Result<(), StartError> {
        // One instance describes the component; where it is to serve there may be no room for more.
        let capacity = Capacity::for_instances(config.surroundings.limits, NonZeroUsize::MIN);
        let (component, around) = (&config.component, config.surroundings);
        off_runtime(|| load(component, config.cache.as_deref(), capacity, around)).map(drop)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Connections open now, operators' not counted.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.server.connections()
    }

    /// Whether it wants to be sent new clients.
    #[must_use]
    pub fn readiness(&self) -> &front::Readiness {
        &self.context.readiness
    }

    /// Where operators are served, if they are.
    #[must_use]
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Server::addr)
    }

    /// What it serves at this moment.
    #[must_use]
    pub fn revision(&self) -> Arc<Revision> {
        self.slot.now().active.revision.clone()
    }

    /// How its revisions stand.
    #[must_use]
    pub fn standing(&self) -> Arc<Standing> {
        self.office.standing()
    }

    /// Changes what it serves. Requests go on being answered meanwhile, each by one revision.
    ///
    /// # Errors
    /// [`Refusal`]; what was served is served.
    pub async fn change(&self, change: Change, by: By) -> Result<Done, Refusal> {
        self.office.change(change, by).await
    }

    /// Says at `/readyz` that it wants no new clients any more. It serves those who come all the same.
    pub fn leave(&self) {
        self.context.readiness.leave();
    }

    /// Stops accepting, finishes what is under way, work after answers included, and ends. What is
    /// left after `limit` is cut. Operators are served until the public listener has ended.
    pub async fn drain(self, limit: Duration) -> Drained {
        self.leave();
        let end = Instant::now() + limit;
        let public = self.server.drain(limit).await;
        let admin = match self.admin {
            Some(admin) => admin.drain(end.saturating_duration_since(Instant::now())).await,
            None => Drained::default(),
        };
        Drained { cut: public.cut + admin.cut }
    }

    /// As [`Node::drain`], but both sockets go on listening for the next who accepts.
    pub async fn hand_over(self, limit: Duration) -> (Drained, Sockets) {
        let end = Instant::now() + limit;
        let (public, listener) = self.server.hand_over(limit).await;
        let (admin, admin_listener) = match self.admin {
            Some(admin) => admin.hand_over(end.saturating_duration_since(Instant::now())).await,
            None => (Drained::default(), None),
        };
        (Drained { cut: public.cut + admin.cut }, Sockets { public: listener, admin: admin_listener })
    }
}

/// The sockets a node listens on.
#[derive(Debug, Default)]
pub struct Sockets {
    /// For everybody.
    pub public: Option<TcpListener>,
    /// For operators.
    pub admin: Option<TcpListener>,
}

/// How revisions stand, for the status.
fn shown(office: &Office) -> status::Revisions {
    let office = office.clone();
    Arc::new(move || serde_json::to_value(&*office.standing()).unwrap_or_default())
}

/// What a node answers whatever it serves.
fn own_routes(readiness: front::Readiness) -> Vec<Route> {
    let alive = async |asked: Asked| Ok(asked.json_answer(&serde_json::json!({"status": "ok"})));
    let ready = move |asked: Asked| {
        let problem = readiness.problem();
        async move {
            match problem {
                None => Ok(asked.json_answer(&serde_json::json!({"status": "ok"}))),
                Some(problem) => Err(Fault::from(problem)),
            }
        }
    };
    vec![
        Route::new(http::Method::GET, "/healthz", alive).open(),
        Route::new(http::Method::GET, "/readyz", ready).open(),
    ]
}

fn listen<H: Handler>(config: server::Config, handler: Arc<H>) -> Result<Server, StartError> {
    let listen = config.listen;
    Server::start(config, handler).map_err(|source| StartError::Listen { listen, source })
}

/// Runs `work` on a thread of its own: it blocks on a runtime, which may not be nested.
fn off_runtime<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Compiles the component or takes it from the cache, checks and starts it. Blocks; call outside a runtime.
pub(crate) fn load(
    component: &[u8],
    cache: Option<&Path>,
    capacity: Capacity,
    around: Surroundings,
) -> Result<(Engine, Revision), StartError> {
    let artefact = Compiler::new(cache)?.compile(component)?;
    let engine = Engine::new(capacity, &artefact)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| engine::Error::Engine(error.into()))?;
    let revision = runtime.block_on(async {
        let loaded = tokio::time::timeout(START_TIME, Revision::load(&engine, &artefact, around)).await;
        loaded.map_err(|_| StartError::Timeout)
    })??;
    Ok((engine, revision))
}

/// A component that has not described itself by then never will.
const START_TIME: Duration = Duration::from_secs(10);
