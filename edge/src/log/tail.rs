//! The end of the log, kept in memory for operators.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use tokio::sync::watch;
use tracing::Level;

/// Lines that are kept.
pub(super) const CAPACITY: usize = 1000;

/// The last lines of a log.
pub(super) struct Tail {
    lines: Mutex<VecDeque<Line>>,
    /// Number of the last line, from 1.
    last: watch::Sender<u64>,
}

struct Line {
    number: u64,
    level: Level,
    text: String,
}

/// Some of the lines.
#[derive(Debug, serde::Serialize, PartialEq)]
pub(super) struct Kept {
    /// Number of the last line that was looked at: ask for those after it.
    pub(super) next: u64,
    /// Lines after the one asked for that are no longer kept.
    pub(super) lost: u64,
    /// The lines, as JSON.
    pub(super) lines: Vec<Value>,
}

impl Tail {
    /// That of this process, whose log is one.
    pub(super) fn of_process() -> Arc<Self> {
        static TAIL: LazyLock<Arc<Tail>> = LazyLock::new(|| Arc::new(Tail::new()));
        TAIL.clone()
    }

    fn new() -> Self {
        Self { lines: Mutex::default(), last: watch::Sender::new(0) }
    }

    pub(super) fn keep(&self, level: Level, text: String) {
        let mut lines = self.lines();
        let number = *self.last.borrow() + 1;
        if lines.len() == CAPACITY {
            lines.pop_front();
        }
        lines.push_back(Line { number, level, text });
        drop(lines);
        self.last.send_replace(number);
    }

    /// Up to `limit` of the lines after number `after` that are of `level` or worse; without
    /// `after`, the last of them.
    pub(super) fn read(&self, after: Option<u64>, level: Level, limit: usize) -> Kept {
        let lines = self.lines();
        let first = lines.front().map_or(1, |line| line.number);
        let wanted = lines.iter().filter(|line| line.level <= level && after.is_none_or(|after| line.number > after));
        let skipped = if after.is_none() { wanted.clone().count().saturating_sub(limit) } else { 0 };
        let taken: Vec<&Line> = wanted.skip(skipped).take(limit).collect();
        // Cut short, the rest is for the next time; else all there is has been looked at.
        let last = lines.back().map_or(0, |line| line.number).max(after.unwrap_or(0).min(*self.last.borrow()));
        let next = if taken.len() == limit { taken.last().map_or(last, |line| line.number) } else { last };
        Kept {
            next,
            lost: after.map_or(0, |after| first.saturating_sub(after.saturating_add(1))),
            lines: taken.iter().map(|line| value(&line.text)).collect(),
        }
    }

    /// Is ready when there is a line after number `after`.
    pub(super) async fn beyond(&self, after: u64) {
        // The sender is here, so it does not end.
        let _ = self.last.subscribe().wait_for(|last| *last > after).await;
    }

    fn lines(&self) -> MutexGuard<'_, VecDeque<Line>> {
        // A line is in it whole or not at all.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Made here, so it is JSON.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: u64) -> Tail {
        let tail = Tail::new();
        for n in 1..=count {
            let level = if n % 2 == 0 { Level::WARN } else { Level::INFO };
            tail.keep(level, format!("{{\"n\":{n}}}"));
        }
        tail
    }

    fn numbers(kept: &Kept) -> Vec<u64> {
        kept.lines.iter().map(|line| line["n"].as_u64().expect("a number")).collect()
    }

    #[test]
    fn the_last_lines_come_first_and_then_those_after_them() {
        let tail = filled(5);
        let last = tail.read(None, Level::INFO, 2);
        assert_eq!((numbers(&last), last.next, last.lost), (vec![4, 5], 5, 0));
        assert_eq!(numbers(&tail.read(Some(5), Level::INFO, 2)), Vec::<u64>::new());
        let page = tail.read(Some(0), Level::INFO, 2);
        assert_eq!((numbers(&page), page.next), (vec![1, 2], 2));
        assert_eq!(numbers(&tail.read(Some(page.next), Level::INFO, 9)), [3, 4, 5]);
        let warnings = tail.read(Some(0), Level::WARN, 9);
        assert_eq!((numbers(&warnings), warnings.next), (vec![2, 4], 5));
    }

    #[test]
    fn what_is_no_longer_kept_is_said() {
        let tail = filled(CAPACITY as u64 + 10);
        let kept = tail.read(Some(3), Level::INFO, 1);
        assert_eq!((numbers(&kept), kept.lost), (vec![11], 7));
        assert_eq!(tail.read(Some(u64::MAX), Level::INFO, 1).lines, Vec::<Value>::new());
    }

    #[tokio::test]
    async fn whoever_waits_is_woken_by_the_next_line() {
        let tail = Arc::new(filled(1));
        tail.beyond(0).await;
        let waiting = tokio::spawn({
            let tail = tail.clone();
            async move { tail.beyond(1).await }
        });
        tail.keep(Level::INFO, "{}".into());
        waiting.await.expect("it ends");
    }
}
