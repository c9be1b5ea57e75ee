//! A store that several nodes share: Redis or Valkey, alone, as a Cluster, or behind Sentinels.
//!
//! Keys and values lie there as they are, with no prefix and nothing before the value, as Spin's own
//! Redis backend has them: nodes of both kinds can share one database. An entry's expiry is the
//! key's own, as a point in time on Redis's clock (`PXAT`): a change that waited does not live longer
//! for it, and all nodes mean the same moment.
//!
//! One connection serves all cores. A thread of its own drives it, since a core's runtime may be busy
//! in a guest and ends with its core. What is asked for runs there to its end, whether or not somebody
//! still waits, with a limit on its time and on how much is under way. Without a connection everything
//! fails at once; the thread goes on trying, and everything works again when it has one.
//!
//! A change is sent once. Redis may have made it when the answer is lost; to send it again would say
//! of our own entry that it was there before, or undo what somebody else has written meanwhile. Reads
//! are repeated.

mod address;
mod batch;
mod doctor;
mod keeper;
mod link;
mod scan;

use std::{sync::Arc, time::Duration};

use ::redis::{RedisError, ServerErrorKind};
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use self::keeper::{Keeper, Lease};
pub use self::{
    address::{Address, AddressError},
    doctor::{Finding, Severity, doctor},
    keeper::{Metrics, OpenError},
};
use super::{Backend, Change, Clock, Failure, check_changes, check_keys, system_clock};

/// A connection to one database, for all cores.
pub struct Redis {
    clock: Clock,
    timeout: Duration,
    keeper: Keeper,
}

/// How it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// For one call, from asking to the answer; a listing has [`SCAN_TIME`], and each of its steps this.
    pub timeout: Duration,
    /// Calls at once; more wait, within their own time.
    pub max_in_flight: usize,
}

impl Default for Options {
    /// Half a second: a good network takes a hundredth of it, a failover more than anybody waits.
    fn default() -> Self {
        Self { timeout: Duration::from_millis(500), max_in_flight: 1024 }
    }
}

impl Redis {
    /// Begins to connect, and does not wait for it: a Redis that is down is one that comes back.
    ///
    /// # Errors
    /// [`OpenError`] when what is configured can never work.
    pub fn open(address: Address, options: Options) -> Result<Self, OpenError> {
        Self::open_with_clock(address, options, system_clock())
    }

    /// [`Redis::open`] with `clock` saying what has expired before it is written.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with_clock(address: Address, options: Options, clock: Clock) -> Result<Self, OpenError> {
        Ok(Self { clock, timeout: options.timeout, keeper: Keeper::start(address, options)? })
    }

    /// What is counted of it.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.keeper.metrics()
    }

    /// Waits until there is a connection, for `limit` at most, and says whether there is one.
    pub async fn connected(&self, limit: Duration) -> bool {
        self.keeper.connected(limit).await
    }

    /// Runs `work` with a connection, where connections are driven; it goes on there when the caller
    /// does not wait for it.
    async fn run<T, W>(&self, limit: Duration, work: impl FnOnce(Lease) -> W + Send + 'static) -> Result<T, Failure>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Failure>> + Send,
    {
        let end = Instant::now() + limit;
        let lease = self.keeper.lease();
        let work = async move {
            let work = async { work(lease.await?).await };
            timeout_at(end, work).await.unwrap_or(Err(Failure::Timeout))
        };
        self.keeper.spawn(work).await.unwrap_or(Err(Failure::Unavailable))
    }
}

impl Backend for Redis {
    fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Failure>> {
        Box::pin(async move {
            check_keys(&keys)?;
            if keys.is_empty() {
                return Ok(Vec::new());
            }
            let keys = Arc::new(keys);
            let read = |keys: Arc<Vec<String>>| {
                self.run(self.timeout, move |lease| async move { lease.with(|link| batch::read(link, &keys)).await })
            };
            match read(keys.clone()).await {
                // The connection was lost under it, or while it was idle: there may be another.
                Err(Failure::Unavailable) => read(keys).await,
                done => done,
            }
        })
    }

    fn apply(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<Vec<bool>, Failure>> {
        Box::pin(async move {
            check_changes(&changes)?;
            if changes.is_empty() {
                return Ok(Vec::new());
            }
            let now = (self.clock)();
            self.run(self.timeout, move |lease| async move { lease.with(|link| batch::make(link, changes, now)).await })
                .await
        })
    }

    fn scan(&self, prefix: String, after: Option<String>, limit: usize) -> BoxFuture<'_, Result<Vec<String>, Failure>> {
        Box::pin(async move {
            let step = self.timeout;
            self.run(SCAN_TIME, move |lease| async move {
                lease.with(|link| scan::page(link, prefix, after, limit, step)).await
            })
            .await
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async {
            self.keeper.close(self.timeout).await;
            Ok(())
        })
    }
}

/// For a whole listing, which walks over every key there is.
pub const SCAN_TIME: Duration = Duration::from_secs(30);

/// Whether the server has certainly not done what it was asked for, and another one may.
fn is_elsewhere(error: &RedisError) -> bool {
    use ::redis::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::Moved
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
        ) | ErrorKind::ClusterConnectionNotFound
    )
}

/// Whether the server at the other end is none to write to any more: it has become a replica.
fn is_no_primary(error: &RedisError) -> bool {
    codes(error).iter().any(|code| matches!(code.as_str(), "READONLY" | "MASTERDOWN"))
}

/// The codes of what went wrong, of each command of a pipeline.
fn codes(error: &RedisError) -> Vec<String> {
    match error.clone().into_server_errors() {
        Some(errors) => errors.iter().map(|(_, error)| error.code().to_owned()).collect(),
        None => error.code().map(str::to_owned).into_iter().collect(),
    }
}
