//! What the node knows of itself in numbers, and how they are read: `/metrics`.
//!
//! Whoever measures something owns the numbers and says here, once, how they are read
//! ([`Metrics::register`]). Names begin with `edgepass_` (a process's own with `process_`), units are
//! seconds and bytes, and labels come from closed lists: never a user, an address, a code or a trace.

mod events;
mod exposition;
pub(crate) mod histogram;
pub(crate) mod http;
mod outcome;
pub(crate) mod pool;
pub(crate) mod process;
pub(crate) mod route;
mod routes;
pub(crate) mod stage;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use prometheus_client::{metrics::info::Info, registry::Registry};
use serde_json::{Map, Value};

use crate::traces::Traces;

pub use self::{
    events::EVENTS,
    outcome::{CODES, Fault},
    route::ROUTES,
};
pub(crate) use self::{events::Events, routes::routes};
use self::{http::Http, pool::Pool, process::Process};

/// The numbers of one node. Clones are the same numbers.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    http: Arc<Http>,
    pool: Pool,
    events: Arc<Events>,
    traces: OnceLock<Arc<Traces>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let (http, pool, events) = (Arc::new(Http::default()), Pool::default(), Arc::new(Events::default()));
        let build = Info::new([("version", env!("CARGO_PKG_VERSION")), ("commit", COMMIT)]);
        registry.register("edgepass_build", "Version and commit of the edge node", build);
        registry.register_collector(Box::new(http.clone()));
        registry.register_collector(Box::new(events.clone()));
        registry.register_collector(Box::new(Process));
        pool.register(&mut registry);
        Self(Arc::new(Inner { registry: Mutex::new(registry), http, pool, events, traces: OnceLock::new() }))
    }
}

/// Commit the node was built from.
const COMMIT: &str = match option_env!("EDGEPASS_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

impl Metrics {
    /// Adds what somebody else measures: names with `edgepass_`, base units, bounded labels.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry());
    }

    /// Sends traces of the requests that are counted from now on. Once; a second time changes nothing.
    pub fn trace_to(&self, traces: Arc<Traces>) {
        self.register(|registry| traces.register(registry));
        let _ = self.0.traces.set(traces);
    }

    pub(crate) fn traces(&self) -> Option<&Arc<Traces>> {
        self.0.traces.get()
    }

    /// Everything as text, in the form that suits an `Accept` field: its media type, and the text.
    #[must_use]
    pub fn text(&self, accept: Option<&str>) -> (&'static str, String) {
        exposition::Form::accepted(accept).write(&self.registry())
    }

    /// The present values of what begins with one of `names`, by name and labels as `/metrics` writes
    /// them; of a distribution, its sum and count.
    pub(crate) fn values(&self, names: &[&str]) -> Map<String, Value> {
        let (_, text) = self.text(None);
        let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
        let values = lines.filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            let is_bucket = name.split('{').next()?.ends_with("_bucket");
            (!is_bucket).then(|| Some((name.to_owned(), value.parse::<f64>().ok()?.into())))?
        });
        values.collect()
    }

    /// What the front counts.
    pub(crate) fn http(&self) -> &Arc<Http> {
        &self.0.http
    }

    /// What the pools count.
    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// What components say in their log.
    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.0.events
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Held while metrics are added or read; neither leaves it half done.
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ::http::{HeaderMap, Method};

    use super::*;

    /// The budget of one node, with room for what others register.
    #[test]
    fn hostile_traffic_makes_a_bounded_number_of_series() {
        let metrics = Metrics::default();
        let shard = metrics.http().shard();
        let paths = ROUTES.iter().map(|route| route.template().replace(['{', '}', '*'], "x"));
        for path in paths.chain((0..500).map(|n| format!("/made/up/{n}"))) {
            for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW", "PROPFIND"] {
                for status in [200, 204, 304, 400, 401, 404, 429, 500, 503, 599] {
                    // Only what may be kept is ever answered so.
                    if status == 304
                        && !path.contains("well-known")
                        && !path.contains("openapi")
                        && !path.contains("made")
                    {
                        continue;
                    }
                    let mut head = HeaderMap::new();
                    head.insert(
                        "server-timing",
                        "parse;dur=1, platform;dur=2, store;dur=3, sign;dur=4".parse().expect("a value"),
                    );
                    let method = Method::from_bytes(method.as_bytes()).expect("a method");
                    let body = format!("{{\"type\":\"urn:edgepass:problem:made_up_{path}\"}}");
                    let status = status.try_into().expect("a status");
                    shard.begin(&method, &path).end(&http::Answer {
                        status,
                        head: &head,
                        own: None,
                        body: body.as_bytes(),
                    });
                }
            }
        }
        for n in 0..500 {
            metrics.events().count(&format!("{{\"event\":\"made.up.{n}\"}}"));
        }
        let (_, text) = metrics.text(None);
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!((500..1750).contains(&series), "{series}");
    }
}
