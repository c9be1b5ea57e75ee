//! The door of the edge node: the world `node` of `wit/node.wit`.
//!
//! Everything is flat and owned, so this file only renames: a request record is a
//! [`Request`], a list of changes is a list of changes. The node reads and writes HTTP.

use std::{cell::OnceCell, rc::Rc, time::Duration};

use self::bindings::{
    edgepass::node::{outbound, runtime, store},
    exports::edgepass::node::service::{self, Guest},
};
use crate::{
    Service,
    clock::{Clock, Sleep, UnixMillis},
    host::{Host, Level},
    message::{Head, Request},
    outbound::{Call, HttpClient, Reply, SendError, SendErrorKind},
    random::Random,
    store::{Change, Store, StoreError},
};

/// What `wit-bindgen` makes of `wit/node.wit`. Exporting to the component model is done with
/// exported symbols and raw memory, hence the unsafe code; nothing here is written by hand.
#[allow(unsafe_code, missing_docs, unreachable_pub, unused_qualifications, clippy::all, clippy::pedantic)]
mod bindings {
    wit_bindgen::generate!({
        world: "node",
        path: "wit",
        pub_export_macro: true,
    });
    export!(Door with_types_in self);
    use super::Door;
}

struct Door;

impl Guest for Door {
    fn describe() -> service::Description {
        let described = instance().describe();
        service::Description {
            version: described.version,
            commit: described.commit,
            built: described.built,
            reads: described.reads,
            settings: described.settings,
            problems: described.problems,
        }
    }

    async fn handle(request: service::Request) -> service::Response {
        let answer = instance()
            .handle(Request {
                method: request.method,
                target: request.target,
                head: Head::from_lines(request.head),
                body: request.body,
            })
            .await;
        service::Response { status: answer.status, head: answer.head.into_lines(), body: answer.body }
    }
}

/// The service of this instance, with the settings read once and nothing of any request.
fn instance() -> Rc<Service<NodeHost>> {
    thread_local! {
        static INSTANCE: OnceCell<Rc<Service<NodeHost>>> = const { OnceCell::new() };
    }
    INSTANCE.with(|instance| {
        let service = instance.get_or_init(|| {
            std::panic::set_hook(Box::new(|panic| log_panic(panic.location())));
            Rc::new(Service::new(NodeHost, &runtime::settings()))
        });
        Rc::clone(service)
    })
}

/// A panic is the end of the instance; where it was is the most that may be said, because its
/// message may quote what it was working on.
fn log_panic(at: Option<&std::panic::Location<'_>>) {
    let at = at.map_or_else(|| "unknown".to_owned(), ToString::to_string);
    runtime::log(runtime::Level::Error, &format!("{{\"event\":\"panic\",\"at\":\"{at}\"}}"));
}

/// The node behind the imports. It has no state of its own.
#[derive(Clone)]
struct NodeHost;

impl Host for NodeHost {
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

    fn log(&self, level: Level, line: String) {
        let level = match level {
            Level::Debug => runtime::Level::Debug,
            Level::Info => runtime::Level::Info,
            Level::Warn => runtime::Level::Warn,
            Level::Error => runtime::Level::Error,
        };
        runtime::log(level, &line);
    }

    fn later(&self, work: impl Future<Output = ()> + 'static) {
        wit_bindgen::spawn_local(async {
            wit_bindgen::yield_async().await;
            work.await;
        });
    }
}

impl Store for NodeHost {
    async fn get(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        Ok(store::get(keys).await?)
    }

    async fn apply(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        store::apply(changes.into_iter().map(Into::into).collect()).await?;
        Ok(())
    }

    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        Ok(store::scan(prefix.to_owned(), after.map(str::to_owned), limit).await?)
    }
}

impl HttpClient for NodeHost {
    async fn send(&self, call: Call) -> Result<Reply, SendError> {
        let reply = outbound::send(call.into()).await?;
        Ok(Reply { status: reply.status, head: Head::from_lines(reply.head), body: reply.body })
    }
}

impl Clock for NodeHost {
    fn now(&self) -> UnixMillis {
        UnixMillis(runtime::now_ms())
    }

    fn tick_ns(&self) -> u64 {
        runtime::tick_ns()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(runtime::sleep_ms(milliseconds(duration)))
    }
}

impl Random for NodeHost {
    fn fill(&self, buffer: &mut [u8]) {
        let length = u32::try_from(buffer.len()).expect("no key or nonce has 4 GiB");
        buffer.copy_from_slice(&runtime::random(length));
    }
}

impl From<Change> for store::Change {
    fn from(change: Change) -> Self {
        match change {
            Change::Put { key, value, expires } => Self::Put(store::Entry { key, value, expires }),
            Change::PutIfGreater { key, value, expires } => Self::PutIfGreater(store::Entry { key, value, expires }),
            Change::Delete { key } => Self::Delete(key),
        }
    }
}

impl From<store::Failure> for StoreError {
    fn from(failure: store::Failure) -> Self {
        match failure {
            store::Failure::Unavailable => Self::Unavailable,
            store::Failure::Timeout => Self::Timeout,
            store::Failure::Denied => Self::Denied,
            store::Failure::TooLarge => Self::TooLarge,
        }
    }
}

impl From<Call> for outbound::Call {
    fn from(call: Call) -> Self {
        Self {
            method: call.method.to_owned(),
            url: call.url,
            head: call.head.into_lines(),
            body: call.body,
            connect_ms: milliseconds(call.limits.connect),
            first_byte_ms: milliseconds(call.limits.first_byte),
            total_ms: milliseconds(call.limits.total),
            max_body: call.limits.max_body_bytes,
            exclusive: call.exclusive.map(|key| key.to_vec()),
        }
    }
}

impl From<outbound::Failure> for SendError {
    fn from(failure: outbound::Failure) -> Self {
        let kind = match failure.kind {
            outbound::Kind::Denied => SendErrorKind::Denied,
            outbound::Kind::Unresolved => SendErrorKind::Unresolved,
            outbound::Kind::Unreachable => SendErrorKind::Unreachable,
            outbound::Kind::Tls => SendErrorKind::Tls,
            outbound::Kind::Timeout => SendErrorKind::Timeout,
            outbound::Kind::Broken => SendErrorKind::Broken,
            outbound::Kind::TooLarge => SendErrorKind::TooLarge,
            outbound::Kind::Busy => SendErrorKind::Busy,
            outbound::Kind::Duplicate => SendErrorKind::Duplicate,
        };
        Self { kind, sent: failure.sent }
    }
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
