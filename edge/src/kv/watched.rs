//! Whether the store can be written, as readiness wants to know it.
//!
//! A call that fails raises a doubt. The doubt is settled by a write of the node's own, as large as one
//! of a login, and a read: when these fail too, the store counts as failing, and they are made again
//! every [`AGAIN`] until they succeed. Without a doubt nothing is written, and whoever asks costs nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use tokio::{runtime::Handle, time};

use super::{Backend, Change, Entry, Failure, SharedBackend, system_clock};

/// Passes every call on, and remembers in `health` how the store is.
pub struct Watched {
    inner: SharedBackend,
    health: Health,
}

/// How a store is. Clones say the same.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// 1 while it fails.
    failing: Gauge,
    /// Somebody is finding out.
    looking: Arc<AtomicBool>,
}

impl Health {
    /// Whether the last look found that it can be neither written nor read. Without a doubt it is taken
    /// to be well.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failing.get() != 0
    }

    /// Adds its gauge to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "1 while the store takes no write, or cannot be read: the node is not ready then";
        registry.register("edgepass_kv_failing", help, self.failing.clone());
    }
}

impl Watched {
    /// Watches the calls of `inner`.
    #[must_use]
    pub fn new(inner: SharedBackend, health: Health) -> Self {
        Self { inner, health }
    }

    fn watched<'a, T: 'a>(&'a self, call: BoxFuture<'a, Result<T, Failure>>) -> BoxFuture<'a, Result<T, Failure>> {
        Box::pin(async move {
            let mut doubt = Doubt { store: self, holds: true };
            let done = call.await;
            doubt.holds = matches!(done, Err(Failure::Unavailable | Failure::Timeout));
            done
        })
    }
}

/// A call that has failed, or whose answer nobody waits for any more.
struct Doubt<'a> {
    store: &'a Watched,
    holds: bool,
}

impl Drop for Doubt<'_> {
    fn drop(&mut self) {
        let Watched { inner, health } = self.store;
        // Where nothing runs nobody asks, either.
        let Ok(runtime) = Handle::try_current() else { return };
        if self.holds && !health.looking.swap(true, Relaxed) {
            runtime.spawn(look(inner.clone(), Looking(health.clone())));
        }
    }
}

/// Over when it is dropped, also by the end of the runtime it was begun on: the next doubt begins anew.
struct Looking(Health);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.looking.store(false, Relaxed);
    }
}

async fn look(store: SharedBackend, looking: Looking) {
    let Looking(health) = &looking;
    while !time::timeout(PATIENCE, is_well(&store)).await.unwrap_or(false) {
        if health.failing.set(1) == 0 {
            tracing::error!("the store can be neither written nor read as it should be: the node is not ready");
        }
        time::sleep(AGAIN).await;
    }
    if health.failing.set(0) != 0 {
        tracing::info!("the store is well again");
    }
}

/// Leaves nothing behind, or something that goes by itself.
async fn is_well(store: &SharedBackend) -> bool {
    let mut value = vec![0; PROBE_BYTES];
    // Zeros would be compressed; they will do where there is nothing else.
    let _ = getrandom::fill(&mut value);
    let entry = Entry { key: PROBE.into(), value: Bytes::from(value), expires: system_clock()() + PROBE_SECONDS };
    store.apply(vec![Change::Put(entry)]).await.is_ok()
        && store.get(vec![PROBE.into()]).await.is_ok()
        && store.apply(vec![Change::Delete(PROBE.into())]).await.is_ok()
}

/// The key of the node's own entry; our component's have a version and a deployment in front.
const PROBE: &str = "edgepass-node-probe";
/// More than a login writes: where it finds room, a login does.
const PROBE_BYTES: usize = 8192;
const PROBE_SECONDS: u64 = 60;
/// From one look to the next.
const AGAIN: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2000 });
/// A store that takes longer for three calls is not one to send users to.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 5000 });

impl Backend for Watched {
    fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Failure>> {
        self.watched(self.inner.get(keys))
    }

    fn apply(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<Vec<bool>, Failure>> {
        self.watched(self.inner.apply(changes))
    }

    /// Not watched: a listing may take longer than anything else, and is for operators.
    fn scan(&self, prefix: String, after: Option<String>, limit: usize) -> BoxFuture<'_, Result<Vec<String>, Failure>> {
        self.inner.scan(prefix, after, limit)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
        self.inner.close()
    }
}

#[cfg(test)]
mod tests {
    use futures::future::pending;

    use super::*;
    use crate::kv::Memory;

    /// A store whose reads and writes can be made to fail, or never to end.
    #[derive(Default)]
    struct Moody {
        inner: Memory,
        no_reads: AtomicBool,
        no_writes: AtomicBool,
        no_answers: AtomicBool,
    }

    impl Backend for Moody {
        fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Failure>> {
            if self.no_reads.load(Relaxed) { Box::pin(async { Err(Failure::Timeout) }) } else { self.inner.get(keys) }
        }

        fn apply(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<Vec<bool>, Failure>> {
            if self.no_answers.load(Relaxed) {
                return Box::pin(pending());
            }
            if self.no_writes.load(Relaxed) {
                return Box::pin(async { Err(Failure::Unavailable) });
            }
            self.inner.apply(changes)
        }

        fn scan(&self, _: String, _: Option<String>, _: usize) -> BoxFuture<'_, Result<Vec<String>, Failure>> {
            Box::pin(async { Err(Failure::Unavailable) })
        }

        fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
            self.inner.close()
        }
    }

    fn watched() -> (Arc<Moody>, Watched, Health) {
        let (store, health) = (Arc::new(Moody::default()), Health::default());
        (store.clone(), Watched::new(store, health.clone()), health)
    }

    fn write() -> Vec<Change> {
        vec![Change::Delete("k".into())]
    }

    async fn until(health: &Health, failing: bool) {
        let changed = async {
            while health.is_failing() != failing {
                time::sleep(Duration::from_millis(1)).await;
            }
        };
        time::timeout(Duration::from_secs(30), changed).await.expect("it is noticed");
    }

    #[tokio::test]
    async fn a_store_that_takes_no_write_fails_until_it_does() {
        let (store, watched, health) = watched();
        store.no_writes.store(true, Relaxed);
        assert!(!health.is_failing(), "nobody has tried");
        assert_eq!(watched.apply(write()).await, Err(Failure::Unavailable));
        until(&health, true).await;
        time::sleep(AGAIN * 3).await;
        assert!(health.is_failing(), "it stays so");
        store.no_writes.store(false, Relaxed);
        until(&health, false).await;
        assert_eq!(store.inner.get(vec![PROBE.into()]).await, Ok(vec![None]), "nothing is left behind");
    }

    #[tokio::test]
    async fn reads_that_fail_are_noticed_too() {
        let (store, watched, health) = watched();
        store.no_reads.store(true, Relaxed);
        assert_eq!(watched.get(vec!["k".into()]).await, Err(Failure::Timeout));
        until(&health, true).await;
        store.no_reads.store(false, Relaxed);
        until(&health, false).await;
    }

    #[tokio::test]
    async fn one_failure_is_no_failing_store_and_a_key_too_long_is_none() {
        let (store, watched, health) = watched();
        store.no_writes.store(true, Relaxed);
        assert_eq!(watched.apply(write()).await, Err(Failure::Unavailable));
        store.no_writes.store(false, Relaxed);
        assert_eq!(watched.get(vec!["k".repeat(9999)]).await, Err(Failure::TooLarge));
        while health.looking.load(Relaxed) {
            time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!health.is_failing(), "the look found it well");
    }

    #[tokio::test]
    async fn a_store_that_never_answers_is_one_that_fails() {
        let (store, watched, health) = watched();
        store.no_answers.store(true, Relaxed);
        assert!(time::timeout(AGAIN, watched.apply(write())).await.is_err());
        until(&health, true).await;
        store.no_answers.store(false, Relaxed);
        until(&health, false).await;
    }
}
