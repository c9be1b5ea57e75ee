//! Where the sessions of a world are, and what a behaviour can do to that.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use edgepass_edge::kv::{
    self, Backend, Change, Failure, SharedBackend,
    redis::{Address, Options, Redis},
};
use futures::future::BoxFuture;
use tempfile::TempDir;
use tokio::sync::{Notify, watch};

use self::servers::Servers;
use super::HANG;

#[path = "../../../edge/tests/redis/servers.rs"]
pub(crate) mod servers;

/// What outlives every node of a world.
pub(super) enum Place {
    /// A folder of which one process, and so one backend for all nodes, has the store.
    Folder(TempDir),
    /// A Redis, to which every node has a connection of its own, and how long a call may take.
    Redis(Servers, Duration),
}

impl Place {
    pub(super) fn folder() -> Self {
        Self::Folder(tempfile::tempdir().expect("a folder"))
    }

    pub(super) fn redis(timeout: Duration) -> Self {
        Self::Redis(Servers::single(), timeout)
    }

    pub(super) fn servers(&self) -> &Servers {
        match self {
            Self::Redis(servers, _) => servers,
            Self::Folder(_) => panic!("this world has no Redis"),
        }
    }

    /// The way to it of a first node.
    pub(super) fn open(&self) -> Arc<Switched> {
        Arc::new(Switched { inner: self.backend(), switches: Arc::default() })
    }

    /// The way to it of one node more, beside `first`.
    pub(super) fn open_beside(&self, first: &Arc<Switched>) -> Arc<Switched> {
        match self {
            Self::Folder(_) => first.clone(),
            Self::Redis(..) => Arc::new(Switched { inner: self.backend(), switches: first.switches.clone() }),
        }
    }

    fn backend(&self) -> SharedBackend {
        match self {
            Self::Folder(folder) => durable(folder.path()),
            Self::Redis(servers, timeout) => {
                let address = Address::parse(servers.url()).expect("a URL");
                let options = Options { timeout: *timeout, ..Options::default() };
                Arc::new(Redis::open(address, options).expect("the thread starts"))
            }
        }
    }
}

fn durable(folder: &Path) -> SharedBackend {
    Arc::new(kv::Durable::open(&folder.join("store")).expect("the store opens"))
}

/// Writes that wait, until this is dropped.
pub(crate) struct Hold {
    arrivals: watch::Receiver<u32>,
    open: watch::Sender<bool>,
}

impl Hold {
    /// Until a write has come this far.
    pub(crate) async fn arrived(&mut self) {
        let first = self.arrivals.wait_for(|count| *count > 0);
        tokio::time::timeout(HANG, first).await.expect("a write comes in time").expect("the store is there");
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = self.open.send(true);
    }
}

#[derive(Clone)]
struct Held {
    part: String,
    arrived: watch::Sender<u32>,
    gate: watch::Receiver<bool>,
}

/// What all nodes over one store have in common of it: it can be made to fail and to wait, and tells
/// when something was written.
#[derive(Default)]
struct Switches {
    broken: AtomicBool,
    held: Mutex<Option<Held>>,
    written: Notify,
}

/// A node's way to the store, with the switches in it.
pub(super) struct Switched {
    inner: SharedBackend,
    switches: Arc<Switches>,
}

impl Switched {
    /// Every call fails while `broken`.
    pub(super) fn break_it(&self, broken: bool) {
        self.switches.broken.store(broken, Ordering::SeqCst);
    }

    /// From now on what is put under keys that hold `part` waits.
    pub(super) fn hold(&self, part: &str) -> Hold {
        let (arrived, arrivals) = watch::channel(0);
        let (open, gate) = watch::channel(false);
        let held = Held { part: part.to_owned(), arrived, gate };
        *self.switches.held.lock().expect("nobody panics with it") = Some(held);
        Hold { arrivals, open }
    }

    /// Told whenever something was written.
    pub(super) fn written(&self) -> &Notify {
        &self.switches.written
    }

    async fn may_write(&self, changes: &[Change]) {
        let held = self.switches.held.lock().expect("nobody panics with it").clone();
        let Some(Held { part, arrived, mut gate }) = held else { return };
        let waits = |change: &Change| change.entry().is_some_and(|entry| entry.key.contains(&part));
        if changes.iter().any(waits) {
            arrived.send_modify(|count| *count += 1);
            // Open, or the test that held it is over.
            let _ = gate.wait_for(|open| *open).await;
        }
    }

    fn works(&self) -> Result<(), Failure> {
        if self.switches.broken.load(Ordering::SeqCst) { Err(Failure::Unavailable) } else { Ok(()) }
    }
}

impl Backend for Switched {
    fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Failure>> {
        Box::pin(async move {
            self.works()?;
            self.inner.get(keys).await
        })
    }

    fn apply(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<Vec<bool>, Failure>> {
        Box::pin(async move {
            self.works()?;
            self.may_write(&changes).await;
            let there = self.inner.apply(changes).await;
            self.switches.written.notify_waiters();
            there
        })
    }

    fn scan(&self, prefix: String, after: Option<String>, limit: usize) -> BoxFuture<'_, Result<Vec<String>, Failure>> {
        self.inner.scan(prefix, after, limit)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
        self.inner.close()
    }
}
