//! Changes of what is served, in numbers.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::Took;
use crate::engine::Digest;

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The counts of one node. Clones are the same counts.
#[derive(Clone)]
pub(super) struct Metrics {
    changes: Family<Labels<2>, Counter>,
    rollbacks: Family<Labels<1>, Counter>,
    cut: Counter,
    draining: Gauge,
    canary: Gauge,
    took: Family<Labels<1>, Histogram, fn() -> Histogram>,
    serving: Family<[(&'static str, String); 2], Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let took: fn() -> Histogram = || Histogram::new([0.001, 0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0]);
        Self {
            changes: Family::default(),
            rollbacks: Family::default(),
            cut: Counter::default(),
            draining: Gauge::default(),
            canary: Gauge::default(),
            took: Family::new_with_constructor(took),
            serving: Family::default(),
        }
    }
}

impl Metrics {
    /// A change was made, or was not.
    pub(super) fn changed(&self, action: &'static str, result: &'static str) {
        self.changes.get_or_create(&[("action", action), ("result", result)]).inc();
    }

    /// The node went back by itself.
    pub(super) fn rolled_back(&self, cause: &'static str) {
        self.rollbacks.get_or_create(&[("cause", cause)]).inc();
    }

    pub(super) fn taken_in(&self, took: Took) {
        for (step, seconds) in [("compile", took.compile), ("check", took.check), ("probe", took.probe)] {
            self.took.get_or_create(&[("step", step)]).observe(seconds);
        }
    }

    pub(super) fn drain_begins(&self) {
        self.draining.inc();
    }

    pub(super) fn drain_ends(&self, seconds: f64, cut: usize) {
        self.draining.dec();
        self.cut.inc_by(cut as u64);
        self.took.get_or_create(&[("step", "drain")]).observe(seconds);
    }

    /// What is served now: one series for each side, whatever was served before.
    pub(super) fn serves(&self, active: Digest, canary: Option<Digest>) {
        self.serving.clear();
        self.serving.get_or_create(&[("side", "active".into()), ("digest", active.short())]).set(1);
        if let Some(canary) = canary {
            self.serving.get_or_create(&[("side", "canary".into()), ("digest", canary.short())]).set(1);
        }
        self.canary.set(canary.is_some().into());
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("edgepass_swap_changes", "Changes of what is served, by result", self.changes.clone());
        let help = "Changes taken back because of how requests went";
        registry.register("edgepass_swap_rollbacks", help, self.rollbacks.clone());
        let help = "Requests that were cut off when their revision had to be gone";
        registry.register("edgepass_swap_cut_requests", help, self.cut.clone());
        registry.register("edgepass_swap_draining", "Revisions that only finish what they have", self.draining.clone());
        registry.register("edgepass_swap_canary", "Whether a second revision gets requests", self.canary.clone());
        registry.register("edgepass_swap_step_seconds", "How long the steps of a change take", self.took.clone());
        registry.register("edgepass_swap_serving", "What is served, by digest", self.serving.clone());
    }
}
