//! From HTTP to the flat request and back, within limits. One `Front` per core; connections are
//! served by it, accepted elsewhere ([`crate::server`]).

use std::{
    convert::Infallible,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, uri::PathAndQuery};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpStream,
    time::{timeout, timeout_at},
};

use crate::{
    fields::{self, is_hop_by_hop},
    handler::{Admission, CoreHandler, Head, Request, Response},
    observer::Observer,
    pace::{Pace, Paced},
    problem::Problem,
};

/// Limits on what a client may send, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest request body, in bytes; longer is 413.
    pub max_body_bytes: usize,
    /// Longest request head that is waited for, in bytes; longer is 431, unless it came in one piece
    /// with its end. At least 8192.
    pub max_head_bytes: usize,
    /// Most header fields; more is 431.
    pub max_headers: usize,
    /// From a head's first byte, or a connection's begin, until it is there whole; then the
    /// connection is closed.
    pub head_time: Duration,
    /// How long a connection may stay open between an answer and the next request. The default is
    /// above the 60 s after which nginx gives up an idle upstream connection.
    pub idle_time: Duration,
    /// Until the body is there whole; longer is 408.
    pub body_time: Duration,
    /// From the end of the body to the answer; longer is 504.
    pub request_time: Duration,
    /// `server-timing` of the component reaches the client. It tells which check failed, and when.
    pub server_timing: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 128 << 10,
            max_head_bytes: 32 * 1024,
            max_headers: 100,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(75),
            body_time: Duration::from_secs(10),
            request_time: Duration::from_secs(15),
            server_timing: false,
        }
    }
}

/// The front of one core.
pub(crate) struct Front<C> {
    handler: C,
    limits: Limits,
    ids: Arc<AtomicU64>,
    http: http1::Builder,
    observer: Option<Observer>,
}

impl<C: CoreHandler> Front<C> {
    pub(crate) fn new(handler: C, limits: Limits, ids: Arc<AtomicU64>) -> Self {
        let mut http = http1::Builder::new();
        // Heads are timed by `Pace`.
        http.timer(TokioTimer::new())
            .header_read_timeout(None)
            // A client that has said all may still listen; one that is gone is noticed when written to.
            .half_close(true)
            .max_buf_size(limits.max_head_bytes.max(8192))
            .max_headers(limits.max_headers);
        Self { observer: handler.observer(), handler, limits, ids, http }
    }

    pub(crate) fn handler(&self) -> &C {
        &self.handler
    }

    /// Serves `stream` to its end. Once `drain` is ready, the connection ends with the answer
    /// under way, or at once when there is none.
    pub(crate) async fn serve(self: Rc<Self>, stream: TcpStream, client: SocketAddr, drain: impl Future<Output = ()>) {
        // Answers are written in one piece; Nagle's wait for the client's acknowledgement buys nothing.
        drop(stream.set_nodelay(true));
        let pace = Pace::new(self.limits.head_time, self.limits.idle_time);
        let (front, served) = (self.clone(), pace.clone());
        let service = service_fn(move |message| {
            let (front, served) = (front.clone(), served.clone());
            async move {
                served.request_begins();
                let answer = front.answer(message, client).await;
                served.request_ends();
                Ok::<_, Infallible>(answer.map(Full::new))
            }
        });
        let stream = Paced { stream, pace: pace.clone() };
        let connection = self.http.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection, drain);
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = pace.expired() => return,
            () = drain => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = pace.expired() => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%client, %error, "connection ended");
        }
    }

    async fn answer(&self, message: http::Request<Incoming>, client: SocketAddr) -> Response {
        let id = self.ids.fetch_add(1, Relaxed);
        let trace_id = trace_id(message.headers(), id);
        let observed = self.observer.as_ref().map(|observer| observer.begin(&message));
        let mut answer = match self.read(message, client, id, &trace_id).await {
            Ok(request) => {
                if let Some(observed) = &observed {
                    observed.received(request.body.len());
                }
                let deadline = request.deadline;
                timeout_at(deadline.into(), self.handler.handle(request))
                    .await
                    .unwrap_or_else(|_| Problem::Deadline.answer(&trace_id))
            }
            Err(answer) => *answer,
        };
        if let Some(observed) = observed {
            observed.end(&answer, &trace_id);
        }
        self.finish(&mut answer, &trace_id);
        answer
    }

    /// The request, or its answer when it is none to hand on.
    async fn read(
        &self,
        message: http::Request<Incoming>,
        client: SocketAddr,
        id: u64,
        trace_id: &str,
    ) -> Result<Request, Box<Response>> {
        let refused = |problem: Problem| Box::new(problem.answer(trace_id));
        let (parts, body) = message.into_parts();
        let (method, mut headers) = (parts.method, parts.headers);
        let target = target(&parts.uri).map_err(refused)?;
        check(&headers).map_err(refused)?;
        let head = Head { method: &method, target: &target, headers: &headers, client, trace_id };
        let admission = match self.handler.admit(&head) {
            Ok(admission) => admission,
            Err(answer) => {
                drop(self.read_body(body, Admission { max_body_bytes: Some(0), ..Admission::default() }).await);
                return Err(answer);
            }
        };
        let body = self.read_body(body, admission).await.map_err(refused)?;
        strip(&mut headers);
        // `trace_id` makes only such bytes.
        if let Ok(value) = HeaderValue::from_str(trace_id) {
            headers.insert(X_TRACE_ID, value);
        }
        let deadline = Instant::now() + admission.request_time.unwrap_or(self.limits.request_time);
        Ok(Request { id, method, target, headers, body, client, trace_id: trace_id.into(), deadline })
    }

    async fn read_body(&self, body: Incoming, admission: Admission) -> Result<Bytes, Problem> {
        if body.is_end_stream() {
            return Ok(Bytes::new());
        }
        let max = admission.max_body_bytes.unwrap_or(self.limits.max_body_bytes);
        timeout(admission.body_time.unwrap_or(self.limits.body_time), collect(body, max))
            .await
            .unwrap_or(Err(Problem::BodyTimeout))
    }

    fn finish(&self, answer: &mut Response, trace_id: &str) {
        let bodiless = matches!(answer.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let length = answer.body().len();
        let head = answer.headers_mut();
        fields::remove(head, is_hop_by_hop);
        head.remove(header::CONTENT_LENGTH);
        if !bodiless {
            head.insert(header::CONTENT_LENGTH, length.into());
        }
        if !self.limits.server_timing {
            head.remove(SERVER_TIMING);
        }
        if let (false, Ok(value)) = (head.contains_key(X_TRACE_ID), HeaderValue::from_str(trace_id)) {
            head.insert(X_TRACE_ID, value);
        }
    }
}

/// Reads `body` to its end. What is beyond `max` is read too, within reason, and thrown away:
/// closing a connection with unread bytes resets it, and the client may never see the 413.
async fn collect(mut body: Incoming, max: usize) -> Result<Bytes, Problem> {
    let declared = body.size_hint().exact().map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
    if declared > max.saturating_add(MAX_DISCARDED_BYTES) {
        return Err(Problem::PayloadTooLarge);
    }
    let mut whole = BytesMut::new();
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::BadRequest("the body ended in the middle"))?;
        let Ok(data) = frame.into_data() else { continue };
        length = length.saturating_add(data.len());
        if length > max.saturating_add(MAX_DISCARDED_BYTES) {
            return Err(Problem::PayloadTooLarge);
        }
        if length == declared && length > 0 && whole.is_empty() && length <= max {
            return Ok(data);
        }
        if length <= max {
            whole.extend_from_slice(&data);
        }
    }
    if length > max { Err(Problem::PayloadTooLarge) } else { Ok(whole.freeze()) }
}

/// Most bytes of a body that is too long that are read only to be thrown away.
const MAX_DISCARDED_BYTES: usize = 8 << 20;

fn check(headers: &HeaderMap) -> Result<(), Problem> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if http::uri::Authority::try_from(host.as_bytes()).is_ok() => {}
        _ => return Err(Problem::BadRequest("a request has one Host field, and it is an authority")),
    }
    // What hyper reads as chunked may say more than that; whoever reads it otherwise disagrees
    // about where the request ends.
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(Problem::BadRequest("a body is sent whole or chunked")),
    }
}

fn target(uri: &http::Uri) -> Result<PathAndQuery, Problem> {
    match uri.path_and_query() {
        Some(target) if target.path().starts_with('/') => Ok(target.clone()),
        _ => Err(Problem::BadRequest("the target is no path")),
    }
}

/// Takes out what speaks of this connection only (RFC 9110 §7.6.1), and every field that would
/// pass for one that the node itself adds.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| name != header::HOST)
        .collect();
    fields::remove(headers, |name| is_hop_by_hop(name) || name.as_str().starts_with("spin-") || named.contains(name));
}

/// The client's own id when it is well formed: `x-trace-id`, else the trace of a `traceparent`
/// (W3C Trace Context §3.2, version 00); else 32 hexadecimal digits made here, which are both.
fn trace_id(headers: &HeaderMap, id: u64) -> String {
    let only = |name: &str| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())?.to_str().ok()
    };
    let own = only(X_TRACE_ID.as_str()).filter(|id| is_trace_id(id));
    let parent = || {
        let fields: Vec<&str> = only("traceparent")?.split('-').collect();
        let ["00", trace, span, flags] = fields[..] else { return None };
        (is_hex_id(trace, 32) && is_hex_id(span, 16) && flags.len() == 2 && is_hex(flags)).then_some(trace)
    };
    own.or_else(parent).map_or_else(
        || {
            // The number keeps them apart should the system have no random bytes.
            let mut bytes = u128::from(id).to_be_bytes();
            let _ = getrandom::fill(&mut bytes);
            format!("{:032x}", u128::from_be_bytes(bytes))
        },
        str::to_owned,
    )
}

fn is_trace_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Lower-case hex of this length, not all zero.
fn is_hex_id(id: &str, length: usize) -> bool {
    id.len() == length && is_hex(id) && id.bytes().any(|byte| byte != b'0')
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

const X_TRACE_ID: HeaderName = HeaderName::from_static("x-trace-id");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_client_cannot_speak_for_the_node_or_its_connection() {
        let mut sent = headers(&[
            ("host", "a"),
            ("connection", "keep-alive, X-Private, host"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABkAAQAAP__"),
            ("spin-client-addr", "6.6.6.6"),
            ("spin-client-addr", "7.7.7.7"),
            ("x-public", "1"),
        ]);
        strip(&mut sent);
        assert_eq!(sent, headers(&[("host", "a"), ("x-public", "1")]));
    }

    #[test]
    fn a_trace_id_is_taken_when_it_is_well_formed() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(trace_id(&headers(&[("x-trace-id", "a_B-9"), ("traceparent", parent)]), 1), "a_B-9");
        assert_eq!(trace_id(&headers(&[("traceparent", parent)]), 1), "4bf92f3577b34da6a3ce929d0e0e4736");
        for bad in ["", "a b", "a\"b", "0123456789012345678901234567890123456789012345678901234567890123x"] {
            let made = trace_id(
                &headers(&[("x-trace-id", bad), ("traceparent", "00-00000000000000000000000000000000-1-1")]),
                5,
            );
            assert!(is_hex_id(&made, 32), "{made}");
        }
        for bad in [
            "zz-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_ne!(trace_id(&headers(&[("traceparent", bad)]), 5), "4bf92f3577b34da6a3ce929d0e0e4736", "{bad}");
        }
        let twice = trace_id(&headers(&[("x-trace-id", "aaa"), ("x-trace-id", "bbb")]), 5);
        assert!(is_hex_id(&twice, 32), "which of two is meant is unknown: {twice}");
    }

    #[test]
    fn a_target_is_a_path() {
        assert_eq!(target(&"/a?b=c".parse().expect("a URI")).expect("a path"), "/a?b=c");
        assert_eq!(target(&"http://h/a".parse().expect("a URI")).expect("a path"), "/a");
        assert!(target(&"*".parse().expect("a URI")).is_err());
        assert!(target(&"h:80".parse().expect("a URI")).is_err());
    }
}
