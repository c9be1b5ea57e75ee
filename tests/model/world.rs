//! Nodes over one store, run step by step. Every operation of the store (each key of a read and each
//! change of a batch on its own), every exchange with the platform, every sleep and every piece of
//! work after an answer waits here until the test lets it go on.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use edgepass::{
    Service,
    clock::{Clock, Sleep, UnixMillis},
    host::{Host, Level},
    message::{Head, Request, Response},
    outbound::{Call, HttpClient, Reply, SendError, SendErrorKind},
    random::Random,
    store::{Change, Store, StoreError},
    testing::SeededRandom,
};

use crate::store::{FAILURE, Fate, Faults, Versions};

/// 2023-11-14T22:13:20Z.
pub(crate) const BEGIN: u64 = 1_700_000_000_000;

/// Nodes, their store and their platform.
pub(crate) struct World {
    pub(crate) shared: Rc<Shared>,
    nodes: Vec<Node>,
    tasks: BTreeMap<TaskId, Task>,
    next_task: TaskId,
    faults: Faults,
}

/// One request under way, or work after one.
pub(crate) type TaskId = u32;

type Task = Pin<Box<dyn Future<Output = Option<Response>>>>;

struct Node {
    host: NodeHost,
    service: Rc<Service<NodeHost>>,
}

/// What all nodes reach.
#[derive(Default)]
pub(crate) struct Shared {
    now: Cell<u64>,
    pub(crate) store: RefCell<Versions>,
    /// Codes the platform has seen.
    spent: RefCell<Vec<String>>,
    waiting: RefCell<Vec<Waiting>>,
    later: RefCell<Vec<Pin<Box<dyn Future<Output = ()>>>>>,
    /// Which task is being polled.
    current: Cell<TaskId>,
}

struct Waiting {
    task: TaskId,
    what: What,
    slot: Rc<Slot>,
}

enum What {
    Read(String),
    Change(Change),
    /// A write that was acknowledged before it was made.
    Late(Change),
    Scan(String, Option<String>, usize),
    Exchange(String),
    Sleep(u64),
    Later,
}

#[derive(Default)]
struct Slot(Cell<Option<Outcome>>);

enum Outcome {
    Value(Option<Vec<u8>>),
    Keys(Vec<String>),
    Reply(Result<Reply, SendError>),
    Done,
    Failed,
}

impl World {
    /// Nodes with these settings, whose clocks are off by so many milliseconds.
    pub(crate) fn new(faults: Faults, nodes: &[(i64, Vec<(String, String)>)]) -> Self {
        let shared = Rc::new(Shared::default());
        shared.now.set(BEGIN);
        shared.store.borrow_mut().compares = faults.compares;
        let nodes = nodes.iter().zip(1..).map(|((skew, settings), seed)| {
            let parts = Parts {
                wire: Wire(shared.clone()),
                platform: Platform(shared.clone()),
                clock: SkewedClock { shared: shared.clone(), skew: *skew },
                random: SeededRandom::new(seed),
            };
            let host = NodeHost(Rc::new(parts));
            let service = Service::new(host.clone(), settings);
            assert_eq!(service.describe().problems, [""; 0], "good settings");
            Node { host, service: Rc::new(service) }
        });
        Self { nodes: nodes.collect(), shared, tasks: BTreeMap::new(), next_task: 1, faults }
    }

    /// Replaces a node by one with other settings; what it has begun it ends.
    pub(crate) fn reconfigure(&mut self, node: usize, settings: &[(String, String)]) {
        let node = &mut self.nodes[node];
        node.service = Rc::new(Service::new(node.host.clone(), settings));
        assert_eq!(node.service.describe().problems, [""; 0], "good settings");
    }

    pub(crate) fn advance(&self, millis: u64) {
        self.shared.now.set(self.shared.now.get() + millis);
    }

    pub(crate) fn set_now(&self, millis: u64) {
        self.shared.now.set(millis);
    }

    /// True time, in milliseconds.
    pub(crate) fn now(&self) -> u64 {
        self.shared.now.get()
    }

    /// A node's time, in milliseconds.
    pub(crate) fn now_at(&self, node: usize) -> u64 {
        self.nodes[node].host.0.clock.now().0
    }

    /// Sends a request. It runs up to the first operation that waits.
    pub(crate) fn start(&mut self, node: usize, request: Request) -> (TaskId, Option<Response>) {
        let service = self.nodes[node].service.clone();
        let task = self.next_task;
        self.next_task += 1;
        self.tasks.insert(task, Box::pin(async move { Some(service.handle(request).await) }));
        (task, self.poll(task))
    }

    /// How many operations wait.
    pub(crate) fn waiting(&self) -> usize {
        self.shared.waiting.borrow().len()
    }

    /// Lets the waiting operation `pick` (modulo how many there are) go on, with a fate that depends on `roll`.
    /// Returns an answer when one is ready.
    pub(crate) fn step(&mut self, pick: usize, roll: u8) -> Option<(TaskId, Response)> {
        let waiting = self.waiting();
        if waiting == 0 {
            return None;
        }
        let Waiting { task, what, slot } = self.shared.waiting.borrow_mut().remove(pick % waiting);
        slot.0.set(Some(self.perform(what, roll)));
        self.poll(task).map(|response| (task, response))
    }

    /// Lets everything go on, oldest first and well, and returns the answers.
    pub(crate) fn settle(&mut self) -> Vec<(TaskId, Response)> {
        let mut answers = Vec::new();
        while self.waiting() > 0 {
            answers.extend(self.step(0, 0));
        }
        answers
    }

    /// Ends a task in the middle, as a node that is killed would.
    pub(crate) fn kill(&mut self, task: TaskId) {
        self.tasks.remove(&task);
        self.forget_unheard();
    }

    /// One request from beginning to end, work after it included, with nothing else under way.
    pub(crate) fn send(&mut self, node: usize, request: Request) -> Response {
        let (task, answer) = self.start(node, request);
        let mut answers = self.settle();
        answer.unwrap_or_else(|| {
            let at = answers.iter().position(|(answered, _)| *answered == task).expect("every request is answered");
            answers.swap_remove(at).1
        })
    }

    fn perform(&self, what: What, roll: u8) -> Outcome {
        let now = self.now();
        let mut store = self.shared.store.borrow_mut();
        match what {
            What::Read(key) => match self.faults.of_read(&key, roll) {
                Fate::Failed { .. } => Outcome::Failed,
                Fate::Stale(back) => Outcome::Value(store.get_stale(&key, back, now.saturating_sub(self.faults.lag))),
                _ => Outcome::Value(store.get(&key)),
            },
            What::Change(change) => match self.faults.of_change(&change, roll) {
                Fate::Lost => Outcome::Done,
                Fate::Late => {
                    let late = Waiting { task: 0, what: What::Late(change), slot: Rc::default() };
                    self.shared.waiting.borrow_mut().push(late);
                    Outcome::Done
                }
                Fate::Failed { applied } => {
                    if applied {
                        store.apply(now, change);
                    }
                    Outcome::Failed
                }
                _ => {
                    store.apply(now, change);
                    Outcome::Done
                }
            },
            What::Late(change) => {
                store.apply(now, change);
                Outcome::Done
            }
            What::Scan(prefix, after, limit) => Outcome::Keys(store.scan(&prefix, after.as_deref(), limit)),
            What::Exchange(code) => Outcome::Reply(self.exchange(code, roll)),
            What::Sleep(until) => {
                self.shared.now.set(now.max(until));
                Outcome::Done
            }
            What::Later => Outcome::Done,
        }
    }

    /// The platform: takes each code once. The user is what stands before the dash.
    fn exchange(&self, code: String, roll: u8) -> Result<Reply, SendError> {
        if self.faults.failing && roll >= 250 {
            return Err(SendError { kind: SendErrorKind::Timeout, sent: true });
        }
        let user = code.split('-').next().unwrap_or_default().to_owned();
        let mut spent = self.shared.spent.borrow_mut();
        let body = if spent.contains(&code) {
            r#"{"errcode":40163,"errmsg":"code been used"}"#.to_owned()
        } else {
            spent.push(code);
            format!(r#"{{"openid":"o{user}","session_key":"Q2FuYXJ5U2Vzc2lvbg=="}}"#)
        };
        if self.faults.failing && roll >= 240 {
            return Err(SendError { kind: SendErrorKind::Broken, sent: true });
        }
        Ok(Reply { status: 200, head: Head::new(), body: body.into_bytes() })
    }

    fn poll(&mut self, task: TaskId) -> Option<Response> {
        let mut answer = None;
        if let Some(future) = self.tasks.get_mut(&task) {
            self.shared.current.set(task);
            if let Poll::Ready(response) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                self.tasks.remove(&task);
                answer = response;
            }
            self.forget_unheard();
        }
        // What was left for later begins to wait.
        for work in self.shared.later.take() {
            let id = self.next_task;
            self.next_task += 1;
            let first = self.shared.clone();
            self.tasks.insert(
                id,
                Box::pin(async move {
                    first.wait(What::Later).await;
                    work.await;
                    None
                }),
            );
            self.poll(id);
        }
        answer
    }

    /// Operations whose caller has gone are not made any more, but for late writes.
    fn forget_unheard(&self) {
        let heard = |waiting: &Waiting| waiting.task == 0 || Rc::strong_count(&waiting.slot) > 1;
        self.shared.waiting.borrow_mut().retain(heard);
    }
}

impl Shared {
    fn wait(&self, what: What) -> impl Future<Output = Outcome> + 'static {
        let slot = Rc::new(Slot::default());
        self.waiting.borrow_mut().push(Waiting { task: self.current.get(), what, slot: slot.clone() });
        std::future::poll_fn(move |_| slot.0.take().map_or(Poll::Pending, Poll::Ready))
    }
}

/// One node's way to everything.
#[derive(Clone)]
pub(crate) struct NodeHost(Rc<Parts>);

struct Parts {
    wire: Wire,
    platform: Platform,
    clock: SkewedClock,
    random: SeededRandom,
}

impl Host for NodeHost {
    type Store = Wire;
    type Http = Platform;

    fn store(&self) -> &Wire {
        &self.0.wire
    }

    fn http(&self) -> &Platform {
        &self.0.platform
    }

    fn clock(&self) -> &dyn Clock {
        &self.0.clock
    }

    fn random(&self) -> &dyn Random {
        &self.0.random
    }

    fn log(&self, _: Level, _: String) {}

    fn later(&self, work: impl Future<Output = ()> + 'static) {
        self.0.wire.0.later.borrow_mut().push(Box::pin(work));
    }
}

/// A node's connection to the store.
#[derive(Clone)]
pub(crate) struct Wire(Rc<Shared>);

impl Store for Wire {
    /// Each key is read at a moment of its own.
    async fn get(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let reads: Vec<_> = keys.iter().map(|key| self.0.wait(What::Read((*key).to_owned()))).collect();
        let mut values = Vec::new();
        for read in reads {
            match read.await {
                Outcome::Value(value) => values.push(value),
                _ => return Err(FAILURE),
            }
        }
        Ok(values)
    }

    /// In order, and other nodes see what is between.
    async fn apply(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        for change in changes {
            if let Outcome::Failed = self.0.wait(What::Change(change)).await {
                return Err(FAILURE);
            }
        }
        Ok(())
    }

    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, StoreError> {
        match self.0.wait(What::Scan(prefix.to_owned(), after.map(str::to_owned), limit)).await {
            Outcome::Keys(keys) => Ok(keys),
            _ => Err(FAILURE),
        }
    }
}

/// A node's connection to the platform.
pub(crate) struct Platform(Rc<Shared>);

impl HttpClient for Platform {
    async fn send(&self, call: Call) -> Result<Reply, SendError> {
        let code = call.url.split("js_code=").nth(1).and_then(|rest| rest.split('&').next()).unwrap_or_default();
        match self.0.wait(What::Exchange(code.to_owned())).await {
            Outcome::Reply(reply) => reply,
            _ => Err(SendError { kind: SendErrorKind::Broken, sent: true }),
        }
    }
}

struct SkewedClock {
    shared: Rc<Shared>,
    skew: i64,
}

impl Clock for SkewedClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(self.shared.now.get().saturating_add_signed(self.skew))
    }

    fn tick_ns(&self) -> u64 {
        self.shared.now.get() * 1_000_000
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let until = self.shared.now.get() + u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let wait = self.shared.wait(What::Sleep(until));
        Box::pin(async move {
            wait.await;
        })
    }
}
