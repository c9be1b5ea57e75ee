//! How long a connection may keep the node waiting: for a head once it has begun, for the next
//! request, for its client to take an answer. hyper has one timer for the first two, and a kept
//! connection should live longer than a slow head.
//!
//! Of HTTP/1 the bytes are watched: the first one after an answer begins a head. A client that sends
//! requests before it has the answers is not given the time of an idle connection any more, for what
//! of the next head is there already nobody can see. Of HTTP/2 only streams count: bytes that open
//! none (PING, SETTINGS, half a head) leave the connection as idle as it is.

use std::{
    cell::{Cell, RefCell},
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::body::at_rate;

/// The limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// From a head's first byte, or a connection's begin, to its end.
    pub(crate) head: Duration,
    /// Between an answer and the next request.
    pub(crate) idle: Duration,
    /// For a client that has not taken what there is for it ...
    pub(crate) write: Duration,
    /// ... and how many bytes a second it has to take for more than that.
    pub(crate) min_rate: u32,
}

/// Where a connection stands; shared by its stream, its service and its timer.
pub(crate) struct Pace {
    times: Times,
    state: Cell<State>,
    /// Requests under way.
    open: Cell<usize>,
    /// What is known of the bytes, as long as they are HTTP/1.
    wire: RefCell<Wire>,
    /// Since when bytes wait to be taken, and how many were since.
    stalled: Cell<Option<(Instant, usize)>>,
}

#[derive(Clone, Copy)]
enum State {
    Idle(Instant),
    Head(Instant),
    Busy,
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Known(u64),
    Chunked,
}

impl Pace {
    /// A connection that is new has sent nothing, but was opened to send something soon.
    pub(crate) fn new(times: Times) -> Rc<Self> {
        Rc::new(Self {
            times,
            state: Cell::new(State::Head(Instant::now())),
            open: Cell::new(0),
            wire: RefCell::new(Wire::new()),
            stalled: Cell::new(None),
        })
    }

    /// From here on it is HTTP/2.
    pub(crate) fn is_http2(&self) {
        self.wire.borrow_mut().watched = false;
    }

    /// A head is there whole; its body is this long.
    pub(crate) fn request_begins(&self, body: Length) {
        self.open.set(self.open.get() + 1);
        self.wire.borrow_mut().body = body;
        self.state.set(State::Busy);
    }

    /// The answer is given, or nobody wants it any more.
    pub(crate) fn request_ends(&self) {
        self.open.set(self.open.get().saturating_sub(1));
        if self.open.get() == 0 {
            let next_has_begun = self.wire.borrow_mut().message_ends();
            let now = Instant::now();
            self.state.set(if next_has_begun { State::Head(now) } else { State::Idle(now) });
        }
    }

    /// Is ready when the connection has kept the node waiting too long, and says for what. Looks at
    /// intervals of the shortest limit: neither a request nor a write sets a timer.
    pub(crate) async fn expired(&self) -> &'static str {
        let interval = self.times.head.min(self.times.idle).min(self.times.write);
        loop {
            let now = Instant::now();
            let (waiting_for, end) = match self.state.get() {
                State::Idle(since) => ("request", since + self.times.idle),
                State::Head(since) => ("head", since + self.times.head),
                State::Busy => ("answer", now + interval),
            };
            let taken_by =
                self.stalled.get().map(|(since, taken)| since + self.times.write + at_rate(taken, self.times.min_rate));
            match taken_by {
                Some(by) if by <= now => return "reader",
                // While an answer is taken nobody waits for a request.
                Some(by) => tokio::time::sleep_until(by.min(now + interval).into()).await,
                None if end <= now => return waiting_for,
                None => tokio::time::sleep_until(end.min(now + interval).into()).await,
            }
        }
    }

    fn bytes_come(&self, bytes: &[u8]) {
        let mut wire = self.wire.borrow_mut();
        if wire.watched && !bytes.is_empty() {
            wire.bytes_come(bytes);
            if let State::Idle(_) = self.state.get() {
                self.state.set(State::Head(Instant::now()));
            }
        }
    }

    fn written(&self, written: &Poll<io::Result<usize>>) {
        match (written, self.stalled.get()) {
            (Poll::Pending, None) => self.stalled.set(Some((Instant::now(), 0))),
            (Poll::Ready(Ok(bytes)), Some((since, taken))) => self.stalled.set(Some((since, taken + bytes))),
            _ => {}
        }
    }

    fn flushed(&self, flushed: &Poll<io::Result<()>>) {
        match (flushed, self.stalled.get()) {
            (Poll::Pending, None) => self.stalled.set(Some((Instant::now(), 0))),
            (Poll::Ready(Ok(())), Some(_)) => self.stalled.set(None),
            _ => {}
        }
    }
}

/// Whether more than the request under way has come.
struct Wire {
    watched: bool,
    /// How much of the empty line that ends a head has been seen last.
    ending: usize,
    /// Bytes after it.
    after: u64,
    /// The last four bytes, the last one lowest.
    last: u32,
    body: Length,
    /// Once true it stays: where messages begin is not known any more.
    ahead: bool,
}

const EMPTY_LINE: [u8; 4] = *b"\r\n\r\n";

impl Wire {
    fn new() -> Self {
        Self { watched: true, ending: 0, after: 0, last: 0, body: Length::Known(0), ahead: false }
    }

    fn bytes_come(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().rev().take(4).rev() {
            self.last = self.last << 8 | u32::from(byte);
        }
        let mut rest = bytes.iter();
        while self.ending < EMPTY_LINE.len() {
            let Some(&byte) = rest.next() else { return };
            self.ending = match byte {
                byte if EMPTY_LINE.get(self.ending) == Some(&byte) => self.ending + 1,
                b'\r' => 1,
                _ => 0,
            };
        }
        self.after += rest.len() as u64;
    }

    /// Whether something of the next message is there, or may be.
    fn message_ends(&mut self) -> bool {
        self.ahead |= self.watched
            && match self.body {
                Length::Known(length) => self.ending < EMPTY_LINE.len() || self.after > length,
                Length::Chunked => self.last != u32::from_be_bytes(EMPTY_LINE),
            };
        (self.ending, self.after) = (0, 0);
        self.ahead
    }
}

/// A stream that tells its [`Pace`] what comes and goes.
pub(crate) struct Paced<S> {
    stream: S,
    pace: Rc<Pace>,
    /// Read before it was known who is to read it.
    first: Bytes,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, pace: Rc<Pace>, first: Bytes) -> Self {
        Self { stream, pace, first }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let length = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..length]);
            self.pace.bytes_come(&self.first[..length]);
            self.first.advance(length);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.pace.bytes_come(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.pace.written(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.pace.written(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.pace.flushed(&flushed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.pace.flushed(&ended);
        ended
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, time::timeout};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_hours(1);
    const NO_BODY: Length = Length::Known(0);

    fn pace(head: Duration, idle: Duration) -> Rc<Pace> {
        Pace::new(Times { head, idle, write: LONG, min_rate: 1000 })
    }

    async fn waits(pace: &Pace) -> bool {
        timeout(SHORT * 4, pace.expired()).await.is_err()
    }

    /// What is said of a connection on which these reads were one request with such a body.
    fn ahead(reads: &[&[u8]], body: Length) -> bool {
        let pace = pace(SHORT, LONG);
        for bytes in reads {
            pace.bytes_come(bytes);
        }
        pace.request_begins(body);
        pace.request_ends();
        matches!(pace.state.get(), State::Head(_))
    }

    #[tokio::test]
    async fn a_head_has_less_time_than_an_idle_connection() {
        assert_eq!(pace(SHORT, LONG).expired().await, "head");
        let pace = pace(SHORT, LONG);
        pace.bytes_come(b"GET / HTTP/1.1\r\n\r\n");
        pace.request_begins(NO_BODY);
        pace.request_ends();
        assert!(waits(&pace).await, "idle is allowed");
        pace.bytes_come(b"G");
        assert_eq!(pace.expired().await, "head");
    }

    #[tokio::test]
    async fn a_request_under_way_is_not_waited_for() {
        let pace = pace(SHORT, SHORT);
        pace.bytes_come(b"GET / HTTP/1.1\r\n\r\n");
        pace.request_begins(NO_BODY);
        assert!(waits(&pace).await);
        pace.request_ends();
        assert_eq!(pace.expired().await, "request");
    }

    #[test]
    fn what_is_sent_ahead_is_a_head_that_has_begun() {
        const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\n\r\n";
        assert!(!ahead(&[HEAD], NO_BODY));
        assert!(!ahead(&[&HEAD[..5], &HEAD[5..26], &HEAD[26..]], NO_BODY), "in pieces");
        assert!(!ahead(&[HEAD, b"abc"], Length::Known(3)));
        assert!(!ahead(&[HEAD, b"ab"], Length::Known(3)), "the body is not all there");
        assert!(!ahead(&[HEAD, b"1\r\na\r\n0\r\n\r\n"], Length::Chunked));
        assert!(!ahead(&[HEAD, b"1\r\na\r\n0\r", b"\n\r\n"], Length::Chunked));
        assert!(ahead(&[HEAD, b"GET"], NO_BODY));
        assert!(ahead(&[HEAD, b"abcG"], Length::Known(3)));
        assert!(ahead(&[HEAD, b"0\r\n\r\nG"], Length::Chunked));
        assert!(ahead(&[b"GET / HTTP/1.1\n\n"], NO_BODY), "its end is not known");
        assert!(ahead(&[HEAD, HEAD], NO_BODY), "a whole one");
    }

    #[tokio::test]
    async fn what_comes_on_an_http2_connection_does_not_keep_it() {
        let pace = pace(LONG, SHORT);
        pace.is_http2();
        for _ in 0..2 {
            pace.request_begins(NO_BODY);
        }
        pace.request_ends();
        assert!(waits(&pace).await, "one is left");
        pace.request_ends();
        pace.bytes_come(b"PING");
        assert_eq!(pace.expired().await, "request");
    }

    #[tokio::test]
    async fn a_client_has_to_take_its_answer() {
        let pace = Pace::new(Times { head: LONG, idle: LONG, write: SHORT, min_rate: 1000 });
        let (near, _far) = tokio::io::duplex(16);
        let mut stream = Paced::new(near, pace.clone(), Bytes::new());
        stream.write_all(&[0; 16]).await.expect("there is room");
        assert!(waits(&pace).await, "nothing waits");
        let writing = stream.write_all(&[0; 16]);
        tokio::select! {
            waiting_for = pace.expired() => assert_eq!(waiting_for, "reader"),
            _ = writing => unreachable!("nobody reads"),
        }
    }
}
