//! The slot as a handler: on each core one set of instances for each generation that is not over.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use http::Method;
use tokio::{
    sync::{Notify, mpsc},
    time::timeout,
};

use super::{
    Outcome, Thresholds,
    slot::{Generation, Order, STAMP, Slot},
};
use crate::{
    handler::{CoreHandler, Handler, Request, Response},
    node_door::NodeCore,
    problem::SecondTry,
    revision::{Kind, Revision},
    wasi_http::HttpCore,
};

/// Answers with what the slot serves.
pub struct Live {
    slot: Arc<Slot>,
    /// Its cores share what one has no place for.
    crew: bool,
}

impl Live {
    /// Answers with `revision` for good.
    #[must_use]
    pub fn of(revision: Arc<Revision>) -> Self {
        Self::new(Slot::new(revision, Thresholds::default().window))
    }

    /// On cores that take from each other what one has no place for.
    pub(crate) fn new(slot: Arc<Slot>) -> Self {
        Self { slot, crew: true }
    }

    /// On cores that take nothing from the others, so that they have room when all others are full.
    pub(crate) fn apart(slot: Arc<Slot>) -> Self {
        Self { slot, crew: false }
    }
}

impl Handler for Live {
    type Core = Core;

    fn core(&self, _: usize) -> Core {
        let core = Core::of(self.slot.clone(), self.crew);
        // Joined before it looks what is served: what it finds then is retired only by an order it gets.
        let orders = self.slot.join();
        core.0.serve_now();
        tokio::task::spawn_local(core.clone().obey(orders));
        core
    }
}

/// The sets of one core.
#[derive(Clone)]
pub struct Core(Rc<Sets>);

struct Sets {
    slot: Arc<Slot>,
    crew: bool,
    all: RefCell<Vec<Rc<Set>>>,
}

/// The instances of one generation on one core.
struct Set {
    generation: Arc<Generation>,
    instances: Instances,
    /// Requests that have chosen it and are not answered.
    visits: Cell<usize>,
    left: Notify,
}

enum Instances {
    Node(Rc<NodeCore>),
    Http(Rc<HttpCore>),
}

impl CoreHandler for Core {
    fn handle(&self, request: Request) -> impl Future<Output = Response> + 'static {
        let sets = self.0.clone();
        // Chosen and counted without a pause between, on the thread that takes orders: a set that is
        // told to end knows of every request that will come to it.
        let visit = {
            let serving = sets.slot.now();
            sets.visit(serving.choose(&request), request.deadline)
        };
        async move {
            // A canary's lost instance is no reason to fail what can be asked twice.
            let again = matches!(request.method, Method::GET | Method::HEAD).then(|| request.clone());
            let (answer, outcome) = visit.answer(request).await;
            match again {
                Some(request) if outcome == Some(Outcome::Lost) => {
                    let other = {
                        let serving = sets.slot.now();
                        let other = serving.active.number != visit.set.generation.number;
                        other.then(|| sets.visit(&serving.active, request.deadline))
                    };
                    match other {
                        Some(visit) => visit.answer(request).await.0,
                        None => answer,
                    }
                }
                _ => answer,
            }
        }
    }

    fn drained(&self) -> impl Future<Output = ()> + 'static {
        let sets = self.0.all.take();
        async move {
            for set in sets {
                set.instances.drained().await;
            }
        }
    }
}

impl Core {
    fn of(slot: Arc<Slot>, crew: bool) -> Self {
        Self(Rc::new(Sets { slot, crew, all: RefCell::default() }))
    }

    /// A set for `revision` that nobody else knows of.
    pub(super) fn alone(revision: Arc<Revision>) -> Self {
        Self::of(Slot::new(revision, Thresholds::default().window), false)
    }

    /// Drops every instance with what is in it.
    pub(super) async fn cut_off(&self) {
        for set in self.0.all.take() {
            set.instances.cut();
            drop(timeout(AFTER_CUT, set.instances.drained()).await);
        }
    }

    async fn obey(self, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Warm { generation, done } => {
                    self.0.of(&generation);
                    _ = done.send(());
                }
                Order::Retire { number, limit, done } => {
                    let set = self.0.take(number);
                    tokio::task::spawn_local(async move {
                        let cut = match set {
                            Some(set) => set.retire(limit).await,
                            None => 0,
                        };
                        _ = done.send(cut);
                    });
                }
            }
        }
    }
}

impl Sets {
    /// Makes the sets of what is served at this moment.
    fn serve_now(&self) {
        let serving = self.slot.now();
        self.of(&serving.active);
        if let Some((canary, _)) = &serving.canary {
            self.of(canary);
        }
    }

    fn visit(&self, generation: &Arc<Generation>, deadline: Instant) -> Visit {
        let set = self.of(generation);
        set.visits.set(set.visits.get() + 1);
        Visit { slot: self.slot.clone(), set, deadline, answered: Cell::new(false) }
    }

    /// The set of `generation`, which is made if it is not there.
    fn of(&self, generation: &Arc<Generation>) -> Rc<Set> {
        let mut sets = self.all.borrow_mut();
        if let Some(set) = sets.iter().find(|set| set.generation.number == generation.number) {
            return set.clone();
        }
        let instances = match generation.revision.kind() {
            Kind::Node(revision) if self.crew => Instances::Node(NodeCore::new(revision.clone())),
            Kind::Node(revision) => Instances::Node(NodeCore::apart(revision.clone())),
            Kind::Http(revision) => Instances::Http(Rc::new(HttpCore::new(revision.clone()))),
        };
        let set = Set { generation: generation.clone(), instances, visits: Cell::new(0), left: Notify::new() };
        let set = Rc::new(set);
        sets.push(set.clone());
        set
    }

    fn take(&self, number: u64) -> Option<Rc<Set>> {
        let mut sets = self.all.borrow_mut();
        let index = sets.iter().position(|set| set.generation.number == number)?;
        Some(sets.swap_remove(index))
    }
}

impl Set {
    /// Waits for its requests and for the work after them; cuts off what is left after `limit` and
    /// says how many requests that were.
    async fn retire(&self, limit: Duration) -> usize {
        if timeout(limit, self.end()).await.is_ok() {
            return 0;
        }
        let cut = self.visits.get();
        self.instances.cut();
        // What was in a store ends with it. A client may yet be waited for that reads no answer.
        if timeout(AFTER_CUT, self.end()).await.is_err() {
            tracing::warn!(revision = %self.generation.revision.digest(), "cut off, and not gone");
        }
        cut
    }

    async fn end(&self) {
        while self.visits.get() > 0 {
            self.left.notified().await;
        }
        self.instances.drained().await;
    }
}

impl Instances {
    async fn answer(&self, request: Request) -> Response {
        match self {
            Self::Node(core) => core.clone().answer(request).await,
            Self::Http(core) => core.answer(request).await,
        }
    }

    async fn drained(&self) {
        match self {
            Self::Node(core) => core.clone().drained().await,
            Self::Http(core) => core.drained().await,
        }
    }

    fn cut(&self) {
        match self {
            Self::Node(core) => core.cut(),
            Self::Http(core) => core.cut(),
        }
    }
}

/// A request in its set, until it is answered or its client has gone.
struct Visit {
    slot: Arc<Slot>,
    set: Rc<Set>,
    deadline: Instant,
    answered: Cell<bool>,
}

impl Visit {
    async fn answer(&self, request: Request) -> (Response, Option<Outcome>) {
        let mut answer = self.set.instances.answer(request).await;
        let generation = &self.set.generation;
        if let Some(stamp) = &generation.stamp {
            answer.headers_mut().insert(STAMP, stamp.clone());
        }
        let outcome = Outcome::of(&answer);
        let before = answer.extensions().get::<SecondTry>().map(|SecondTry| Outcome::Lost);
        for outcome in before.into_iter().chain(outcome) {
            self.slot.now().record(generation, outcome);
        }
        self.answered.set(true);
        (answer, outcome)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // At its deadline the front answers in its place, and drops it.
        if !self.answered.get() && Instant::now() >= self.deadline {
            self.slot.now().record(&self.set.generation, Outcome::Failed);
        }
        self.set.visits.set(self.set.visits.get() - 1);
        self.set.left.notify_waiters();
    }
}

/// For dropped stores to be gone.
const AFTER_CUT: Duration = Duration::from_secs(1);
