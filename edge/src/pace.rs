//! How long a connection may keep the node waiting for its next request: one limit while it is
//! idle, another once a head has begun. hyper has one timer for both, and a kept connection should
//! live longer than a slow head.

use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// Where a connection stands; shared by its stream, its service and its timer.
pub(crate) struct Pace {
    state: Cell<State>,
    head_time: Duration,
    idle_time: Duration,
}

#[derive(Clone, Copy)]
enum State {
    Idle(Instant),
    Head(Instant),
    Busy,
}

impl Pace {
    /// A connection that is new has sent nothing, but was opened to send something soon.
    pub(crate) fn new(head_time: Duration, idle_time: Duration) -> Rc<Self> {
        Rc::new(Self { state: Cell::new(State::Head(Instant::now())), head_time, idle_time })
    }

    /// A head is there whole.
    pub(crate) fn request_begins(&self) {
        self.state.set(State::Busy);
    }

    /// The answer is given.
    pub(crate) fn request_ends(&self) {
        self.state.set(State::Idle(Instant::now()));
    }

    /// Is ready when the connection has kept the node waiting too long. Looks at intervals of the
    /// shorter limit: a request sets no timer.
    pub(crate) async fn expired(&self) {
        let interval = self.head_time.min(self.idle_time);
        loop {
            let now = Instant::now();
            let end = match self.state.get() {
                State::Idle(since) => since + self.idle_time,
                State::Head(since) => since + self.head_time,
                State::Busy => now + interval,
            };
            if end <= now {
                return;
            }
            tokio::time::sleep_until(end.min(now + interval).into()).await;
        }
    }

    fn bytes_come(&self) {
        if let State::Idle(_) = self.state.get() {
            self.state.set(State::Head(Instant::now()));
        }
    }
}

/// A stream that tells its [`Pace`] when bytes come.
pub(crate) struct Paced {
    pub(crate) stream: TcpStream,
    pub(crate) pace: Rc<Pace>,
}

impl AsyncRead for Paced {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.pace.bytes_come();
        }
        read
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn a_head_has_less_time_than_an_idle_connection() {
        Pace::new(SHORT, LONG).expired().await;
        let pace = Pace::new(SHORT, LONG);
        pace.request_ends();
        assert!(timeout(SHORT * 4, pace.expired()).await.is_err(), "idle is allowed");
        pace.bytes_come();
        pace.expired().await;
    }

    #[tokio::test]
    async fn a_request_under_way_is_not_waited_for() {
        let pace = Pace::new(SHORT, SHORT);
        pace.request_begins();
        pace.bytes_come();
        assert!(timeout(SHORT * 4, pace.expired()).await.is_err());
        pace.request_ends();
        pace.expired().await;
    }
}
