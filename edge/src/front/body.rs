//! How a request's body is read: whole, within a length and a time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Instant, timeout_at};

use super::Limits;
use crate::{handler::Admission, problem::Problem};

/// Reads `body` to its end. What is beyond the longest length is read too, within reason, and thrown
/// away: closing a connection with unread bytes resets it, and the client may never see the 413.
///
/// It has to be there in time, and after [`SLOW_START`] no slower than
/// [`Limits::min_rate`] all in all: a long body may take long, one that trickles may not.
///
/// Together with the bodies of all other requests under way it takes [`Limits::max_buffered_bytes`] at most;
/// what comes beyond is thrown away likewise. Its share is given back with the [`Held`].
pub(super) async fn read(
    mut body: Incoming,
    limits: &Limits,
    admission: Admission,
    of_all: &Gauge,
) -> Result<(Bytes, Held), Problem> {
    let mut held = Held { of_all: of_all.clone(), bytes: 0 };
    if body.is_end_stream() {
        return Ok((Bytes::new(), held));
    }
    let max = admission.max_body_bytes.unwrap_or(limits.max_body_bytes);
    let time = admission.body_time.unwrap_or(limits.body_time);
    let declared = body.size_hint().exact().map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
    if declared > max.saturating_add(MAX_DISCARDED_BYTES) {
        return Err(Problem::PayloadTooLarge);
    }
    // A body that is allowed alone must be possible alone.
    let room = limits.max_buffered_bytes.max(max);
    let mut fits = true;
    let begun = Instant::now();
    let mut whole = BytesMut::new();
    let mut length = 0_usize;
    loop {
        let by = begun + time.min(SLOW_START + at_rate(length, limits.min_rate));
        let Some(frame) = timeout_at(by, body.frame()).await.map_err(|_| Problem::BodyTimeout)? else { break };
        let frame = frame.map_err(|_| Problem::BadRequest("the body ended in the middle"))?;
        let Ok(data) = frame.into_data() else { continue };
        length = length.saturating_add(data.len());
        if length > max.saturating_add(MAX_DISCARDED_BYTES) {
            return Err(Problem::PayloadTooLarge);
        }
        fits = fits && length <= max && held.grow(data.len(), room);
        if fits && length == declared && length > 0 && whole.is_empty() && body.is_end_stream() {
            return Ok((data, held));
        }
        if fits {
            whole.extend_from_slice(&data);
        } else {
            whole = BytesMut::new();
            held.give_back();
        }
    }
    if length > max {
        return Err(Problem::PayloadTooLarge);
    }
    if fits { Ok((whole.freeze(), held)) } else { Err(Problem::Overloaded) }
}

/// What a body takes of the memory there is for all of them.
pub(super) struct Held {
    of_all: Gauge,
    bytes: i64,
}

impl Held {
    /// Whether that many more still fit into `room`.
    fn grow(&mut self, bytes: usize, room: usize) -> bool {
        let more = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes += more;
        self.of_all.inc_by(more) + more <= i64::try_from(room).unwrap_or(i64::MAX)
    }

    /// Takes nothing any more.
    fn give_back(&mut self) {
        self.of_all.dec_by(std::mem::take(&mut self.bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// How long `bytes` take at `rate` bytes a second.
pub(crate) fn at_rate(bytes: usize, rate: u32) -> Duration {
    let milliseconds = (bytes as u64).saturating_mul(1000) / u64::from(rate.max(1));
    Duration::from_millis(milliseconds)
}

/// Before anybody is called slow.
const SLOW_START: Duration = Duration::from_secs(5);

/// Most bytes of a body that is too long that are read only to be thrown away.
const MAX_DISCARDED_BYTES: usize = 8 << 20;
