//! An answer, and the ways to get one wrong below HTTP: what hyper would never send is played on
//! the bare socket after hyper has let go of it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time,
};

/// An answer as HTTP has it.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) content_type: HeaderValue,
    pub(crate) body: Bytes,
    /// Sent without saying how long it is.
    pub(crate) chunked: bool,
    /// For the journal: the platform's number in the body.
    pub(crate) errcode: Option<i64>,
    /// For the journal: whose code was used up.
    pub(crate) user: Option<Arc<str>>,
}

impl Answer {
    pub(crate) fn new(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let content_type = HeaderValue::from_static(content_type);
        Self { status, content_type, body: body.into(), chunked: false, errcode: None, user: None }
    }

    /// The status line and the fields, announcing the whole body.
    fn head(&self) -> Bytes {
        let mut head = format!("HTTP/1.1 {}\r\ncontent-type: ", self.status).into_bytes();
        head.extend_from_slice(self.content_type.as_bytes());
        let length = self.body.len();
        head.extend_from_slice(format!("\r\ncontent-length: {length}\r\n\r\n").as_bytes());
        head.into()
    }

    /// All of the head, half of the body.
    fn half(&self) -> Bytes {
        [self.head(), self.body.slice(..self.body.len() / 2)].concat().into()
    }
}

impl From<Answer> for Response<Full<Bytes>> {
    fn from(answer: Answer) -> Self {
        let mut response = Response::new(Full::new(answer.body));
        *response.status_mut() = answer.status;
        response.headers_mut().insert(header::CONTENT_TYPE, answer.content_type);
        if answer.chunked {
            let chunked = HeaderValue::from_static("chunked");
            response.headers_mut().insert(header::TRANSFER_ENCODING, chunked);
        }
        response
    }
}

/// What is done with the connection instead of an answer; it is closed afterwards. The service
/// returns it as its error, which makes hyper give the socket back.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the connection is taken over")]
pub(crate) struct Script(Vec<Step>);

#[derive(Clone, Debug)]
enum Step {
    Send(Bytes),
    /// One byte after each pause.
    Drip(Bytes, Duration),
    /// Until the client goes or the time is over.
    Hold(Option<Duration>),
    Reset,
}

impl Script {
    /// No byte.
    pub(crate) fn stall(limit: Option<Duration>) -> Self {
        Self(vec![Step::Hold(limit)])
    }

    /// The head and half of the body, then silence.
    pub(crate) fn stall_body(answer: &Answer, limit: Option<Duration>) -> Self {
        Self(vec![Step::Send(answer.half()), Step::Hold(limit)])
    }

    /// The head, then the body byte by byte.
    pub(crate) fn drip(answer: &Answer, pause: Duration) -> Self {
        Self(vec![Step::Send(answer.head()), Step::Drip(answer.body.clone(), pause)])
    }

    /// No byte, and a TCP reset.
    pub(crate) fn reset() -> Self {
        Self(vec![Step::Reset])
    }

    /// The head and half of the body, then a TCP reset.
    pub(crate) fn reset_body(answer: &Answer) -> Self {
        Self(vec![Step::Send(answer.half()), Step::Reset])
    }

    /// No byte, and an orderly end.
    pub(crate) fn close() -> Self {
        Self(Vec::new())
    }

    /// The head and half of the body, then an orderly end.
    pub(crate) fn truncate(answer: &Answer) -> Self {
        Self(vec![Step::Send(answer.half())])
    }

    /// `bytes` as they are.
    pub(crate) fn garbage(bytes: &'static [u8]) -> Self {
        Self(vec![Step::Send(Bytes::from_static(bytes))])
    }

    /// Does it. A client that goes away ends it early, which is what faults are for.
    pub(crate) async fn play(self, mut socket: TcpStream) {
        for step in self.0 {
            let done = match step {
                Step::Send(bytes) => socket.write_all(&bytes).await,
                Step::Drip(bytes, pause) => drip(&mut socket, &bytes, pause).await,
                Step::Hold(limit) => {
                    hold(&mut socket, limit).await;
                    Ok(())
                }
                // Closing with no time to linger sends RST and drops what is still unsent.
                Step::Reset => return drop(socket.set_zero_linger()),
            };
            if done.is_err() {
                return;
            }
        }
        let _ = socket.shutdown().await;
    }
}

async fn drip(socket: &mut TcpStream, bytes: &[u8], pause: Duration) -> std::io::Result<()> {
    for byte in bytes {
        time::sleep(pause).await;
        socket.write_all(std::slice::from_ref(byte)).await?;
    }
    Ok(())
}

async fn hold(socket: &mut TcpStream, limit: Option<Duration>) {
    let gone = async {
        let mut ignored = [0; 1024];
        while socket.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
    };
    match limit {
        Some(limit) => drop(time::timeout(limit, gone).await),
        None => gone.await,
    }
}
