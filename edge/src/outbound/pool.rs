//! The connections of one core to one upstream.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::{
    Failure, Kind, Shared,
    connect::{Destination, Outgoing, connect},
    guard::{Admitted, Guard},
};

/// One scheme and authority.
pub(super) struct Upstream {
    destination: Destination,
    pub(super) host_field: HeaderValue,
    guard: Arc<Guard>,
    permits: Arc<Semaphore>,
    /// Oldest first. The newest is used first, so that the ones not needed grow old.
    idle: Mutex<VecDeque<Connection>>,
}

struct Connection {
    sender: SendRequest<Outgoing>,
    exchanges: u32,
    /// When it must no longer be used.
    stale_at: Instant,
}

/// A connection for one exchange, with the permit that counts it. Dropped before
/// [`Lease::give_back`], it closes the connection: something on it is unfinished.
pub(super) struct Lease {
    upstream: Arc<Upstream>,
    connection: Connection,
    idle_limit: Duration,
    admitted: Admitted,
    status: u16,
    _permit: OwnedSemaphorePermit,
}

impl Upstream {
    pub(super) fn new(
        destination: Destination,
        host_field: HeaderValue,
        guard: Arc<Guard>,
        connections: usize,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
        Self { destination, host_field, guard, permits, idle: Mutex::default() }
    }

    /// A connection that was ready a moment ago, or a new one.
    pub(super) async fn lease(self: &Arc<Self>, shared: &Shared, by: Instant) -> Result<Lease, Failure> {
        let mut admitted = self.guard.admit(shared.limits)?;
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => match timeout_at(by, Arc::clone(&self.permits).acquire_owned()).await {
                Ok(Ok(permit)) => permit,
                _ => return Err(Kind::Busy.unsent()),
            },
        };
        let connection = if let Some(connection) = self.take_idle() {
            connection
        } else {
            let connected = timeout_at(by, connect(shared, &self.destination)).await;
            let sender = connected.unwrap_or(Err(Kind::Timeout.unsent()));
            let sender = sender.inspect_err(|failure| admitted.failed(*failure))?;
            Connection { sender, exchanges: 0, stale_at: Instant::now() }
        };
        let upstream = Arc::clone(self);
        Ok(Lease { upstream, connection, idle_limit: IDLE_LIMIT, admitted, status: 0, _permit: permit })
    }

    /// Whether nothing would be lost with it.
    pub(super) fn is_unused(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            drop_stale(&mut idle, Instant::now());
            idle.is_empty()
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let usable = idle.iter().rposition(|connection| connection.sender.is_ready() && connection.stale_at > now)?;
        idle.remove(usable)
    }
}

impl Lease {
    /// Sends `request` and waits for the head of the reply.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Outgoing>,
        by: Instant,
    ) -> Result<Response<Incoming>, Failure> {
        self.connection.exchanges += 1;
        let replied = match timeout_at(by, self.connection.sender.try_send_request(request)).await {
            Ok(Ok(response)) => {
                self.idle_limit = idle_limit(response.headers());
                self.status = response.status().as_u16();
                Ok(response)
            }
            // hyper hands the request back if, and only if, it never began to write it.
            Ok(Err(mut error)) => Err(match error.take_message() {
                Some(_) => Kind::Broken.unsent(),
                None if error.error().is_parse_too_large() => Kind::TooLarge.sent(),
                None => Kind::Broken.sent(),
            }),
            Err(_) => Err(Kind::Timeout.sent()),
        };
        replied.inspect_err(|failure| self.admitted.failed(*failure))
    }

    /// The head of the reply is enough to know that the upstream is well, or is not.
    pub(super) fn answered(&mut self) {
        self.admitted.answered(self.status);
    }

    /// The rest of the reply did not come as it should.
    pub(super) fn broken(mut self, failure: Failure) -> Failure {
        self.admitted.failed(failure);
        failure
    }

    /// Keeps the connection for the next exchange. The reply has been read to its end.
    pub(super) fn give_back(mut self) {
        self.answered();
        let Self { upstream, mut connection, idle_limit, .. } = self;
        if connection.sender.is_closed() || connection.exchanges >= MAX_EXCHANGES {
            return;
        }
        let now = Instant::now();
        connection.stale_at = now + idle_limit;
        let mut idle = upstream.idle.lock().unwrap_or_else(PoisonError::into_inner);
        drop_stale(&mut idle, now);
        idle.push_back(connection);
    }
}

fn drop_stale(idle: &mut VecDeque<Connection>, now: Instant) {
    while idle.front().is_some_and(|oldest| oldest.stale_at <= now || oldest.sender.is_closed()) {
        idle.pop_front();
    }
}

/// How long the connection may be idle, after what the upstream says it allows (`Keep-Alive:
/// timeout=<seconds>`). A request that crosses the upstream's close on the wire is a login lost, so
/// the margin is wide: 15 s, or half of a short limit.
fn idle_limit(head: &HeaderMap) -> Duration {
    let fields = head.get_all("keep-alive").iter().filter_map(|value| value.to_str().ok());
    let mut parameters = fields.flat_map(|value| value.split(','));
    let seconds = parameters.find_map(|parameter| {
        let (name, seconds) = parameter.split_once('=')?;
        if name.trim().eq_ignore_ascii_case("timeout") { seconds.trim().parse::<u32>().ok() } else { None }
    });
    let Some(seconds) = seconds else { return IDLE_LIMIT };
    let theirs = Duration::from_secs(seconds.into());
    theirs.saturating_sub(Duration::from_secs(15)).max(theirs / 2).min(IDLE_LIMIT)
}

/// 15 s below the minute after which most servers and load balancers close.
const IDLE_LIMIT: Duration = Duration::from_secs(45);
/// nginx closes after 1,000 by default; closing first avoids crossing it on the wire.
const MAX_EXCHANGES: u32 = 999;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_limit_stays_below_the_upstreams() {
        for (field, seconds) in [
            (None, 45.0),
            (Some("timeout=60"), 45.0),
            (Some("timeout=40, max=100"), 25.0),
            (Some("max=100, Timeout = 5"), 2.5),
            (Some("timeout=0"), 0.0),
            (Some("timeout=4294967295"), 45.0),
            (Some("timeout=soon"), 45.0),
        ] {
            let mut head = HeaderMap::new();
            if let Some(field) = field {
                head.insert("keep-alive", HeaderValue::from_static(field));
            }
            assert_eq!(idle_limit(&head), Duration::from_secs_f64(seconds), "{field:?}");
        }
    }
}
