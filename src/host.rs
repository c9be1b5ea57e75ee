//! Everything the core asks of whoever runs it, in one bundle.
//!
//! A host gives a [`Store`], an [`HttpClient`], a [`Clock`], [`Random`] bytes, a place for log
//! lines and a way to work on after an answer. `src/entry/` has one host per door; tests and the
//! harness have native ones. Nothing here is `Send`: a guest is single-threaded, and the native
//! hosts run one copy per core.

use crate::{clock::Clock, outbound::HttpClient, random::Random, store::Store};

/// The world outside the core. Cloning is cheap and shares what is behind it.
pub trait Host: Clone + 'static {
    /// Key-value storage.
    type Store: Store;
    /// Outbound HTTP.
    type Http: HttpClient;

    /// The store.
    fn store(&self) -> &Self::Store;
    /// The client for platform calls.
    fn http(&self) -> &Self::Http;
    /// The clock.
    fn clock(&self) -> &dyn Clock;
    /// The source of keys and nonces.
    fn random(&self) -> &dyn Random;

    /// Writes one log line, a JSON object without its newline. Never waits; a line that cannot be
    /// written is lost.
    fn log(&self, level: Level, line: String);

    /// Runs `work` after the answer has left. It always yields before its first step, because a
    /// task that works at once holds the answer back (measured: 20 ms of work made an answer 20 ms
    /// late; behind a yield, 41 µs). A host that is torn down may never run it.
    fn later(&self, work: impl Future<Output = ()> + 'static);
}

/// How much a log line matters; the levels of `wit/node.wit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For development.
    Debug,
    /// An ordinary event.
    Info,
    /// Somebody should look at it by day.
    Warn,
    /// Somebody should look at it now.
    Error,
}
