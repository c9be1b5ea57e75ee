//! A store that keeps what it has acknowledged: fjall, with one thread that writes.
//!
//! The writer takes all batches that wait, makes them one commit, waits until the disk has it and
//! answers them all. So the cost of reaching the disk is shared by whoever waits at that moment,
//! "was it there before" and `put-if-greater` need no lock, and no caller holds one across an await.
//! Reads are made on the caller's thread, from memory for all but the coldest keys.
//!
//! The time of expiry stands before the value. An expired entry reads as absent at once, and leaves
//! the disk when the background compaction of its part of the tree comes by; nothing is swept.

mod writer;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use fjall::{
    Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Slice,
    compaction::filter::{CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict},
};
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use self::writer::{Job, Writer};
use super::{Backend, Change, Clock, Failure, check_changes, check_keys, is_expired, system_clock};

/// A folder that one process at a time has open.
pub struct Durable {
    clock: Clock,
    tree: Arc<ArcSwapOption<Tree>>,
    jobs: mpsc::Sender<Job>,
}

/// Why a folder is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or this one, has it open.
    #[error("the store in {} is already open, here or in another process", .0.display())]
    InUse(PathBuf),
    /// It cannot be read or written.
    #[error("the store in {} cannot be read or written", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is in it is not what was written: another program's, or damaged.
    #[error("the store in {} is damaged or not one of ours; restore a copy, or start with an empty folder", path.display())]
    Damaged {
        /// The folder.
        path: PathBuf,
        /// What the engine says.
        #[source]
        source: EngineError,
    },
}

/// What the engine says, in its words.
#[derive(Debug)]
pub struct EngineError(fjall::Error);

impl Durable {
    /// Opens the store in `folder`, which is made if it is not there. Blocks while what a kill left
    /// behind is taken in, well below a second.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        Self::open_with_clock(folder, system_clock())
    }

    /// [`Durable::open`] with entries that expire by `clock`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with_clock(folder: &Path, clock: Clock) -> Result<Self, OpenError> {
        let tree = Arc::new(ArcSwapOption::from_pointee(Tree::open(folder, &clock)?));
        let (jobs, queue) = mpsc::channel();
        let writer = Writer::new(folder.into(), clock.clone(), tree.clone());
        let writer = thread::Builder::new().name("kv-writer".into()).spawn(move || writer.run(&queue));
        writer.map_err(|source| OpenError::Io { path: folder.into(), source })?;
        Ok(Self { clock, tree, jobs })
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.jobs.send(job(answer)).ok()?;
        answered.await.ok()
    }
}

impl Backend for Durable {
    fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Failure>> {
        Box::pin(async move {
            check_keys(&keys)?;
            let tree = self.tree.load();
            let tree = tree.as_ref().ok_or(Failure::Unavailable)?;
            // All keys as of one moment.
            let snapshot = tree.database.snapshot();
            let now = (self.clock)();
            let read = |key: &String| {
                let stored = snapshot.get(&tree.entries, physical(key)).map_err(|error| unavailable(&error))?;
                Ok(stored.and_then(|stored| live(&stored, now).map(Bytes::copy_from_slice)))
            };
            keys.iter().map(read).collect()
        })
    }

    fn apply(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<Vec<bool>, Failure>> {
        Box::pin(async move {
            check_changes(&changes)?;
            self.ask(|answer| Job::Apply { changes, answer }).await.unwrap_or(Err(Failure::Unavailable))
        })
    }

    fn scan(&self, prefix: String, after: Option<String>, limit: usize) -> BoxFuture<'_, Result<Vec<String>, Failure>> {
        Box::pin(async move {
            let tree = self.tree.load_full().ok_or(Failure::Unavailable)?;
            let now = (self.clock)();
            // It may read much, and from the disk.
            let scan = tokio::task::spawn_blocking(move || tree.scan(&prefix, after, limit, now));
            scan.await.map_err(|_| Failure::Unavailable)?
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async { self.ask(|answer| Job::Close { answer }).await.unwrap_or(Ok(())) })
    }
}

/// An open folder.
struct Tree {
    database: Database,
    entries: Keyspace,
}

impl Tree {
    fn open(folder: &Path, clock: &Clock) -> Result<Self, OpenError> {
        let fail = |error| match error {
            fjall::Error::Locked => OpenError::InUse(folder.into()),
            fjall::Error::Io(source) => OpenError::Io { path: folder.into(), source },
            error => OpenError::Damaged { path: folder.into(), source: EngineError(error) },
        };
        let expiry: Arc<dyn Factory> = Arc::new(Expiry(clock.clone()));
        let database = Database::builder(folder)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(MAX_JOURNAL_BYTES)
            .with_compaction_filter_factories(Arc::new(move |name| (name == ENTRIES).then(|| expiry.clone())))
            .open()
            .map_err(fail)?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let entries = database.keyspace(ENTRIES, options).map_err(fail)?;
        Ok(Self { database, entries })
    }

    /// The value of `key` if it is there and has not expired.
    fn get(&self, key: &str, now: u64) -> fjall::Result<Option<Bytes>> {
        let stored = self.entries.get(physical(key))?;
        Ok(stored.and_then(|stored| live(&stored, now).map(Bytes::copy_from_slice)))
    }

    fn scan(&self, prefix: &str, after: Option<String>, limit: usize, now: u64) -> Result<Vec<String>, Failure> {
        let from = match after {
            // The key right after it: no key is between it and itself with a zero byte.
            Some(after) if *after >= *prefix => physical(&(after + "\0")),
            _ => physical(prefix),
        };
        let prefix = physical(prefix);
        let mut keys = Vec::new();
        for entry in self.entries.range(from..) {
            if keys.len() >= limit {
                break;
            }
            let (key, stored) = entry.into_inner().map_err(|error| unavailable(&error))?;
            if !key.starts_with(&prefix) {
                break;
            }
            if live(&stored, now).is_some() {
                keys.push(String::from_utf8_lossy(&key[1..]).into_owned());
            }
        }
        Ok(keys)
    }

    fn persist(&self) -> fjall::Result<()> {
        self.database.persist(PersistMode::SyncAll)
    }
}

/// Drops expired entries while the tree is compacted.
struct Expiry(Clock);

/// Expired means so at this moment.
struct ExpiryAt(u64);

impl Factory for Expiry {
    fn name(&self) -> &'static str {
        "expiry"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(ExpiryAt((self.0)()))
    }
}

impl CompactionFilter for ExpiryAt {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        Ok(if live(&item.value()?, self.0).is_some() { Verdict::Keep } else { Verdict::Remove })
    }
}

impl std::panic::RefUnwindSafe for Expiry {}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // fjall prefixes its `Debug` form, which names files and kinds and no contents.
        write!(f, "{}", self.0)
    }
}

impl std::error::Error for EngineError {}

/// The key on disk. The engine takes no empty one, and another first byte is left for what is not
/// an entry.
fn physical(key: &str) -> Vec<u8> {
    let mut physical = Vec::with_capacity(key.len() + 2);
    physical.push(b'/');
    physical.extend_from_slice(key.as_bytes());
    physical
}

/// The value on disk: when it expires, big-endian, then the value.
fn stored(value: &[u8], expires: u64) -> Slice {
    Slice::from([&expires.to_be_bytes(), value].concat())
}

/// The value in what is stored, unless it has expired. What is too short to be one of ours is passed
/// on as it is, for the reader to refuse: it must not look absent.
fn live(stored: &[u8], now: u64) -> Option<&[u8]> {
    let Some((expires, value)) = stored.split_first_chunk() else { return Some(stored) };
    (!is_expired(u64::from_be_bytes(*expires), now)).then_some(value)
}

/// The failure to report for `error`, which goes to the log.
fn unavailable(error: &fjall::Error) -> Failure {
    tracing::error!(%error, "the store cannot be read");
    Failure::Unavailable
}

/// The keyspace that holds the entries.
const ENTRIES: &str = "entries";
const CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// What is in memory is what has to be replayed after a kill; at 16 MiB that takes about half a
/// second, and writes are no slower than at 64.
const MEMTABLE_BYTES: u64 = 16 * 1024 * 1024;
/// The least the engine takes.
const MAX_JOURNAL_BYTES: u64 = 64 * 1024 * 1024;

#[cfg(test)]
mod tests;
