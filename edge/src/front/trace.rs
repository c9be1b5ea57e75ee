//! What names a request: its trace id and its request id; and which trace context goes on with it.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::traces::Context;

/// The names of one request. Both are of `[A-Za-z0-9_-]{1,64}`.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Names it in logs and problems.
    pub(super) trace_id: Box<str>,
    /// The client's own name for it, else the trace id.
    pub(super) request_id: Box<str>,
    /// Whether the client sent a trace context.
    is_traced: bool,
}

impl Names {
    /// Reads the names a client gave. The trace id is its `x-trace-id`, else the trace of its
    /// `traceparent`, else its `x-request-id`, where well formed; else 32 hexadecimal digits made
    /// here. `number` keeps those apart should the system have no random bytes.
    pub(super) fn read(headers: &HeaderMap, number: u64) -> Self {
        let own = |name: &HeaderName| only(headers, name).filter(|id| is_name(id));
        let (parent, request_id) = (Context::of(headers), own(&X_REQUEST_ID));
        let trace_id: Box<str> = match (own(&X_TRACE_ID), parent, request_id) {
            (Some(own), _, _) => own.into(),
            (None, Some(parent), _) => parent.trace().into(),
            (None, None, Some(request)) => request.into(),
            (None, None, None) => {
                let mut bytes = u128::from(number).to_be_bytes();
                let _ = getrandom::fill(&mut bytes);
                format!("{:032x}", u128::from_be_bytes(bytes)).into()
            }
        };
        let request_id = request_id.map_or_else(|| trace_id.clone(), Into::into);
        Self { request_id, trace_id, is_traced: parent.is_some() }
    }

    /// Writes the names over what the client sent, and leaves out a trace context that is none.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        if !self.is_traced {
            headers.remove(TRACEPARENT);
            headers.remove(TRACESTATE);
        } else if !state_is_kept(headers) {
            headers.remove(TRACESTATE);
        }
        for (name, value) in self.fields() {
            headers.insert(name, value);
        }
    }

    /// Names an answer, where its component did not.
    pub(super) fn answer(&self, headers: &mut HeaderMap) {
        for (name, value) in self.fields() {
            headers.entry(name).or_insert(value);
        }
    }

    fn fields(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let fields = [(X_TRACE_ID, &self.trace_id), (X_REQUEST_ID, &self.request_id)];
        // Names are made of such bytes only.
        fields.into_iter().filter_map(|(name, id)| Some((name, HeaderValue::from_str(id).ok()?)))
    }
}

/// §3.3.1.1: 32 members at most. Empty ones count for nothing.
fn state_is_kept(headers: &HeaderMap) -> bool {
    let mut members = 0;
    let mut bytes = 0;
    for value in headers.get_all(TRACESTATE) {
        let Ok(text) = value.to_str() else { return false };
        bytes += text.len();
        members += text.split(',').filter(|member| !member.trim().is_empty()).count();
    }
    members <= 32 && bytes <= MAX_STATE_BYTES
}

/// At least 512 are to be passed on.
const MAX_STATE_BYTES: usize = 4096;

/// The value of a field that was sent once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

fn is_name(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

const X_TRACE_ID: HeaderName = HeaderName::from_static("x-trace-id");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of W3C Trace Context §3.2.3.
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn names(fields: &[(&'static str, &'static str)]) -> Names {
        Names::read(&headers(fields), 5)
    }

    fn is_made(id: &str) -> bool {
        id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && id != TRACE
    }

    #[test]
    fn a_trace_id_is_taken_when_it_is_well_formed() {
        assert_eq!(&*names(&[("x-trace-id", "a_B-9"), ("traceparent", PARENT)]).trace_id, "a_B-9");
        assert_eq!(&*names(&[("traceparent", PARENT), ("x-request-id", "r")]).trace_id, TRACE);
        assert_eq!(&*names(&[("x-request-id", "r-1")]).trace_id, "r-1");
        for bad in ["", "a b", "a\"b", "0123456789012345678901234567890123456789012345678901234567890123x"] {
            let made = names(&[("x-trace-id", bad), ("x-request-id", bad)]);
            assert!(is_made(&made.trace_id), "{made:?}");
            assert_eq!(made.trace_id, made.request_id);
        }
        let twice = names(&[("x-trace-id", "aaa"), ("x-trace-id", "bbb")]);
        assert!(is_made(&twice.trace_id), "which of two is meant is unknown: {twice:?}");
    }

    #[test]
    fn a_request_id_is_the_clients_own_or_the_trace_id() {
        let both = names(&[("x-trace-id", "t"), ("x-request-id", "r")]);
        assert_eq!((&*both.trace_id, &*both.request_id), ("t", "r"));
        let mut answer = HeaderMap::new();
        both.answer(&mut answer);
        assert_eq!(answer, headers(&[("x-trace-id", "t"), ("x-request-id", "r")]));
        assert_eq!(&*names(&[("x-trace-id", "t")]).request_id, "t");
    }

    #[test]
    fn a_state_is_kept_with_a_parent_only() {
        let written = |fields: &[(&'static str, &'static str)]| {
            let mut headers = headers(fields);
            Names::read(&headers, 1).write(&mut headers);
            (headers.contains_key("traceparent"), headers.get_all("tracestate").iter().count())
        };
        assert_eq!(written(&[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]), (true, 2));
        assert_eq!(written(&[("traceparent", "00-x"), ("tracestate", "a=1")]), (false, 0));
        assert_eq!(written(&[("tracestate", "a=1")]), (false, 0));
        assert_eq!(
            written(&[
                ("traceparent", PARENT),
                (
                    "tracestate",
                    ",a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1,a=1"
                )
            ]),
            (true, 0)
        );
    }
}
