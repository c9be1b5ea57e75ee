//! One instance of a `node` component: a store, and the task that runs it.
//!
//! The task runs the store's event loop over an inbox of calls. It keeps no time: a guest that
//! computes stops every timer inside its store. Deadlines and the end of an instance are decided
//! outside, in [`crate::node_door`], which can close the inbox (the instance finishes what it has)
//! or kill it (the store is dropped with everything in it).

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot};
use wasmtime::{Store, component::Accessor};

use crate::{
    bindings::node::{
        Node, NodePre,
        edgepass::node::types::{Request, Response},
    },
    host::Host,
    meter::Meter,
    metrics::pool::Cause,
    pool::Load,
};

/// The handle of a running instance.
pub(crate) struct Instance {
    inbox: RefCell<Option<mpsc::UnboundedSender<Call>>>,
    /// Deadlines of the calls under way, by the number of the call.
    calls: RefCell<Vec<(u32, Instant)>>,
    taken: Cell<u32>,
    /// Calls after which it is to be replaced.
    reuse: u32,
    born: Instant,
    /// When it last took a call, or had its inbox closed.
    touched: Cell<Instant>,
    busy: Cell<bool>,
    meter: Arc<Meter>,
    kill: Notify,
}

/// A request on its way into an instance. When it is dropped unanswered, the instance is lost.
pub(crate) struct Call {
    request: Request,
    reply: oneshot::Sender<Response>,
    place: Place,
}

/// A call's place in its instance, until the answer is there: longer than its client may wait.
struct Place {
    instance: Rc<Instance>,
    number: u32,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut calls = self.instance.calls.borrow_mut();
        if let Some(index) = calls.iter().position(|(number, _)| *number == self.number) {
            calls.swap_remove(index);
        }
        self.instance.touched.set(Instant::now());
    }
}

impl Instance {
    pub(crate) fn new(meter: Arc<Meter>, reuse: u32) -> (Rc<Self>, mpsc::UnboundedReceiver<Call>) {
        let (inbox, calls) = mpsc::unbounded_channel();
        let now = Instant::now();
        let instance = Rc::new(Self {
            inbox: RefCell::new(Some(inbox)),
            calls: RefCell::default(),
            taken: Cell::new(0),
            reuse,
            born: now,
            touched: Cell::new(now),
            busy: Cell::new(false),
            meter,
            kill: Notify::new(),
        });
        (instance, calls)
    }

    /// Hands `request` over. The answer comes out of the receiver, which ends without one when the
    /// instance is lost. `permit` is held until the call has left the instance.
    pub(crate) fn call(
        self: &Rc<Self>,
        request: Request,
        deadline: Instant,
        permit: OwnedSemaphorePermit,
    ) -> oneshot::Receiver<Response> {
        let number = self.taken.get();
        self.taken.set(number.wrapping_add(1));
        self.calls.borrow_mut().push((number, deadline));
        self.touched.set(Instant::now());
        let place = Place { instance: self.clone(), number, _permit: permit };
        let (reply, answer) = oneshot::channel();
        if let Some(inbox) = &*self.inbox.borrow() {
            // Refused only when the task has ended; then the receiver ends too.
            drop(inbox.send(Call { request, reply, place }));
        }
        answer
    }

    pub(crate) fn load(&self) -> Load {
        Load { in_flight: self.calls.borrow().len(), busy: self.busy.get() }
    }

    /// No request may follow: it has served as often as it may, or has half of its memory in use.
    pub(crate) fn is_spent(&self, max_memory: usize) -> bool {
        self.taken.get() >= self.reuse || self.meter.memory() > max_memory / 2
    }

    /// Closes the inbox: it ends once its calls and the work after them are done.
    pub(crate) fn retire(&self) {
        self.inbox.take();
        self.touched.set(Instant::now());
    }

    /// Drops the store at the next chance.
    pub(crate) fn kill(&self) {
        self.kill.notify_one();
    }

    pub(crate) fn born(&self) -> Instant {
        self.born
    }

    /// Since when nothing was given to it; `None` while a call is under way.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.calls.borrow().is_empty().then(|| self.touched.get())
    }

    /// The earliest deadline of the calls under way.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.calls.borrow().iter().map(|(_, deadline)| *deadline).min()
    }

    /// The latest deadline of the calls under way.
    pub(crate) fn last_deadline(&self) -> Option<Instant> {
        self.calls.borrow().iter().map(|(_, deadline)| *deadline).max()
    }

    /// Runs the instance to its end: retired and done, killed, or trapped.
    ///
    /// # Errors
    /// Why it ended otherwise, with what the guest trapped with.
    pub(crate) async fn run(
        &self,
        mut store: Store<Host>,
        pre: NodePre<Host>,
        mut inbox: mpsc::UnboundedReceiver<Call>,
    ) -> Result<(), Lost> {
        self.meter.watch(&mut store);
        let guest =
            pre.instantiate_async(&mut store).await.map_err(|error| Lost { cause: Cause::Instantiate, error })?;
        let mut work = pin!(store.run_concurrent(async |accessor| {
            let mut calls = FuturesUnordered::new();
            poll_fn(|cx| {
                while let Poll::Ready(Some(call)) = inbox.poll_recv(cx) {
                    calls.push(answer(accessor, &guest, call));
                }
                turn(cx, &mut calls, inbox.is_closed() && inbox.is_empty(), accessor)
            })
            .await
        }));
        let ended = poll_fn(|cx| {
            self.meter.turn_begins();
            let polled = work.as_mut().poll(cx);
            self.busy.set(polled.is_pending() && self.meter.turn_ends());
            polled
        });
        tokio::select! {
            biased;
            ended = ended => {
                ended.flatten().map_err(|error| Lost { cause: self.meter.cause(&error), error })
            }
            () = self.kill.notified() => {
                Err(Lost { cause: Cause::Deadline, error: wasmtime::format_err!("past its time; store dropped") })
            }
        }
    }

    /// Bytes of its linear memory.
    pub(crate) fn memory(&self) -> usize {
        self.meter.memory()
    }
}

/// An instance that ended in the middle of its work.
pub(crate) struct Lost {
    pub(crate) cause: Cause,
    pub(crate) error: wasmtime::Error,
}

/// One turn of the loop: takes finished calls out; ready when nothing is left to do for good.
fn turn(
    cx: &mut Context<'_>,
    calls: &mut FuturesUnordered<impl Future<Output = wasmtime::Result<()>>>,
    closed: bool,
    accessor: &Accessor<Host>,
) -> Poll<wasmtime::Result<()>> {
    while let Poll::Ready(Some(called)) = calls.poll_next_unpin(cx) {
        if let Err(trap) = called {
            return Poll::Ready(Err(trap));
        }
    }
    // Work after an answer would freeze if the loop returned while it is under way.
    if closed && calls.is_empty() { accessor.poll_no_interesting_tasks(cx).map(Ok) } else { Poll::Pending }
}

async fn answer(accessor: &Accessor<Host>, guest: &Node, call: Call) -> wasmtime::Result<()> {
    let Call { request, reply, place } = call;
    let response = guest.edgepass_node_service().call_handle(accessor, request).await?;
    drop(place);
    // The client may have gone; the work is done all the same.
    drop(reply.send(response));
    Ok(())
}
