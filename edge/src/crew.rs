//! The cores that serve one revision, as a full one of them sees the others.
//!
//! A connection stays on its core, and its requests with it, for as long as that core has places.
//! When it has none, a request is worth the trip to another thread: it is flat and owned, so it
//! goes there whole, with a place that is already its own, and its answer comes back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::handler::{Request, Response};

/// The cores of a revision. Asked only by a full core, so one lock serves all.
#[derive(Default)]
pub(crate) struct Crew(Mutex<Vec<Mate>>);

struct Mate {
    places: Arc<Semaphore>,
    inbox: mpsc::UnboundedSender<Passed>,
}

/// A request from another core, with its place on this one.
pub(crate) struct Passed {
    pub(crate) request: Request,
    pub(crate) place: OwnedSemaphorePermit,
    /// Dropped without an answer when the request is lost.
    pub(crate) reply: oneshot::Sender<Response>,
}

impl Crew {
    /// Takes part with `places`; what the others cannot take arrives in the inbox.
    pub(crate) fn join(&self, places: Arc<Semaphore>) -> mpsc::UnboundedReceiver<Passed> {
        let (inbox, passed) = mpsc::unbounded_channel();
        self.mates().push(Mate { places, inbox });
        passed
    }

    /// Takes part no more. The inbox ends when what was passed before is taken out.
    pub(crate) fn leave(&self, places: &Arc<Semaphore>) {
        self.mates().retain(|mate| !Arc::ptr_eq(&mate.places, places));
    }

    /// Hands `request` to a core that has a place for it, or back when none has.
    #[expect(clippy::result_large_err, reason = "it comes back whole, and only to a core that then waits")]
    pub(crate) fn pass(&self, request: Request) -> Result<oneshot::Receiver<Response>, Request> {
        for mate in &*self.mates() {
            if let Ok(place) = mate.places.clone().try_acquire_owned() {
                let (reply, answer) = oneshot::channel();
                return match mate.inbox.send(Passed { request, place, reply }) {
                    Ok(()) => Ok(answer),
                    Err(refused) => Err(refused.0.request),
                };
            }
        }
        Err(request)
    }

    fn mates(&self) -> MutexGuard<'_, Vec<Mate>> {
        // Nothing is left half done by a panic: a mate is in the list or it is not.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
