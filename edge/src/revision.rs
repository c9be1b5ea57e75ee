//! One version of the component, checked and ready to be instantiated. Immutable.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Instant,
};

use wasmtime::{
    Store,
    component::{Component, Linker},
};

use crate::{
    bindings::node::{Node, NodePre},
    crew::Crew,
    engine::{self, Artefact, Digest, Engine, ticks_in},
    handler::Request,
    host::{Host, World},
    kv::SharedBackend,
    lines,
    meter::{Limiter, Meter},
    metrics::{self, Metrics},
    outbound,
    pool::Limits,
    variables::Snapshot,
    wasi_http::HttpRevision,
};

/// A version of the component.
pub struct Revision {
    digest: Digest,
    kind: Kind,
}

/// The two kinds of component, told apart by their exports.
pub(crate) enum Kind {
    /// World `node` of `wit/node.wit`.
    Node(Arc<NodeRevision>),
    /// Any component that exports `wasi:http/handler@0.3`.
    Http(Arc<HttpRevision>),
}

/// What a component is given.
#[derive(Clone)]
pub struct Surroundings {
    /// Its variables.
    pub variables: Arc<Snapshot>,
    /// Labels of the key-value stores the manifest gives it. The `node` door uses `default`.
    pub store_labels: BTreeSet<String>,
    /// Where they live.
    pub store: SharedBackend,
    /// Its way out.
    pub outbound: Arc<outbound::Shared>,
    /// Limits of its instances.
    pub limits: Limits,
    /// Where what is measured of it goes.
    pub metrics: Metrics,
}

/// What a `node` component says about itself. A `wasi:http` component says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Version of the component.
    pub version: String,
    /// Commit it was built from.
    pub commit: String,
    /// Time of that commit, RFC 3339.
    pub built: String,
    /// Names of the settings it knows.
    pub settings: Vec<String>,
}

/// Why a component is not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be loaded.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// It exports neither kind of handler.
    #[error("exports neither {NODE_EXPORT} nor {HTTP_EXPORT} 0.3 but {}", Names(.0))]
    Kind(Vec<String>),
    /// It imports what this node does not have.
    #[error("imports what this node does not have: {}", Names(.0))]
    Imports(Vec<String>),
    /// The names fit, the types do not.
    #[error("cannot be linked")]
    Link(#[source] wasmtime::Error),
    /// It trapped or did not end when asked to describe itself.
    #[error("does not start")]
    Start(#[source] wasmtime::Error),
    /// Its settings are wrong. Names them, never shows a value.
    #[error("settings: {}", .0.join("; "))]
    Settings(Vec<String>),
}

struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("nothing") } else { f.write_str(&self.0.join(", ")) }
    }
}

impl Revision {
    /// Loads, links and, for a `node` component, starts it once to read its description.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn load(engine: &Engine, artefact: &Artefact, around: Surroundings) -> Result<Self, Error> {
        let component = engine.load(artefact)?;
        let exports = names(&component, Side::Exports);
        let kind = if exports.iter().any(|name| name.starts_with(NODE_EXPORT)) {
            Kind::Node(Arc::new(NodeRevision::load(engine, &component, around).await?))
        } else if exports.iter().any(|name| name.starts_with(HTTP_EXPORT)) {
            Kind::Http(Arc::new(HttpRevision::load(engine, &component, around)?))
        } else {
            return Err(Error::Kind(exports));
        };
        Ok(Self { digest: artefact.digest(), kind })
    }

    /// Names it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Its own words about itself, from the `node` door.
    #[must_use]
    pub fn description(&self) -> Option<&Description> {
        match &self.kind {
            Kind::Node(revision) => Some(&revision.description),
            Kind::Http(_) => None,
        }
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }
}

/// What the node door keeps of a revision.
pub(crate) struct NodeRevision {
    pub(crate) pre: NodePre<Host>,
    pub(crate) world: Arc<World>,
    pub(crate) outbound: Arc<outbound::Shared>,
    pub(crate) limits: Limits,
    pub(crate) ticks: Arc<AtomicU64>,
    pub(crate) crew: Crew,
    pub(crate) counts: metrics::pool::Pool,
    reads: BTreeSet<String>,
    description: Description,
}

impl NodeRevision {
    async fn load(engine: &Engine, component: &Component, around: Surroundings) -> Result<Self, Error> {
        refuse_unknown_imports(component, &["edgepass:node/"])?;
        let mut linker = Linker::new(engine.inner());
        Node::add_to_linker::<Host, Host>(&mut linker, |host| host).map_err(Error::Link)?;
        let pre = linker.instantiate_pre(component).and_then(NodePre::new).map_err(Error::Link)?;
        let world = Arc::new(World {
            variables: around.variables,
            store: around.store_labels.contains(DEFAULT_STORE).then_some(around.store),
            started: Instant::now(),
            events: around.metrics.events().clone(),
        });
        let meter = Meter::new(engine.ticks(), ticks_in(around.limits.max_cpu), around.limits.max_memory_bytes);
        let mut store = Store::new(
            engine.inner(),
            Host {
                world: world.clone(),
                client: outbound::Client::new(around.outbound.clone()),
                limiter: Limiter(meter.clone()),
            },
        );
        meter.watch(&mut store);
        let guest = pre.instantiate_async(&mut store).await.map_err(Error::Start)?;
        let said = guest.edgepass_node_service().call_describe(&mut store).await.map_err(Error::Start)?;
        if !said.problems.is_empty() {
            return Err(Error::Settings(said.problems));
        }
        Ok(Self {
            pre,
            world,
            outbound: around.outbound,
            limits: around.limits,
            ticks: engine.ticks(),
            crew: Crew::default(),
            counts: around.metrics.pool().clone(),
            reads: said.reads.into_iter().collect(),
            description: Description {
                version: said.version,
                commit: said.commit,
                built: said.built,
                settings: said.settings,
            },
        })
    }

    /// The fields the component reads, as it takes them: one buffer of `name: value\n`.
    pub(crate) fn head(&self, request: &Request) -> Vec<u8> {
        let mut lines = Vec::with_capacity(256);
        for (name, value) in &request.headers {
            if self.reads.contains(name.as_str()) {
                lines::write(&mut lines, name, value);
            }
        }
        lines
    }
}

/// Fails with every import that begins with none of `known`: wasmtime's own error names only the
/// first that is missing.
pub(crate) fn refuse_unknown_imports(component: &Component, known: &[&str]) -> Result<(), Error> {
    let mut imports = names(component, Side::Imports);
    imports.retain(|import| !known.iter().any(|known| import.starts_with(known)));
    if imports.is_empty() { Ok(()) } else { Err(Error::Imports(imports)) }
}

#[derive(Clone, Copy)]
enum Side {
    Imports,
    Exports,
}

fn names(component: &Component, side: Side) -> Vec<String> {
    let (of, engine) = (component.component_type(), component.engine());
    match side {
        Side::Imports => of.imports(engine).map(|(name, _)| name.to_owned()).collect(),
        Side::Exports => of.exports(engine).map(|(name, _)| name.to_owned()).collect(),
    }
}

const NODE_EXPORT: &str = "edgepass:node/service@0.1.";
const HTTP_EXPORT: &str = "wasi:http/handler@0.3.";
/// The label of the store that the `node` door speaks to.
pub(crate) const DEFAULT_STORE: &str = "default";
