//! A client as plain as it gets: one connection per request, nothing retried, nothing followed,
//! and the raw form for what no client library would send.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Longer than any limit of the node; what passes it hangs.
const HANG: Duration = Duration::from_mins(1);

/// One answer, whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header of ours is ASCII"))
    }

    /// The `code` of a problem, after checking that it is a whole one.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        for member in ["type", "title", "detail", "code", "trace_id"] {
            assert!(problem[member].as_str().is_some_and(|text| !text.is_empty()), "{member} in {problem}");
        }
        assert!(problem["retryable"].is_boolean(), "{problem}");
        problem["code"].as_str().expect("checked above").to_owned()
    }
}

/// Sends one request on a connection of its own.
pub(crate) async fn send(to: SocketAddr, request: http::Request<Vec<u8>>) -> Answer {
    timeout(HANG, exchange(to, request)).await.expect("the node answers in time").expect("the node answers")
}

async fn exchange(to: SocketAddr, request: http::Request<Vec<u8>>) -> Result<Answer, Box<dyn std::error::Error>> {
    let stream = TcpStream::connect(to).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let mut request = request.map(|body| Full::new(Bytes::from(body)));
    request.headers_mut().insert("host", to.to_string().parse()?);
    let (parts, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    driver.abort();
    Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
}

/// Sends bytes as they are, and returns everything that comes back until the node closes.
pub(crate) async fn raw(to: SocketAddr, bytes: &[u8]) -> String {
    let read = async {
        let mut stream = TcpStream::connect(to).await.expect("the node listens");
        // A node that has seen enough closes while this side still writes: that is an answer too.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    timeout(HANG, read).await.expect("the node closes in time")
}
