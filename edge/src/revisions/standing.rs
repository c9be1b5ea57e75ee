//! How things stand, for whoever asks: what `GET /revisions` answers.

use serde::Serialize;

use super::{
    journal::{Action, Ended, Entry},
    shelf::State,
    slot::Serving,
};
use crate::{engine::Digest, revision::Revision};

/// What is served, what was, and what can be.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    /// What answers.
    pub active: Listed,
    /// What answers some requests.
    pub canary: Option<Listed>,
    /// These and what is kept besides, the newest first.
    pub revisions: Vec<Listed>,
    /// How many only finish what they have.
    pub draining: usize,
    /// Whether another one served before.
    pub can_roll_back: bool,
    /// The last changes, the newest last.
    #[serde(skip)]
    pub journal: Vec<Entry>,
}

/// A revision in a list.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// `active`, `canary`, `previous` or `ready`.
    pub state: &'static str,
    /// Which requests a canary gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Its own word, where the node has asked for it.
    pub version: Option<String>,
    /// As `version`.
    pub commit: Option<String>,
    /// When it came to this state, RFC 3339, as far as the journal goes back.
    pub at: Option<String>,
    /// Who brought it there.
    pub by: Option<String>,
}

impl Standing {
    pub(super) fn new(now: &Serving, state: &State, journal: Vec<Entry>, draining: usize, can_roll_back: bool) -> Self {
        let active = Listed::of(&now.active.revision, "active", &journal);
        let canary = now.canary.as_ref().map(|(canary, rule)| {
            let rule = Some(rule.to_string());
            Listed { rule, ..Listed::of(&canary.revision, "canary", &journal) }
        });
        let mut revisions: Vec<Listed> = canary.iter().chain([&active]).cloned().collect();
        let uploaded =
            journal.iter().rev().filter(|entry| entry.action == Action::Upload && entry.result == Ended::Done);
        let previous = state.previous.iter().map(|digest| (*digest, "previous"));
        for (digest, state) in previous.chain(uploaded.filter_map(|entry| Some((entry.digest?, "ready")))) {
            if !revisions.iter().any(|listed| listed.digest == digest) {
                revisions.push(Listed::kept(digest, state, &journal));
            }
        }
        Self { active, canary, revisions, draining, can_roll_back, journal }
    }
}

impl Listed {
    fn of(revision: &Revision, state: &'static str, journal: &[Entry]) -> Self {
        let said = revision.description();
        Self {
            version: said.map(|said| said.version.clone()),
            commit: said.map(|said| said.commit.clone()),
            ..Self::kept(revision.digest(), state, journal)
        }
    }

    fn kept(digest: Digest, state: &'static str, journal: &[Entry]) -> Self {
        let change = |entry: &&Entry| entry.digest == Some(digest) && entry.result == Ended::Done;
        let last = journal.iter().rev().find(change);
        Self {
            digest,
            state,
            rule: None,
            version: None,
            commit: None,
            at: last.map(|entry| entry.at.clone()),
            by: last.map(|entry| entry.who.clone()),
        }
    }
}
