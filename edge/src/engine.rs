//! The wasmtime engine: compiling ahead of time, the cache of compiled code, the pool of memory
//! slots, and the ticker behind the CPU limit.
//!
//! Compiled code is trusted code: whoever can hand it to `Engine::load` runs native instructions
//! in this process. So an [`Artefact`] is made here only, by compiling or from a file of this
//! cache whose digest still holds; it is never taken from an upload or a manifest.

use std::{
    fs,
    hash::{Hash, Hasher},
    io::{self, Write as _},
    num::NonZeroUsize,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use sha2::{Digest as _, Sha256};
use wasmtime::{Config, InstanceAllocationStrategy, PoolingAllocationConfig, ResourcesRequired, component::Component};

pub use crate::digest::Digest;
use crate::pool::Limits;

/// How often a running guest is looked at. A guest that computes lets its core's other tasks run
/// this often; 5 ms cost nothing measurable.
pub const TICK: Duration = Duration::from_millis(5);

/// A time as ticks, at least one.
pub(crate) fn ticks_in(time: Duration) -> u32 {
    u32::try_from(time.as_millis() / TICK.as_millis()).unwrap_or(u32::MAX).max(1)
}

/// Compiles components, once per content and engine version.
pub struct Compiler {
    engine: wasmtime::Engine,
    cache: Option<Cache>,
}

/// A component compiled for this machine.
pub struct Artefact {
    digest: Digest,
    code: Vec<u8>,
}

/// Runs compiled components. One per process; the ticker stops when it is dropped.
pub struct Engine {
    inner: wasmtime::Engine,
    ticks: Arc<AtomicU64>,
    _ticker: Ticker,
    pooling: bool,
}

/// How much the engine sets aside.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Most instances at once, over all cores and two revisions.
    pub instances: u32,
    /// Most bytes one linear memory may grow to.
    pub max_memory_bytes: usize,
}

impl Capacity {
    /// Room for `cores` full sets of instances, twice: a retired instance keeps its slot until it
    /// has finished, and so does a whole set when its revision is replaced.
    #[must_use]
    pub fn for_instances(limits: Limits, cores: NonZeroUsize) -> Self {
        let instances = limits.max_instances.max(1).saturating_mul(cores.get()).saturating_mul(2);
        Self {
            instances: u32::try_from(instances).unwrap_or(u32::MAX).saturating_add(SPARE_INSTANCES),
            max_memory_bytes: limits.max_memory_bytes,
        }
    }
}

/// Room for instances that describe themselves or are probed, and for those of the admin listener:
/// at most one in use and one on its way out for each of [`crate::admin::MAX_CONNECTIONS`].
const SPARE_INSTANCES: u32 = 8 + 2 * 16;

/// Why a component could not be compiled or loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// wasmtime refused its own settings: not this machine's fault, but a fault of this program.
    #[error("engine could not be made")]
    Engine(#[source] wasmtime::Error),
    /// The bytes are no valid component.
    #[error("not a component this node can compile")]
    Compile(#[source] wasmtime::Error),
    /// Compiled code that the engine does not take.
    #[error("compiled component could not be loaded")]
    Load(#[source] wasmtime::Error),
    /// The component instantiates modules it is given at run time, so its needs are unknown.
    #[error("component imports core modules")]
    UnknownNeeds,
}

impl Compiler {
    /// A compiler that keeps what it makes in the folder `cache`, if one is given. The folder is
    /// made with mode 0700; a folder that cannot be made or closed to others is not used.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn new(cache: Option<&Path>) -> Result<Self, Error> {
        let cache = cache.and_then(|folder| {
            Cache::open(folder)
                .inspect_err(|error| tracing::warn!(folder = %folder.display(), %error, "no cache of compiled code"))
                .ok()
        });
        Ok(Self { engine: wasmtime::Engine::new(&config()).map_err(Error::Engine)?, cache })
    }

    /// [`Compiler::new`] that keeps to the thread it is called on: the others have requests to answer.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub fn on_one_thread(cache: Option<&Path>) -> Result<Self, Error> {
        let mut config = config();
        config.parallel_compilation(false);
        Ok(Self { engine: wasmtime::Engine::new(&config).map_err(Error::Engine)?, ..Self::new(cache)? })
    }

    /// Takes `wasm` from the cache, or compiles it (a second of work on every core) and keeps it.
    ///
    /// # Errors
    /// [`Error::Compile`].
    pub fn compile(&self, wasm: &[u8]) -> Result<Artefact, Error> {
        let digest = Digest::of(wasm);
        let name = self.file_name(digest);
        if let Some(code) = self.cache.as_ref().and_then(|cache| cache.read(&name)) {
            return Ok(Artefact { digest, code });
        }
        let code = self.engine.precompile_component(wasm).map_err(Error::Compile)?;
        if let Some(cache) = &self.cache
            && let Err(error) = cache.write(&name, &code)
        {
            tracing::warn!(%error, "compiled code not kept");
        }
        Ok(Artefact { digest, code })
    }

    /// Content and everything that decides whether code fits: wasmtime's version, its settings,
    /// the CPU's features.
    fn file_name(&self, digest: Digest) -> String {
        struct Key(Sha256);
        impl Hasher for Key {
            fn write(&mut self, bytes: &[u8]) {
                self.0.update(bytes);
            }
            fn finish(&self) -> u64 {
                0
            }
        }
        let mut key = Key(Sha256::new_with_prefix(digest.as_bytes()));
        self.engine.precompile_compatibility_hash().hash(&mut key);
        format!("{}.cwasm", Digest::from(<[u8; 32]>::from(key.0.finalize())))
    }
}

impl Artefact {
    /// Digest of the component this was compiled from.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

impl Engine {
    /// An engine with room for `capacity.instances` instances of components like `sample`, in a
    /// pool of memory slots set aside now. Where the address space does not hold such a pool
    /// (`ulimit -v`, small machines), instances are allocated one by one, with a warning.
    ///
    /// # Errors
    /// [`Error::Engine`], [`Error::Load`], [`Error::UnknownNeeds`].
    pub fn new(capacity: Capacity, sample: &Artefact) -> Result<Self, Error> {
        let plain = wasmtime::Engine::new(&config()).map_err(Error::Engine)?;
        let needs = deserialize(&plain, sample)?.resources_required().ok_or(Error::UnknownNeeds)?;
        let (inner, pooling) = match wasmtime::Engine::new(&pooling_config(capacity, &needs)) {
            Ok(engine) => (engine, true),
            Err(error) => {
                tracing::warn!(error = %format_args!("{error:#}"), "no pool of memory slots; allocating one by one");
                (plain, false)
            }
        };
        let ticks = Arc::new(AtomicU64::new(0));
        let ticker = Ticker::start(inner.clone(), ticks.clone()).map_err(|e| Error::Engine(e.into()))?;
        Ok(Self { inner, ticks, _ticker: ticker, pooling })
    }

    /// Whether instances come from the pool of memory slots.
    #[must_use]
    pub fn pools(&self) -> bool {
        self.pooling
    }

    /// Maps the code of `artefact`.
    ///
    /// # Errors
    /// [`Error::Load`].
    pub(crate) fn load(&self, artefact: &Artefact) -> Result<Component, Error> {
        deserialize(&self.inner, artefact)
    }

    pub(crate) fn inner(&self) -> &wasmtime::Engine {
        &self.inner
    }

    /// Counts up once per [`TICK`].
    pub(crate) fn ticks(&self) -> Arc<AtomicU64> {
        self.ticks.clone()
    }
}

/// One settings object for compiling and running: a difference would make the code not fit.
fn config() -> Config {
    let mut config = Config::new();
    config.wasm_component_model_async(true).epoch_interruption(true);
    config
}

/// Memories keep their 4 GiB of address space, so that the code needs no bounds checks; how much
/// of it a guest gets is the limiter's business.
fn pooling_config(capacity: Capacity, needs: &ResourcesRequired) -> Config {
    let memories = needs.num_memories.max(MIN_MEMORIES);
    let tables = needs.num_tables.max(MIN_TABLES);
    let elements = needs.max_initial_table_size.unwrap_or(0).max(MIN_TABLE_ELEMENTS);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(capacity.instances)
        .total_core_instances(capacity.instances.saturating_mul(CORE_INSTANCES))
        .max_core_instances_per_component(CORE_INSTANCES)
        .total_memories(capacity.instances.saturating_mul(memories))
        .max_memories_per_component(memories)
        .total_tables(capacity.instances.saturating_mul(tables))
        .max_tables_per_component(tables)
        .max_tables_per_module(tables)
        .table_elements(usize::try_from(elements).unwrap_or(usize::MAX))
        .total_stacks(capacity.instances.saturating_mul(STACKS))
        .max_memory_size(capacity.max_memory_bytes)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(KEEP_RESIDENT);
    let mut config = config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// wit-component makes four core instances of one module; a component may nest more.
const CORE_INSTANCES: u32 = 32;
/// An instance has one stack for its event loop and one for each guest call that blocks inside it.
const STACKS: u32 = 8;
/// A later revision may want more than the first. Unused, they cost address space.
const MIN_MEMORIES: u32 = 2;
/// As [`MIN_MEMORIES`].
const MIN_TABLES: u32 = 4;
/// As [`MIN_MEMORIES`].
const MIN_TABLE_ELEMENTS: u64 = 4096;
/// Bytes of a slot zeroed by hand instead of given back to the system between two instances.
const KEEP_RESIDENT: usize = 128 * 1024;

#[expect(unsafe_code, reason = "the one load of compiled code; see the module's words on trust")]
fn deserialize(engine: &wasmtime::Engine, artefact: &Artefact) -> Result<Component, Error> {
    // SAFETY: `deserialize` asks that the bytes are unmodified output of `precompile_component`.
    // `Artefact::code` is private and comes from that call, or from a file this program wrote into
    // a folder of mode 0700, whose SHA-256 was checked over these very bytes after they were read.
    unsafe { Component::deserialize(engine, &artefact.code) }.map_err(Error::Load)
}

/// A folder of files `<key>.cwasm`: the SHA-256 of what follows, then compiled code.
struct Cache {
    folder: PathBuf,
}

impl Cache {
    fn open(folder: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        // Root may do that to anybody's folder, and its owner could put code into it.
        let own = folder.join(format!("{}.tmp", std::process::id()));
        let uid = fs::File::create(&own)?.metadata()?.uid();
        fs::remove_file(&own)?;
        let held = fs::symlink_metadata(folder)?;
        if !held.is_dir() || held.uid() != uid {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the folder is another user's, or a link"));
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// The code under `name`; `None` when there is none or its digest does not hold.
    fn read(&self, name: &str) -> Option<Vec<u8>> {
        let mut file = fs::read(self.folder.join(name)).ok()?;
        let recorded: [u8; 32] = file.get(..32)?.try_into().ok()?;
        file.drain(..32);
        if *Digest::of(&file).as_bytes() == recorded {
            return Some(file);
        }
        tracing::warn!(name, "compiled code is damaged; compiling again");
        None
    }

    /// Appears under `name` whole or not at all.
    fn write(&self, name: &str, code: &[u8]) -> io::Result<()> {
        let temporary = self.folder.join(format!("{name}.{}.tmp", std::process::id()));
        let written = fs::File::create(&temporary).and_then(|mut file| {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            file.write_all(Digest::of(code).as_bytes())?;
            file.write_all(code)?;
            file.sync_all()
        });
        written
            .and_then(|()| fs::rename(&temporary, self.folder.join(name)))
            .inspect_err(|_| drop(fs::remove_file(&temporary)))
    }
}

/// The thread that advances the engine's epoch.
struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Ticker {
    fn start(engine: wasmtime::Engine, ticks: Arc<AtomicU64>) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new().name("ticker".into()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                thread::park_timeout(TICK);
                ticks.fetch_add(1, Ordering::Relaxed);
                engine.increment_epoch();
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only counts, so it cannot have panicked.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest component there is.
    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";
    const CAPACITY: Capacity = Capacity { instances: 4, max_memory_bytes: 1 << 20 };

    #[test]
    fn compiled_code_is_kept_and_used_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("code");
        let first = Compiler::new(Some(&cache)).expect("a compiler").compile(EMPTY).expect("compiles");
        assert_eq!(fs::metadata(&cache).expect("folder").permissions().mode() & 0o777, 0o700);
        let files: Vec<_> = fs::read_dir(&cache).expect("folder").collect();
        assert_eq!(files.len(), 1, "one artefact and no temporary file");

        let again = Compiler::new(Some(&cache)).expect("a compiler");
        let kept = again.cache.as_ref().and_then(|c| c.read(&again.file_name(first.digest())));
        assert_eq!(kept.as_deref(), Some(&first.code[..]));
    }

    #[test]
    fn damaged_code_is_never_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let compiler = Compiler::new(Some(folder.path())).expect("a compiler");
        let first = compiler.compile(EMPTY).expect("compiles");
        let file = folder.path().join(compiler.file_name(first.digest()));
        let mut bytes = fs::read(&file).expect("kept");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&file, bytes).expect("written");
        assert_eq!(compiler.cache.as_ref().and_then(|c| c.read(&compiler.file_name(first.digest()))), None);
        assert_eq!(compiler.compile(EMPTY).expect("compiles again").code, first.code);
        fs::write(&file, b"short").expect("written");
        assert_eq!(compiler.compile(EMPTY).expect("compiles again").code, first.code);
    }

    #[test]
    fn code_of_the_compiler_fits_the_pooling_engine() {
        let compiler = Compiler::new(None).expect("a compiler");
        let artefact = compiler.compile(EMPTY).expect("compiles");
        let engine = Engine::new(CAPACITY, &artefact).expect("an engine");
        engine.load(&artefact).expect("loads");
    }

    #[test]
    fn what_is_no_component_is_refused() {
        let compiler = Compiler::new(None).expect("a compiler");
        for bytes in [&b""[..], b"\0asm\x01\0\0\0", b"<html>"] {
            assert!(matches!(compiler.compile(bytes), Err(Error::Compile(_))));
        }
    }
}
