//! What every backend promises, asked of each of them.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;

use super::*;

/// A backend, its clock, and the folder it lives in.
struct Subject {
    name: &'static str,
    backend: SharedBackend,
    now: Arc<AtomicU64>,
    _folder: tempfile::TempDir,
}

/// One of each.
fn subjects() -> Vec<Subject> {
    let make = |name, make: &dyn Fn(&std::path::Path, Clock) -> SharedBackend| {
        let now = Arc::new(AtomicU64::new(1000));
        let folder = tempfile::tempdir().expect("has a temporary folder");
        let clock = now.clone();
        let backend = make(folder.path(), Arc::new(move || clock.load(Ordering::Relaxed)));
        Subject { name, backend, now, _folder: folder }
    };
    vec![
        make("memory", &|_, clock| Arc::new(Memory::with_clock(clock))),
        make("durable", &|folder, clock| Arc::new(Durable::open_with_clock(folder, clock).expect("opens"))),
    ]
}

fn entry(key: &str, value: &str, expires: u64) -> Entry {
    Entry { key: key.into(), value: Bytes::copy_from_slice(value.as_bytes()), expires }
}

fn put(key: &str, value: &str) -> Change {
    Change::Put(entry(key, value, 0))
}

fn put_if_greater(key: &str, value: &str) -> Change {
    Change::PutIfGreater(entry(key, value, 0))
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
}

#[expect(clippy::unnecessary_wraps, reason = "is compared with what may be absent")]
fn some(value: &str) -> Option<String> {
    Some(value.into())
}

#[tokio::test]
async fn values_are_read_in_the_order_of_the_keys() {
    for subject in subjects() {
        assert!(subject.get(&[]).await.is_empty());
        assert!(subject.apply(vec![]).await.is_empty());
        assert_eq!(
            subject.apply(vec![put("a", "1"), put("b", ""), put("", "empty"), put("é\0", "odd")]).await,
            [false; 4]
        );
        let found = subject.get(&["b", "none", "a", "a", "", "é\0"]).await;
        assert_eq!(found, [some(""), None, some("1"), some("1"), some("empty"), some("odd")], "{}", subject.name);
    }
}

#[tokio::test]
async fn a_batch_is_made_in_order_and_says_what_was_there_before() {
    for subject in subjects() {
        let batch = vec![put("a", "1"), put("a", "2"), delete("a"), delete("a"), put("a", "3"), delete("none")];
        assert_eq!(subject.apply(batch).await, [false, true, true, false, false, false], "{}", subject.name);
        assert_eq!(subject.get(&["a", "none"]).await, [some("3"), None]);
        assert_eq!(subject.apply(vec![delete("a"), put("b", "1")]).await, [true, false]);
        assert_eq!(subject.get(&["a", "b"]).await, [None, some("1")]);
    }
}

#[tokio::test]
async fn put_if_greater_only_moves_forward() {
    for subject in subjects() {
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
}

#[tokio::test]
async fn concurrent_batches_are_made_one_after_the_other() {
    for subject in subjects() {
        let batches = (0..100).map(|n| {
            let n = n * 37 % 100;
            subject.apply(vec![put_if_greater("max", &format!("{n:03}")), put(&format!("k/{n:03}"), "v")])
        });
        let before = join_all(batches).await;
        assert_eq!(before.iter().filter(|before| !before[0]).count(), 1, "{}", subject.name);
        assert_eq!(subject.get(&["max"]).await, [some("099")]);
        assert_eq!(subject.scan("k/", None, 1000).await.len(), 100);
    }
}

#[tokio::test]
async fn an_expired_entry_is_absent_in_every_way() {
    for subject in subjects() {
        let expiring = |key: &str| Change::Put(entry(key, "old", 1010));
        let batch =
            vec![expiring("a"), expiring("b"), expiring("c"), Change::Put(entry("d", "gone", 999)), put("e", "stays")];
        assert_eq!(subject.apply(batch).await, [false; 5]);
        subject.now.store(1010, Ordering::Relaxed);
        assert_eq!(subject.get(&["a", "d", "e"]).await, [some("old"), None, some("stays")], "{}", subject.name);
        subject.now.store(1011, Ordering::Relaxed);
        assert_eq!(subject.get(&["a", "d", "e"]).await, [None, None, some("stays")], "{}", subject.name);
        assert_eq!(subject.scan("", None, 10).await, ["e"]);
        assert_eq!(subject.apply(vec![put("a", "new"), put_if_greater("b", "a"), delete("c")]).await, [false; 3]);
        assert_eq!(subject.get(&["a", "b", "c"]).await, [some("new"), some("a"), None]);
    }
}

#[tokio::test]
async fn a_scan_passes_over_any_number_of_expired_entries() {
    for subject in subjects() {
        let expired = (0..3000).map(|n| Change::Put(entry(&format!("k/{n:04}"), "v", 1010)));
        let live = ["k/0000a", "k/2500a", "k/9999"].map(|key| put(key, "v"));
        subject.apply(expired.chain(live).collect()).await;
        subject.now.store(1011, Ordering::Relaxed);
        assert_eq!(subject.scan("k/", None, 9).await, ["k/0000a", "k/2500a", "k/9999"], "{}", subject.name);
        assert_eq!(subject.scan("k/", Some("k/0000a"), 1).await, ["k/2500a"], "{}", subject.name);
    }
}

#[tokio::test]
async fn a_scan_gives_keys_in_order_from_where_it_is_told() {
    for subject in subjects() {
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
}

#[tokio::test]
async fn what_is_too_large_is_refused_whole() {
    for subject in subjects() {
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
}

#[tokio::test]
async fn a_change_holds_though_nobody_waits_for_it() {
    for subject in subjects() {
        let mut apply = subject.backend.apply(vec![put("a", "1")]);
        _ = futures::poll!(&mut apply);
        drop(apply);
        assert_eq!(subject.apply(vec![put("b", "1")]).await, [false]);
        assert_eq!(subject.get(&["a"]).await, [some("1")], "{}", subject.name);
    }
}

#[tokio::test]
async fn nothing_works_after_close() {
    for Subject { backend, name, .. } in subjects() {
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
