//! Which revisions of a component there are, which of them serves, and how one takes another's place.
//!
//! ```text
//! routes   REST for operators       keeper   one change at a time, and what is taken back
//! intake   from bytes to a revision that answers       slot, live   the exchange, on every core
//! shelf, journal   what a restart knows     rule, verdict, counts   canaries and rollbacks
//! signature   who may upload        watch   a file that is served as it changes
//! ```
//!
//! A revision is code and configuration, and immutable: other variables make another revision of the
//! same component. A change that is refused has changed nothing.

pub mod counts;
mod intake;
pub mod journal;
mod keeper;
mod live;
mod metrics;
mod refusal;
mod routes;
pub mod rule;
pub mod shelf;
pub mod signature;
mod slot;
mod standing;
pub mod verdict;
pub mod watch;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

pub use self::{
    counts::{Counts, Outcome, Recent, Tally},
    intake::Took,
    journal::Journal,
    live::{Core, Live},
    refusal::{CODES, Refusal},
    rule::{Rule, Share},
    shelf::{Shelf, State},
    signature::UploadKeys,
    standing::{Listed, Standing},
    verdict::{Thresholds, Trial, Verdict},
    watch::Watch,
};
pub(crate) use self::{intake::Intake, routes::routes, slot::Slot};
use self::{
    journal::Action,
    keeper::{Job, Start},
    metrics::Metrics,
};
use crate::{
    engine::{Digest, Engine},
    revision::Surroundings,
};

/// The longest component that is taken, in bytes.
pub const MAX_COMPONENT_BYTES: usize = 32 << 20;

/// How revisions are kept and judged.
#[derive(Clone, Debug)]
pub struct Config {
    /// The state folder; `None` keeps nothing, and a restart begins with the manifest's component.
    pub state_dir: Option<PathBuf>,
    /// How many of those that served before are kept.
    pub keep: usize,
    /// When a new one is taken back.
    pub thresholds: Thresholds,
    /// Who may upload; none: whoever has the admin token.
    pub upload_keys: UploadKeys,
    /// A file that is served as it changes.
    pub watch: Option<PathBuf>,
    /// For requests under way when their revision is replaced.
    pub drain: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: None,
            keep: 5,
            thresholds: Thresholds::default(),
            upload_keys: UploadKeys::default(),
            watch: None,
            drain: Duration::from_secs(30),
        }
    }
}

/// What is to be changed.
pub enum Change {
    /// Take these bytes in.
    Upload {
        /// A component.
        wasm: Bytes,
        /// Its signature, base64url.
        signature: Option<String>,
        /// What to do with it.
        then: Then,
    },
    /// Serve what was uploaded before.
    Activate(Digest),
    /// Give some requests to what was uploaded before.
    Canary(Digest, Rule),
    /// Give all requests to the canary.
    Promote,
    /// Give no requests to the canary.
    Stop,
    /// Serve what served before.
    RollBack,
    /// Give what is served other surroundings.
    Reload(Box<Surroundings>),
}

/// What to do with what was taken in.
pub enum Then {
    /// Keep it ready.
    Nothing,
    /// Serve it.
    Activate,
    /// Give it some requests.
    Canary(Rule),
}

/// Who changes something, and what they believe.
#[derive(Clone, Debug)]
pub struct By {
    /// Who, by their own word.
    pub who: String,
    /// What has to be active; something else is a conflict.
    pub expect: Option<Digest>,
    /// Why, where it is the node: a stable code, and words.
    pub why: Option<(&'static str, String)>,
}

impl By {
    /// The node itself.
    #[must_use]
    pub fn node() -> Self {
        Self::named("node")
    }

    /// Somebody who believes nothing.
    #[must_use]
    pub fn named(who: &str) -> Self {
        Self { who: who.into(), expect: None, why: None }
    }
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Done {
    /// What it was about.
    pub digest: Digest,
    /// What that is now: `ready`, `active`, `canary` or `stopped`.
    pub state: &'static str,
    /// What was active before, where that has changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<Digest>,
    /// Where something was taken in.
    #[serde(rename = "seconds", skip_serializing_if = "Option::is_none")]
    pub took: Option<Took>,
}

impl Done {
    fn ready(digest: Digest) -> Self {
        Self { digest, state: "ready", previous: None, took: None }
    }

    fn active(digest: Digest, previous: Option<Digest>) -> Self {
        Self { state: "active", previous, ..Self::ready(digest) }
    }
}

impl Change {
    /// What it is called, and what it is about, where that is known before.
    fn named(&self) -> (Action, Option<Digest>) {
        match self {
            Self::Upload { wasm, then, .. } => {
                let action = match then {
                    Then::Nothing => Action::Upload,
                    Then::Activate => Action::Activate,
                    Then::Canary(_) => Action::Canary,
                };
                (action, Some(Digest::of(wasm)))
            }
            Self::Activate(digest) => (Action::Activate, Some(*digest)),
            Self::Canary(digest, _) => (Action::Canary, Some(*digest)),
            Self::Promote => (Action::Promote, None),
            Self::Stop => (Action::Stop, None),
            Self::RollBack => (Action::RollBack, None),
            Self::Reload(_) => (Action::Reload, None),
        }
    }
}

/// Takes orders for changes. Clones are the same office; with the last one the keeper ends.
#[derive(Clone)]
pub(crate) struct Office {
    jobs: mpsc::UnboundedSender<Job>,
    standing: Arc<ArcSwap<Standing>>,
}

/// The thread behind an [`Office`].
pub(crate) struct Keeper(Option<thread::JoinHandle<()>>);

/// What a node found when it started.
pub(crate) struct Found {
    /// What is on disk, where there is a state folder.
    pub(crate) shelf: Option<Shelf>,
    /// What is served, and was.
    pub(crate) state: State,
    /// The component to serve, if it is another than the manifest's.
    pub(crate) component: Option<Vec<u8>>,
}

impl Found {
    /// Looks what served last. The manifest's component serves when it has changed since, and when
    /// nothing was activated after it.
    pub(crate) fn look(state_dir: Option<&Path>, keep: usize, base: &[u8]) -> io::Result<Self> {
        let digest = Digest::of(base);
        let first = State { base: Some(digest), active: Some(digest), ..State::default() };
        let Some(folder) = state_dir else { return Ok(Self { shelf: None, state: first, component: None }) };
        let shelf = Shelf::open(folder, keep)?;
        shelf.put(base)?;
        let mut state = shelf.state();
        // A canary does not outlive the node that watched it.
        state.canary = None;
        if state.base != Some(digest) {
            state.base = Some(digest);
            state.activate(digest);
        }
        let other = state.active.filter(|active| *active != digest);
        let component = other.map(|active| shelf.read(active)).transpose()?.flatten();
        if component.is_none() {
            state.activate(digest);
        }
        Ok(Self { shelf: Some(shelf), state, component })
    }

    /// Goes on with the manifest's component.
    pub(crate) fn fall_back(&mut self) {
        if let Some(base) = self.state.base {
            self.state.activate(base);
        }
        self.component = None;
    }
}

impl Office {
    /// Opens it over `slot`.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(crate) fn open(
        slot: Arc<Slot>,
        engine: Arc<Engine>,
        cache: Option<&Path>,
        around: Surroundings,
        found: Found,
        config: Config,
    ) -> io::Result<(Self, Keeper)> {
        let intake = Intake::new(engine, cache).map_err(io::Error::other)?;
        let metrics = Metrics::default();
        around.metrics.register(|registry| metrics.register(registry));
        let Found { shelf, state, .. } = found;
        if let Some(shelf) = &shelf {
            shelf.save(&state)?;
        }
        let journal = config.state_dir.as_deref().map(Journal::new);
        let first = Standing::new(&slot.now(), &state, Vec::new(), 0, false);
        let standing = Arc::new(ArcSwap::from_pointee(first));
        let (jobs, inbox) = mpsc::unbounded_channel();
        let start = Start { slot, intake, shelf, journal, state, around, config, metrics, standing: standing.clone() };
        let thread = keeper::start(start, inbox)?;
        Ok((Self { jobs, standing }, Keeper(Some(thread))))
    }

    /// Makes a change.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub(crate) async fn change(&self, change: Change, by: By) -> Result<Done, Refusal> {
        let (answer, done) = oneshot::channel();
        self.jobs.send(Job { change, by, answer }).map_err(|_| Refusal::ending())?;
        done.await.map_err(|_| Refusal::ending())?
    }

    /// How things stand.
    pub(crate) fn standing(&self) -> Arc<Standing> {
        self.standing.load_full()
    }
}

/// Waits for the thread, which ends with the last office.
impl Drop for Keeper {
    fn drop(&mut self) {
        if self.0.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that changes revisions panicked");
        }
    }
}
