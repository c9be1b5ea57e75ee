//! The thread that writes.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use fjall::PersistMode;
use tokio::sync::oneshot;

use super::{Clock, Tree, physical, stored};
use crate::kv::{Change, Effect, Failure};

/// What the writer is asked for.
pub(super) enum Job {
    Apply { changes: Vec<Change>, answer: oneshot::Sender<Result<Vec<bool>, Failure>> },
    Close { answer: oneshot::Sender<Result<(), Failure>> },
}

/// Owns the writing side; shares the tree with those who read.
pub(super) struct Writer {
    folder: PathBuf,
    clock: Clock,
    tree: Arc<ArcSwapOption<Tree>>,
    /// After a commit that failed, the tree takes no other; when to open the folder anew.
    reopen_at: Option<Instant>,
}

/// Batches that become one commit.
struct Group<'t> {
    tree: &'t Tree,
    now: u64,
    /// What the changes so far leave under each key, where they touch it; `None` is nothing.
    writes: HashMap<String, Option<(Bytes, u64)>>,
    bytes: usize,
}

impl Writer {
    pub(super) fn new(folder: PathBuf, clock: Clock, tree: Arc<ArcSwapOption<Tree>>) -> Self {
        Self { folder, clock, tree, reopen_at: None }
    }

    /// Works until it is told to close, or nobody is left to ask.
    pub(super) fn run(mut self, jobs: &mpsc::Receiver<Job>) {
        while let Some(first) = self.next(jobs) {
            if let Some(close) = self.commit(std::iter::once(first).chain(jobs.try_iter())) {
                let result = self.tree.swap(None).map_or(Ok(()), |tree| tree.persist());
                // Gone if the caller has not waited.
                _ = close.send(result.map_err(|error| failed(&error)));
                return;
            }
        }
        self.tree.store(None);
    }

    /// The next job; `None` when nobody is left to ask. Opens the folder anew meanwhile, if it has
    /// to be: whoever reads before it writes never gets as far as a job.
    fn next(&mut self, jobs: &mpsc::Receiver<Job>) -> Option<Job> {
        while let Some(at) = self.reopen_at {
            match jobs.recv_timeout(at.saturating_duration_since(Instant::now())) {
                Ok(job) => return Some(job),
                Err(mpsc::RecvTimeoutError::Timeout) => drop(self.usable_tree()),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            }
        }
        jobs.recv().ok()
    }

    /// Makes one commit of `jobs`, up to a size, and answers them. Stops at a [`Job::Close`] and
    /// returns its answer.
    fn commit(&mut self, mut jobs: impl Iterator<Item = Job>) -> Option<oneshot::Sender<Result<(), Failure>>> {
        let tree = self.usable_tree();
        let mut group = tree.as_deref().map(|tree| Group::new(tree, (self.clock)()));
        let mut answers = Vec::new();
        let mut close = None;
        while group.as_ref().is_none_or(|group| group.bytes < MAX_GROUP_BYTES) {
            match jobs.next() {
                Some(Job::Apply { changes, answer }) => {
                    let applied = group.as_mut().ok_or(Failure::Unavailable).and_then(|group| group.apply(changes));
                    answers.push((answer, applied));
                }
                Some(Job::Close { answer }) => {
                    close = Some(answer);
                    break;
                }
                None => break,
            }
        }
        let committed = group.map_or(Ok(()), Group::commit);
        if committed.is_err() {
            self.reopen_at = Some(Instant::now() + REOPEN_WAIT);
        }
        for (answer, applied) in answers {
            // Gone if the caller has not waited; its change holds nevertheless.
            _ = answer.send(committed.and(applied));
        }
        close
    }

    /// The tree, opened anew if the last commit failed: the disk was full, say, and now has room.
    fn usable_tree(&mut self) -> Option<Arc<Tree>> {
        let Some(at) = self.reopen_at else { return self.tree.load_full() };
        if Instant::now() < at {
            return None;
        }
        // Two cannot have the folder open. Reads fail until one has it again; if one of them still
        // holds the old tree, the next attempt will do.
        drop(self.tree.swap(None));
        match Tree::open(&self.folder, &self.clock) {
            Ok(tree) => {
                self.tree.store(Some(Arc::new(tree)));
                self.reopen_at = None;
                tracing::info!("the store has been opened anew");
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the store cannot be opened anew");
                self.reopen_at = Some(Instant::now() + REOPEN_WAIT);
            }
        }
        self.tree.load_full()
    }
}

impl<'t> Group<'t> {
    fn new(tree: &'t Tree, now: u64) -> Self {
        Self { tree, now, writes: HashMap::new(), bytes: 0 }
    }

    fn apply(&mut self, changes: Vec<Change>) -> Result<Vec<bool>, Failure> {
        changes.into_iter().map(|change| self.apply_one(change).map_err(|error| failed(&error))).collect()
    }

    fn apply_one(&mut self, change: Change) -> fjall::Result<bool> {
        let current = match self.writes.get(change.key()) {
            Some(write) => write.as_ref().map(|(value, _)| value.clone()),
            None => self.tree.get(change.key(), self.now)?,
        };
        let (key, effect, answer) = change.effect(current.as_deref());
        let write = match effect {
            Effect::Keep => return Ok(answer),
            Effect::Write { value, expires } => Some((value, expires)),
            Effect::Remove => None,
        };
        self.bytes += key.len() + write.as_ref().map_or(0, |(value, _)| value.len());
        self.writes.insert(key, write);
        Ok(answer)
    }

    /// Returns when the disk has it.
    fn commit(self) -> Result<(), Failure> {
        // The length of the journal is written with its data, so fdatasync is enough.
        let mut batch = self.tree.database.batch().durability(Some(PersistMode::SyncData));
        for (key, write) in self.writes {
            match write {
                Some((value, expires)) => batch.insert(&self.tree.entries, physical(&key), stored(&value, expires)),
                None => batch.remove(&self.tree.entries, physical(&key)),
            }
        }
        batch.commit().map_err(|error| failed(&error))
    }
}

fn failed(error: &fjall::Error) -> Failure {
    tracing::error!(%error, "the store cannot be written");
    Failure::Unavailable
}

/// Enough for a thousand logins; a group is taken into memory whole.
const MAX_GROUP_BYTES: usize = 4 * 1024 * 1024;
/// From a failure to the attempt to open the folder anew: often enough to be back soon, rarely enough
/// not to read a full disk's journal all the time.
pub(super) const REOPEN_WAIT: Duration = Duration::from_secs(1);
