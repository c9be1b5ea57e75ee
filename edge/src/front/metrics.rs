//! What the front counts.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Counters of connections and of what is done before a handler is asked. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub(crate) open: Gauge,
    pub(crate) accepted: Counter,
    refused: One,
    closed: One,
    handshakes: One,
    requests: One,
    limited: One,
    /// Bytes of bodies, which also is what they are allowed by.
    pub(super) bodies: Gauge,
    pub(crate) drain_state: Gauge,
}

type One = Family<[(&'static str, &'static str); 1], Counter>;

impl Metrics {
    /// Adds them to `registry`; names begin with `edgepass_`.
    pub fn register(&self, registry: &mut Registry) {
        // There from the beginning: a rate over a series needs its zero.
        for (family, label, values) in [
            (&self.refused, "cause", &["client", "accept"][..]),
            (&self.closed, "waiting_for", &["head", "request", "reader"]),
            (&self.handshakes, "result", &["full", "resumed", "failed", "timeout"]),
            (&self.limited, "scope", &["client", "all", "refusals"]),
        ] {
            for value in values {
                drop(family.get_or_create(&[(label, value)]));
            }
        }
        registry.register("edgepass_connections", "Connections open now", self.open.clone());
        registry.register("edgepass_connections_accepted", "Connections accepted", self.accepted.clone());
        registry.register(
            "edgepass_connections_refused",
            "Connections not taken: of a client that has too many, or for want of descriptors",
            self.refused.clone(),
        );
        registry.register(
            "edgepass_connections_expired",
            "Connections closed because the client took too long: for a head, between requests, to take an answer",
            self.closed.clone(),
        );
        registry.register("edgepass_tls_handshakes", "TLS handshakes by how they went", self.handshakes.clone());
        registry.register(
            "edgepass_front_requests",
            "Requests by the HTTP version they came in",
            self.requests.clone(),
        );
        registry.register(
            "edgepass_request_body_bytes",
            "Bytes of the bodies of all requests under way",
            self.bodies.clone(),
        );
        registry.register(
            "edgepass_ratelimit_rejected",
            "Requests answered 429: a client's limit, one of all, or too many refused credentials",
            self.limited.clone(),
        );
        registry.register(
            "edgepass_drain_state",
            "0 serving, 1 answers say goodbye, 2 nothing new is accepted",
            self.drain_state.clone(),
        );
    }

    pub(crate) fn refused(&self, cause: &'static str) {
        self.refused.get_or_create(&[("cause", cause)]).inc();
    }

    pub(crate) fn expired(&self, waiting_for: &'static str) {
        self.closed.get_or_create(&[("waiting_for", waiting_for)]).inc();
    }

    pub(crate) fn handshake(&self, result: &'static str) {
        self.handshakes.get_or_create(&[("result", result)]).inc();
    }

    pub(crate) fn request(&self, version: &'static str) {
        self.requests.get_or_create(&[("version", version)]).inc();
    }

    pub(crate) fn limited(&self, scope: &'static str) {
        self.limited.get_or_create(&[("scope", scope)]).inc();
    }
}
