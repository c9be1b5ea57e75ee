//! Doubles for everything a [`Host`] gives, for unit tests, `tests/` and the harness: a clock that
//! stands, seeded bytes, a platform that answers from a script, and a host over them.

pub mod contract;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    clock::{Clock, Sleep, UnixMillis},
    host::{Host, Level},
    message::Head,
    outbound::{Call, HttpClient, Reply, SendError},
    random::Random,
    store::MemoryStore,
};

/// A clock that moves when told.
pub struct FixedClock(Cell<u64>);

impl FixedClock {
    /// Stands at `millis` since the Unix epoch.
    #[must_use]
    pub const fn at(millis: u64) -> Self {
        Self(Cell::new(millis))
    }

    /// Moves on.
    pub fn advance(&self, by: Duration) {
        self.0.set(self.0.get() + u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
    }
}

impl Clock for FixedClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(self.0.get())
    }

    fn tick_ns(&self) -> u64 {
        self.0.get() * 1_000_000
    }

    /// The time passes at once.
    fn sleep(&self, duration: Duration) -> Sleep {
        self.advance(duration);
        Box::pin(future::ready(()))
    }
}

/// Foreseeable bytes (`SplitMix64`): equal seeds give equal bytes. Never for a real key.
pub struct SeededRandom(Cell<u64>);

impl SeededRandom {
    /// Begins at `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Random for SeededRandom {
    fn fill(&self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            for (to, from) in chunk.iter_mut().zip(self.next().to_le_bytes()) {
                *to = from;
            }
        }
    }
}

type Answer = Box<dyn Fn(&Call) -> Result<Reply, SendError>>;

/// A platform that answers each call from one function and keeps what it was asked.
pub struct CannedHttp {
    answer: RefCell<Answer>,
    calls: RefCell<Vec<Call>>,
    held: Cell<bool>,
}

impl CannedHttp {
    /// Answers every call with `answer`.
    pub fn answering(answer: impl Fn(&Call) -> Result<Reply, SendError> + 'static) -> Self {
        Self { answer: RefCell::new(Box::new(answer)), calls: RefCell::default(), held: Cell::new(false) }
    }

    /// Answers from now on with `answer`.
    pub fn now_answers(&self, answer: impl Fn(&Call) -> Result<Reply, SendError> + 'static) {
        *self.answer.borrow_mut() = Box::new(answer);
    }

    /// Keeps calls waiting (`true`) or lets them go.
    pub fn hold(&self, held: bool) {
        self.held.set(held);
    }

    /// The URLs asked so far.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.calls.borrow().iter().map(|call| call.url.clone()).collect()
    }

    /// The newest call.
    #[must_use]
    pub fn last(&self) -> Option<Call> {
        self.calls.borrow().last().cloned()
    }
}

impl HttpClient for CannedHttp {
    async fn send(&self, call: Call) -> Result<Reply, SendError> {
        self.calls.borrow_mut().push(call.clone());
        future::poll_fn(|_| if self.held.get() { Poll::Pending } else { Poll::Ready(()) }).await;
        (self.answer.borrow())(&call)
    }
}

/// A reply of `status` with `body` and no header.
#[must_use]
pub fn reply(status: u16, body: impl Into<Vec<u8>>) -> Reply {
    Reply { status, head: Head::new(), body: body.into() }
}

/// A host whose parts a test can reach. Clones share them.
#[derive(Clone)]
pub struct TestHost(Rc<Parts>);

/// What is behind a [`TestHost`].
pub struct Parts {
    /// The store.
    pub store: MemoryStore,
    /// The platform.
    pub http: CannedHttp,
    /// The clock.
    pub clock: FixedClock,
    /// The bytes.
    pub random: SeededRandom,
    /// Log lines so far.
    pub lines: RefCell<Vec<(Level, String)>>,
    later: RefCell<VecDeque<Pin<Box<dyn Future<Output = ()>>>>>,
}

impl TestHost {
    /// A host over an empty store at 2023-11-14T22:13:20Z.
    #[must_use]
    pub fn new(http: CannedHttp) -> Self {
        Self(Rc::new(Parts::new(http)))
    }

    /// Another host over the store of `other`, with a clock of its own.
    #[must_use]
    pub fn over(other: &Self, millis: u64, http: CannedHttp) -> Self {
        Self(Rc::new(Parts { store: other.store.clone(), clock: FixedClock::at(millis), ..Parts::new(http) }))
    }

    /// Runs what was left for after the answers.
    pub fn settle(&self) {
        loop {
            let Some(work) = self.later.borrow_mut().pop_front() else { return };
            block_on(work);
        }
    }

    /// Everything logged, one line each.
    #[must_use]
    pub fn log_text(&self) -> String {
        self.lines.borrow().iter().flat_map(|(_, line)| [line.as_str(), "\n"]).collect()
    }
}

impl Parts {
    fn new(http: CannedHttp) -> Self {
        Self {
            store: MemoryStore::default(),
            http,
            clock: FixedClock::at(1_700_000_000_000),
            random: SeededRandom::new(7),
            lines: RefCell::default(),
            later: RefCell::default(),
        }
    }
}

impl std::ops::Deref for TestHost {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Host for TestHost {
    type Store = MemoryStore;
    type Http = CannedHttp;

    fn store(&self) -> &MemoryStore {
        &self.0.store
    }

    fn http(&self) -> &CannedHttp {
        &self.0.http
    }

    fn clock(&self) -> &dyn Clock {
        &self.0.clock
    }

    fn random(&self) -> &dyn Random {
        &self.0.random
    }

    fn log(&self, level: Level, line: String) {
        self.0.lines.borrow_mut().push((level, line));
    }

    fn later(&self, work: impl Future<Output = ()> + 'static) {
        self.0.later.borrow_mut().push_back(Box::pin(work));
    }
}

/// Runs a future whose every wait is already over, as with the doubles above.
///
/// # Panics
/// When it has to wait for something: nothing here would ever wake it.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    match poll_once(&mut pin!(future)) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a double waited for something that cannot come"),
    }
}

/// One step of `future`, for tests of what happens in the middle.
pub fn poll_once<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}
