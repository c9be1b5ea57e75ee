//! What was done to the revisions of a node, by whom, and how it went: lines of JSON in
//! `<state>/revisions/journal.jsonl`.
//!
//! An entry is on disk before the call returns. A file that has grown to 1 MiB becomes
//! `journal.1.jsonl`, in the place of the one before it.

use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::shelf::FOLDER;
use crate::engine::Digest;

/// The journal of a node.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    rotate_at: u64,
    /// One writes at a time.
    writing: Mutex<()>,
}

/// A line of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When: RFC 3339, UTC.
    pub at: String,
    /// Who, by their own word; the node itself is `node`.
    pub who: String,
    /// What was to be done.
    pub action: Action,
    /// To which revision, where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// How it went.
    pub result: Ended,
    /// Why, as a stable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What is done to revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A component was sent, and made ready.
    Upload,
    /// It became what serves.
    Activate,
    /// It began to serve some.
    Canary,
    /// The canary became what serves.
    Promote,
    /// The canary ended.
    Stop,
    /// What served before serves again.
    RollBack,
    /// The configuration was read again.
    Reload,
    /// What it replaced had to be cut off.
    Drain,
}

/// How something went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It is done.
    Done,
    /// It was not taken: whoever asked has to act.
    Refused,
    /// It went wrong: the node's operator has to act.
    Failed,
}

impl Action {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Activate => "activate",
            Self::Canary => "canary",
            Self::Promote => "promote",
            Self::Stop => "stop",
            Self::RollBack => "roll_back",
            Self::Reload => "reload",
            Self::Drain => "drain",
        }
    }
}

impl Ended {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

impl Entry {
    /// An entry of this moment, without reason and detail.
    #[must_use]
    pub fn new(at: SystemTime, who: &str, action: Action, digest: Option<Digest>, result: Ended) -> Self {
        let at = humantime::format_rfc3339_millis(at).to_string();
        Self { at, who: who.into(), action, digest, result, reason: None, detail: None }
    }

    /// The same with a stable code and words.
    #[must_use]
    pub fn because(mut self, reason: &str, detail: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self.detail = Some(detail.into()).filter(|detail| !detail.is_empty());
        self
    }

    /// As it may be kept and shown: bounded, without what would move a terminal's cursor.
    fn tamed(&self) -> Self {
        let tame = |text: &str, most: usize| text.chars().filter(|c| !c.is_control()).take(most).collect::<String>();
        let who = Some(tame(self.who.trim(), MAX_WHO)).filter(|who| !who.is_empty());
        Self {
            at: self.at.clone(),
            who: who.unwrap_or_else(|| "unknown".into()),
            action: self.action,
            digest: self.digest,
            result: self.result,
            reason: self.reason.as_deref().map(|reason| tame(reason, MAX_WHO)),
            detail: self.detail.as_deref().map(|detail| tame(detail, MAX_DETAIL)),
        }
    }
}

impl Journal {
    /// The journal in the state folder; [`super::Shelf::open`] makes its folder.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Self { folder: state_dir.join(FOLDER), rotate_at: ROTATE_AT, writing: Mutex::default() }
    }

    /// Adds an entry, which is durable when this returns. Characters that are none of a text's, and
    /// what is longer than 100 characters of `who` or 1000 of the detail, are left out.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&self, entry: &Entry) -> io::Result<()> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = self.open()?;
        let mut length = file.metadata()?.len();
        if length >= self.rotate_at {
            fs::rename(self.current(), self.old())?;
            file = self.open()?;
            length = 0;
        }
        let mut line = serde_json::to_vec(&entry.tamed())?;
        line.push(b'\n');
        // A line that a kill cut short is nobody's, and must not spoil the next.
        if length > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                line.insert(0, b'\n');
            }
        }
        file.write_all(&line)?;
        file.sync_data()
    }

    /// The last `count` entries, the latest last. What is no entry is left out.
    #[must_use]
    pub fn tail(&self, count: usize) -> Vec<Entry> {
        let files = [self.old(), self.current()].map(|path| fs::read(path).unwrap_or_default());
        let lines = files.iter().flat_map(|file| file.split(|&byte| byte == b'\n'));
        let mut last: Vec<Entry> =
            lines.rev().filter_map(|line| serde_json::from_slice(line).ok()).take(count).collect();
        last.reverse();
        last
    }

    fn open(&self) -> io::Result<fs::File> {
        fs::OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(self.current())
    }

    fn current(&self) -> PathBuf {
        self.folder.join("journal.jsonl")
    }

    fn old(&self) -> PathBuf {
        self.folder.join("journal.1.jsonl")
    }
}

const ROTATE_AT: u64 = 1 << 20;
const MAX_WHO: usize = 100;
const MAX_DETAIL: usize = 1000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::revisions::Shelf;

    fn journal() -> (tempfile::TempDir, Journal) {
        let folder = tempfile::tempdir().expect("a folder");
        Shelf::open(folder.path(), 0).expect("a shelf");
        let journal = Journal::new(folder.path());
        (folder, journal)
    }

    fn entry(who: &str) -> Entry {
        Entry::new(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500), who, Action::RollBack, None, Ended::Done)
    }

    fn names(entries: &[Entry]) -> Vec<&str> {
        entries.iter().map(|entry| &*entry.who).collect()
    }

    #[test]
    fn an_entry_is_a_line_of_json() {
        let (_folder, journal) = journal();
        assert_eq!(journal.tail(9), []);
        let digest = Digest::of(b"abc");
        let refused = Entry::new(SystemTime::UNIX_EPOCH, "eve@host", Action::Upload, Some(digest), Ended::Refused)
            .because("imports_missing", "a:b/c");
        journal.add(&refused).expect("kept");
        journal.add(&entry("node")).expect("kept");
        let text = fs::read_to_string(journal.current()).expect("text");
        let expected = format!(
            "{{\"at\":\"1970-01-01T00:00:00.000Z\",\"who\":\"eve@host\",\"action\":\"upload\",\"digest\":\"{digest}\",\
             \"result\":\"refused\",\"reason\":\"imports_missing\",\"detail\":\"a:b/c\"}}\n\
             {{\"at\":\"1970-01-01T00:00:01.500Z\",\"who\":\"node\",\"action\":\"roll_back\",\"result\":\"done\"}}\n"
        );
        assert_eq!(text, expected);
        assert_eq!(journal.tail(9), [refused, entry("node")]);
        assert_eq!(names(&journal.tail(1)), ["node"]);
        assert_eq!(journal.tail(0), []);
    }

    #[test]
    fn a_torn_line_is_skipped_and_spoils_nothing() {
        let (folder, journal) = journal();
        journal.add(&entry("a")).expect("kept");
        journal.add(&entry("torn")).expect("kept");
        let file = fs::OpenOptions::new().write(true).open(journal.current()).expect("a file");
        for cut in 1..8 {
            file.set_len(file.metadata().expect("a file").len() - cut).expect("cut");
            assert_eq!(names(&journal.tail(9)), if cut == 1 { vec!["a", "torn"] } else { vec!["a"] });
        }
        let again = Journal::new(folder.path());
        again.add(&entry("b")).expect("kept");
        again.add(&entry("c")).expect("kept");
        assert_eq!(names(&again.tail(9)), ["a", "b", "c"]);
        fs::write(journal.current(), b"\xff\xfe\n{}\n\n[1]\n").expect("writes");
        journal.add(&entry("d")).expect("kept");
        assert_eq!(names(&journal.tail(9)), ["d"]);
    }

    #[test]
    fn a_full_file_makes_way_and_is_kept_once() {
        let (_folder, mut journal) = journal();
        journal.rotate_at = 300;
        let who: Vec<String> = (0..30).map(|n| format!("n{n}")).collect();
        for who in &who {
            journal.add(&entry(who)).expect("kept");
        }
        let kept = journal.tail(99);
        assert!((3..12).contains(&kept.len()), "{}", kept.len());
        assert_eq!(names(&kept), who[30 - kept.len()..], "the last, without a gap");
        for file in [journal.current(), journal.old()] {
            assert!(fs::metadata(file).expect("a file").len() < 450);
        }
    }

    #[test]
    fn what_is_said_is_bounded_and_harmless() {
        let (_folder, journal) = journal();
        journal.add(&entry("\u{1b}[2Jeve\n@host ").because("x", "d\u{7}\n".repeat(2000))).expect("kept");
        journal.add(&entry("").because("x", "")).expect("kept");
        journal.add(&entry(&"é".repeat(500))).expect("kept");
        let kept = journal.tail(9);
        assert_eq!(kept.len(), 3);
        assert_eq!((&*kept[0].who, kept[0].detail.as_ref().map(String::len)), ("[2Jeve@host", Some(MAX_DETAIL)));
        assert_eq!((&*kept[1].who, &kept[1].detail), ("unknown", &None));
        assert_eq!(kept[2].who.chars().count(), MAX_WHO);
    }
}
