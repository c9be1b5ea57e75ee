//! What a `node` component finds around it: the host's side of `wit/node.wit`, one per instance.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use wasmtime::component::{Accessor, HasData};

use crate::{
    bindings::node::edgepass::node::{
        outbound::{self as wire_outbound, Call, Reply},
        runtime::{self, Level},
        store::{self as wire_store, Change, Entry},
        types,
    },
    kv::{self, SharedBackend},
    meter::{Limiter, Metered},
    metrics::Events,
    outbound,
    variables::Snapshot,
};

/// What all instances of a revision share.
pub(crate) struct World {
    /// The component's variables.
    pub(crate) variables: Arc<Snapshot>,
    /// The store, where the manifest gives the component one.
    pub(crate) store: Option<SharedBackend>,
    /// Zero of `tick-ns`.
    pub(crate) started: Instant,
    /// Counts what it says.
    pub(crate) events: Arc<Events>,
}

/// The data of one instance's store.
pub(crate) struct Host {
    pub(crate) world: Arc<World>,
    pub(crate) client: outbound::Client,
    pub(crate) limiter: Limiter,
}

impl Metered for Host {
    fn limiter(&mut self) -> &mut Limiter {
        &mut self.limiter
    }
}

impl HasData for Host {
    type Data<'a> = &'a mut Self;
}

impl types::Host for Host {}

impl runtime::Host for Host {
    fn settings(&mut self) -> Vec<(String, String)> {
        self.world.variables.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn now_ms(&mut self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    }

    fn tick_ns(&mut self) -> u64 {
        u64::try_from(self.world.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Traps when the system gives no random bytes, or when the guest asks for more than it can
    /// have a use for: a key made of anything else would be worse.
    fn random(&mut self, n: u32) -> wasmtime::Result<Vec<u8>> {
        wasmtime::ensure!(n <= MAX_RANDOM_BYTES, "{n} random bytes asked for");
        let mut bytes = vec![0; n as usize];
        getrandom::fill(&mut bytes).map_err(|error| wasmtime::format_err!("no random bytes: {error}"))?;
        Ok(bytes)
    }

    fn log(&mut self, level: Level, line: String) {
        let line = one_line(&line);
        self.world.events.count(&line);
        match level {
            Level::Debug => tracing::debug!(target: crate::log::COMPONENT, "{line}"),
            Level::Info => tracing::info!(target: crate::log::COMPONENT, "{line}"),
            Level::Warn => tracing::warn!(target: crate::log::COMPONENT, "{line}"),
            Level::Error => tracing::error!(target: crate::log::COMPONENT, "{line}"),
        }
    }
}

impl<T> runtime::HostWithStore<T> for Host {
    async fn sleep_ms(_: &Accessor<T, Self>, ms: u32) {
        tokio::time::sleep(Duration::from_millis(ms.into())).await;
    }
}

/// A guest's line as it may enter the log: one line of bounded length.
pub(crate) fn one_line(line: &str) -> String {
    let end = line.floor_char_boundary(MAX_LOG_BYTES);
    line[..end].trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl wire_store::Host for Host {}

impl<T> wire_store::HostWithStore<T> for Host {
    async fn get(accessor: &Accessor<T, Self>, keys: Vec<String>) -> Result<Vec<Option<Vec<u8>>>, wire_store::Failure> {
        let values = backend(accessor)?.get(keys).await?;
        Ok(values.into_iter().map(|value| value.map(Vec::from)).collect())
    }

    async fn apply(accessor: &Accessor<T, Self>, changes: Vec<Change>) -> Result<Vec<bool>, wire_store::Failure> {
        let changes = changes.into_iter().map(kv::Change::from).collect();
        Ok(backend(accessor)?.apply(changes).await?)
    }

    async fn scan(
        accessor: &Accessor<T, Self>,
        prefix: String,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<String>, wire_store::Failure> {
        Ok(backend(accessor)?.scan(prefix, after, limit.min(MAX_SCAN) as usize).await?)
    }
}

fn backend<T>(accessor: &Accessor<T, Host>) -> Result<SharedBackend, wire_store::Failure> {
    accessor.with(|mut access| access.get().world.store.clone()).ok_or(wire_store::Failure::Denied)
}

impl wire_outbound::Host for Host {}

impl<T> wire_outbound::HostWithStore<T> for Host {
    async fn send(accessor: &Accessor<T, Self>, call: Call) -> Result<Reply, wire_outbound::Failure> {
        let client = accessor.with(|mut access| access.get().client.clone());
        let reply = client.send(call.into()).await?;
        Ok(Reply { status: reply.status, head: reply.head, body: reply.body })
    }
}

/// A key is 64 bytes at most; a page of them is generous.
const MAX_RANDOM_BYTES: u32 = 4096;
/// Longest log line taken over, in bytes.
const MAX_LOG_BYTES: usize = 8192;
/// Most keys one scan gives: as many as a sweep of our component asks for at most, which takes fewer
/// for the end.
const MAX_SCAN: u32 = 1000;

impl From<Change> for kv::Change {
    fn from(change: Change) -> Self {
        match change {
            Change::Put(entry) => Self::Put(entry.into()),
            Change::PutIfGreater(entry) => Self::PutIfGreater(entry.into()),
            Change::Delete(key) => Self::Delete(key),
        }
    }
}

impl From<Entry> for kv::Entry {
    fn from(entry: Entry) -> Self {
        Self { key: entry.key, value: Bytes::from(entry.value), expires: entry.expires }
    }
}

impl From<kv::Failure> for wire_store::Failure {
    fn from(failure: kv::Failure) -> Self {
        match failure {
            kv::Failure::Unavailable => Self::Unavailable,
            kv::Failure::Timeout => Self::Timeout,
            kv::Failure::Denied => Self::Denied,
            kv::Failure::TooLarge => Self::TooLarge,
        }
    }
}

impl From<Call> for outbound::Call {
    fn from(call: Call) -> Self {
        let ms = |ms: u32| Duration::from_millis(ms.into());
        Self {
            method: call.method,
            url: call.url,
            head: call.head,
            body: call.body,
            limits: outbound::Limits {
                connect: ms(call.connect_ms),
                first_byte: ms(call.first_byte_ms),
                total: ms(call.total_ms),
                max_body_bytes: call.max_body as usize,
            },
            exclusive: call.exclusive,
        }
    }
}

impl From<outbound::Failure> for wire_outbound::Failure {
    fn from(failure: outbound::Failure) -> Self {
        use crate::outbound::Kind;
        use wire_outbound::Kind as Wire;
        let kind = match failure.kind {
            Kind::Denied => Wire::Denied,
            Kind::Unresolved => Wire::Unresolved,
            Kind::Unreachable | Kind::Down => Wire::Unreachable,
            Kind::Tls => Wire::Tls,
            Kind::Timeout => Wire::Timeout,
            Kind::Broken => Wire::Broken,
            Kind::TooLarge => Wire::TooLarge,
            Kind::Busy => Wire::Busy,
            Kind::Duplicate => Wire::Duplicate,
        };
        Self { kind, sent: failure.sent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_cannot_forge_a_log_line() {
        assert_eq!(one_line("a\nb\x1b[31m\r\n"), "a b [31m");
        assert_eq!(one_line(&"é".repeat(MAX_LOG_BYTES)).len(), MAX_LOG_BYTES);
    }
}
