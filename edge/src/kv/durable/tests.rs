//! What only a store on disk promises. The contract it shares is in `kv/tests.rs`.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

use super::{writer::REOPEN_WAIT, *};
use crate::kv::Entry;

fn put(key: &str, value: Vec<u8>) -> Vec<Change> {
    vec![Change::Put(Entry { key: key.into(), value: value.into(), expires: 0 })]
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("has a temporary folder")
}

#[tokio::test]
async fn entries_are_there_when_it_is_opened_again() {
    let folder = folder();
    let store = Durable::open(folder.path()).expect("opens");
    store.apply(put("a", b"1".to_vec())).await.expect("writes");
    assert!(matches!(Durable::open(folder.path()), Err(OpenError::InUse(path)) if path == folder.path()));
    store.close().await.expect("closes");
    let store = Durable::open(folder.path()).expect("opens again");
    assert_eq!(store.get(vec!["a".into()]).await, Ok(vec![Some(Bytes::from("1"))]));
}

#[tokio::test]
async fn what_cannot_be_opened_is_an_error_with_its_reason() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "x").expect("writes");
    assert!(matches!(Durable::open(&file), Err(OpenError::Io { .. })));

    let store = folder.path().join("store");
    let open = Durable::open(&store).expect("opens");
    open.apply(put("a", vec![7; 1000])).await.expect("writes");
    open.close().await.expect("closes");
    for path in files(&store) {
        fs::write(path, "not what was written").expect("writes");
    }
    let error = Durable::open(&store).err().expect("is damaged");
    assert!(matches!(error, OpenError::Damaged { .. } | OpenError::Io { .. }), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).expect("is a folder").map(|entry| entry.expect("is an entry").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn compaction_drops_what_has_expired_and_nothing_else() {
    let folder = folder();
    let now = Arc::new(AtomicU64::new(1000));
    let clock = now.clone();
    let store =
        Durable::open_with_clock(folder.path(), Arc::new(move || clock.load(Ordering::Relaxed))).expect("opens");
    for (n, expires) in [0, 1010, 2000].into_iter().cycle().take(30).enumerate() {
        let key = format!("{expires}/{n}");
        let entry = Entry { key, value: Bytes::from("value"), expires };
        store.apply(vec![Change::Put(entry)]).await.expect("writes");
    }
    now.store(1011, Ordering::Relaxed);
    let tree = store.tree.load_full().expect("is open");
    assert_eq!(tree.entries.iter().count(), 30);
    tree.entries.rotate_memtable_and_wait().expect("writes the table");
    tree.entries.major_compact().expect("compacts");
    assert_eq!(tree.entries.iter().count(), 20);
    assert_eq!(store.scan("1010/".into(), None, 100).await, Ok(vec![]));
    assert_eq!(store.scan(String::new(), None, 100).await.map(|keys| keys.len()), Ok(20));
}

/// Writers in another process, killed in the middle of it: what they were told is written, is.
#[tokio::test]
async fn an_acknowledged_write_survives_kill_9() {
    let folder = folder();
    let mut acknowledged = Vec::new();
    // Fifty rounds, each cut off at another point; every fifth checks all that was ever acknowledged.
    let few = (0..ROUNDS).map(|round| 1 + round * 37 % 101);
    for (round, count) in few.chain([400, 1000]).enumerate() {
        let mut child = this_test("write_until_killed", folder.path(), &round.to_string()).spawn().expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
        let mut keys = Vec::new();
        while keys.len() < count {
            let line = lines.next().expect("goes on").expect("is text");
            keys.extend(line.strip_prefix("ack ").map(str::to_owned));
        }
        child.kill().expect("is killed");
        child.wait().expect("has ended");
        // What was said before the kill arrived counts too, but for a line cut short.
        let rest = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("ack ").map(str::to_owned));
        keys.extend(rest.filter(|key| key.ends_with('.')));
        let new = acknowledged.len();
        acknowledged.extend(keys);
        let from = if round % 5 == 0 || count > 101 { 0 } else { new };

        let store = Durable::open(folder.path()).expect("opens after a kill");
        for keys in acknowledged[from..].chunks(100) {
            let found = store.get(keys.to_vec()).await.expect("reads");
            for (key, value) in keys.iter().zip(found) {
                assert_eq!(value.as_deref(), Some(&*value_of(key)), "{key} of {}", acknowledged.len());
            }
        }
        store.close().await.expect("closes");
    }
    assert!(acknowledged.len() > 1400);
}

/// Of a kill in the middle of it.
const ROUNDS: usize = 48;

/// The other process of the test above.
#[tokio::test]
#[ignore = "is run by an_acknowledged_write_survives_kill_9"]
async fn write_until_killed() {
    let (folder, round) = (given("FOLDER"), given("ARGUMENT"));
    let store = Arc::new(Durable::open(Path::new(&folder)).expect("opens"));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..16 {
        let (store, round) = (store.clone(), round.clone());
        tasks.spawn(async move {
            // Bounded, in case nobody kills it.
            for n in 0..10_000 {
                let key = format!("{round}/{task}/{n}.");
                assert_eq!(store.apply(put(&key, value_of(&key))).await, Ok(vec![false]));
                writeln!(io::stdout(), "ack {key}").expect("is read");
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("writes");
    }
}

fn value_of(key: &str) -> Vec<u8> {
    key.bytes().cycle().take(300).collect()
}

/// The same bytes for the same `seed`, which do not compress.
fn noise(seed: usize, length: usize) -> Vec<u8> {
    let mut state = u64::try_from(seed).expect("is small") + 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(length).collect()
}

/// On a disk of its own, in a mount namespace of its own.
#[test]
fn a_full_disk_loses_nothing_and_is_recovered_from() {
    let may_mount = Command::new("unshare").args(["--mount", "--map-root-user", "true"]).stderr(Stdio::null()).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        writeln!(io::stderr(), "skipped: mount namespaces are not to be had here").expect("writes");
        return;
    }
    let folder = folder();
    let inner = this_test("fill_the_disk", folder.path(), "");
    let mut command = Command::new("unshare");
    let mount = "mount -t tmpfs -o size=24m tmpfs \"$EDGEPASS_TEST_FOLDER\" && exec \"$0\" \"$@\"";
    command.args(["--mount", "--map-root-user", "sh", "-c", mount]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdout(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let mut output = String::new();
    child.stdout.take().expect("is piped").read_to_string(&mut output).expect("is text");
    assert!(ended_well(child), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}

fn ended_well(mut child: Child) -> bool {
    child.wait().expect("has ended").success()
}

/// The other process of the test above.
#[tokio::test]
#[ignore = "is run by a_full_disk_loses_nothing_and_is_recovered_from"]
async fn fill_the_disk() {
    let folder = PathBuf::from(given("FOLDER"));
    let ballast = folder.join("ballast");
    fs::write(&ballast, vec![1; 12 * 1024 * 1024]).expect("writes");
    let store = Durable::open(&folder.join("store")).expect("opens");
    let mut acknowledged = 0;
    let key = |n: usize| format!("{n}.");
    let value = |n: usize| noise(n, 30_000);
    let failure = loop {
        match store.apply(put(&key(acknowledged), value(acknowledged))).await {
            Ok(_) => acknowledged += 1,
            Err(failure) => break failure,
        }
        assert!(acknowledged < 1000, "24 MiB are not full after 30");
    };
    assert_eq!(failure, Failure::Unavailable);
    assert!(acknowledged > 100);

    // Long enough for an attempt to open the folder while there is still no room.
    tokio::time::sleep(REOPEN_WAIT * 3 / 2).await;
    fs::remove_file(ballast).expect("removes");
    // Callers read before they write, so reads have to come back without a write that asks for it.
    let mut attempts = 0;
    while let Err(failure) = store.get(vec![key(0)]).await {
        assert_eq!(failure, Failure::Unavailable);
        attempts += 1;
        assert!(attempts < 10, "reads are not back after {attempts} attempts");
        tokio::time::sleep(REOPEN_WAIT).await;
    }
    let mut attempts = 0;
    while let Err(failure) = store.apply(put("after", b"x".to_vec())).await {
        assert_eq!(failure, Failure::Unavailable);
        attempts += 1;
        assert!(attempts < 10, "is not back after {attempts} attempts");
        tokio::time::sleep(REOPEN_WAIT).await;
    }
    for n in 0..acknowledged {
        let found = store.get(vec![key(n)]).await.expect("reads");
        assert_eq!(found[0].as_deref(), Some(&*value(n)), "{n} of {acknowledged}");
    }
    store.close().await.expect("closes");
    let store = Durable::open(&folder.join("store")).expect("opens again");
    assert_eq!(store.get(vec!["after".into()]).await, Ok(vec![Some(Bytes::from("x"))]));
}

/// This program again, running one ignored test.
fn this_test(name: &str, folder: &Path, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("is a program"));
    let module = module_path!().split_once("::").map_or("", |(_, module)| module);
    command.args(["--exact", &format!("{module}::{name}"), "--ignored", "--nocapture"]);
    command.env("EDGEPASS_TEST_FOLDER", folder).env("EDGEPASS_TEST_ARGUMENT", argument).stdout(Stdio::piped());
    command
}

fn given(name: &str) -> String {
    std::env::var(format!("EDGEPASS_TEST_{name}")).expect("is run by another test")
}
