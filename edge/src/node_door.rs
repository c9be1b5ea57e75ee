//! The door for `node` components: an elastic set of instances per core.
//!
//! A request takes a place, here or, where there is none, on another core ([`crate::crew`]); waiting
//! for one is the queue. It goes into the instance the rules of [`crate::pool`] choose, and waits for
//! its answer in its connection's task. The task may go away,
//! the call stays in its instance to its end. Every [`SWEEP`] the set is looked over: an instance
//! with a call past its deadline gets no more calls, and is dropped when the call outlives the
//! grace time; old, spent and idle ones are replaced.

use std::{
    cell::{Cell, RefCell},
    rc::{Rc, Weak},
    sync::Arc,
    time::{Duration, Instant},
};

use http::{Method, StatusCode};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use wasmtime::Store;

use crate::{
    bindings::node::edgepass::node::types,
    crew::Passed,
    handler::{Request, Response},
    host::Host,
    instance::{Instance, Lost},
    lines,
    meter::{Limiter, Meter},
    metrics::pool::{Levels, Part},
    outbound,
    pool::{self, Choice},
    problem::{Problem, SecondTry},
    queue::Queue,
    revision::NodeRevision,
};

/// The instances of one revision on one core.
pub(crate) struct NodeCore {
    revision: Arc<NodeRevision>,
    client: outbound::Client,
    queue: Rc<Queue>,
    /// Those that take calls.
    serving: RefCell<Vec<Rc<Instance>>>,
    /// Those that finish.
    retiring: RefCell<Vec<Rc<Instance>>>,
    /// Tasks of instances, and the one of the inbox, that have not ended.
    running: Cell<usize>,
    ended: Notify,
    /// Told to end: an instance takes one call and no other.
    ending: Cell<bool>,
    /// Cut off: no call begins.
    cut: Cell<bool>,
    /// How it looks, for whoever watches.
    seen: Part,
}

impl NodeCore {
    /// Makes the set with its first instance, one of the crew: it passes on what it has no place
    /// for, and takes what others have none for. Call inside the core's runtime.
    pub(crate) fn new(revision: Arc<NodeRevision>) -> Rc<Self> {
        let core = Self::apart(revision);
        core.running.set(core.running.get() + 1);
        tokio::task::spawn_local(core.clone().take_passed(core.revision.crew.join(core.queue.places().clone())));
        core
    }

    /// [`NodeCore::new`] for a core of its own that takes nothing from others.
    pub(crate) fn apart(revision: Arc<NodeRevision>) -> Rc<Self> {
        let core = Rc::new(Self {
            client: outbound::Client::new(revision.outbound.clone()),
            queue: Queue::new(revision.limits.places(), revision.limits.queue_wait),
            seen: revision.counts.part(),
            revision,
            serving: RefCell::default(),
            retiring: RefCell::default(),
            running: Cell::new(0),
            ended: Notify::new(),
            ending: Cell::new(false),
            cut: Cell::new(false),
        });
        core.start_instance();
        tokio::task::spawn_local(sweep_regularly(Rc::downgrade(&core)));
        core
    }

    pub(crate) async fn answer(self: Rc<Self>, mut request: Request) -> Response {
        if let Some(place) = self.queue.try_take() {
            return self.answer_at(place, request).await;
        }
        let trace_id = request.trace_id.clone();
        match self.revision.crew.pass(request) {
            Ok(answer) => return answer.await.unwrap_or_else(|_| Problem::InstanceLost.answer(&trace_id)),
            Err(back) => request = back,
        }
        match self.wait_for_place().await {
            Some(place) => self.answer_at(place, request).await,
            None => self.refuse(&trace_id),
        }
    }

    /// The queue: a place on this core, if one is given up in time.
    async fn wait_for_place(&self) -> Option<OwnedSemaphorePermit> {
        let _waiting = self.revision.counts.wait();
        self.queue.take().await
    }

    /// Answers on this core. The place of the first try is gone with its instance; a second try
    /// waits for another one.
    async fn answer_at(self: Rc<Self>, place: OwnedSemaphorePermit, request: Request) -> Response {
        let mut first = Some(place);
        // Only a method without effect is tried again, once.
        let tries = if matches!(request.method, Method::GET | Method::HEAD) { 2 } else { 1 };
        for number in 1..=tries {
            let place = match first.take() {
                Some(place) => Some(place),
                None => self.wait_for_place().await,
            };
            let Some((place, instance)) = place.and_then(|place| Some((place, self.choose()?))) else {
                return self.refuse(&request.trace_id);
            };
            let answer = instance.call(self.wire(&request), request.deadline, place);
            if self.ending.get() || instance.is_spent(self.revision.limits.max_memory_bytes) {
                self.retire(&instance);
            }
            let _overdue = RetireWhenLate { core: &self, instance: &instance, deadline: request.deadline };
            if let Ok(response) = answer.await {
                let mut answer = unwire(response).unwrap_or_else(|| Problem::Internal.answer(&request.trace_id));
                if number > 1 {
                    answer.extensions_mut().insert(SecondTry);
                }
                return answer;
            }
            self.retire(&instance);
        }
        Problem::InstanceLost.answer(&request.trace_id)
    }

    fn refuse(&self, trace_id: &str) -> Response {
        self.revision.counts.refuse();
        Problem::Overloaded.answer(trace_id)
    }

    /// Answers what other cores have no place for, until this one leaves them.
    async fn take_passed(self: Rc<Self>, mut inbox: mpsc::UnboundedReceiver<Passed>) {
        while let Some(Passed { request, place, mut reply }) = inbox.recv().await {
            let core = self.clone();
            tokio::task::spawn_local(async move {
                // As in a connection's task: an asker that is gone ends the waiting, not the call.
                tokio::select! {
                    answer = core.answer_at(place, request) => drop(reply.send(answer)),
                    () = reply.closed() => {}
                }
            });
        }
        self.end_one();
    }

    /// Something counted in `running` has ended.
    fn end_one(&self) {
        self.running.set(self.running.get() - 1);
        self.ended.notify_waiters();
    }

    /// Retires every instance and waits for the last to end. What another core has passed on already is
    /// still answered.
    pub(crate) async fn drained(self: Rc<Self>) {
        self.end();
        while self.running.get() > 0 {
            self.ended.notified().await;
        }
    }

    /// Retires every instance, also those that are yet to come.
    fn end(&self) {
        self.ending.set(true);
        self.revision.crew.leave(self.queue.places());
        for instance in self.serving.take() {
            instance.retire();
            self.retiring.borrow_mut().push(instance);
        }
    }

    /// Drops every store with what is in it, and takes no more calls.
    pub(crate) fn cut(&self) {
        self.cut.set(true);
        self.end();
        self.retiring.borrow().iter().for_each(|instance| instance.kill());
    }

    fn choose(self: &Rc<Self>) -> Option<Rc<Instance>> {
        if self.cut.get() {
            return None;
        }
        let choice = {
            let serving = self.serving.borrow();
            pool::choose(serving.iter().map(|instance| instance.load()), &self.revision.limits)
        };
        match choice {
            Choice::Use(index) => self.serving.borrow().get(index).cloned(),
            Choice::New => Some(self.start_instance()),
            Choice::Full => None,
        }
    }

    fn start_instance(self: &Rc<Self>) -> Rc<Instance> {
        let revision = &self.revision;
        let limits = &revision.limits;
        let meter =
            Meter::new(revision.ticks.clone(), crate::engine::ticks_in(limits.max_cpu), limits.max_memory_bytes);
        let host = Host { world: revision.world.clone(), client: self.client.clone(), limiter: Limiter(meter.clone()) };
        let store = Store::new(revision.pre.engine(), host);
        let (instance, inbox) = Instance::new(meter, pool::reuse(limits, random()));
        self.serving.borrow_mut().push(instance.clone());
        self.running.set(self.running.get() + 1);
        revision.counts.start();
        let (core, task, pre) = (self.clone(), instance.clone(), revision.pre.clone());
        tokio::task::spawn_local(async move {
            let running = Ending { core, instance: task.clone() };
            let counts = &running.core.revision.counts;
            match task.run(store, pre, inbox).await {
                Ok(()) => counts.retire(),
                Err(Lost { cause, error }) => {
                    counts.lose(cause);
                    tracing::error!(%cause, error = %format_args!("{error:#}"), "instance lost");
                }
            }
        });
        instance
    }

    fn retire(&self, instance: &Rc<Instance>) {
        let mut serving = self.serving.borrow_mut();
        if let Some(index) = serving.iter().position(|other| Rc::ptr_eq(other, instance)) {
            serving.remove(index);
            instance.retire();
            self.retiring.borrow_mut().push(instance.clone());
        }
    }

    fn sweep(&self, now: Instant) {
        let limits = &self.revision.limits;
        let serving = self.serving.borrow().clone();
        let mut spare = serving.len();
        for instance in &serving {
            let overdue = instance.next_deadline().is_some_and(|deadline| deadline <= now);
            let aged = now.duration_since(instance.born()) >= limits.max_age;
            let idle =
                spare > 1 && instance.idle_since().is_some_and(|since| now.duration_since(since) >= limits.max_idle);
            if overdue || aged || idle || instance.is_spent(limits.max_memory_bytes) {
                self.retire(instance);
                spare -= 1;
            }
        }
        for instance in &*self.retiring.borrow() {
            // Its last call may have its whole time: the neighbours of a late one are not late.
            let until = instance.last_deadline().or(instance.idle_since());
            if until.is_some_and(|until| now >= until + limits.grace) {
                instance.kill();
            }
        }
        self.seen.say(self.levels());
    }

    fn levels(&self) -> Levels {
        let (serving, retiring) = (self.serving.borrow(), self.retiring.borrow());
        let places = self.revision.limits.places();
        Levels {
            instances: serving.len(),
            busy: serving.iter().filter(|instance| instance.load().busy).count(),
            retiring: retiring.len(),
            memory_bytes: serving.iter().chain(&*retiring).map(|instance| instance.memory()).sum(),
            places,
            taken: places.saturating_sub(self.queue.places().available_permits()),
        }
    }

    fn wire(&self, request: &Request) -> types::Request {
        types::Request {
            id: request.id,
            method: request.method.as_str().to_owned(),
            target: request.target.as_str().to_owned(),
            head: self.revision.head(request),
            body: request.body.to_vec(),
            client: request.client.to_string(),
            trace_id: request.trace_id.to_string(),
            budget_ms: u32::try_from(request.deadline.saturating_duration_since(Instant::now()).as_millis())
                .unwrap_or(u32::MAX),
            shadow: false,
        }
    }
}

/// An instance's task, out of the books when it ends, however it ends.
struct Ending {
    core: Rc<NodeCore>,
    instance: Rc<Instance>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.core.retire(&self.instance);
        self.core.retiring.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.instance));
        self.core.end_one();
    }
}

/// The front drops a request's future at its deadline; its instance gets no other request then.
struct RetireWhenLate<'a> {
    core: &'a NodeCore,
    instance: &'a Rc<Instance>,
    deadline: Instant,
}

impl Drop for RetireWhenLate<'_> {
    fn drop(&mut self) {
        if Instant::now() >= self.deadline {
            self.core.retire(self.instance);
        }
    }
}

/// Ends with the set: the task holds it only while it looks.
async fn sweep_regularly(core: Weak<NodeCore>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(core) = core.upgrade() else { return };
        core.sweep(Instant::now());
    }
}

/// How often the set is looked over; deadlines of instances are as exact as this.
const SWEEP: Duration = Duration::from_millis(100);

/// An answer of the guest as HTTP; `None` when its status is none a final answer can have. Lines
/// that are no header field are left out.
fn unwire(response: types::Response) -> Option<Response> {
    let status = StatusCode::from_u16(response.status).ok().filter(|status| status.as_u16() >= 200)?;
    let mut answer = http::Response::new(response.body.into());
    *answer.status_mut() = status;
    for (name, value) in lines::read(&response.head) {
        answer.headers_mut().append(name, value);
    }
    Some(answer)
}

/// For jitter only.
fn random() -> u32 {
    getrandom::u32().unwrap_or_default()
}
