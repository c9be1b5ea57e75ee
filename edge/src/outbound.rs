//! HTTP to the world outside: what a component may reach, and the client that reaches it.
//!
//! Every exchange passes the allow-list of the manifest before a name is looked up, and the address
//! passes it again before it is connected to, so a name that points inwards leads nowhere. The client
//! never retries and never follows a redirect: a platform's code is spent by the first request that
//! reaches it, so only the caller can know whether a second one makes sense. [`Failure::sent`] tells
//! it what it needs for that. An upstream that keeps failing is left alone for a while.
//!
//! There is one [`Shared`] per revision and one [`Client`] per core. hyper-util has a pooled client,
//! but it shares connections between cores, retries by itself and asks a pool task for every
//! request; a stack of idle connections that belongs to the core is all that is needed here.

mod body;
mod breaker;
mod client;
mod connect;
mod exclusive;
mod flat;
mod guard;
mod metrics;
mod policy;
mod pool;
mod resolve;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use tokio_rustls::TlsConnector;

pub use self::{
    body::ReplyBody,
    breaker::Rules,
    client::Client,
    exclusive::Exclusive,
    guard::Guards,
    metrics::Metrics,
    policy::{Policy, PolicyError},
};
use self::{connect::tls_connector, resolve::Resolver};

/// One exchange, flat; mirrors `outbound.call` of `wit/node.wit`. Without `Debug`: the URL of a
/// platform call holds a secret.
pub struct Call {
    /// Any method.
    pub method: String,
    /// `http://` or `https://`, everything percent-encoded.
    pub url: String,
    /// Lines of `name: value\n`. Hop-by-hop fields, `host`, `content-length` and trace context
    /// (which would tell the upstream who is asking) are left out, as is a line that is no field.
    pub head: Vec<u8>,
    /// The whole body.
    pub body: Vec<u8>,
    /// How long it may take and how much may come back.
    pub limits: Limits,
    /// While a call with this key is under way on the node, another one fails with
    /// [`Kind::Duplicate`].
    pub exclusive: Option<Vec<u8>>,
}

/// Limits of a flat exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the call to a connection, waiting for a free one, name look-up and TLS included.
    pub connect: Duration,
    /// From the connection to the reply's head.
    pub first_byte: Duration,
    /// From the call to the reply's last byte.
    pub total: Duration,
    /// Longest body taken.
    pub max_body_bytes: usize,
}

/// Limits of a streamed exchange; the options of `wasi:http`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// As [`Limits::connect`].
    pub connect: Duration,
    /// As [`Limits::first_byte`].
    pub first_byte: Duration,
    /// Between two pieces of the reply's body.
    pub between_bytes: Duration,
}

/// What came back, whatever its status. Without `Debug`: it may hold secrets.
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Lines of `name: value\n`, names in lower case, without hop-by-hop fields.
    pub head: Vec<u8>,
    /// The whole body.
    pub body: Vec<u8>,
}

/// An exchange that brought no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct Failure {
    /// Why.
    pub kind: Kind,
    /// `false` only when no byte of the request can have reached the upstream.
    pub sent: bool,
}

/// Why an exchange brought no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Kind {
    /// The allow-list has no such destination, its address is a private one, or the URL is none.
    #[error("destination not allowed")]
    Denied,
    /// The name has no address.
    #[error("name not resolved")]
    Unresolved,
    /// No connection to any of the addresses.
    #[error("connection refused or not reached")]
    Unreachable,
    /// The certificate or the handshake was refused.
    #[error("TLS failed")]
    Tls,
    /// A limit passed.
    #[error("timed out")]
    Timeout,
    /// The connection ended in the middle, or what came was not HTTP.
    #[error("connection broken")]
    Broken,
    /// Head or body of the reply are too long.
    #[error("reply too large")]
    TooLarge,
    /// The upstream counts as down: too many exchanges failed a moment ago. Nothing was tried.
    #[error("upstream counts as down")]
    Down,
    /// No connection became free within the connect limit, or the node has as many exchanges under
    /// way with this upstream as it may.
    #[error("too many exchanges under way")]
    Busy,
    /// A call with the same key is under way.
    #[error("the same exchange is under way")]
    Duplicate,
}

impl Kind {
    /// Its name in metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Unresolved => "unresolved",
            Self::Unreachable => "unreachable",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::TooLarge => "too_large",
            Self::Down => "down",
            Self::Busy => "busy",
            Self::Duplicate => "duplicate",
        }
    }

    /// A failure before anything was sent.
    const fn unsent(self) -> Failure {
        Failure { kind: self, sent: false }
    }

    /// A failure after something may have been sent.
    const fn sent(self) -> Failure {
        Failure { kind: self, sent: true }
    }
}

/// How a [`Shared`] is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Exchanges at once with one scheme and authority, per core.
    pub connections: usize,
    /// Exchanges at once with one host and port, all cores and revisions together; one more fails.
    pub in_flight: usize,
    /// When an upstream counts as down.
    pub breaker: Rules,
    /// A PEM file of certificate authorities to trust besides Mozilla's.
    pub extra_roots: Option<PathBuf>,
    /// The keys under way. Give every revision of a node the same one.
    pub exclusive: Exclusive,
    /// What is known of the upstreams. Give every revision of a node the same ones.
    pub guards: Guards,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 512,
            in_flight: 2048,
            breaker: Rules::default(),
            extra_roots: None,
            exclusive: Exclusive::default(),
            guards: Guards::default(),
        }
    }
}

/// What the clients of all cores have in common.
pub struct Shared {
    policy: Policy,
    connections: usize,
    limits: guard::Limits,
    guards: Guards,
    exclusive: Exclusive,
    resolver: Resolver,
    tls: TlsConnector,
}

/// The extra certificate authorities cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("certificate authorities in {} cannot be read", path.display())]
pub struct RootsError {
    path: PathBuf,
    source: io::Error,
}

impl Shared {
    /// Puts `policy` to use.
    ///
    /// # Errors
    /// [`RootsError`].
    pub fn new(policy: Policy, options: Options) -> Result<Arc<Self>, RootsError> {
        let Options { connections, in_flight, breaker, extra_roots, exclusive, guards } = options;
        let tls = tls_connector(extra_roots.as_deref())
            .map_err(|source| RootsError { path: extra_roots.unwrap_or_default(), source })?;
        let limits = guard::Limits { in_flight, breaker };
        Ok(Arc::new(Self { policy, connections, limits, guards, exclusive, resolver: Resolver::default(), tls }))
    }
}

#[cfg(test)]
mod tests;
