//! The body of a streamed reply.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Failure, Kind, pool::Lease};

/// A reply's body as it arrives. Read to its end, its connection serves the next exchange; dropped
/// before, the connection is closed.
pub struct ReplyBody {
    incoming: Incoming,
    /// `None` once the body has ended.
    lease: Option<Lease>,
    between_bytes: Duration,
    /// Runs while nothing arrives.
    timer: Option<Pin<Box<Sleep>>>,
}

impl ReplyBody {
    pub(super) fn new(incoming: Incoming, lease: Lease, between_bytes: Duration) -> Self {
        let mut body = Self { incoming, lease: Some(lease), between_bytes, timer: None };
        if body.incoming.is_end_stream() {
            body.end();
        }
        body
    }

    fn end(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.timer = None;
                if self.incoming.is_end_stream() {
                    self.end();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => {
                self.lease = None;
                Poll::Ready(Some(Err(Kind::Broken.sent())))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let at = later(Instant::now(), self.between_bytes);
                let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
                timer.as_mut().poll(cx).map(|()| {
                    self.lease = None;
                    Some(Err(Kind::Timeout.sent()))
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// `after` as an instant, at most a day ahead: a guest may ask for 584 years.
pub(super) fn later(now: Instant, after: Duration) -> Instant {
    now + after.min(Duration::from_hours(24))
}
