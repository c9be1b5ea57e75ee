//! Traces: what a collector gets, and that nobody waits for it.

use std::net::SocketAddr;

use edgepass_edge::{
    metrics::Metrics,
    traces::{Config, Traces},
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value,
    trace::v1::{Span, span::SpanKind},
};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::{
    client::{Client, start, with_admin},
    guest::Accomplice,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Takes one request of an exporter, and answers it.
async fn collected(listener: &TcpListener) -> (String, ExportTraceServiceRequest) {
    let (mut stream, _) = listener.accept().await.expect("the exporter connects");
    let mut read = Vec::new();
    loop {
        assert_ne!(stream.read_buf(&mut read).await.expect("it sends"), 0, "a whole request");
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(read[..end].to_vec()).expect("a head is text").to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        let body = &read[end + 4..];
        if body.len() == length.parse::<usize>().expect("a number") {
            let message = ExportTraceServiceRequest::decode(body).expect("a message of OTLP");
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.expect("it reads");
            return (head, message);
        }
    }
}

fn traced(endpoint: SocketAddr, ratio: f64) -> Metrics {
    let metrics = Metrics::default();
    let endpoint = format!("http://{endpoint}/v1/traces");
    metrics.trace_to(Traces::start(&Config { endpoint, ratio }).expect("a collector's URL"));
    metrics
}

async fn ask(addr: SocketAddr, target: &str, flags: &str) -> u16 {
    let mut client = Client::connect(addr).await;
    let parent = format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-{flags}\r\n");
    client.send(format!("POST {target} HTTP/1.1\r\nhost: a\r\n{parent}content-length: 0\r\n\r\n")).await;
    client.answer().await.expect("an answer").status
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a Value> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    found.value.as_ref()?.value.as_ref()
}

#[tokio::test]
async fn a_collector_gets_the_span_of_a_sampled_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let metrics = traced(listener.local_addr().expect("an address"), 0.0);
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.surroundings.metrics = metrics;
    });
    assert_eq!(ask(node.addr(), "/api/login?code=secret", "00").await, 200, "whose sender does not sample");
    assert_eq!(ask(node.addr(), "/trap", "01").await, 503);
    let (head, message) = collected(&listener).await;
    assert!(head.starts_with("post /v1/traces http/1.1") && head.contains("application/x-protobuf"), "{head}");

    let resource = &message.resource_spans[0];
    let service = resource.resource.as_ref().expect("a resource").attributes.iter().find(|a| a.key == "service.name");
    assert_eq!(
        service.and_then(|named| named.value.as_ref()?.value.as_ref()),
        Some(&Value::StringValue("edgepass".into()))
    );
    let spans: Vec<&Span> = resource.scope_spans.iter().flat_map(|scope| &scope.spans).collect();
    let [span] = spans[..] else { unreachable!("{} spans", spans.len()) };
    assert_eq!((span.name.as_str(), span.kind()), ("POST other", SpanKind::Server));
    assert_eq!((hex(&span.trace_id).as_str(), hex(&span.parent_span_id).as_str()), (TRACE, "00f067aa0ba902b7"));
    assert_ne!(span.span_id, span.parent_span_id);
    assert!(span.start_time_unix_nano < span.end_time_unix_nano);
    assert_eq!(attribute(span, "http.response.status_code"), Some(&Value::IntValue(503)));
    assert_eq!(attribute(span, "http.route"), Some(&Value::StringValue("other".into())));
    assert_eq!(attribute(span, "error.type"), Some(&Value::StringValue("503".into())));
    assert!(!format!("{message:?}").contains("secret"), "no query is in it");
}

#[tokio::test]
async fn a_collector_that_is_not_there_costs_spans_and_no_request() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("an address");
    let metrics = traced(nobody, 1.0);
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.surroundings.metrics = metrics.clone();
    });
    for _ in 0..3 {
        assert_eq!(ask(node.addr(), "/other", "00").await, 200);
    }
    for _ in 0..1000 {
        if metrics.text(None).1.contains("edgepass_trace_spans_total{result=\"failed\"} 3\n") {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    unreachable!("{}", metrics.text(None).1);
}

#[test]
fn what_is_no_url_is_no_collector() {
    for endpoint in ["", "localhost", "ftp://a/v1/traces", "http://"] {
        assert!(Traces::start(&Config { endpoint: endpoint.into(), ratio: 1.0 }).is_err(), "{endpoint}");
    }
}
