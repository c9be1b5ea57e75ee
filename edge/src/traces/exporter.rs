//! From the queue to the collector: OpenTelemetry's exporter over our own HTTP client.

use std::{fmt, pin::Pin, sync::mpsc::Receiver, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};

use crate::{
    lines,
    outbound::{Call, Client, Limits},
};

/// The exporter to `endpoint`; `None` when that is no URL.
pub(super) fn build(endpoint: &str, client: Client) -> Option<SpanExporter> {
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint)
        .with_http_client(Sender(client))
        .build()
        .ok()?;
    // `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` are read too.
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some();
    let resource = if named { resource } else { resource.with_service_name("edgepass") };
    exporter.set_resource(&resource.build());
    Some(exporter)
}

/// Sends what comes, several requests' spans at once, until nobody can send more.
pub(super) fn run(exporter: &SpanExporter, inbox: &Receiver<Vec<SpanData>>, count: impl Fn(&'static str, usize)) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "no traces are sent"),
    };
    let mut failing = false;
    while let Ok(mut batch) = inbox.recv() {
        // What else comes within a moment goes with it.
        while batch.len() < BATCH {
            let Ok(more) = inbox.recv_timeout(GATHER) else { break };
            batch.extend(more);
        }
        let spans = batch.len();
        match runtime.block_on(exporter.export(batch)) {
            Ok(()) => {
                count("sent", spans);
                failing = false;
            }
            Err(error) => {
                count("failed", spans);
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "traces cannot be sent; they are counted and forgotten");
                }
            }
        }
    }
}

const BATCH: usize = 512;
const GATHER: Duration = Duration::from_millis(200);

/// Our client as OpenTelemetry asks for one.
struct Sender(Client);

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

type Sending<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Sender {
    fn send_bytes<'s, 'a>(&'s self, request: Request<Bytes>) -> Sending<'a>
    where
        's: 'a,
        Self: 'a,
    {
        let (head, body) = request.into_parts();
        let mut fields = Vec::new();
        for (name, value) in &head.headers {
            lines::write(&mut fields, name, value);
        }
        let call = Call {
            method: head.method.as_str().to_owned(),
            url: head.uri.to_string(),
            head: fields,
            body: body.to_vec(),
            limits: LIMITS,
            exclusive: None,
        };
        Box::pin(async move {
            let reply = self.0.send(call).await.map_err(|failure| failure.to_string())?;
            let mut response = Response::new(Bytes::from(reply.body));
            *response.status_mut() = StatusCode::from_u16(reply.status)?;
            response.headers_mut().extend(lines::read(&reply.head));
            Ok(response)
        })
    }
}

const LIMITS: Limits = Limits {
    connect: Duration::from_secs(2),
    first_byte: Duration::from_secs(5),
    total: Duration::from_secs(10),
    max_body_bytes: 1 << 20,
};
