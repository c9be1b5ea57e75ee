//! What becomes of the store when its Redis is down, slow, full, replaced or moved: an answer in time,
//! and everything well again by itself.

// A test says what is wrong by panicking, and names what it is about in its own name.
#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

mod servers;

use std::{
    fs, io,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use edgepass_edge::kv::{
    Backend as _, Change, Entry, Failure,
    redis::{Address, Options, Redis, Severity, doctor},
};
use futures::future::join_all;

use self::servers::{Reply, Servers};

/// Short, so that a test of many of them is; the machine may be busy, so not too short.
const LIMIT: Duration = Duration::from_millis(400);
/// No call takes longer, whatever happens.
const AT_MOST: Duration = Duration::from_secs(10);
/// For what comes by itself.
const PATIENCE: Duration = Duration::from_mins(1);

fn open(url: &str) -> Redis {
    Redis::open(Address::parse(url).unwrap(), Options { timeout: LIMIT, ..Options::default() }).unwrap()
}

fn put(key: &str, value: &str) -> Vec<Change> {
    vec![Change::Put(Entry { key: key.into(), value: Bytes::copy_from_slice(value.as_bytes()), expires: 0 })]
}

async fn get(store: &Redis, key: &str) -> Result<Option<Bytes>, Failure> {
    Ok(store.get(vec![key.into()]).await?.remove(0))
}

/// Writes until it works; every failure comes in time and is one of the two.
async fn until_it_writes(store: &Redis, key: &str, value: &str) {
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        let done = store.apply(put(key, value)).await;
        assert!(asked.elapsed() < AT_MOST, "{:?}", asked.elapsed());
        match done {
            Ok(_) => return,
            Err(failure) => assert!(matches!(failure, Failure::Unavailable | Failure::Timeout), "{failure:?}"),
        }
        assert!(begun.elapsed() < PATIENCE, "it never comes back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Calls until one fails, and then one that fails at once.
async fn until_it_fails_at_once(store: &Redis) {
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        let done = get(store, "k").await;
        assert!(asked.elapsed() < AT_MOST, "{:?}", asked.elapsed());
        if done == Err(Failure::Unavailable) && asked.elapsed() < LIMIT / 2 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "it is never noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_server_that_is_down_at_the_start_is_found_later() {
    let servers = Servers::single();
    servers.nodes[0].kill();
    let store = open(servers.url());
    until_it_fails_at_once(&store).await;
    servers.nodes[0].restart();
    assert!(store.connected(PATIENCE).await);
    until_it_writes(&store, "k", "v").await;
    assert_eq!(get(&store, "k").await, Ok(Some(Bytes::from("v"))));
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_is_used_again() {
    let servers = Servers::single();
    let store = open(servers.url());
    until_it_writes(&store, "k", "v").await;
    servers.nodes[0].kill();
    until_it_fails_at_once(&store).await;
    servers.nodes[0].restart();
    until_it_writes(&store, "k", "w").await;
    assert_eq!(get(&store, "k").await, Ok(Some(Bytes::from("w"))));
    assert!(store.metrics().connections() >= 2, "{:?}", store.metrics());
}

#[tokio::test]
async fn a_paused_server_hangs_nobody() {
    let servers = Servers::single();
    let store = open(servers.url());
    until_it_writes(&store, "k", "v").await;
    // It takes no command before that is over, not even one to end it.
    servers.nodes[0].done(&["CLIENT", "PAUSE", "10000", "ALL"]);
    let begun = Instant::now();
    let answers = join_all((0..100).map(|_| get(&store, "k"))).await;
    assert!(begun.elapsed() < AT_MOST, "{:?}", begun.elapsed());
    assert!(answers.iter().all(|answer| *answer == Err(Failure::Timeout)), "{answers:?}");
    until_it_fails_at_once(&store).await;
    until_it_writes(&store, "k", "w").await;
}

#[tokio::test]
async fn a_server_that_does_something_else_for_a_while_is_waited_out() {
    let servers = Arc::new(Servers::single());
    let store = open(servers.url());
    until_it_writes(&store, "k", "v").await;
    let asleep = servers.clone();
    let sleeping = thread::spawn(move || asleep.nodes[0].done(&["DEBUG", "SLEEP", "2"]));
    let begun = Instant::now();
    while get(&store, "k").await.is_ok() {
        assert!(begun.elapsed() < PATIENCE, "it sleeps unnoticed");
    }
    until_it_writes(&store, "k", "w").await;
    sleeping.join().unwrap();
}

#[tokio::test]
async fn calls_wait_for_a_place_within_their_own_time() {
    let servers = Servers::single();
    let address = Address::parse(servers.url()).unwrap();
    let store = Redis::open(address, Options { timeout: LIMIT, max_in_flight: 2 }).unwrap();
    until_it_writes(&store, "k", "v").await;
    let answers = join_all((0..50).map(|_| get(&store, "k"))).await;
    assert!(answers.iter().all(|answer| *answer == Ok(Some(Bytes::from("v")))), "{answers:?}");
    servers.nodes[0].done(&["CLIENT", "PAUSE", "600000", "ALL"]);
    let begun = Instant::now();
    let answers = join_all((0..50).map(|_| get(&store, "k"))).await;
    assert!(begun.elapsed() < AT_MOST, "{:?}", begun.elapsed());
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
}

#[tokio::test]
async fn a_full_server_refuses_what_takes_room_and_nothing_else() {
    let servers = Servers::single();
    let store = open(servers.url());
    until_it_writes(&store, "k", "v").await;
    servers.nodes[0].done(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(store.apply(put("l", "v")).await, Err(Failure::Unavailable));
    assert_eq!(get(&store, "k").await, Ok(Some(Bytes::from("v"))));
    assert_eq!(store.apply(vec![Change::Delete("k".into())]).await, Ok(vec![true]), "a logout needs no room");
    servers.nodes[0].done(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(store.apply(put("l", "v")).await, Ok(vec![false]));
}

#[tokio::test]
async fn a_server_that_has_become_a_replica_is_not_written_to() {
    let servers = Servers::single();
    let store = open(servers.url());
    until_it_writes(&store, "k", "v").await;
    servers.nodes[0].done(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(store.apply(put("k", "w")).await, Err(Failure::Unavailable));
    servers.nodes[0].done(&["REPLICAOF", "NO", "ONE"]);
    until_it_writes(&store, "k", "w").await;
}

#[tokio::test]
async fn a_server_that_has_forgotten_the_script_is_told_it_again() {
    let servers = Servers::single();
    let store = open(servers.url());
    until_it_writes(&store, "k", "v").await;
    servers.nodes[0].done(&["SCRIPT", "FLUSH"]);
    let batch = [put("k", "w"), vec![Change::Delete("k".into())], put("l", "v")].concat();
    assert_eq!(store.apply(batch.clone()).await, Ok(vec![true, true, false]));
    assert_eq!(store.apply(batch).await, Ok(vec![false, true, true]));
}

#[tokio::test]
async fn entries_lie_there_as_spin_has_them() {
    let servers = Servers::single();
    let (store, server) = (open(servers.url()), &servers.nodes[0]);
    until_it_writes(&store, "ours", "value").await;
    assert_eq!(server.ask(&["GET", "ours"]), Reply::Text("value".into()));
    assert_eq!(server.ask(&["PEXPIRETIME", "ours"]), Reply::Number(-1));
    server.done(&["SET", "theirs", "value"]);
    assert_eq!(get(&store, "theirs").await, Ok(Some(Bytes::from("value"))));
    // The year 2100: gone with the second after it.
    let entry = Entry { key: "expiring".into(), value: Bytes::from("v"), expires: 4_102_444_800 };
    assert_eq!(store.apply(vec![Change::Put(entry)]).await, Ok(vec![false]));
    assert_eq!(server.ask(&["PEXPIRETIME", "expiring"]), Reply::Number(4_102_444_801_000));
    assert_eq!(store.apply(put("expiring", "w")).await, Ok(vec![true]));
    assert_eq!(server.ask(&["PEXPIRETIME", "expiring"]), Reply::Number(-1), "the new entry never expires");
}

#[tokio::test]
async fn a_failover_is_followed_and_loses_nothing_that_was_replicated() {
    let servers = Servers::sentinel();
    let store = open(servers.url());
    until_it_writes(&store, "before", "v").await;
    let master = &servers.nodes[0];
    assert_eq!(master.ask(&["WAIT", "1", "10000"]), Reply::Number(1), "the replica has it");
    master.kill();
    until_it_writes(&store, "after", "v").await;
    assert_eq!(get(&store, "before").await, Ok(Some(Bytes::from("v"))));
    assert_eq!(servers.nodes[1].ask(&["GET", "after"]), Reply::Text("v".into()));
    master.restart();
    until_it_writes(&store, "later", "v").await;
    assert_eq!(servers.nodes[1].ask(&["GET", "later"]), Reply::Text("v".into()));
}

#[tokio::test]
async fn a_cluster_does_without_a_node_what_can_be_done_without_it() {
    let servers = Servers::cluster();
    let store = open(servers.url());
    let key = |node: usize| keys().find(|key| servers.nodes[node].ask(&["GET", key]) == Reply::Nothing).unwrap();
    let (here, there) = (key(0), key(1));
    until_it_writes(&store, &here, "v").await;
    until_it_writes(&store, &there, "v").await;
    for node in &servers.nodes {
        node.done(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    servers.nodes[1].kill();
    let asked = Instant::now();
    assert!(get(&store, &there).await.is_err());
    assert!(asked.elapsed() < AT_MOST, "{:?}", asked.elapsed());
    until_it_writes(&store, &here, "w").await;
    servers.nodes[1].restart();
    until_it_writes(&store, &there, "w").await;
}

#[tokio::test]
async fn a_slot_on_the_move_is_followed() {
    let servers = Servers::cluster();
    let store = open(servers.url());
    let (from, to) = (&servers.nodes[0], &servers.nodes[1]);
    let key = keys().find(|key| from.ask(&["GET", key]) == Reply::Nothing).unwrap();
    let Reply::Number(slot) = from.ask(&["CLUSTER", "KEYSLOT", &key]) else { panic!("no slot") };
    let id = |node: &servers::Server| match node.ask(&["CLUSTER", "MYID"]) {
        Reply::Text(id) => id,
        reply => panic!("{reply:?}"),
    };
    until_it_writes(&store, "other", "v").await;
    to.done(&["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &id(from)]);
    from.done(&["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &id(to)]);
    // Not there, so the old node sends us to the new one, for this once.
    until_it_writes(&store, &key, "moving").await;
    for node in [to, from, &servers.nodes[2]] {
        node.done(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id(to)]);
    }
    assert_eq!(to.ask(&["GET", &key]), Reply::Text("moving".into()));
    until_it_writes(&store, &key, "moved").await;
    assert_eq!(get(&store, &key).await, Ok(Some(Bytes::from("moved"))));
}

/// Names, in any slots.
fn keys() -> impl Iterator<Item = String> {
    (0..1000).map(|n| format!("key {n}"))
}

#[tokio::test]
async fn a_password_opens_and_is_never_shown() {
    let servers = Servers::single();
    servers.nodes[0].done(&["CONFIG", "SET", "requirepass", "correct horse"]);
    let logs = Logs::default();
    logs.capture();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "correct horse\n").unwrap();
    let address = servers.url();
    let store = open(&format!("{address}?password_file={}", file.path().display()));
    until_it_writes(&store, "k", "v").await;
    let refused = open(&address.replace("redis://", "redis://:battery%20staple@"));
    assert!(!refused.connected(Duration::from_secs(1)).await);
    assert_eq!(get(&refused, "k").await, Err(Failure::Unavailable));
    let logs = logs.text();
    assert!(logs.contains("cannot be reached"), "{logs}");
    assert!(!logs.contains("horse") && !logs.contains("staple"), "{logs}");
}

#[tokio::test]
async fn tls_trusts_the_authority_it_is_given_and_no_other() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name).display().to_string());
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (servers, port) = Servers::tls(&cert, &key);
    let store = open(&format!("rediss://127.0.0.1:{port}?ca={cert}"));
    until_it_writes(&store, "k", "v").await;
    assert_eq!(servers.nodes[0].ask(&["GET", "k"]), Reply::Text("v".into()));
    let stranger = open(&format!("rediss://127.0.0.1:{port}"));
    assert!(!stranger.connected(Duration::from_secs(1)).await);
    assert_eq!(get(&stranger, "k").await, Err(Failure::Unavailable));
}

#[test]
fn the_doctor_finds_what_is_wrong_with_each_kind() {
    let look = |servers: &Servers| {
        let findings = doctor(&Address::parse(servers.url()).unwrap());
        let worst = findings.iter().map(|finding| finding.severity).max().unwrap();
        (worst, findings.into_iter().map(|finding| finding.text).collect::<Vec<_>>().join("\n"))
    };
    let single = Servers::single();
    let (worst, text) = look(&single);
    assert_eq!(worst, Severity::Doubtful, "{text}");
    assert!(text.contains("appendonly no") && text.contains("no replica"), "{text}");
    single.nodes[0].done(&["CONFIG", "SET", "maxmemory", "100mb"]);
    single.nodes[0].done(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (worst, text) = look(&single);
    assert_eq!(worst, Severity::Bad, "{text}");
    assert!(text.contains("set noeviction"), "{text}");

    let (_, text) = look(&Servers::sentinel());
    assert!(text.contains("replicas 1"), "{text}");
    let (_, text) = look(&Servers::cluster());
    assert!(text.contains("cluster_state ok"), "{text}");
    assert_eq!(text.matches("maxmemory-policy").count(), 3, "{text}");
}

/// What is logged from now on, by all threads; other tests may add to it.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    fn capture(&self) {
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
