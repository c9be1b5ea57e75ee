//! Removing what is over, for hosts that do not expire keys themselves. Bounded per call: so many
//! keys are listed, to the end and before any other call, and then read in small batches.
//!
//! Only what the key, the value's head and the time agree on is removed: never a user's epoch or
//! identity, never a value without an expiry or of an unknown form, and a tombstone or a counter
//! only when its session is gone.

use super::{Login, StoreFault};
use crate::{
    clock::UnixSeconds,
    session::SessionId,
    store::{Change, Store, envelope},
    timing::Stages,
};

/// What one call has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// How many records it removed.
    pub removed: usize,
    /// Where the next call goes on; `None` at the end.
    pub cursor: Option<String>,
}

/// A key whose record may be removed once its time has passed.
struct Candidate {
    key: String,
    /// The session that must be gone first.
    session: Option<String>,
}

impl<S: Store, P> Login<S, P> {
    /// Whether a text can be the cursor of a sweep here.
    #[must_use]
    pub fn is_cursor(&self, text: &str) -> bool {
        text.len() <= MAX_CURSOR_BYTES && text.starts_with(self.layout.prefix())
    }

    /// Looks at up to `limit` keys behind `after` and removes what is over.
    ///
    /// # Errors
    /// [`StoreFault`]; what was removed stays so, and the same call may be made again.
    pub async fn sweep(&self, after: Option<&str>, limit: usize, stages: &Stages<'_>) -> Result<Swept, StoreFault> {
        let keys = self.store.scan(self.layout.prefix(), after, limit).await?;
        let cursor = if keys.len() < limit { None } else { keys.last().cloned() };
        let candidates: Vec<_> = keys.into_iter().filter_map(|key| self.candidate(key)).collect();
        // Of two nodes, the one whose clock is ahead must not remove what the other still takes for live.
        let ended_before = UnixSeconds(self.now().0.saturating_sub(SKEW_SECONDS));
        let mut removed = 0;
        for batch in candidates.chunks(BATCH) {
            let read: Vec<&String> = batch
                .iter()
                .flat_map(|candidate| [Some(&candidate.key), candidate.session.as_ref()])
                .flatten()
                .collect();
            let mut values = self.get(&read, stages).await?.into_iter();
            let mut is_over = |candidate: &&Candidate| {
                let value = values.next().flatten();
                let holds = candidate.session.is_some() && values.next().flatten().is_some();
                let expires = value.as_deref().and_then(envelope::expiry);
                !holds && expires.is_some_and(|expires| expires < ended_before)
            };
            let over = batch.iter().filter(&mut is_over);
            let changes: Vec<_> = over.map(|candidate| Change::Delete { key: candidate.key.clone() }).collect();
            removed += changes.len();
            if !changes.is_empty() {
                self.apply(changes, stages).await?;
            }
        }
        Ok(Swept { removed, cursor })
    }

    fn candidate(&self, key: String) -> Option<Candidate> {
        let (place, kind, id) = self.layout.parts(&key)?;
        // All of these have ids of one form.
        SessionId::parse(id)?;
        let session = match kind {
            "s" | "l" => None,
            "g" | "x" => Some(format!("{place}s/{id}")),
            _ => return None,
        };
        Some(Candidate { key, session })
    }
}

/// How far clocks may differ.
const SKEW_SECONDS: u64 = 5 * 60;

/// So few keys are read at once that their values are no burden, and nobody else waits long.
const BATCH: usize = 50;

/// Longer than any key of ours.
const MAX_CURSOR_BYTES: usize = 200;
