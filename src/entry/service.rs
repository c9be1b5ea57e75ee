//! The door of every WASI 0.3 host, Spin among them: the world `service`, which exports
//! `wasi:http/handler` and imports what `spin-sdk` wraps.
//!
//! The handler is exported with the SDK's own bindings and not with its `#[http_service]`: that
//! macro turns a request into the `http` crate's, and answers one it cannot turn (a strange
//! target, two content lengths) with an error code, which Spin shows as an empty 500. Here every
//! request gets an answer of the core's, and a dozen header fields are not copied twice.

use std::{
    cell::{OnceCell, RefCell},
    collections::BTreeSet,
    pin::pin,
    rc::Rc,
    time::Duration,
};

use futures::future::{self, Either};
use spin_sdk::{
    key_value, variables,
    wasip3::{
        cli::stdout,
        clocks::{monotonic_clock, system_clock},
        exports::http::handler::Guest,
        http::{
            client,
            types::{self, ErrorCode, Fields, Method, RequestOptions, Scheme, Trailers},
        },
        random::random,
        wit_future, wit_stream,
    },
    wit_bindgen::{FutureReader, StreamReader, StreamResult, spawn, yield_async},
};

use crate::{
    Service,
    clock::{Clock, Sleep, UnixMillis},
    config,
    host::{Host, Level},
    message::{Head, Request, Response},
    outbound::{Call, HttpClient, Reply, SendError, SendErrorKind},
    problem::{Code, Problem},
    random::Random,
    routes::{MAX_BODY_BYTES, READS},
    store::{Change, Store, StoreError},
    trace::Trace,
};

struct Door;

spin_sdk::wasip3::http::service::export!(Door);

impl Guest for Door {
    async fn handle(request: types::Request) -> Result<types::Response, ErrorCode> {
        Ok(outgoing(answer(request).await))
    }
}

async fn answer(request: types::Request) -> Response {
    let Ok(service) = instance().await else {
        return refusal(Code::Config, "The settings could not be read.");
    };
    match incoming(request).await {
        Ok(request) => service.handle(request).await,
        // The client broke off in the middle of its body, so hardly anyone is there to read this.
        Err(_) => refusal(Code::BadRequest, "The body ended in the middle."),
    }
}

/// An answer for what goes wrong before the core is asked.
fn refusal(code: Code, detail: &'static str) -> Response {
    let trace = Trace::of(&Head::new(), SpinHost::default().random());
    let mut response = Problem::new(code, detail).response(&trace.id);
    response.head.push("cache-control", "no-store");
    response.head.push("x-trace-id", &trace.id);
    response
}

/// What is kept between requests: settings and keys, nothing of any user. Made at the first
/// request. Those that arrive meanwhile read the settings too: waiting for another request's task
/// is what must not be done here.
///
/// # Errors
/// When the provider of the variables fails. That may pass, so it is not remembered: taking it for
/// "not set" would run the service with a default in place of its issuer.
async fn instance() -> Result<Rc<Service<SpinHost>>, variables::Error> {
    thread_local! {
        static INSTANCE: OnceCell<Rc<Service<SpinHost>>> = const { OnceCell::new() };
    }
    if let Some(service) = INSTANCE.with(|instance| instance.get().cloned()) {
        return Ok(service);
    }
    let mut settings = settings(config::SETTINGS).await?;
    // Known only now: the variables that entries of `apps` take their secrets from.
    let referenced =
        config::referenced(&settings).into_iter().filter(|name| !config::SETTINGS.contains(&name.as_str()));
    settings.extend(self::settings(referenced).await?);
    Ok(INSTANCE.with(|instance| {
        let service = instance.get_or_init(|| Rc::new(Service::new(SpinHost::default(), &settings)));
        Rc::clone(service)
    }))
}

/// Those of `names` that have a value, all read at once.
async fn settings(
    names: impl IntoIterator<Item = impl Into<String>>,
) -> Result<Vec<(String, String)>, variables::Error> {
    let values = names.into_iter().map(Into::into).map(async |name: String| match variables::get(&name).await {
        Ok(value) => Ok(Some((name, value))),
        // A name of `apps` that cannot be a variable's is a problem the core names.
        Err(variables::Error::Undefined(_) | variables::Error::InvalidName(_)) => Ok(None),
        Err(error) => Err(error),
    });
    Ok(future::try_join_all(values).await?.into_iter().flatten().collect())
}

async fn incoming(request: types::Request) -> Result<Request, ErrorCode> {
    let method = match request.get_method() {
        Method::Get => "GET".to_owned(),
        Method::Head => "HEAD".to_owned(),
        Method::Post => "POST".to_owned(),
        Method::Put => "PUT".to_owned(),
        Method::Delete => "DELETE".to_owned(),
        Method::Connect => "CONNECT".to_owned(),
        Method::Options => "OPTIONS".to_owned(),
        Method::Trace => "TRACE".to_owned(),
        Method::Patch => "PATCH".to_owned(),
        Method::Other(name) => name,
    };
    let target = request.get_path_with_query().unwrap_or_else(|| "/".to_owned());
    // Spin appends its `spin-*` fields to those a client made up, so none of them is read.
    let head = head(&request.get_headers(), |name| READS.contains(&name));
    let (_handled, handled) = wit_future::new(|| Ok(()));
    let (stream, end) = types::Request::consume_body(request, handled);
    let body = read(stream, end, MAX_BODY_BYTES + 1).await?;
    Ok(Request { method, target, head, body })
}

fn outgoing(answer: Response) -> types::Response {
    let mut fields: Vec<_> = answer.head.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    // RFC 9110, 8.6: not with 204, and with 304 it would be that of the answer left out.
    if !matches!(answer.status, 204 | 304) {
        fields.push(("content-length".to_owned(), answer.body.len().to_string().into_bytes()));
    }
    let (fields, status) = match Fields::from_list(&fields) {
        Ok(fields) => (fields, answer.status),
        // The host refuses a field, and an answer without its fields could be cached or read wrongly.
        Err(_) => (Fields::new(), 500),
    };
    let (contents, trailers) = write(if status == answer.status { answer.body } else { Vec::new() });
    let (response, _transmitted) = types::Response::new(fields, contents, trailers);
    let _ = response.set_status_code(status);
    response
}

fn head(fields: &Fields, wanted: impl Fn(&str) -> bool) -> Head {
    let mut head = Head::new();
    for (name, value) in fields.copy_all() {
        let name = name.to_ascii_lowercase();
        if wanted(&name) {
            head.push_bytes(&name, &value);
        }
    }
    head
}

/// How a body ended, once its stream is closed.
type Ended = Result<Option<Trailers>, ErrorCode>;

/// Reads a body, or its first `limit` bytes.
async fn read(mut stream: StreamReader<u8>, end: FutureReader<Ended>, limit: usize) -> Result<Vec<u8>, ErrorCode> {
    let mut body = Vec::new();
    loop {
        if body.len() == body.capacity() {
            body.reserve_exact(CHUNK_BYTES.min(limit - body.len()));
        }
        let result;
        (result, body) = stream.read(body).await;
        if body.len() >= limit {
            body.truncate(limit);
            return Ok(body);
        }
        if result == StreamResult::Dropped {
            return end.await.map(|_trailers| body);
        }
    }
}

/// A body for the host to take. Without any bytes it is none at all.
fn write(body: Vec<u8>) -> (Option<StreamReader<u8>>, FutureReader<Ended>) {
    // Dropped at once, the writer sends this value.
    let (_no_trailers, trailers) = wit_future::new(|| Ok(None));
    if body.is_empty() {
        return (None, trailers);
    }
    let (mut writer, contents) = wit_stream::new();
    spawn(async move {
        // What is left over belongs to a reader that has gone.
        let _ = writer.write_all(body).await;
    });
    (Some(contents), trailers)
}

/// The host behind the imports.
#[derive(Clone, Default)]
struct SpinHost {
    under_way: Rc<RefCell<BTreeSet<[u8; 32]>>>,
}

impl Host for SpinHost {
    type Store = Self;
    type Http = Self;

    fn store(&self) -> &Self {
        self
    }

    fn http(&self) -> &Self {
        self
    }

    fn clock(&self) -> &dyn Clock {
        self
    }

    fn random(&self) -> &dyn Random {
        self
    }

    /// On this host a line is a stream and a future, so it leaves after the answer.
    fn log(&self, _level: Level, mut line: String) {
        line.push('\n');
        self.later(async move {
            let (mut writer, lines) = wit_stream::new();
            let written = stdout::write_via_stream(lines);
            let _ = writer.write_all(line.into_bytes()).await;
            drop(writer);
            let _ = written.await;
        });
    }

    fn later(&self, work: impl Future<Output = ()> + 'static) {
        spawn(async {
            yield_async().await;
            work.await;
        });
    }
}

/// The store is opened anew for every batch: a handle kept between requests would belong to no
/// task that is still there (WASI issue 898), and opening costs one call.
impl Store for SpinHost {
    async fn get(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let store = key_value::Store::open_default().await?;
        Ok(future::try_join_all(keys.iter().map(|key| store.get(key))).await?)
    }

    /// Without expiry and comparison: Spin's interface has neither. The envelope carries the one; the
    /// core is right without the other.
    async fn apply(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let store = key_value::Store::open_default().await?;
        for change in changes {
            match change {
                Change::Put { key, value, .. } | Change::PutIfGreater { key, value, .. } => {
                    store.set(key, value).await?;
                }
                Change::Delete { key } => store.delete(key).await?,
            }
        }
        Ok(())
    }

    /// Listed to the end before anything else is asked of the store: the stream and another call at
    /// once bring some of Spin's stores to a standstill.
    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, StoreError> {
        let store = key_value::Store::open_default().await?;
        let mut keys = store.get_keys().await;
        let mut first = BTreeSet::new();
        while let Some(key) = keys.next().await {
            if key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after) {
                first.insert(key);
                if first.len() > limit {
                    first.pop_last();
                }
            }
        }
        keys.result().await?;
        Ok(first.into_iter().collect())
    }
}

impl From<key_value::Error> for StoreError {
    fn from(error: key_value::Error) -> Self {
        match error {
            key_value::Error::NoSuchStore | key_value::Error::AccessDenied => Self::Denied,
            key_value::Error::StoreTableFull | key_value::Error::Other(_) => Self::Unavailable,
        }
    }
}

impl HttpClient for SpinHost {
    async fn send(&self, call: Call) -> Result<Reply, SendError> {
        let _claim = call.exclusive.map(|key| Claim::new(self, key)).transpose()?;
        let deadline = pin!(monotonic_clock::wait_for(nanoseconds(call.limits.total)));
        match future::select(pin!(exchange(call)), deadline).await {
            Either::Left((result, _)) => result,
            // How far it had come is not known, so the code may be spent.
            Either::Right(_) => Err(SendError { kind: SendErrorKind::Timeout, sent: true }),
        }
    }
}

/// The right to make the one exchange with its key.
struct Claim<'a> {
    host: &'a SpinHost,
    key: [u8; 32],
}

impl<'a> Claim<'a> {
    fn new(host: &'a SpinHost, key: [u8; 32]) -> Result<Self, SendError> {
        if host.under_way.borrow_mut().insert(key) {
            Ok(Self { host, key })
        } else {
            Err(SendError { kind: SendErrorKind::Duplicate, sent: false })
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.host.under_way.borrow_mut().remove(&self.key);
    }
}

async fn exchange(call: Call) -> Result<Reply, SendError> {
    let limit = call.limits.max_body_bytes as usize;
    let request = request(call).ok_or(SendError { kind: SendErrorKind::Denied, sent: false })?;
    let response = client::send(request).await.map_err(|code| failure(&code))?;
    let status = response.get_status_code();
    let head = head(&response.get_headers(), |_| true);
    let (_handled, handled) = wit_future::new(|| Ok(()));
    let (stream, end) = types::Response::consume_body(response, handled);
    let body = read(stream, end, limit.saturating_add(1)).await;
    let body = body.map_err(|code| SendError { sent: true, ..failure(&code) })?;
    if body.len() > limit {
        return Err(SendError { kind: SendErrorKind::TooLarge, sent: true });
    }
    Ok(Reply { status, head, body })
}

/// `None` when the host refuses a part of it before anything is sent.
fn request(call: Call) -> Option<types::Request> {
    let (scheme, rest) = call.url.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let method = match call.method {
        "GET" => Method::Get,
        "POST" => Method::Post,
        other => Method::Other(other.to_owned()),
    };
    let scheme = match scheme {
        "https" => Scheme::Https,
        "http" => Scheme::Http,
        other => Scheme::Other(other.to_owned()),
    };
    let mut fields: Vec<_> = call.head.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    if !call.body.is_empty() {
        fields.push(("content-length".to_owned(), call.body.len().to_string().into_bytes()));
    }
    let (contents, trailers) = write(call.body);
    let options = RequestOptions::new();
    // A host that does not know one of these limits is still held to the total.
    let _ = options.set_connect_timeout(Some(nanoseconds(call.limits.connect)));
    let _ = options.set_first_byte_timeout(Some(nanoseconds(call.limits.first_byte)));
    let _ = options.set_between_bytes_timeout(Some(nanoseconds(call.limits.total)));
    let fields = Fields::from_list(&fields).ok()?;
    let (request, _transmitted) = types::Request::new(fields, contents, trailers, Some(options));
    request.set_method(&method).ok()?;
    request.set_scheme(Some(&scheme)).ok()?;
    request.set_authority(Some(authority)).ok()?;
    request.set_path_with_query(Some(path)).ok()?;
    Some(request)
}

/// What the host's error means to the core. `sent` is false only where the code says that the
/// exchange never began.
fn failure(code: &ErrorCode) -> SendError {
    let (kind, sent) = match code {
        ErrorCode::HttpRequestDenied | ErrorCode::DestinationIpProhibited => (SendErrorKind::Denied, false),
        ErrorCode::DnsError(_) | ErrorCode::DestinationNotFound => (SendErrorKind::Unresolved, false),
        ErrorCode::DestinationUnavailable
        | ErrorCode::DestinationIpUnroutable
        | ErrorCode::ConnectionRefused
        | ErrorCode::LoopDetected
        | ErrorCode::ConfigurationError => (SendErrorKind::Unreachable, false),
        ErrorCode::DnsTimeout | ErrorCode::ConnectionTimeout => (SendErrorKind::Timeout, false),
        ErrorCode::ConnectionLimitReached => (SendErrorKind::Busy, false),
        ErrorCode::TlsCertificateError | ErrorCode::TlsProtocolError => (SendErrorKind::Tls, false),
        // In TLS 1.3 a server may refuse the client after the request is on its way.
        ErrorCode::TlsAlertReceived(_) => (SendErrorKind::Tls, true),
        ErrorCode::ConnectionReadTimeout | ErrorCode::ConnectionWriteTimeout | ErrorCode::HttpResponseTimeout => {
            (SendErrorKind::Timeout, true)
        }
        ErrorCode::HttpResponseHeaderSectionSize(_)
        | ErrorCode::HttpResponseHeaderSize(_)
        | ErrorCode::HttpResponseBodySize(_)
        | ErrorCode::HttpResponseTrailerSectionSize(_)
        | ErrorCode::HttpResponseTrailerSize(_) => (SendErrorKind::TooLarge, true),
        ErrorCode::HttpRequestLengthRequired
        | ErrorCode::HttpRequestBodySize(_)
        | ErrorCode::HttpRequestMethodInvalid
        | ErrorCode::HttpRequestUriInvalid
        | ErrorCode::HttpRequestUriTooLong
        | ErrorCode::HttpRequestHeaderSectionSize(_)
        | ErrorCode::HttpRequestHeaderSize(_)
        | ErrorCode::HttpRequestTrailerSectionSize(_)
        | ErrorCode::HttpRequestTrailerSize(_) => (SendErrorKind::Broken, false),
        _ => (SendErrorKind::Broken, true),
    };
    SendError { kind, sent }
}

impl Clock for SpinHost {
    fn now(&self) -> UnixMillis {
        let now = system_clock::now();
        let seconds = u64::try_from(now.seconds).unwrap_or_default();
        UnixMillis(seconds.saturating_mul(1000).saturating_add(u64::from(now.nanoseconds / 1_000_000)))
    }

    fn tick_ns(&self) -> u64 {
        monotonic_clock::now()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(monotonic_clock::wait_for(nanoseconds(duration)))
    }
}

impl Random for SpinHost {
    fn fill(&self, buffer: &mut [u8]) {
        let mut rest = buffer;
        // The host may give fewer than asked for, though never none.
        while !rest.is_empty() {
            let bytes = random::get_random_bytes(rest.len() as u64);
            let (filled, unfilled) = rest.split_at_mut(bytes.len().min(rest.len()));
            filled.copy_from_slice(&bytes[..filled.len()]);
            rest = unfilled;
        }
    }
}

fn nanoseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

const CHUNK_BYTES: usize = 16 * 1024;
