//! The node's own certificate: read, checked, replaced while it serves.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ProducesTickets, ServerSessionMemoryCache, StoresServerSessions},
};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// A certificate and its key, as two files in PEM, and what clients may resume.
pub struct Certificates {
    chain: PathBuf,
    key: PathBuf,
    current: ArcSwap<ServerConfig>,
    /// Digest of what the files held when they were read last, good or bad.
    seen: Mutex<[u8; 32]>,
    /// They outlive a certificate: who has a ticket need not see the new one.
    sessions: Arc<dyn StoresServerSessions>,
    tickets: Arc<dyn ProducesTickets>,
}

/// Why a certificate is not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("TLS file {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no certificate in it, or something is wrong with one.
    #[error("TLS certificate {}: {reason}", path.display())]
    Chain {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is no private key in it.
    #[error("TLS key {}: no private key in PEM (PKCS#8, PKCS#1 or SEC1)", path.display())]
    Key {
        /// The file.
        path: PathBuf,
    },
    /// They do not belong together, or are of a kind that is not supported.
    #[error("TLS certificate {} with key {}: {source}", chain.display(), key.display())]
    Pair {
        /// The certificate's file.
        chain: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The system has no random bytes.
    #[error("no keys for session tickets")]
    Tickets(#[source] rustls::Error),
}

impl Certificates {
    /// Reads the pair: the certificate first and those between it and the root after it.
    ///
    /// # Errors
    /// See [`Error`]; it names the file.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, Error> {
        let sessions = ServerSessionMemoryCache::new(SESSIONS);
        let tickets = ring::Ticketer::new().map_err(Error::Tickets)?;
        let files = Files::read(chain, key)?;
        let config = files.config(chain, key, sessions.clone(), tickets.clone())?;
        Ok(Self {
            chain: chain.into(),
            key: key.into(),
            current: ArcSwap::from_pointee(config),
            seen: Mutex::new(files.digest()),
            sessions,
            tickets,
        })
    }

    /// Reads the files again and takes what they hold for connections from now on, if it is not what
    /// they held before. Says whether it did.
    ///
    /// # Errors
    /// See [`Error`]; the pair there was goes on, and the same bytes are not tried again.
    pub fn reload(&self) -> Result<bool, Error> {
        // The lock keeps two from taking turns with what they read.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let files = Files::read(&self.chain, &self.key)?;
        let digest = files.digest();
        if *seen == digest {
            return Ok(false);
        }
        *seen = digest;
        let config = files.config(&self.chain, &self.key, self.sessions.clone(), self.tickets.clone())?;
        self.current.store(Arc::new(config));
        Ok(true)
    }

    /// Shakes hands.
    pub(crate) async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.current.load_full()).accept(stream).await
    }
}

/// Whether a handshake agreed on HTTP/2.
pub(crate) fn is_http2<S>(stream: &TlsStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(H2)
}

/// Whether a handshake was shortened by what a former one left.
pub(crate) fn is_resumed<S>(stream: &TlsStream<S>) -> bool {
    stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
}

const H2: &[u8] = b"h2";
/// Sessions kept for clients without tickets; one takes some hundred bytes.
const SESSIONS: usize = 4096;

struct Files {
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    fn read(chain: &Path, key: &Path) -> Result<Self, Error> {
        let read = |path: &Path| std::fs::read(path).map_err(|source| Error::Read { path: path.into(), source });
        Ok(Self { chain: read(chain)?, key: read(key)? })
    }

    fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update((self.chain.len() as u64).to_be_bytes());
        hash.update(&self.chain);
        hash.update(&self.key);
        hash.finalize().into()
    }

    fn config(
        &self,
        chain: &Path,
        key: &Path,
        sessions: Arc<dyn StoresServerSessions>,
        tickets: Arc<dyn ProducesTickets>,
    ) -> Result<ServerConfig, Error> {
        let bad = |reason: String| Error::Chain { path: chain.into(), reason };
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(&self.chain)
            .collect::<Result<_, _>>()
            .map_err(|error| bad(error.to_string()))?;
        if certificates.is_empty() {
            return Err(bad("no certificate in PEM".into()));
        }
        // The error would name what it found, which may be the key.
        let private = PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| Error::Key { path: key.into() })?;
        let pair = |source| Error::Pair { chain: chain.into(), key: key.into(), source };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, private))
            .map_err(pair)?;
        config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
        config.session_storage = sessions;
        config.ticketer = tickets;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn pair(name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn a_pair_is_replaced_by_a_good_one_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let (chain, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        let (one, other) = (pair("one.test"), pair("other.test"));
        fs::write(&chain, &one.0).expect("written");
        fs::write(&key, &one.1).expect("written");
        let certificates = Certificates::read(&chain, &key).expect("a pair");
        let before = certificates.current.load_full();
        assert!(!certificates.reload().expect("the same"));

        fs::write(&chain, &other.0).expect("written");
        let error = certificates.reload().expect_err("half of another pair");
        assert!(matches!(error, Error::Pair { .. }) && error.to_string().contains("tls.key"), "{error}");
        assert!(Arc::ptr_eq(&before, &certificates.current.load_full()));
        assert!(!certificates.reload().expect("the same bytes are not complained of again"));

        fs::write(&key, &other.1).expect("written");
        assert!(certificates.reload().expect("the other pair"));
        assert!(!Arc::ptr_eq(&before, &certificates.current.load_full()));
    }

    #[test]
    fn an_error_names_the_file_and_not_what_is_in_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (chain, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        let error = |chain: &Path, key: &Path| Certificates::read(chain, key).err().expect("refused").to_string();
        assert!(error(&chain, &key).starts_with(&format!("TLS file {}: ", chain.display())));
        let good = pair("one.test");
        fs::write(&chain, "text").expect("written");
        fs::write(&key, &good.1).expect("written");
        assert_eq!(error(&chain, &key), format!("TLS certificate {}: no certificate in PEM", chain.display()));
        fs::write(&chain, &good.0).expect("written");
        for junk in ["", "text", "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"] {
            fs::write(&key, junk).expect("written");
            let error = error(&chain, &key);
            assert!(error.contains("tls.key") && !error.contains("secret"), "{error}");
        }
        assert!(error(&chain, &chain).starts_with("TLS key "), "a certificate is no key");
    }
}
