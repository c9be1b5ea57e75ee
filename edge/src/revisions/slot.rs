//! What is served now, and the cores that serve it.
//!
//! There is one pointer, and a request reads it once. Whoever changes it has every core make instances
//! first, and tells every core afterwards to let go of what it served before: that stays, for as long
//! as it takes, for the requests that had chosen it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, Guard};
use futures::future::join_all;
use http::HeaderValue;
use tokio::sync::{mpsc, oneshot};

use super::{Outcome, Recent, Rule, Trial};
use crate::{handler::Request, revision::Revision};

/// The one place where revisions are exchanged.
pub(crate) struct Slot {
    now: ArcSwap<Serving>,
    cores: Mutex<Vec<mpsc::UnboundedSender<Order>>>,
    numbers: AtomicU64,
    /// Over which requests are counted.
    window: Duration,
}

/// Who answers.
#[derive(Clone)]
pub(crate) struct Serving {
    pub(crate) active: Arc<Generation>,
    /// Another one, and which requests it gets.
    pub(crate) canary: Option<(Arc<Generation>, Rule)>,
    /// How the newer of the two is judged, while it is.
    pub(super) trial: Option<Arc<Trial>>,
}

/// A revision, from the moment it is made to serve until it does no more. One that comes back is
/// another generation.
pub(crate) struct Generation {
    pub(super) number: u64,
    pub(crate) revision: Arc<Revision>,
    /// How its requests went, of late.
    pub(super) recent: Recent,
    /// Its value of [`STAMP`].
    pub(super) stamp: Option<HeaderValue>,
}

/// The field that says which revision made an answer: the first digits of its digest. Not one of
/// `x-edgepass-*`, which say who is calling and are copied by gateways.
pub(super) const STAMP: http::HeaderName = http::HeaderName::from_static("x-edge-revision");

/// What a core is told.
pub(super) enum Order {
    /// Be ready to serve it.
    Warm { generation: Arc<Generation>, done: oneshot::Sender<()> },
    /// Nobody chooses it any more: finish, and after `limit` cut off what is left. Answers how many
    /// requests that were.
    Retire { number: u64, limit: Duration, done: oneshot::Sender<usize> },
}

impl Slot {
    /// A slot that serves `revision`, and counts requests over `window`.
    pub(crate) fn new(revision: Arc<Revision>, window: Duration) -> Arc<Self> {
        let active = Arc::new(Generation::new(0, revision, window));
        Arc::new(Self {
            now: ArcSwap::from_pointee(Serving { active, canary: None, trial: None }),
            cores: Mutex::default(),
            numbers: AtomicU64::new(1),
            window,
        })
    }

    /// What is served at this moment.
    pub(crate) fn now(&self) -> Guard<Arc<Serving>> {
        self.now.load()
    }

    /// `revision` on its way to serving.
    pub(super) fn generation(&self, revision: Arc<Revision>) -> Arc<Generation> {
        Arc::new(Generation::new(self.numbers.fetch_add(1, Relaxed), revision, self.window))
    }

    /// Has every core make instances of `generation`. Cores that are ending are not waited for.
    pub(super) async fn warm(&self, generation: &Arc<Generation>) {
        self.order(|done| Order::Warm { generation: generation.clone(), done }).await;
    }

    /// Serves `next` from here on: requests that come after it returns see nothing else.
    pub(super) fn serve(&self, next: Serving) {
        self.now.store(Arc::new(next));
    }

    /// Waits until no core has anything of `generation` any more, or `limit` has passed and it was cut
    /// off. Answers how many requests were. Nobody may serve it.
    pub(super) async fn retire(&self, generation: &Generation, limit: Duration) -> usize {
        let number = generation.number;
        self.order(|done| Order::Retire { number, limit, done }).await.into_iter().sum()
    }

    /// A core takes part; its orders arrive in the inbox.
    pub(super) fn join(&self) -> mpsc::UnboundedReceiver<Order> {
        let (orders, inbox) = mpsc::unbounded_channel();
        self.cores().push(orders);
        inbox
    }

    /// Tells every core, and collects what those answer that do not end meanwhile.
    async fn order<T>(&self, order: impl Fn(oneshot::Sender<T>) -> Order) -> Vec<T> {
        let mut answers = Vec::new();
        self.cores().retain(|core| {
            let (done, answer) = oneshot::channel();
            let there = core.send(order(done)).is_ok();
            answers.push(answer);
            there
        });
        join_all(answers).await.into_iter().flatten().collect()
    }

    fn cores(&self) -> MutexGuard<'_, Vec<mpsc::UnboundedSender<Order>>> {
        // Nothing is left half done by a panic: a core is in the list or it is not.
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Serving {
    /// Who answers `request`.
    pub(super) fn choose(&self, request: &Request) -> &Arc<Generation> {
        match &self.canary {
            Some((canary, rule)) if rule.takes(canary.revision.digest(), &request.headers, request.client.ip()) => {
                canary
            }
            _ => &self.active,
        }
    }

    /// A request that `generation` had has ended.
    pub(super) fn record(&self, generation: &Generation, outcome: Outcome) {
        generation.recent.record(outcome, Instant::now());
        let Some(trial) = &self.trial else { return };
        let newest = self.canary.as_ref().map_or(&self.active, |(canary, _)| canary);
        if generation.number == newest.number {
            trial.record(outcome);
        } else if generation.number == self.active.number {
            trial.record_old(outcome);
        }
    }

    /// The same with the newest on trial from now on.
    pub(super) fn on_trial(self, trial: Option<Trial>) -> Self {
        Self { trial: trial.map(Arc::new), ..self }
    }
}

impl Generation {
    fn new(number: u64, revision: Arc<Revision>, window: Duration) -> Self {
        let stamp = HeaderValue::try_from(revision.digest().short()).ok();
        Self { number, revision, recent: Recent::new(window, Instant::now()), stamp }
    }
}
