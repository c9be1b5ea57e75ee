//! TLS: what is agreed on, that one slow client holds nobody up, and a certificate that changes.

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use edgepass_edge::{node::Node, tls::Certificates};
use rustls::{
    ClientConfig, HandshakeKind, ProtocolVersion, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    client::{PATIENCE, start},
    guest::Accomplice,
};

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().expect("a folder"));
        files.renew();
        files
    }

    /// Writes another pair; its certificate.
    fn renew(&self) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(["node.test".to_owned()]).expect("a certificate");
        fs::write(self.0.path().join("crt"), made.cert.pem()).expect("written");
        fs::write(self.0.path().join("key"), made.signing_key.serialize_pem()).expect("written");
        made.cert.der().clone()
    }

    fn certificates(&self) -> Arc<Certificates> {
        Arc::new(Certificates::read(&self.0.path().join("crt"), &self.0.path().join("key")).expect("a pair"))
    }

    /// Trusts what is there now, and speaks this.
    fn client(&self, versions: &[&'static rustls::SupportedProtocolVersion], alpn: &[&str]) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        let chain = fs::read(self.0.path().join("crt")).expect("a file");
        roots.add(CertificateDer::from_pem_slice(&chain).expect("a certificate")).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).expect("versions");
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config).into()
    }
}

fn node(certificates: &Arc<Certificates>) -> Node {
    start(Accomplice::new(), |config| {
        config.options.tls = Some(certificates.clone());
        config.limits.head_time = Duration::from_secs(5);
    })
}

async fn shake(client: &TlsConnector, addr: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(addr).await?;
    client.connect(ServerName::try_from("node.test").expect("a name"), stream).await
}

async fn get(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(b"GET /other HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.expect("sent");
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("in time").expect("an answer");
    answer
}

const BOTH: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12, &rustls::version::TLS13];

#[tokio::test]
async fn protocols_are_agreed_on() {
    let files = Files::new();
    let node = node(&files.certificates());
    for (versions, version) in [
        (&[&rustls::version::TLS12][..], ProtocolVersion::TLSv1_2),
        (&[&rustls::version::TLS13][..], ProtocolVersion::TLSv1_3),
    ] {
        for (alpn, agreed) in [(&["http/1.1"][..], Some(&b"http/1.1"[..])), (&[], None)] {
            let mut stream = shake(&files.client(versions, alpn), node.addr()).await.expect("a handshake");
            assert_eq!(stream.get_ref().1.protocol_version(), Some(version));
            assert_eq!(stream.get_ref().1.alpn_protocol(), agreed);
            assert!(get(&mut stream).await.starts_with("HTTP/1.1 200 "));
        }
    }
    let stream = shake(&files.client(BOTH, &["h2", "http/1.1"]), node.addr()).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = http::Request::get("https://node.test/other").body(String::new()).expect("a request");
    assert_eq!(sender.send_request(request).await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn a_session_is_resumed() {
    let files = Files::new();
    let certificates = files.certificates();
    let node = node(&certificates);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = files.client(&[version], &[]);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut stream = shake(&client, node.addr()).await.expect("a handshake");
            // Tickets come with the answer.
            assert!(get(&mut stream).await.starts_with("HTTP/1.1 200 "));
            kinds.push(stream.get_ref().1.handshake_kind());
        }
        assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)], "{version:?}");
    }
}

#[tokio::test]
async fn who_is_slow_to_shake_hands_holds_nobody_up() {
    let files = Files::new();
    let certificates = files.certificates();
    let node = start(Accomplice::new(), |config| {
        config.options.tls = Some(certificates);
        config.limits.head_time = Duration::from_secs(2);
    });
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(node.addr()).await.expect("the node accepts"));
    }
    let mut stream = shake(&files.client(BOTH, &[]), node.addr()).await.expect("a handshake");
    assert!(get(&mut stream).await.starts_with("HTTP/1.1 200 "));
    assert!(node.connections() >= 20, "each counts as a connection");
    for mut stream in silent {
        let mut rest = Vec::new();
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("in time");
        assert!(matches!(end, Ok(0) | Err(_)), "and ends");
    }
    let mut plain = TcpStream::connect(node.addr()).await.expect("the node accepts");
    plain.write_all(b"GET /other HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut rest)).await.expect("in time");
    assert!(!rest.starts_with(b"HTTP"), "no plain text where TLS is spoken");
}

#[tokio::test]
async fn a_new_certificate_is_shown_from_the_next_connection_on() {
    let files = Files::new();
    let certificates = files.certificates();
    let node = node(&certificates);
    let old = files.client(BOTH, &[]);
    let mut open = shake(&old, node.addr()).await.expect("a handshake");
    let shown = |stream: &TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().expect("one")[0].clone();
    let before = shown(&open);
    let renewed = files.renew();
    assert!(certificates.reload().expect("a good pair"));
    let stream = shake(&files.client(BOTH, &[]), node.addr()).await.expect("a handshake");
    assert_eq!(shown(&stream), renewed);
    assert_ne!(before, renewed);
    assert!(get(&mut open).await.starts_with("HTTP/1.1 200 "), "who is connected stays so");

    fs::write(files.0.path().join("key"), "no key").expect("written");
    assert!(certificates.reload().is_err());
    let stream = shake(&files.client(BOTH, &[]), node.addr()).await.expect("a handshake");
    assert_eq!(shown(&stream), renewed, "the good one stays");
}
