//! The thread that drives the connection and sees to it that there is one.

use std::{io, sync::Arc, thread, time::Duration};

use ::redis::{RedisError, RedisResult};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    runtime,
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{Address, Failure, Options, is_no_primary, link::Link};

/// Why a Redis is not used at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No thread, or no runtime on it.
    #[error("the thread for Redis cannot be started")]
    Thread(#[source] io::Error),
}

/// What is counted of a connection. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    connections: Counter,
    connected: Gauge,
}

impl Metrics {
    /// Adds them to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "edgepass_kv_redis_connections",
            "Connections made to Redis; all but the first are reconnects",
            self.connections.clone(),
        );
        registry.register("edgepass_kv_redis_connected", "Whether there is a connection", self.connected.clone());
    }

    /// Connections that were made.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.get()
    }
}

pub(super) struct Keeper {
    driver: runtime::Handle,
    state: watch::Receiver<State>,
    places: Arc<Semaphore>,
    max_in_flight: u32,
    metrics: Metrics,
    /// Dropped, the thread ends.
    stop: std::sync::Mutex<Option<oneshot::Sender<()>>>,
}

#[derive(Clone)]
enum State {
    /// There may be a connection in a moment: callers wait for it.
    Connecting,
    /// The last attempt has failed: callers are told so.
    Down,
    Up(Connected),
}

#[derive(Clone)]
struct Connected {
    link: Link,
    /// Notified when a call finds it unusable.
    broken: Arc<Notify>,
}

/// The connection, for one call.
pub(super) struct Lease {
    connected: Connected,
    _place: OwnedSemaphorePermit,
}

impl Keeper {
    pub(super) fn start(address: Address, options: Options) -> Result<Self, OpenError> {
        use_our_tls(&address);
        let (driver, started) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let (sender, state) = watch::channel(State::Connecting);
        let metrics = Metrics::default();
        let counted = metrics.clone();
        let work = move || {
            let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(driver.send(Err(error))),
            };
            _ = driver.send(Ok(runtime.handle().clone()));
            runtime.block_on(async {
                tokio::select! {
                    () = keep(&address, &sender, &counted) => {}
                    _ = stopped => {}
                }
            });
        };
        thread::Builder::new().name("kv-redis".into()).spawn(work).map_err(OpenError::Thread)?;
        let driver = started.recv().map_err(|_| OpenError::Thread(io::ErrorKind::Other.into()))?;
        let max_in_flight = u32::try_from(options.max_in_flight).unwrap_or(u32::MAX).max(1);
        Ok(Self {
            driver: driver.map_err(OpenError::Thread)?,
            state,
            places: Arc::new(Semaphore::new(max_in_flight as usize)),
            max_in_flight,
            metrics,
            stop: std::sync::Mutex::new(Some(stop)),
        })
    }

    pub(super) fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> JoinHandle<Result<T, Failure>> {
        self.driver.spawn(work)
    }

    /// Waits for a place and a connection; fails at once where the last attempt to connect has failed.
    pub(super) fn lease(&self) -> impl Future<Output = Result<Lease, Failure>> + Send + use<> {
        let (places, mut state) = (self.places.clone(), self.state.clone());
        async move {
            let place = places.acquire_owned().await.map_err(|_| Failure::Unavailable)?;
            let reached = state.wait_for(|state| !matches!(state, State::Connecting)).await;
            match reached.as_deref() {
                Ok(State::Up(connected)) => Ok(Lease { connected: connected.clone(), _place: place }),
                _ => Err(Failure::Unavailable),
            }
        }
    }

    pub(super) async fn connected(&self, limit: Duration) -> bool {
        let mut state = self.state.clone();
        timeout(limit, state.wait_for(|state| matches!(state, State::Up(_)))).await.is_ok_and(|up| up.is_ok())
    }

    /// Lets what is under way end, for `limit` at most, and takes nothing more.
    pub(super) async fn close(&self, limit: Duration) {
        _ = timeout(limit, self.places.acquire_many(self.max_in_flight)).await;
        self.places.close();
        drop(self.stop.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
    }
}

impl Lease {
    /// Runs `work` on the connection; one that turns out to be lost is given up.
    pub(super) async fn with<T, W: Future<Output = RedisResult<T>>>(
        self,
        work: impl FnOnce(Link) -> W,
    ) -> Result<T, Failure> {
        work(self.connected.link.clone()).await.map_err(|error| {
            // A connection to a Cluster looks after itself, node by node.
            let single = matches!(self.connected.link, Link::Single(_));
            if single && (error.is_unrecoverable_error() || is_no_primary(&error)) {
                self.connected.broken.notify_one();
            }
            tracing::debug!(%error, "the store cannot be used");
            if error.is_timeout() { Failure::Timeout } else { Failure::Unavailable }
        })
    }
}

/// The client takes the process's cryptography; it is to be that which our other connections name.
pub(super) fn use_our_tls(address: &Address) {
    if address.tls {
        // Fails when it is there already.
        _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Connects, watches the connection, and begins anew when it is lost.
async fn keep(address: &Address, state: &watch::Sender<State>, metrics: &Metrics) {
    let mut failures = 0;
    loop {
        let attempt = timeout(ATTEMPT_TIME, Link::connect(address)).await;
        match attempt.unwrap_or_else(|_| Err(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)))) {
            Ok(link) => {
                if failures > 0 {
                    tracing::info!(store = %address, "the store is back");
                }
                failures = 0;
                metrics.connections.inc();
                metrics.connected.set(1);
                let connected = Connected { link, broken: Arc::default() };
                state.send_replace(State::Up(connected.clone()));
                let end = until_broken(connected).await;
                metrics.connected.set(0);
                // Without the connection, so that it goes when the last call that has it ends.
                state.send_replace(match end {
                    End::Lost => State::Connecting,
                    End::Silent => State::Down,
                });
            }
            Err(error) => {
                if failures == 0 {
                    tracing::error!(store = %address, %error, "the store cannot be reached; trying again");
                }
                state.send_replace(State::Down);
                sleep(pause(failures)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

/// Returns when a call has found it lost, or it has stopped to answer: a server that is gone without a
/// word, or does something else for long, is not waited for by every single call.
async fn until_broken(connected: Connected) -> End {
    let Connected { link, broken } = connected;
    let watched = async {
        let Link::Single(mut link) = link else { return std::future::pending().await };
        loop {
            sleep(PING_EVERY).await;
            let ping = ::redis::cmd("PING");
            match timeout(PING_TIME, ping.query_async::<()>(&mut link)).await {
                Ok(Err(error)) if error.is_unrecoverable_error() => return End::Lost,
                Ok(_) => {}
                Err(_) => return End::Silent,
            }
        }
    };
    let end = tokio::select! {
        end = watched => end,
        () = broken.notified() => End::Lost,
    };
    tracing::warn!(?end, "the connection to the store is lost");
    end
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It is closed, or leads to the wrong server: there may be another at once.
    Lost,
    /// Nobody answers.
    Silent,
}

/// Doubles with every failure up to a second, and differs from node to node.
fn pause(failures: u32) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures.min(16))).min(LONGEST_PAUSE);
    let part = 500 + getrandom::u32().unwrap_or_default() % 501;
    longest * part / 1000
}

/// For an attempt to connect, which may ask several Sentinels or nodes.
const ATTEMPT_TIME: Duration = Duration::from_secs(3);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Back within a second of Redis being back.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const PING_EVERY: Duration = Duration::from_secs(1);
/// Longer than any single command of ours takes a server that works.
const PING_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_are_never_the_whole_wait_for_all() {
        assert!(pause(0) <= FIRST_PAUSE && pause(0) >= FIRST_PAUSE / 2);
        assert!(pause(40) <= LONGEST_PAUSE && pause(40) >= LONGEST_PAUSE / 2);
        let drawn: std::collections::BTreeSet<_> = (0..64).map(|_| pause(9)).collect();
        assert!(drawn.len() > 1, "all nodes at the same moment");
    }
}
