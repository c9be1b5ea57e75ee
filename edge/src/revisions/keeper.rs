//! Who changes what is served: one thread, which makes one change at a time.
//!
//! Bytes are taken in beside it, and what was served before finishes beside it; so neither a component
//! that compiles for seconds nor a request that takes a minute keeps a rollback waiting.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::{
    runtime,
    sync::{Mutex, mpsc, oneshot},
    task::{LocalSet, spawn_blocking, spawn_local},
};

use super::{
    By, Change, Config, Done, Journal, Refusal, Rule, Shelf, Standing, State, Then, Took, Trial, Verdict, Watch,
    intake::Intake,
    journal::{Action, Ended, Entry},
    metrics::Metrics,
    slot::{Generation, Serving, Slot},
    verdict::Cause,
};
use crate::{
    engine::Digest,
    revision::{Revision, Surroundings},
};

/// A change that somebody wants.
pub(super) struct Job {
    pub(super) change: Change,
    pub(super) by: By,
    pub(super) answer: oneshot::Sender<Result<Done, Refusal>>,
}

/// What the thread starts with.
pub(super) struct Start {
    pub(super) slot: Arc<Slot>,
    pub(super) intake: Intake,
    pub(super) shelf: Option<Shelf>,
    pub(super) journal: Option<Journal>,
    pub(super) state: State,
    pub(super) around: Surroundings,
    pub(super) config: Config,
    pub(super) metrics: Metrics,
    pub(super) standing: Arc<ArcSwap<Standing>>,
}

/// Starts the thread; it ends with the last sender of jobs.
pub(super) fn start(start: Start, mut jobs: mpsc::UnboundedReceiver<Job>) -> std::io::Result<thread::JoinHandle<()>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("revisions".into()).spawn(move || {
        let keeper = Rc::new(Keeper::new(start));
        LocalSet::new().block_on(&runtime, async {
            keeper.show();
            spawn_local(keeper.clone().watch_over());
            if let Some(watch) = keeper.config.watch.clone() {
                spawn_local(keeper.clone().watch_file(Watch::new(&watch)));
            }
            while let Some(job) = jobs.recv().await {
                let keeper = keeper.clone();
                spawn_local(async move {
                    let done = keeper.change(job.change, &job.by).await;
                    // Who asked may have gone.
                    drop(job.answer.send(done));
                });
            }
        });
        // Not waiting for a component that compiles.
        runtime.shutdown_background();
    })
}

struct Keeper {
    slot: Arc<Slot>,
    intake: Arc<Intake>,
    shelf: Option<Shelf>,
    journal: Option<Journal>,
    state: RefCell<State>,
    /// What the next revision is given.
    around: RefCell<Surroundings>,
    config: Config,
    metrics: Metrics,
    standing: Arc<ArcSwap<Standing>>,
    /// Held by whoever changes what is served.
    turn: Mutex<()>,
    /// Held while bytes are taken in: one at a time, or compiling would take all cores.
    taking: Mutex<()>,
    /// Loaded, so that it serves at once: what was uploaded last, and what served before.
    ready: RefCell<Option<Arc<Revision>>>,
    before: RefCell<Option<Arc<Revision>>>,
    draining: Cell<usize>,
}

impl Keeper {
    fn new(start: Start) -> Self {
        let Start { slot, intake, shelf, journal, state, around, config, metrics, standing } = start;
        Self {
            slot,
            intake: Arc::new(intake),
            shelf,
            journal,
            state: RefCell::new(state),
            around: RefCell::new(around),
            config,
            metrics,
            standing,
            turn: Mutex::default(),
            taking: Mutex::default(),
            ready: RefCell::default(),
            before: RefCell::default(),
            draining: Cell::new(0),
        }
    }

    async fn change(self: &Rc<Self>, change: Change, by: &By) -> Result<Done, Refusal> {
        let (action, digest) = change.named();
        let done = match change {
            Change::Upload { wasm, signature, then } => self.upload(wasm, signature, then, by).await,
            Change::Activate(digest) => self.activate(digest, by).await,
            Change::Canary(digest, rule) => self.canary(digest, rule, by).await,
            Change::Promote => self.promote(by).await,
            Change::Stop => self.stop(by).await,
            Change::RollBack => self.roll_back(by).await,
            Change::Reload(around) => self.reload(*around).await,
        };
        let digest = done.as_ref().ok().map(|done| done.digest).or(digest);
        self.write_down(by, action, digest, done.as_ref().err());
        self.show();
        done
    }

    async fn upload(
        self: &Rc<Self>,
        wasm: Bytes,
        signature: Option<String>,
        then: Then,
        by: &By,
    ) -> Result<Done, Refusal> {
        let digest = Digest::of(&wasm);
        self.config
            .upload_keys
            .verify(digest, signature.as_deref())
            .map_err(|error| Refusal::new(error.code(), error.to_string()))?;
        self.expected(by)?;
        let (revision, took) = self.take_in(wasm.clone()).await?;
        if let Some(shelf) = &self.shelf {
            shelf.put(&wasm).map_err(|error| Refusal::failed(&error))?;
            // Or the next change would throw it away.
            self.state.borrow_mut().ready = Some(digest);
        }
        let done = Done { took: Some(took), ..Done::ready(digest) };
        match then {
            Then::Nothing => {
                self.ready.replace(Some(revision));
                self.save();
                Ok(done)
            }
            Then::Activate => Ok(Done { took: Some(took), ..self.serve(revision, by).await? }),
            Then::Canary(rule) => Ok(Done { took: Some(took), ..self.try_out(revision, rule, by).await? }),
        }
    }

    async fn activate(self: &Rc<Self>, digest: Digest, by: &By) -> Result<Done, Refusal> {
        if self.slot.now().active.revision.digest() == digest {
            self.expected(by)?;
            return Ok(Done::active(digest, None));
        }
        let revision = self.loaded(digest).await?;
        self.serve(revision, by).await
    }

    async fn canary(self: &Rc<Self>, digest: Digest, rule: Rule, by: &By) -> Result<Done, Refusal> {
        let revision = self.loaded(digest).await?;
        self.try_out(revision, rule, by).await
    }

    async fn reload(self: &Rc<Self>, around: Surroundings) -> Result<Done, Refusal> {
        let digest = self.slot.now().active.revision.digest();
        let wasm = self.bytes(digest)?;
        let before = self.around.replace(around);
        let taken = self.take_in(wasm).await;
        let (revision, took) = taken.inspect_err(|_| drop(self.around.replace(before)))?;
        let done = self.serve(revision, &By::node()).await?;
        Ok(Done { took: Some(took), ..done })
    }

    /// Serves `revision` in the place of all that is served.
    async fn serve(self: &Rc<Self>, revision: Arc<Revision>, by: &By) -> Result<Done, Refusal> {
        let _turn = self.turn.lock().await;
        self.expected(by)?;
        let next = self.slot.generation(revision);
        self.slot.warm(&next).await;
        Ok(self.exchange(&next, Remember::Yes))
    }

    /// Gives some requests to `revision`.
    async fn try_out(self: &Rc<Self>, revision: Arc<Revision>, rule: Rule, by: &By) -> Result<Done, Refusal> {
        let _turn = self.turn.lock().await;
        self.expected(by)?;
        let next = self.slot.generation(revision);
        let digest = next.revision.digest();
        self.slot.warm(&next).await;
        let now = Serving::clone(&self.slot.now());
        self.state.borrow_mut().canary = Some((digest, rule.clone()));
        self.save();
        let trial = Trial::beside(self.config.thresholds, Instant::now());
        self.slot.serve(Serving { active: now.active, canary: Some((next, rule)), trial: None }.on_trial(Some(trial)));
        self.let_go(now.canary.map(|(canary, _)| canary));
        Ok(Done { state: "canary", ..Done::ready(digest) })
    }

    async fn promote(self: &Rc<Self>, by: &By) -> Result<Done, Refusal> {
        let _turn = self.turn.lock().await;
        self.expected(by)?;
        let canary = self.slot.now().canary.clone();
        let (next, _) = canary.ok_or_else(|| Refusal::new("conflict", "there is no canary"))?;
        Ok(self.exchange(&next, Remember::Yes))
    }

    async fn stop(self: &Rc<Self>, by: &By) -> Result<Done, Refusal> {
        let _turn = self.turn.lock().await;
        self.expected(by)?;
        let now = Serving::clone(&self.slot.now());
        let (canary, _) = now.canary.ok_or_else(|| Refusal::new("conflict", "there is no canary"))?;
        let digest = canary.revision.digest();
        self.state.borrow_mut().canary = None;
        self.save();
        self.slot.serve(Serving { active: now.active, canary: None, trial: None });
        self.let_go(Some(canary));
        Ok(Done { state: "stopped", ..Done::ready(digest) })
    }

    /// Back to what served before. A canary stays out of it: it is stopped.
    async fn roll_back(self: &Rc<Self>, by: &By) -> Result<Done, Refusal> {
        let _turn = self.turn.lock().await;
        self.expected(by)?;
        let nothing = || Refusal::new("nothing_to_roll_back", "no other revision served before this one");
        let last = self.before.borrow().clone();
        // What served before, also where it is the same component with other settings.
        let revision = if let Some(revision) = last {
            revision
        } else {
            let digest = self.state.borrow().can_roll_back().ok_or_else(nothing)?;
            self.loaded(digest).await?
        };
        let next = self.slot.generation(revision);
        self.slot.warm(&next).await;
        Ok(self.exchange(&next, Remember::No))
    }

    /// The one moment of a change. Called with the turn taken and the cores ready.
    fn exchange(self: &Rc<Self>, next: &Arc<Generation>, remember: Remember) -> Done {
        let now = Serving::clone(&self.slot.now());
        let digest = next.revision.digest();
        {
            let mut state = self.state.borrow_mut();
            match remember {
                Remember::Yes => state.activate(digest),
                Remember::No => _ = state.roll_back(),
            }
            state.canary = None;
        }
        self.save();
        let last = (remember == Remember::Yes).then(|| now.active.revision.clone());
        self.before.replace(last);
        let moment = Instant::now();
        let trial = Trial::after(self.config.thresholds, now.active.recent.counts(moment), moment);
        let serving = Serving { active: next.clone(), canary: None, trial: None };
        // What is gone back to has been judged, or there would be no end of going back.
        self.slot.serve(serving.on_trial((remember == Remember::Yes).then_some(trial)));
        let previous = now.active.revision.digest();
        self.let_go(Some(now.active));
        // A canary that was promoted serves on.
        self.let_go(now.canary.map(|(canary, _)| canary).filter(|canary| canary.number != next.number));
        Done::active(digest, Some(previous))
    }

    /// Waits, beside everything else, until the cores are done with it.
    fn let_go(self: &Rc<Self>, generation: Option<Arc<Generation>>) {
        let Some(generation) = generation else { return };
        let keeper = self.clone();
        self.metrics.drain_begins();
        self.draining.set(self.draining.get() + 1);
        spawn_local(async move {
            let begun = Instant::now();
            let cut = keeper.slot.retire(&generation, keeper.config.drain).await;
            keeper.metrics.drain_ends(begun.elapsed().as_secs_f64(), cut);
            keeper.draining.set(keeper.draining.get() - 1);
            let digest = generation.revision.digest();
            if cut > 0 {
                tracing::warn!(revision = %digest, cut, "requests cut off after the drain limit");
                let cut = Refusal::new("cut", format!("{cut} requests were cut off after the drain limit"));
                keeper.write_down(&By::node(), Action::Drain, Some(digest), Some(&cut));
            }
            keeper.show();
        });
    }

    /// Looks again and again how requests go, and takes back what does not do.
    async fn watch_over(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(trial) = self.slot.now().trial.clone() else { continue };
            match trial.verdict(Instant::now()) {
                Verdict::Watching => {}
                Verdict::Good => self.judged(&trial, true).await,
                Verdict::Bad(cause) => {
                    self.judged(&trial, false).await;
                    self.take_back(cause).await;
                }
            }
        }
    }

    /// Ends `trial`, unless another has begun. A canary that does well goes on to the next one.
    async fn judged(&self, trial: &Arc<Trial>, well: bool) {
        let _turn = self.turn.lock().await;
        let now = Serving::clone(&self.slot.now());
        if now.trial.as_ref().is_some_and(|current| Arc::ptr_eq(current, trial)) {
            let next = (well && now.canary.is_some()).then(|| Trial::beside(self.config.thresholds, Instant::now()));
            self.slot.serve(now.on_trial(next));
        }
    }

    async fn take_back(self: &Rc<Self>, cause: Cause) {
        let now = Serving::clone(&self.slot.now());
        let canary = now.canary.is_some();
        // Not what somebody else has brought in meanwhile.
        let why = Some((cause.kind.code(), cause.to_string()));
        let by = By { expect: Some(now.active.revision.digest()), why, ..By::node() };
        let change = if canary { Change::Stop } else { Change::RollBack };
        match self.change(change, &by).await {
            Ok(done) => {
                self.metrics.rolled_back(cause.kind.code());
                tracing::error!(%cause, canary, now = %done.digest, "rolled back");
            }
            Err(refusal) => tracing::error!(%cause, %refusal, "does badly, and cannot be rolled back"),
        }
    }

    /// Serves what a file becomes.
    async fn watch_file(self: Rc<Self>, watch: Watch) {
        let mut watch = watch.knowing(self.slot.now().active.revision.digest());
        loop {
            tokio::time::sleep(POLL).await;
            let looked = spawn_blocking(move || {
                let found = watch.look();
                // Where uploads are signed, so is this: beside it, with `.sig` after its name.
                let mut signature = watch.path().as_os_str().to_owned();
                signature.push(".sig");
                let found = found.map(|wasm| (wasm, std::fs::read_to_string(signature).ok()));
                (watch, found)
            });
            let found = match looked.await {
                Ok((back, found)) => {
                    watch = back;
                    found
                }
                // Only at the end of the runtime.
                Err(_) => return,
            };
            let Some((wasm, signature)) = found else { continue };
            let by = By::named("watch");
            let change = Change::Upload { wasm: wasm.into(), signature, then: Then::Activate };
            match self.change(change, &by).await {
                Ok(done) => tracing::info!(revision = %done.digest, "serves what the watched file is now"),
                Err(refusal) => tracing::error!(%refusal, "the watched file is not served"),
            }
        }
    }

    /// A revision of what was uploaded before.
    async fn loaded(self: &Rc<Self>, digest: Digest) -> Result<Arc<Revision>, Refusal> {
        let at_hand = [&self.ready, &self.before].into_iter().find_map(|place| {
            let place = place.borrow();
            place.as_ref().filter(|revision| revision.digest() == digest).cloned()
        });
        match at_hand {
            Some(revision) => Ok(revision),
            None => Ok(self.take_in(self.bytes(digest)?).await?.0),
        }
    }

    fn bytes(&self, digest: Digest) -> Result<Bytes, Refusal> {
        let kept =
            self.shelf.as_ref().map(|shelf| shelf.read(digest)).transpose().map_err(|error| Refusal::failed(&error))?;
        let unknown = || Refusal::new("unknown_revision", format!("{digest} was never uploaded, or is no longer kept"));
        kept.flatten().map(Bytes::from).ok_or_else(unknown)
    }

    async fn take_in(&self, wasm: Bytes) -> Result<(Arc<Revision>, Took), Refusal> {
        let busy = || Refusal::new("busy", "another component is being taken in; try again in a moment");
        let _taking = self.taking.try_lock().map_err(|_| busy())?;
        let (intake, around) = (self.intake.clone(), self.around.borrow().clone());
        let taken = spawn_blocking(move || intake.take(&wasm, around)).await;
        let (revision, took) = taken.map_err(|error| Refusal::failed(&error))??;
        self.metrics.taken_in(took);
        Ok((revision, took))
    }

    /// Whether what is served is what who asks thinks it is.
    fn expected(&self, by: &By) -> Result<(), Refusal> {
        let now = self.slot.now().active.revision.digest();
        match by.expect {
            Some(expected) if expected != now => {
                Err(Refusal::new("conflict", format!("{now} is active, not {expected}")))
            }
            _ => Ok(()),
        }
    }

    fn save(&self) {
        let Some(shelf) = &self.shelf else { return };
        let state = self.state.borrow();
        if let Err(error) = shelf.save(&state) {
            tracing::error!(%error, "what is served is not written down; a restart will not know it");
        }
        shelf.prune(&state);
    }

    fn write_down(&self, by: &By, action: Action, digest: Option<Digest>, refusal: Option<&Refusal>) {
        let result = match refusal {
            None => Ended::Done,
            Some(refusal) if refusal.code == "internal" => Ended::Failed,
            Some(_) => Ended::Refused,
        };
        self.metrics.changed(action.name(), result.name());
        if let Some(refusal) = refusal {
            tracing::warn!(who = by.who, action = action.name(), %refusal, "not changed");
        } else {
            let digest = digest.map(|digest| digest.short());
            tracing::info!(who = by.who, action = action.name(), digest, "changed");
        }
        let mut entry = Entry::new(SystemTime::now(), &by.who, action, digest, result);
        let refused = refusal.map(|refusal| (refusal.code, refusal.detail.clone()));
        if let Some((code, words)) = refused.or_else(|| by.why.clone()) {
            entry = entry.because(code, words);
        }
        if let Some(journal) = &self.journal
            && let Err(error) = journal.add(&entry)
        {
            tracing::error!(%error, "a change is not in the journal");
        }
    }

    /// Shows how things stand.
    fn show(&self) {
        let now = self.slot.now();
        let canary = now.canary.as_ref().map(|(canary, _)| canary.revision.digest());
        self.metrics.serves(now.active.revision.digest(), canary);
        let entries = self.journal.as_ref().map(|journal| journal.tail(SHOWN)).unwrap_or_default();
        let can_roll_back = self.before.borrow().is_some() || self.state.borrow().can_roll_back().is_some();
        let standing = Standing::new(&now, &self.state.borrow(), entries, self.draining.get(), can_roll_back);
        self.standing.store(Arc::new(standing));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Remember {
    /// What served before can be gone back to.
    Yes,
    /// It is what is gone back from.
    No,
}

/// How often it is looked how requests go.
const LOOK: Duration = Duration::from_millis(100);
/// How often a watched file is read.
const POLL: Duration = Duration::from_secs(1);
/// Entries of the journal that are shown.
const SHOWN: usize = 200;
