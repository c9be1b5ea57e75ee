//! From a compiled component on disk to the first correct login, and what a login costs after
//! that, through each door and natively.
//!
//! Every login is a whole one: the code is exchanged at the simulated platform over loopback, the
//! session written to a store in memory, the answer checked. Nothing is subtracted; the native rung
//! beside the doors shows what is not WebAssembly's. The rungs are interleaved, so that a busy
//! machine is busy for all of them.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use edgepass_edge::{
    engine::{Capacity, Compiler, Engine},
    handler::{CoreHandler, Handler, Request, Response},
    kv,
    manifest::Manifest,
    metrics::Metrics,
    outbound::{self, Policy, Shared},
    revision::{Revision, Surroundings},
    revisions::Live,
    variables::{Snapshot, Sources},
};
use edgepass_sim::{SAMPLE_APPID, SAMPLE_SECRET, SimConfig, Simulator};
use serde::Serialize;
use tokio::task::LocalSet;

use crate::{
    machine::Machine,
    native::Native,
    sample::{Samples, Summary},
};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The manifest, for its settings; the components are those it names.
    pub manifest: PathBuf,
    /// How often each rung starts cold.
    pub starts: usize,
    /// How often each rung logs in on a fresh instance.
    pub fresh: usize,
    /// How many logins a warm instance does, one after the other.
    pub warm: usize,
}

/// What was measured; `Display` draws it as a Markdown table.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// One per rung.
    pub rungs: Vec<RungReport>,
}

/// One rung's numbers.
#[derive(Clone, Debug, Serialize)]
pub struct RungReport {
    /// What is behind it.
    pub rung: &'static str,
    /// SHA-256 of the component.
    pub digest: Option<String>,
    /// Bytes of the component.
    pub wasm_bytes: Option<u64>,
    /// Compiling it once, from nothing.
    pub compile: Option<Summary>,
    /// From nothing but the compiled component on disk: engine, code, link check, store, first login.
    pub cold: Option<Summary>,
    /// A login on an instance made for it.
    pub fresh: Summary,
    /// A login on an instance that has done some.
    pub warm: Summary,
}

/// The rungs, lowest first.
const RUNGS: [&str; 3] = ["native core", "node", "wasi:http"];

/// Measures.
///
/// # Errors
/// When a component is missing, does not start, or answers with anything but a login.
pub fn run(settings: &Settings) -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, measure(settings))
}

async fn measure(settings: &Settings) -> anyhow::Result<Report> {
    let ground = Ground::prepare(&settings.manifest)?;
    let paths = [None, ground.manifest.component.settings.node.clone(), Some(ground.manifest.component.source.clone())];
    let folder = tempfile::tempdir().context("making a folder for compiled code")?;

    let mut rungs = Vec::new();
    for (name, path) in RUNGS.into_iter().zip(paths) {
        rungs.push(Rung::prepare(name, path.as_deref(), folder.path(), &ground).await?);
    }
    for _ in 0..settings.starts {
        for rung in rungs.iter_mut().filter(|rung| rung.wasm.is_some()) {
            rung.start_cold(folder.path(), &ground).await?;
        }
    }
    for _ in 0..settings.fresh {
        for rung in &mut rungs {
            let begun = Instant::now();
            let core = rung.target.core();
            core.log_in(&ground).await?;
            rung.fresh.push(begun.elapsed());
            core.drained().await;
        }
    }
    for rung in &mut rungs {
        rung.core.log_in(&ground).await?;
    }
    for _ in 0..settings.warm {
        for rung in &mut rungs {
            let begun = Instant::now();
            rung.core.log_in(&ground).await?;
            rung.warm.push(begun.elapsed());
        }
    }
    Ok(Report { machine: Machine::this(), rungs: rungs.iter().map(Rung::report).collect() })
}

/// What all rungs share.
struct Ground {
    manifest: Manifest,
    variables: Arc<Snapshot>,
    hosts: Vec<String>,
    simulator: Simulator,
}

impl Ground {
    fn prepare(manifest: &Path) -> anyhow::Result<Self> {
        let simulator = Simulator::start(SimConfig { journal_capacity: 0, ..SimConfig::default() })?;
        let manifest = Manifest::read(manifest)?;
        let arguments = [
            format!("wechat_base_url={}", simulator.base_url()),
            format!("wechat_appid={SAMPLE_APPID}"),
            format!("wechat_secret={SAMPLE_SECRET}"),
            format!("master_key={}", edgepass_edge::secret_file::random()?),
            format!("subject_key={}", edgepass_edge::secret_file::random()?),
            "log_sample=0".to_owned(),
        ];
        let resolved = Sources::new(&arguments, [], Path::new(""))?.resolve(&manifest)?;
        Ok(Self {
            manifest,
            variables: Arc::new(resolved.component),
            hosts: resolved.allowed_outbound_hosts,
            simulator,
        })
    }

    fn surroundings(&self) -> anyhow::Result<Surroundings> {
        Ok(Surroundings {
            variables: self.variables.clone(),
            store_labels: self.manifest.component.key_value_stores.clone(),
            store: Arc::new(kv::Memory::new()),
            outbound: self.outbound()?,
            limits: self.manifest.component.settings.pool(),
            metrics: Metrics::default(),
        })
    }

    fn outbound(&self) -> anyhow::Result<Arc<Shared>> {
        Ok(Shared::new(Policy::parse(&self.hosts)?, outbound::Options::default())?)
    }
}

/// One target, and what was measured of it.
struct Rung {
    name: &'static str,
    wasm: Option<Vec<u8>>,
    target: Target,
    /// The core whose instance stays warm.
    core: Core,
    compile: Samples,
    cold: Samples,
    fresh: Samples,
    warm: Samples,
}

enum Target {
    Native(Native),
    Component { live: Live, _engine: Engine },
}

enum Core {
    Native(<Native as Handler>::Core),
    Component(<Live as Handler>::Core),
}

impl Rung {
    async fn prepare(name: &'static str, path: Option<&Path>, folder: &Path, ground: &Ground) -> anyhow::Result<Self> {
        let mut compile = Samples::default();
        let (wasm, target) = match path {
            None => {
                let settings = ground.variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
                (None, Target::Native(Native::new(settings, Arc::new(kv::Memory::new()), ground.outbound()?)))
            }
            Some(path) => {
                let wasm =
                    fs::read(path).with_context(|| format!("{}: `cargo xtask component` makes it", path.display()))?;
                let begun = Instant::now();
                Compiler::new(Some(folder))?.compile(&wasm)?;
                compile.push(begun.elapsed());
                let target = Target::load(&wasm, folder, ground).await?;
                (Some(wasm), target)
            }
        };
        let core = target.core();
        let [cold, fresh, warm] = Default::default();
        Ok(Self { name, wasm, target, core, compile, cold, fresh, warm })
    }

    async fn start_cold(&mut self, folder: &Path, ground: &Ground) -> anyhow::Result<()> {
        let Some(wasm) = &self.wasm else { return Ok(()) };
        let begun = Instant::now();
        let target = Target::load(wasm, folder, ground).await?;
        let core = target.core();
        core.log_in(ground).await?;
        self.cold.push(begun.elapsed());
        core.drained().await;
        Ok(())
    }

    fn report(&self) -> RungReport {
        let measured = |samples: &Samples| Some(samples.summary()).filter(|summary| summary.n > 0);
        RungReport {
            rung: self.name,
            digest: self.wasm.as_deref().map(|wasm| edgepass_edge::engine::Digest::of(wasm).to_string()),
            wasm_bytes: self.wasm.as_ref().map(|wasm| wasm.len() as u64),
            compile: measured(&self.compile),
            cold: measured(&self.cold),
            fresh: self.fresh.summary(),
            warm: self.warm.summary(),
        }
    }
}

impl Target {
    /// From compiled code in `folder`: engine, code, link check.
    async fn load(wasm: &[u8], folder: &Path, ground: &Ground) -> anyhow::Result<Self> {
        let artefact = Compiler::new(Some(folder))?.compile(wasm)?;
        let surroundings = ground.surroundings()?;
        let engine = Engine::new(Capacity::for_instances(surroundings.limits, std::num::NonZeroUsize::MIN), &artefact)?;
        let revision = Revision::load(&engine, &artefact, surroundings).await?;
        Ok(Self::Component { live: Live::of(Arc::new(revision)), _engine: engine })
    }

    fn core(&self) -> Core {
        match self {
            Self::Native(native) => Core::Native(native.core(0)),
            Self::Component { live, .. } => Core::Component(live.core(0)),
        }
    }
}

impl Core {
    /// Ends its instances.
    async fn drained(&self) {
        match self {
            Self::Native(core) => core.drained().await,
            Self::Component(core) => core.drained().await,
        }
    }

    /// One login with a fresh code, its answer checked.
    async fn log_in(&self, ground: &Ground) -> anyhow::Result<()> {
        let code = ground.simulator.log_in("alice", None)?;
        let request = Request {
            id: 0,
            method: http::Method::POST,
            target: http::uri::PathAndQuery::from_static("/api/login"),
            headers: [(http::header::HOST, http::HeaderValue::from_static("bench"))].into_iter().collect(),
            body: Bytes::from(format!(r#"{{"code":"{code}"}}"#)),
            client: ([127, 0, 0, 1], 1).into(),
            secure: false,
            route: None,
            trace_id: "bench".into(),
            deadline: Instant::now() + Duration::from_secs(30),
        };
        let answer: Response = match self {
            Self::Native(core) => core.handle(request).await,
            Self::Component(core) => core.handle(request).await,
        };
        let text = String::from_utf8_lossy(answer.body());
        ensure!(answer.status() == 200 && text.contains("\"access_token\""), "not a login: {} {text}", answer.status());
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.machine)?;
        writeln!(f, "median (p10 – p90); each login with its exchange over loopback\n")?;
        writeln!(f, "| behind | compile | `.cwasm` on disk → first login | fresh instance | warm instance |")?;
        writeln!(f, "|---|---|---|---|---|")?;
        for rung in &self.rungs {
            let or_none = |summary: &Option<Summary>| summary.map_or("–".to_owned(), |summary| summary.to_string());
            let (compile, cold) = (or_none(&rung.compile), or_none(&rung.cold));
            writeln!(f, "| {} | {compile} | {cold} | {} | {} |", rung.rung, rung.fresh, rung.warm)?;
        }
        writeln!(f)?;
        for rung in &self.rungs {
            if let (Some(digest), Some(bytes)) = (&rung.digest, rung.wasm_bytes) {
                writeln!(f, "{}: {bytes} bytes, SHA-256 {digest}", rung.rung)?;
            }
        }
        Ok(())
    }
}
