//! Components on disk, and which of them serve: what a node comes back with after a restart.
//!
//! ```text
//! <state>/revisions/<digest>.wasm   a component
//! <state>/revisions/state.json      which is active, which came before, which is tried
//! ```
//!
//! A file appears whole or not at all, and what is read is used only if its digest holds.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::rule::Rule;
use crate::engine::Digest;

/// The folder. One process has it: who holds the state folder.
#[derive(Debug)]
pub struct Shelf {
    folder: PathBuf,
    keep: usize,
}

/// Which revisions there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// What the manifest named when the node last started: a change of it is a new revision.
    #[serde(default)]
    pub base: Option<Digest>,
    /// What serves.
    #[serde(default)]
    pub active: Option<Digest>,
    /// What served before, the latest first.
    #[serde(default)]
    pub previous: Vec<Digest>,
    /// What was taken in last, if it has not served since.
    #[serde(default)]
    pub ready: Option<Digest>,
    /// What is tried, and on whom.
    #[serde(default)]
    pub canary: Option<(Digest, Rule)>,
}

impl State {
    /// `digest` serves from now on, and what served until now comes before it. If it was the
    /// canary, there is none any more.
    pub fn activate(&mut self, digest: Digest) {
        self.canary.take_if(|(canary, _)| *canary == digest);
        self.ready.take_if(|ready| *ready == digest);
        if self.active == Some(digest) {
            return;
        }
        let before = self.active.replace(digest);
        self.previous.retain(|known| *known != digest && Some(*known) != before);
        self.previous.splice(..0, before);
    }

    /// What served before serves again; where nothing did, the base. What served until now is not
    /// gone back to. `None`: there is nothing to go back to, and nothing has changed.
    pub fn roll_back(&mut self) -> Option<Digest> {
        let to = self.can_roll_back()?;
        self.previous.retain(|known| *known != to);
        self.active = Some(to);
        self.canary.take_if(|(canary, _)| *canary == to);
        Some(to)
    }

    /// What [`State::roll_back`] would go back to.
    #[must_use]
    pub fn can_roll_back(&self) -> Option<Digest> {
        self.previous.first().copied().or(self.base).filter(|to| Some(*to) != self.active)
    }

    /// What must not be thrown away: everything but those that served before the last `keep`.
    fn kept(&self, keep: usize) -> BTreeSet<Digest> {
        let canary = self.canary.as_ref().map(|(digest, _)| *digest);
        let previous = self.previous.iter().take(keep).copied();
        [self.base, self.active, self.ready, canary].into_iter().flatten().chain(previous).collect()
    }
}

impl Shelf {
    /// The folder `revisions` in the state folder, made if it is not there and closed to others.
    /// `keep` of those that served before are kept.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(state_dir: &Path, keep: usize) -> io::Result<Self> {
        let folder = state_dir.join(FOLDER);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        Ok(Self { folder, keep })
    }

    /// Keeps a component.
    ///
    /// # Errors
    /// When it cannot be written; nothing is kept then.
    pub fn put(&self, wasm: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(wasm);
        if self.read(digest)?.is_none() {
            self.write(&self.component(digest), wasm)?;
        }
        Ok(digest)
    }

    /// A component; `None` where there is none, or only bytes of which the digest does not hold.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn read(&self, digest: Digest) -> io::Result<Option<Vec<u8>>> {
        let wasm = match fs::read(self.component(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            wasm => wasm?,
        };
        if Digest::of(&wasm) == digest {
            return Ok(Some(wasm));
        }
        tracing::warn!(%digest, "the component on disk is damaged, and not used");
        Ok(None)
    }

    /// Which revisions there are; none where nothing was saved or it cannot be read.
    #[must_use]
    pub fn state(&self) -> State {
        let path = self.folder.join(STATE);
        let read = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return State::default(),
            read => read.and_then(|text| Ok(serde_json::from_slice(&text)?)),
        };
        read.unwrap_or_else(|error| {
            tracing::warn!(file = %path.display(), %error, "not readable; going on with the manifest's component");
            State::default()
        })
    }

    /// Saves which revisions there are; of those that served before, as many as are kept.
    ///
    /// # Errors
    /// When it cannot be written; what was saved before holds then.
    pub fn save(&self, state: &State) -> io::Result<()> {
        let mut state = state.clone();
        state.previous.truncate(self.keep);
        self.write(&self.folder.join(STATE), &serde_json::to_vec_pretty(&state)?)
    }

    /// Throws away every component that `state` does not need, and what a killed process left
    /// half-written. Save the state first: then it never names what is gone.
    pub fn prune(&self, state: &State) {
        let kept: BTreeSet<PathBuf> = state.kept(self.keep).into_iter().map(|digest| self.component(digest)).collect();
        let files = fs::read_dir(&self.folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let ours = files.filter(|path| path.extension().is_some_and(|kind| kind == WASM || kind == TEMPORARY));
        for path in ours.filter(|path| !kept.contains(path)) {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(file = %path.display(), %error, "not removed");
            }
        }
    }

    fn component(&self, digest: Digest) -> PathBuf {
        self.folder.join(format!("{digest}.{WASM}"))
    }

    /// Durable when it returns, and there whole or not at all.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let temporary = path.with_extension(TEMPORARY);
        let mut options = fs::OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        opened
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, path))
            .inspect_err(|_| drop(fs::remove_file(&temporary)))?;
        // The name is durable with the folder.
        fs::File::open(&self.folder)?.sync_all()
    }
}

/// The folder's name in the state folder.
pub(super) const FOLDER: &str = "revisions";
const STATE: &str = "state.json";
const WASM: &str = "wasm";
const TEMPORARY: &str = "tmp";

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    fn active(names: &[&str]) -> State {
        names.iter().fold(State::default(), |mut state, name| {
            state.activate(digest(name));
            state
        })
    }

    #[test]
    fn what_served_before_comes_back_in_turn() {
        let mut state = State { base: Some(digest("a")), ..active(&["a", "b", "c"]) };
        assert_eq!(state.previous, [digest("b"), digest("a")]);
        state.activate(digest("c"));
        assert_eq!(state.previous, [digest("b"), digest("a")], "it served already");
        state.activate(digest("a"));
        assert_eq!(state.previous, [digest("c"), digest("b")], "each once");
        assert_eq!(state.roll_back(), Some(digest("c")));
        assert_eq!((state.active, &state.previous[..]), (Some(digest("c")), &[digest("b")][..]));
        assert_eq!(state.roll_back(), Some(digest("b")));
        assert_eq!(state.roll_back(), Some(digest("a")), "the base, where nothing else is left");
        let before = state.clone();
        assert_eq!(state.roll_back(), None);
        assert_eq!(state, before);
        assert_eq!(State::default().roll_back(), None);
    }

    #[test]
    fn a_canary_that_serves_is_none() {
        let rule: Rule = "10%".parse().expect("a rule");
        let mut state = State { canary: Some((digest("b"), rule.clone())), ..active(&["a"]) };
        state.activate(digest("c"));
        assert_eq!(state.canary, Some((digest("b"), rule)));
        state.activate(digest("b"));
        assert_eq!((state.canary, state.active), (None, Some(digest("b"))));
    }

    #[test]
    fn a_shelf_keeps_components_and_which_of_them_serve() {
        let folder = tempfile::tempdir().expect("a folder");
        let shelf = Shelf::open(folder.path(), 2).expect("a shelf");
        assert_eq!(shelf.state(), State::default());
        let put = ["a", "b", "c"].map(|name| shelf.put(name.as_bytes()).expect("kept"));
        assert_eq!(put, ["a", "b", "c"].map(digest));
        assert_eq!(shelf.put(b"a").expect("kept"), put[0], "twice is once");
        let state = State {
            base: Some(put[0]),
            canary: Some((put[2], "cookie:a=b".parse().expect("a rule"))),
            ..active(&["a", "b"])
        };
        shelf.save(&state).expect("saved");

        let again = Shelf::open(folder.path(), 2).expect("a shelf");
        assert_eq!(again.state(), state);
        assert_eq!(again.read(put[1]).expect("read").as_deref(), Some(&b"b"[..]));
        assert_eq!(again.read(digest("x")).expect("read"), None);
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&shelf.folder), 0o700);
        for entry in fs::read_dir(&shelf.folder).expect("a folder") {
            assert_eq!(mode(&entry.expect("an entry").path()), 0o600);
        }
    }

    #[test]
    fn damaged_bytes_are_absent_and_put_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let shelf = Shelf::open(folder.path(), 2).expect("a shelf");
        let put = shelf.put(b"component").expect("kept");
        fs::write(shelf.component(put), b"componenx").expect("writes");
        assert_eq!(shelf.read(put).expect("read"), None);
        shelf.put(b"component").expect("kept");
        assert_eq!(shelf.read(put).expect("read").as_deref(), Some(&b"component"[..]));
    }

    #[test]
    fn an_unreadable_state_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let shelf = Shelf::open(folder.path(), 2).expect("a shelf");
        shelf.save(&active(&["a"])).expect("saved");
        for text in ["", "{", "[]", r#"{"active": "x"}"#, r#"{"canary": ["x", "0%"]}"#] {
            fs::write(shelf.folder.join(STATE), text).expect("writes");
            assert_eq!(shelf.state(), State::default(), "{text}");
        }
        fs::write(shelf.folder.join(STATE), r#"{"from_the_future": 1}"#).expect("writes");
        assert_eq!(shelf.state(), State::default());
    }

    #[test]
    fn what_nobody_goes_back_to_is_thrown_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let shelf = Shelf::open(folder.path(), 2).expect("a shelf");
        let names = ["base", "1", "2", "3", "4", "canary", "other"];
        for name in names {
            shelf.put(name.as_bytes()).expect("kept");
        }
        let mut state = active(&["1", "2", "3", "4"]);
        state.base = Some(digest("base"));
        state.canary = Some((digest("canary"), "1%".parse().expect("a rule")));
        fs::write(shelf.folder.join("half.tmp"), "x").expect("writes");
        fs::write(shelf.folder.join("journal.jsonl"), "x").expect("writes");
        shelf.save(&state).expect("saved");
        shelf.prune(&state);
        let there = names.map(|name| shelf.read(digest(name)).expect("read").is_some());
        assert_eq!(there, [true, false, true, true, true, true, false]);
        assert_eq!(shelf.state().previous, [digest("3"), digest("2")]);
        assert!(shelf.folder.join("journal.jsonl").exists() && !shelf.folder.join("half.tmp").exists());
    }
}
