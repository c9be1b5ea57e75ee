//! The places of a core, and who waits for one.
//!
//! A request waits a bounded time, the longest-waiting first, which is fair as long as waiting is
//! rare. When there has been somebody waiting for [`STANDING`] the queue has become a habit: then more
//! arrives than is served, whoever is served last has waited longest, and its client may be gone. From
//! there on the newest is served first and the rest told soon, which keeps the answers of those who
//! are served fast (the rule of Facebook's and Folly's queues, "Fail at Scale", ACM Queue 2015).

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};

/// The places of one core.
pub(crate) struct Queue {
    places: Arc<Semaphore>,
    rule: Rule,
    /// In the order in which they came. One whose receiver is gone has stopped waiting.
    waiting: RefCell<VecDeque<oneshot::Sender<OwnedSemaphorePermit>>>,
    most_waiting: usize,
    /// Since when somebody has been waiting; as long as it is set, places are handed out in order.
    waited_since: Cell<Option<Instant>>,
}

/// How long who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    wait: Duration,
}

/// Who is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Oldest,
    Newest,
}

impl Rule {
    /// For a request that begins to wait, or a place that has become free, when somebody has been
    /// waiting for `standing`.
    fn at(self, standing: Duration) -> (Duration, Next) {
        if standing < STANDING { (self.wait, Next::Oldest) } else { (self.wait / SHARE, Next::Newest) }
    }
}

/// How long a queue that is a burst's may last.
const STANDING: Duration = Duration::from_millis(100);
/// Which part of the usual wait is left in a standing queue.
const SHARE: u32 = 20;
/// More may wait than there are places, but their bodies are in memory.
const LEAST_WAITING: usize = 256;

impl Queue {
    /// A core's `places`, for which a request waits `wait` at most.
    pub(crate) fn new(places: usize, wait: Duration) -> Rc<Self> {
        Rc::new(Self {
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            rule: Rule { wait },
            waiting: RefCell::default(),
            most_waiting: places.max(LEAST_WAITING),
            waited_since: Cell::new(None),
        })
    }

    /// The places, for those who take one only when it is free.
    pub(crate) fn places(&self) -> &Arc<Semaphore> {
        &self.places
    }

    /// A place that is free. Nobody overtakes those who wait.
    pub(crate) fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        if self.waited_since.get().is_some() {
            return None;
        }
        self.places.clone().try_acquire_owned().ok()
    }

    /// A place, if one is given up in time. Call inside the core's runtime.
    pub(crate) async fn take(self: &Rc<Self>) -> Option<OwnedSemaphorePermit> {
        if let Some(place) = self.try_take() {
            return Some(place);
        }
        let now = Instant::now();
        let (place, since) = {
            let mut waiting = self.waiting.borrow_mut();
            while waiting.pop_front_if(|oldest| oldest.is_closed()).is_some() {}
            if waiting.len() >= self.most_waiting {
                return None;
            }
            let since = self.waited_since.get().filter(|_| !waiting.is_empty()).unwrap_or(now);
            let (waiter, place) = oneshot::channel();
            waiting.push_back(waiter);
            (place, since)
        };
        if self.waited_since.replace(Some(since)).is_none() {
            tokio::task::spawn_local(self.clone().hand_out());
        }
        let (wait, _) = self.rule.at(now - since);
        timeout(wait, place).await.ok()?.ok()
    }

    /// Gives places to those who wait until nobody does.
    async fn hand_out(self: Rc<Self>) {
        // The semaphore is never closed.
        while let Ok(mut place) = self.places.clone().acquire_owned().await {
            loop {
                let Some(waiter) = self.next() else {
                    return self.waited_since.set(None);
                };
                match waiter.send(place) {
                    Ok(()) => break,
                    // It stopped waiting.
                    Err(back) => place = back,
                }
            }
        }
    }

    fn next(&self) -> Option<oneshot::Sender<OwnedSemaphorePermit>> {
        let standing = self.waited_since.get().map_or(Duration::ZERO, |since| since.elapsed());
        let mut waiting = self.waiting.borrow_mut();
        match self.rule.at(standing).1 {
            Next::Oldest => waiting.pop_front(),
            Next::Newest => waiting.pop_back(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures::FutureExt;
    use tokio::task::LocalSet;

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    /// How many wait.
    fn waiting(queue: &Queue) -> usize {
        queue.waiting.borrow().iter().filter(|waiter| !waiter.is_closed()).count()
    }

    async fn begun<F: Future + Unpin>(future: &mut F) -> bool {
        poll_fn(|cx| std::task::Poll::Ready(future.poll_unpin(cx).is_pending())).await
    }

    #[test]
    fn a_queue_that_stands_waits_less_and_serves_the_newest() {
        let rule = Rule { wait: Duration::from_secs(1) };
        for (standing, wait, next) in
            [(0, 1000, Next::Oldest), (99, 1000, Next::Oldest), (100, 50, Next::Newest), (60_000, 50, Next::Newest)]
        {
            assert_eq!(rule.at(Duration::from_millis(standing)), (Duration::from_millis(wait), next), "{standing} ms");
        }
    }

    #[tokio::test]
    async fn the_oldest_is_served_first_while_the_queue_is_young() {
        LocalSet::new()
            .run_until(async {
                let queue = Queue::new(1, LONG);
                let held = queue.take().await.expect("is free");
                let (mut first, mut second) = (Box::pin(queue.take()), Box::pin(queue.take()));
                assert!(begun(&mut first).await && begun(&mut second).await);
                assert_eq!(waiting(&queue), 2);
                drop(held);
                let place = first.await;
                assert!(place.is_some() && begun(&mut second).await);
                assert!(queue.try_take().is_none());
                drop(place);
                assert!(second.await.is_some());
            })
            .await;
    }

    #[tokio::test]
    async fn the_newest_is_served_first_once_it_stands() {
        LocalSet::new()
            .run_until(async {
                let queue = Queue::new(1, LONG);
                let held = queue.take().await.expect("is free");
                let (mut first, mut second) = (Box::pin(queue.take()), Box::pin(queue.take()));
                assert!(begun(&mut first).await);
                queue.waited_since.set(Some(Instant::now().checked_sub(STANDING).expect("the machine runs longer")));
                assert!(begun(&mut second).await);
                drop(held);
                let place = second.await;
                assert!(place.is_some() && begun(&mut first).await);
                drop(place);
                assert!(first.await.is_some());
            })
            .await;
    }

    #[tokio::test]
    async fn nobody_waits_for_ever_and_who_left_gets_nothing() {
        LocalSet::new()
            .run_until(async {
                let queue = Queue::new(1, Duration::from_millis(10));
                let held = queue.take().await.expect("is free");
                assert!(queue.take().await.is_none());
                let mut given_up = Box::pin(queue.take());
                assert!(begun(&mut given_up).await);
                drop(given_up);
                drop(held);
                // The one who gave up is passed over, and nothing is left of the queue.
                while queue.waited_since.get().is_some() {
                    tokio::task::yield_now().await;
                }
                assert_eq!(waiting(&queue), 0);
                assert!(queue.try_take().is_some());
            })
            .await;
    }

    #[tokio::test]
    async fn the_queue_has_a_longest_length() {
        LocalSet::new()
            .run_until(async {
                let queue = Queue::new(1, LONG);
                let _held = queue.take().await.expect("is free");
                let mut waiters: Vec<_> = (0..LEAST_WAITING).map(|_| Box::pin(queue.take())).collect();
                for waiter in &mut waiters {
                    assert!(begun(waiter).await);
                }
                assert!(queue.take().await.is_none(), "at once");
                assert_eq!(waiting(&queue), LEAST_WAITING);
            })
            .await;
    }
}
