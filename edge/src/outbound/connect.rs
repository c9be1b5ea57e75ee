//! From a destination to an HTTP/1.1 connection.

use std::{io, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream::FuturesUnordered};
use http_body_util::{Either, Full, combinators::UnsyncBoxBody};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{Failure, Kind, Shared};

/// A body on its way out: whole, or streamed by a guest.
pub(super) type Outgoing = Either<Full<Bytes>, UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>>;

/// Where a request goes; allowed by the policy.
pub(super) struct Destination {
    pub(super) scheme: &'static str,
    /// In lower case, an IPv6 address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// `None` is plain text.
    pub(super) tls: Option<ServerName<'static>>,
}

/// Connects to whichever of the addresses answers first, in their order: the next one is tried when
/// those before it have failed, or have been silent for [`HEAD_START`] (RFC 8305 §5; the system's
/// resolver has sorted them by RFC 6724).
pub(super) async fn connect(shared: &Shared, to: &Destination) -> Result<SendRequest<Outgoing>, Failure> {
    let addresses = shared.resolver.resolve(&to.host).await.map_err(|_| Kind::Unresolved.unsent())?;
    let mut permitted =
        addresses.into_iter().filter(|&ip| shared.policy.permits(to.scheme, &to.host, to.port, ip)).peekable();
    if permitted.peek().is_none() {
        return Err(Kind::Denied.unsent());
    }
    let mut attempts = FuturesUnordered::new();
    loop {
        attempts.extend(permitted.next().map(|address| TcpStream::connect((address, to.port))));
        let ended = match permitted.peek() {
            Some(_) => timeout(HEAD_START, attempts.next()).await.unwrap_or_default(),
            None => attempts.next().await,
        };
        match ended {
            Some(Ok(stream)) => return start(shared, to, stream).await,
            None if attempts.is_empty() && permitted.peek().is_none() => return Err(Kind::Unreachable.unsent()),
            Some(Err(_)) | None => {}
        }
    }
}

/// What one address is given before the next is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

async fn start(shared: &Shared, to: &Destination, stream: TcpStream) -> Result<SendRequest<Outgoing>, Failure> {
    // A request is one write; holding it until the last one is acknowledged gains nothing.
    stream.set_nodelay(true).map_err(|_| Kind::Unreachable.unsent())?;
    match &to.tls {
        None => speak(stream).await,
        Some(name) => {
            let stream = shared.tls.connect(name.clone(), stream).await.map_err(|_| Kind::Tls.unsent())?;
            speak(stream).await
        }
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<SendRequest<Outgoing>, Failure> {
    let mut builder = http1::Builder::new();
    builder.max_header_size(MAX_HEAD_BYTES).max_buf_size(MAX_HEAD_BYTES);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(|_| Kind::Unreachable.unsent())?;
    // Ends with the sender, or when the upstream closes. Its error also reaches the exchange.
    tokio::spawn(connection);
    Ok(sender)
}

/// rustls with ring and Mozilla's certificate authorities, and those of `extra_roots`.
pub(super) fn tls_connector(extra_roots: Option<&Path>) -> io::Result<TlsConnector> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = extra_roots {
        let pem = std::fs::read(path)?;
        let before = roots.len();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
        }
        if roots.len() == before {
            return Err(io::Error::other("there is no PEM certificate in it"));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
}

/// Longest reply head. Platforms send below 2 KiB.
const MAX_HEAD_BYTES: usize = 64 * 1024;
