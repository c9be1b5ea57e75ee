//! The one interface between the HTTP front and whatever answers: the pool of `node` components,
//! `wasi:http` components, or the native core mounted by the harness.

use std::fmt;

use bytes::Bytes;

/// A flat request as the front hands it on: read whole, within the limits, checked.
#[derive(Clone)]
pub struct Request {
    /// Unique on this node since it started.
    pub id: u64,
    /// Method, as sent.
    pub method: http::Method,
    /// Path and query.
    pub target: http::uri::PathAndQuery,
    /// All header fields the client sent, without hop-by-hop fields and without `spin-*`.
    /// `x-trace-id` is set to [`Request::trace_id`], whatever the client sent.
    pub headers: http::HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// Address of the TCP peer.
    pub client: std::net::SocketAddr,
    /// Names this request in logs and answers: the client's own id when it is well formed.
    pub trace_id: Box<str>,
    /// When the front gives up on the answer: it answers 504 and drops the handler's future.
    pub deadline: std::time::Instant,
}

/// A flat answer. The front adds `content-length`.
pub type Response = http::Response<Bytes>;

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
    /// Answers. The future may be dropped when the client goes away; work that has begun goes on
    /// nevertheless, so that a login whose client has gone still ends and is stored.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + 'static;

    /// Is ready when nothing is under way any more, work after an answer included. Called once the
    /// core has answered its last request.
    fn drained(&self) -> impl Future<Output = ()> + 'static {
        std::future::ready(())
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
