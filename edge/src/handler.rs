//! The one interface between the HTTP front and whatever answers: the pool of `node` components,
//! `wasi:http` components, or the native core mounted by the harness.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, uri::PathAndQuery};

use crate::{manifest::Route, observer::Observer};

/// A flat request as the front hands it on: read whole, within the limits, checked.
#[derive(Clone)]
pub struct Request {
    /// Unique on this node since it started.
    pub id: u64,
    /// Method, as sent.
    pub method: Method,
    /// Path and query.
    pub target: PathAndQuery,
    /// All header fields the client sent, without hop-by-hop fields and without `spin-*`.
    /// `x-trace-id` is set to [`Request::trace_id`], whatever the client sent, and `x-request-id` to
    /// the client's own or the same. A `traceparent` is a valid one, and `tracestate` only beside it.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// Who asks: the TCP peer, or the client that a trusted proxy names, then with port 0.
    pub client: SocketAddr,
    /// Whether the client speaks TLS, to this node or to a trusted proxy.
    pub secure: bool,
    /// The manifest's route for the target; `None` where no routes are known.
    pub route: Option<Arc<Route>>,
    /// Names this request in logs and answers: the client's own id when it is well formed.
    pub trace_id: Box<str>,
    /// When the front gives up on the answer: it answers 504 and drops the handler's future.
    pub deadline: std::time::Instant,
}

/// A flat answer. The front adds `content-length`.
pub type Response = http::Response<Bytes>;

/// What is known of a request before its body is read.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// As in [`Request`].
    pub method: &'a Method,
    /// As in [`Request`].
    pub target: &'a PathAndQuery,
    /// All header fields as they came.
    pub headers: &'a HeaderMap,
    /// As in [`Request`].
    pub client: SocketAddr,
    /// As in [`Request`].
    pub trace_id: &'a str,
}

/// What an admitted request may take, where the front's own limits are not the right ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Longest body, in bytes.
    pub max_body_bytes: Option<usize>,
    /// Until the body is there whole.
    pub body_time: Option<Duration>,
    /// From the end of the body to the answer.
    pub request_time: Option<Duration>,
}

/// Something that answers requests. Shared by all cores.
pub trait Handler: Send + Sync + 'static {
    /// What one core keeps for itself: instances, connections. Made on the core's own thread and
    /// never leaves it, so it need not be `Send`.
    type Core: CoreHandler;

    /// Makes the part of core number `core`, inside its runtime.
    fn core(&self, core: usize) -> Self::Core;
}

/// The part of a [`Handler`] that lives on one core.
pub trait CoreHandler: 'static {
    /// Decides on the head alone whether there is any use in the body. What is refused here costs the
    /// node nothing to keep: its body is thrown away as it comes.
    ///
    /// # Errors
    /// The answer to a request that is not to be handled.
    fn admit(&self, _: &Head<'_>) -> Result<Admission, Box<Response>> {
        Ok(Admission::default())
    }

    /// Answers. The future may be dropped when the client goes away; work that has begun goes on
    /// nevertheless, so that a login whose client has gone still ends and is stored.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + 'static;

    /// Is ready when nothing is under way any more, work after an answer included. Called once the
    /// core has answered its last request.
    fn drained(&self) -> impl Future<Output = ()> + 'static {
        std::future::ready(())
    }

    /// What the front tells of every request on this core, those included that it answers itself.
    /// `None`: nobody counts.
    fn observer(&self) -> Option<Observer> {
        None
    }
}

/// Without query, values and body: they may hold codes and tokens.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("id", &self.id)
            .field("trace_id", &self.trace_id)
            .field("method", &self.method)
            .field("path", &self.target.path())
            .field("body_bytes", &self.body.len())
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}
