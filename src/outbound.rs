//! One HTTP exchange with a platform, as a port. The platform codecs build a [`Call`] and read a
//! [`Reply`]; how it travels is the host's business.

use std::{fmt, time::Duration};

use crate::message::Head;

/// Makes one exchange. An implementation never retries, never follows a redirect and never sends
/// to a host the manifest does not allow.
pub trait HttpClient: 'static {
    /// Sends `call` and reads the whole reply within the limits it names.
    fn send(&self, call: Call) -> impl Future<Output = Result<Reply, SendError>>;
}

/// What to send. `Debug` shows no query, head or body: some
/// platforms take the app secret in the query.
#[derive(Clone)]
pub struct Call {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// Absolute, every parameter percent-encoded.
    pub url: String,
    /// Header fields; `host` and `content-length` are the client's.
    pub head: Head,
    /// The whole body.
    pub body: Vec<u8>,
    /// How long each part may take, and how much may come back.
    pub limits: Limits,
    /// While one call with this key is under way, another with the same key fails at once with
    /// [`SendErrorKind::Duplicate`], wherever the host can see it: per node at the `node` door,
    /// per instance elsewhere.
    pub exclusive: Option<[u8; 32]>,
}

/// Limits of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Until the connection stands, waiting for a free one included.
    pub connect: Duration,
    /// Until the reply's head has arrived.
    pub first_byte: Duration,
    /// Until the reply's last byte.
    pub total: Duration,
    /// Longest body taken, in bytes. A longer one is [`SendErrorKind::TooLarge`].
    pub max_body_bytes: u32,
}

/// What came back, whatever its status.
#[derive(Clone)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Header fields.
    pub head: Head,
    /// The whole body.
    pub body: Vec<u8>,
}

/// An exchange that brought no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct SendError {
    /// Why.
    pub kind: SendErrorKind,
    /// Whether bytes may have reached the platform: if so, the code may be spent.
    pub sent: bool,
}

/// Why an exchange brought no reply; the kinds of `wit/node.wit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendErrorKind {
    /// The manifest does not allow the host, or its address is a private one.
    #[error("destination not allowed")]
    Denied,
    /// The name has no address.
    #[error("name not resolved")]
    Unresolved,
    /// No connection.
    #[error("connection refused or not reached")]
    Unreachable,
    /// The certificate or the handshake was refused.
    #[error("TLS failed")]
    Tls,
    /// One of the limits in [`Limits`] passed.
    #[error("timed out")]
    Timeout,
    /// The connection ended in the middle, or what came was not HTTP.
    #[error("connection broken")]
    Broken,
    /// The reply is longer than [`Limits::max_body_bytes`].
    #[error("reply too large")]
    TooLarge,
    /// The host's own limit on connections or exchanges is reached.
    #[error("too many exchanges under way")]
    Busy,
    /// Another call with the same [`Call::exclusive`] key is under way.
    #[error("the same exchange is under way")]
    Duplicate,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("method", &self.method)
            .field("url", &self.url.split('?').next().unwrap_or_default())
            .field("head", &self.head)
            .field("body_bytes", &self.body.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("status", &self.status)
            .field("head", &self.head)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}
