//! What reached the platforms' routes: the newest requests, and how many there were.

use std::{
    collections::VecDeque,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::Serialize;

use crate::Platform;

/// A bounded record of received requests. A request is in it before its answer leaves.
pub struct Journal {
    capacity: usize,
    total: AtomicU64,
    entries: Mutex<VecDeque<Entry>>,
    recorded: Condvar,
}

/// One request as it came. The app secret is nowhere in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Which request this was, from 1, since the start or the last clearing.
    pub number: u64,
    /// When, by the simulator's clock, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Which connection it came over, from 1: two requests with one number shared it.
    pub connection: u64,
    /// Whose route it was; `None` for a path nobody owns.
    pub platform: Option<Platform>,
    /// As sent.
    pub method: String,
    /// As sent, without the query.
    pub path: String,
    /// The query byte for byte as sent, but for the values of `secret`, which read `***`.
    pub query: String,
    /// Decoded name and value of each parameter, in the order sent; `secret` reads `***`, bytes
    /// that are not UTF-8 become U+FFFD.
    pub parameters: Vec<(String, String)>,
    /// Whether the secret is that of the app named; `None` without a secret or a known app.
    pub secret_ok: Option<bool>,
    /// Names of the header fields, lower case.
    pub headers: Vec<String>,
    /// Length of the body.
    pub body_bytes: usize,
    /// What was answered.
    pub outcome: Outcome,
}

/// What was answered to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// HTTP status; `None` when no whole HTTP answer was sent.
    pub status: Option<u16>,
    /// The platform's own number in the answer; `None` on success.
    pub errcode: Option<i64>,
    /// The user whose code was redeemed, whatever was then answered.
    pub user: Option<String>,
    /// The kind of the fault that decided the answer, or `latency` when there was only that.
    pub fault: Option<&'static str>,
    /// How long the answer was held back, in milliseconds.
    pub delay_ms: u64,
}

impl Journal {
    /// Keeps the newest `capacity` requests; 0 only counts.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, total: AtomicU64::new(0), entries: Mutex::default(), recorded: Condvar::new() }
    }

    /// Counts a request and, where anything is kept, keeps what `entry` makes of its number.
    pub(crate) fn record(&self, entry: impl FnOnce(u64) -> Entry) {
        if self.capacity == 0 {
            self.total.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Counted under the lock, so that the entries are in the order of their numbers.
        let mut entries = self.lock();
        let number = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        if entries.len() == self.capacity {
            entries.pop_front();
        }
        entries.push_back(entry(number));
        self.recorded.notify_all();
    }

    /// Blocks until `total` requests have been received, at most for `limit`; tells whether they
    /// have. Without capacity nothing wakes it before `limit`.
    pub fn wait(&self, total: u64, limit: Duration) -> bool {
        let missing = |_: &mut VecDeque<Entry>| self.total() < total;
        let _woken = self.recorded.wait_timeout_while(self.lock(), limit, missing);
        self.total() >= total
    }

    /// Requests received since the start or the last clearing, kept or not.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// How many requests are kept.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The requests kept, oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().iter().cloned().collect()
    }

    /// Forgets all and counts from zero.
    pub fn clear(&self) {
        let mut entries = self.lock();
        entries.clear();
        self.total.store(0, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
