//! What every backend promises, asked of each of them.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;

use self::servers::Servers;
use super::*;

#[path = "../../tests/redis/servers.rs"]
mod servers;

/// A backend, its clock, and what it lives in.
struct Subject {
    name: &'static str,
    backend: SharedBackend,
    now: Arc<AtomicU64>,
    life: Life,
}

/// Where entries are, and whose clock they expire by.
enum Life {
    /// The subject's clock alone.
    Folder(#[expect(dead_code, reason = "is removed when dropped")] tempfile::TempDir),
    /// The server's too, which is a day behind: it has to be told what has expired.
    Redis(Arc<Servers>),
}

/// When the tests begin: a day ahead, so that no server of its own accord finds anything expired.
fn start() -> u64 {
    system_clock()() + 24 * 3600
}

fn subject(name: &'static str, life: Life, make: impl FnOnce(&Life, Clock) -> SharedBackend) -> Subject {
    let now = Arc::new(AtomicU64::new(start()));
    let clock = now.clone();
    let backend = make(&life, Arc::new(move || clock.load(Ordering::Relaxed)));
    Subject { name, backend, now, life }
}

fn in_memory() -> Subject {
    let folder = tempfile::tempdir().expect("has a temporary folder");
    subject("memory", Life::Folder(folder), |_, clock| Arc::new(Memory::with_clock(clock)))
}

fn in_a_folder() -> Subject {
    let folder = tempfile::tempdir().expect("has a temporary folder");
    let path = folder.path().to_owned();
    subject("durable", Life::Folder(folder), |_, clock| {
        Arc::new(Durable::open_with_clock(&path, clock).expect("opens"))
    })
}

fn in_redis(name: &'static str, servers: &Arc<Servers>) -> Subject {
    subject(name, Life::Redis(servers.clone()), |_, clock| {
        let address = redis::Address::parse(servers.url()).expect("a URL");
        let options = redis::Options { timeout: PATIENT, ..redis::Options::default() };
        Arc::new(Redis::open_with_clock(address, options, clock).expect("opens"))
    })
}

/// Asks each promise of each backend. A Cluster and Sentinels take a while to start, so they are asked
/// for all in turn.
macro_rules! contract {
    ($($name:ident),* $(,)?) => {
        contract!(@each memory, super::in_memory(), $($name)*);
        contract!(@each durable, super::in_a_folder(), $($name)*);
        contract!(@each single, super::in_redis("redis", &Arc::new(Servers::single())), $($name)*);

        async fn asked_in_turn(name: &'static str, servers: Servers) {
            let servers = Arc::new(servers);
            $(
                servers.empty();
                $name(in_redis(name, &servers)).await;
            )*
        }
    };
    (@each $module:ident, $make:expr, $($name:ident)*) => {
        mod $module {
            #[allow(unused_imports, reason = "of some of them")]
            use super::*;

            $(
                #[tokio::test]
                async fn $name() {
                    super::$name($make).await;
                }
            )*
        }
    };
}

contract!(
    values_are_read_in_the_order_of_the_keys,
    a_batch_is_made_in_order_and_says_what_was_there_before,
    put_if_greater_only_moves_forward,
    put_if_writes_over_what_it_names_only,
    concurrent_batches_are_made_one_after_the_other,
    an_expired_entry_is_absent_in_every_way,
    a_scan_passes_over_any_number_of_expired_entries,
    a_scan_gives_keys_in_order_from_where_it_is_told,
    what_is_too_large_is_refused_whole,
    a_change_holds_though_nobody_waits_for_it,
    nothing_works_after_close,
);

#[tokio::test]
async fn a_cluster_keeps_the_contract() {
    asked_in_turn("cluster", Servers::cluster()).await;
}

#[tokio::test]
async fn a_master_behind_sentinels_keeps_the_contract() {
    asked_in_turn("sentinel", Servers::sentinel()).await;
}

/// The machine may be busy with other tests.
const PATIENT: std::time::Duration = std::time::Duration::from_secs(20);

fn entry(key: &str, value: &str, expires: u64) -> Entry {
    Entry { key: key.into(), value: Bytes::copy_from_slice(value.as_bytes()), expires }
}

fn put(key: &str, value: &str) -> Change {
    Change::Put(entry(key, value, 0))
}

fn put_if_greater(key: &str, value: &str) -> Change {
    Change::PutIfGreater(entry(key, value, 0))
}

fn put_if(key: &str, old: Option<&str>, value: &str) -> Change {
    Change::PutIf { entry: entry(key, value, 0), old: old.map(|old| Bytes::copy_from_slice(old.as_bytes())) }
}

fn delete(key: &str) -> Change {
    Change::Delete(key.into())
}

impl Subject {
    async fn get(&self, keys: &[&str]) -> Vec<Option<String>> {
        let values = self.backend.get(keys.iter().map(|&key| key.into()).collect()).await.expect(self.name);
        values.into_iter().map(|value| value.map(|value| String::from_utf8_lossy(&value).into_owned())).collect()
    }

    async fn apply(&self, changes: Vec<Change>) -> Vec<bool> {
        self.backend.apply(changes).await.expect(self.name)
    }

    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
        self.backend.scan(prefix.into(), after.map(Into::into), limit).await.expect(self.name)
    }

    /// The time now, in seconds after the start of the test.
    fn pass_to(&self, now: u64) {
        self.now.store(now, Ordering::Relaxed);
        if let Life::Redis(servers) = &self.life {
            servers.expire_before(now * 1000);
        }
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "is compared with what may be absent")]
fn some(value: &str) -> Option<String> {
    Some(value.into())
}

async fn values_are_read_in_the_order_of_the_keys(subject: Subject) {
    assert!(subject.get(&[]).await.is_empty());
    assert!(subject.apply(vec![]).await.is_empty());
    assert_eq!(subject.apply(vec![put("a", "1"), put("b", ""), put("", "empty"), put("é\0", "odd")]).await, [false; 4]);
    let found = subject.get(&["b", "none", "a", "a", "", "é\0"]).await;
    assert_eq!(found, [some(""), None, some("1"), some("1"), some("empty"), some("odd")], "{}", subject.name);
}

async fn a_batch_is_made_in_order_and_says_what_was_there_before(subject: Subject) {
    let batch = vec![put("a", "1"), put("a", "2"), delete("a"), delete("a"), put("a", "3"), delete("none")];
    assert_eq!(subject.apply(batch).await, [false, true, true, false, false, false], "{}", subject.name);
    assert_eq!(subject.get(&["a", "none"]).await, [some("3"), None]);
    assert_eq!(subject.apply(vec![delete("a"), put("b", "1")]).await, [true, false]);
    assert_eq!(subject.get(&["a", "b"]).await, [None, some("1")]);
}

async fn put_if_greater_only_moves_forward(subject: Subject) {
    let batch = vec![
        put_if_greater("n", "2"),
        put_if_greater("n", "1"),
        put_if_greater("n", "2"),
        put_if_greater("n", "3"),
        put_if_greater("n", "20"),
    ];
    assert_eq!(subject.apply(batch).await, [false, true, true, true, true]);
    assert_eq!(subject.get(&["n"]).await, [some("3")], "{}", subject.name);
    assert_eq!(subject.apply(vec![put_if_greater("n", "30"), put_if_greater("n", "")]).await, [true, true]);
    assert_eq!(subject.get(&["n"]).await, [some("30")], "{}", subject.name);
    assert_eq!(subject.apply(vec![delete("n"), put_if_greater("n", "")]).await, [true, false]);
    assert_eq!(subject.get(&["n"]).await, [some("")], "{}", subject.name);
}

async fn put_if_writes_over_what_it_names_only(subject: Subject) {
    let name = subject.name;
    let batch = vec![
        put_if("n", Some("1"), "2"),
        put_if("n", Some(""), "2"),
        put_if("n", None, ""),
        put_if("n", None, "3"),
        put_if("n", Some(""), "4"),
    ];
    assert_eq!(subject.apply(batch).await, [false, false, true, false, true], "{name}");
    assert_eq!(subject.get(&["n"]).await, [some("4")], "{name}");
    let raced = (0..20).map(|n| subject.apply(vec![put_if("n", Some("4"), &format!("by {n}"))]));
    let written: Vec<bool> = join_all(raced).await.concat();
    let winner = written.iter().position(|written| *written).expect("one of them");
    assert_eq!(written.iter().filter(|written| **written).count(), 1, "{name}");
    assert_eq!(subject.get(&["n"]).await, [Some(format!("by {winner}"))], "{name}");
    assert_eq!(subject.apply(vec![delete("n"), put_if("n", None, "5")]).await, [true, true], "{name}");
    assert_eq!(subject.get(&["n"]).await, [some("5")], "{name}");
}

async fn concurrent_batches_are_made_one_after_the_other(subject: Subject) {
    let batches = (0..100).map(|n| {
        let n = n * 37 % 100;
        subject.apply(vec![put_if_greater("max", &format!("{n:03}")), put(&format!("k/{n:03}"), "v")])
    });
    let before = join_all(batches).await;
    assert_eq!(before.iter().filter(|before| !before[0]).count(), 1, "{}", subject.name);
    assert_eq!(subject.get(&["max"]).await, [some("099")]);
    assert_eq!(subject.scan("k/", None, 1000).await.len(), 100);
}

async fn an_expired_entry_is_absent_in_every_way(subject: Subject) {
    let now = subject.now();
    let expiring = |key: &str| Change::Put(entry(key, "old", now + 10));
    let batch =
        vec![expiring("a"), expiring("b"), expiring("c"), Change::Put(entry("d", "gone", now - 1)), put("e", "stays")];
    assert_eq!(subject.apply(batch).await, [false; 5]);
    subject.pass_to(now + 10);
    assert_eq!(subject.get(&["a", "d", "e"]).await, [some("old"), None, some("stays")], "{}", subject.name);
    subject.pass_to(now + 11);
    assert_eq!(subject.get(&["a", "d", "e"]).await, [None, None, some("stays")], "{}", subject.name);
    assert_eq!(subject.scan("", None, 10).await, ["e"]);
    assert_eq!(subject.apply(vec![put("a", "new"), put_if_greater("b", "a"), delete("c")]).await, [false; 3]);
    assert_eq!(subject.get(&["a", "b", "c"]).await, [some("new"), some("a"), None]);
}

async fn a_scan_passes_over_any_number_of_expired_entries(subject: Subject) {
    let now = subject.now();
    let expired = (0..3000).map(|n| Change::Put(entry(&format!("k/{n:04}"), "v", now + 10)));
    let live = ["k/0000a", "k/2500a", "k/9999"].map(|key| put(key, "v"));
    subject.apply(expired.chain(live).collect()).await;
    subject.pass_to(now + 11);
    assert_eq!(subject.scan("k/", None, 9).await, ["k/0000a", "k/2500a", "k/9999"], "{}", subject.name);
    assert_eq!(subject.scan("k/", Some("k/0000a"), 1).await, ["k/2500a"], "{}", subject.name);
}

async fn a_scan_gives_keys_in_order_from_where_it_is_told(subject: Subject) {
    let keys = ["a", "p/", "p/1", "p/1\0", "p/10", "p/2", "p0", "q"];
    subject.apply(keys.iter().map(|key| put(key, "v")).collect()).await;
    let name = subject.name;
    assert_eq!(subject.scan("p/", None, 10).await, ["p/", "p/1", "p/1\0", "p/10", "p/2"], "{name}");
    assert_eq!(subject.scan("p/", None, 2).await, ["p/", "p/1"], "{name}");
    assert_eq!(subject.scan("p/", Some("p/1"), 2).await, ["p/1\0", "p/10"], "{name}");
    assert_eq!(subject.scan("p/", Some("p/10"), 9).await, ["p/2"], "{name}");
    assert_eq!(subject.scan("p/", Some("a"), 1).await, ["p/"], "{name}");
    assert_eq!(subject.scan("p/", Some("q"), 9).await, [""; 0], "{name}");
    assert_eq!(subject.scan("p/", None, 0).await, [""; 0], "{name}");
    assert_eq!(subject.scan("", None, 99).await, keys, "{name}");
    assert_eq!(subject.scan("none", None, 99).await, [""; 0], "{name}");
}

async fn what_is_too_large_is_refused_whole(subject: Subject) {
    let (longest, too_long) = ("k".repeat(MAX_KEY_BYTES), "k".repeat(MAX_KEY_BYTES + 1));
    let (largest, too_large) = ("v".repeat(MAX_VALUE_BYTES), "v".repeat(MAX_VALUE_BYTES + 1));
    subject.apply(vec![put(&longest, &largest)]).await;
    assert_eq!(subject.get(&[&longest]).await, [some(&largest)], "{}", subject.name);
    for change in [put(&too_long, ""), put("k", &too_large), put_if_greater("k", &too_large), delete(&too_long)] {
        let refused = subject.backend.apply(vec![put("other", "v"), change]).await;
        assert_eq!(refused, Err(Failure::TooLarge), "{}", subject.name);
    }
    assert_eq!(subject.backend.get(vec![too_long]).await, Err(Failure::TooLarge), "{}", subject.name);
    assert_eq!(subject.get(&["other", "k"]).await, [None, None], "{}", subject.name);
}

async fn a_change_holds_though_nobody_waits_for_it(subject: Subject) {
    let mut apply = subject.backend.apply(vec![put("a", "1")]);
    _ = futures::poll!(&mut apply);
    drop(apply);
    assert_eq!(subject.apply(vec![put("b", "1")]).await, [false]);
    assert_eq!(subject.get(&["a"]).await, [some("1")], "{}", subject.name);
}

async fn nothing_works_after_close(Subject { backend, name, life: _life, .. }: Subject) {
    {
        let last = backend.apply(vec![put("a", "1")]);
        assert_eq!(last.await, Ok(vec![false]), "{name}");
        assert_eq!(backend.close().await, Ok(()), "{name}");
        assert_eq!(backend.get(vec!["a".into()]).await, Err(Failure::Unavailable), "{name}");
        assert_eq!(backend.apply(vec![put("a", "1")]).await, Err(Failure::Unavailable), "{name}");
        assert_eq!(backend.scan(String::new(), None, 1).await, Err(Failure::Unavailable), "{name}");
        assert_eq!(backend.close().await, Ok(()), "{name}: closing twice is no mistake");
    }
}

#[tokio::test]
async fn memory_gives_expired_entries_back() {
    let now = Arc::new(AtomicU64::new(1000));
    let clock = now.clone();
    let memory = Memory::with_clock(Arc::new(move || clock.load(Ordering::Relaxed)));
    let expiring = (0..800).map(|n| Change::Put(entry(&format!("{n}"), "v", 1010)));
    memory.apply(expiring.collect()).await.expect("writes");
    now.store(1011, Ordering::Relaxed);
    for _ in 0..200 {
        memory.apply(vec![put("stays", "v")]).await.expect("writes");
    }
    assert_eq!(memory.held(), 1);
}
