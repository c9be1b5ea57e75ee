//! One revision takes another's place: under load, not at all, and back again.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use edgepass_edge::{engine::Digest, node::Node, revisions};
use serde_json::Value;

use crate::{
    client::{Answer, Client, PATIENCE, ask, begun, config, order, order_bytes, request, start, with_admin},
    guest::{self, Accomplice, Does},
};

/// The first digits of what made an answer.
fn stamp(answer: &Answer) -> &str {
    let mut stamps = answer.head.lines().filter_map(|line| line.strip_prefix("x-edge-revision: "));
    let stamp = stamps.next().expect("an answer says what made it");
    assert_eq!(stamps.next(), None, "one revision made it");
    stamp.trim()
}

fn digest(wasm: &[u8]) -> String {
    Digest::of(wasm).short()
}

async fn upload(node: &Node, how: &str, wasm: &[u8]) -> Answer {
    order_bytes(node, "PUT", &format!("/revisions{how}"), "", wasm).await
}

fn json(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).expect("JSON")
}

async fn standing(node: &Node) -> Value {
    json(&order(node, "GET", "/revisions", "").await)
}

/// Asks until `found` says so.
async fn until(node: &Node, found: impl Fn(&Value) -> bool) -> Value {
    let asked = async {
        loop {
            let standing = standing(node).await;
            if found(&standing) {
                return standing;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it comes to that")
}

/// Clients that ask without a pause until they are told to stop.
struct Crowd {
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<BTreeMap<(u16, String), usize>>>,
    asked: Arc<AtomicUsize>,
}

impl Crowd {
    fn of(clients: usize, addr: SocketAddr) -> Self {
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let clients = (0..clients).map(|number| {
            let (stop, asked) = (stop.clone(), asked.clone());
            tokio::spawn(async move {
                let mut seen = BTreeMap::new();
                let mut client = Client::connect(addr).await;
                while !stop.load(SeqCst) {
                    asked.fetch_add(1, SeqCst);
                    let body = "x".repeat(64);
                    // Some bodies come slowly.
                    let (first, rest) = body.split_at(if number % 4 == 0 { 32 } else { 64 });
                    client
                        .send(format!("POST /echo HTTP/1.1\r\nhost: test\r\ncontent-length: 64\r\n\r\n{first}"))
                        .await;
                    if !rest.is_empty() {
                        tokio::time::sleep(Duration::from_millis(3)).await;
                        client.send(rest).await;
                    }
                    let answer = client.answer().await.expect("no connection is cut");
                    *seen.entry((answer.status, stamp(&answer).to_owned())).or_insert(0) += 1;
                }
                seen
            })
        });
        let clients = clients.collect();
        Self { stop, clients, asked }
    }

    /// Returns when so many more have asked.
    async fn go_on(&self, requests: usize) {
        let until = self.asked.load(SeqCst) + requests;
        let asked = async {
            while self.asked.load(SeqCst) < until {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.expect("they go on");
    }

    /// Answers by status and by what made them.
    async fn stop(self) -> BTreeMap<(u16, String), usize> {
        self.stop.store(true, SeqCst);
        let mut all = BTreeMap::new();
        for client in self.clients {
            for (answer, count) in client.await.expect("a client ends well") {
                *all.entry(answer).or_insert(0) += count;
            }
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_under_load_loses_no_request() {
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.cores = std::num::NonZeroUsize::new(2);
    });
    let versions = [guest::component(), guest::version(['2', '.', '0', '.', '0'])];
    let crowd = Crowd::of(12, node.addr());
    for turn in 1..=swaps() {
        crowd.go_on(100).await;
        let next = &versions[turn % 2];
        let done = upload(&node, "?activate", next).await;
        assert_eq!(done.status, 200, "{}", String::from_utf8_lossy(&done.body));
        assert_eq!(
            (&json(&done)["state"], &json(&done)["digest"]),
            (&"active".into(), &Digest::of(next).to_string().into())
        );
        let answer = ask(node.addr(), "GET", "/other", "").await;
        assert_eq!((answer.status, stamp(&answer)), (200, &*digest(next)), "whoever comes after it sees the new one");
    }
    let answers = crowd.stop().await;
    let made: Vec<_> = answers.keys().map(|(status, stamp)| (*status, stamp.clone())).collect();
    let mut expected: Vec<_> = versions.iter().map(|wasm| (200, digest(wasm))).collect();
    expected.sort();
    assert_eq!(made, expected, "{answers:?}");
    until(&node, |standing| standing["draining"] == 0).await;
    let metrics = String::from_utf8(order(&node, "GET", "/metrics", "").await.body).expect("text");
    assert!(metrics.contains("edgepass_swap_cut_requests_total 0"), "{metrics}");
}

/// How often it is swapped under load; the long run sets it.
fn swaps() -> usize {
    std::env::var("EDGEPASS_SOAK_SWAPS").ok().and_then(|number| number.parse().ok()).unwrap_or(100)
}

#[tokio::test]
async fn what_was_replaced_is_gone() {
    let node = start(Accomplice::new(), with_admin);
    let versions = [guest::component(), guest::version(['2', '.', '0', '.', '0'])];
    let held = async |turns: usize| {
        for turn in 1..=turns {
            assert_eq!(upload(&node, "?activate", &versions[turn % 2]).await.status, 200);
            assert_eq!(ask(node.addr(), "GET", "/other", "").await.status, 200);
        }
        until(&node, |standing| standing["draining"] == 0).await;
        let lines = |path: &str| fs::read_to_string(path).expect("is there").lines().count();
        let files = fs::read_dir("/proc/self/fd").expect("is there").count();
        (lines("/proc/self/maps"), files)
    };
    // Until each slot of the pool was used, which splits its map.
    let (maps, files) = held(100).await;
    let (more_maps, more_files) = held(100).await;
    assert!(more_maps <= maps + 40, "{maps} maps became {more_maps} by a hundred swaps");
    assert!(more_files <= files + 10, "{files} files became {more_files} by a hundred swaps");
}

#[tokio::test]
async fn a_request_is_finished_by_what_began_it() {
    let store = Accomplice::new();
    let node = start(store.clone(), with_admin);
    let (old, new) = (guest::component(), guest::version(['2', '.', '0', '.', '0']));
    let mut slow = begun(node.addr(), &store, "/slow", "").await;
    assert_eq!(upload(&node, "?activate", &new).await.status, 200);
    assert_eq!(stamp(&ask(node.addr(), "GET", "/other", "").await), digest(&new));
    let before = standing(&node).await;
    assert_eq!(before["draining"], 1, "it waits for the slow one");
    store.go.add_permits(1);
    let answer = slow.answer().await.expect("an answer");
    assert_eq!((answer.status, stamp(&answer)), (200, &*digest(&old)));
    until(&node, |standing| standing["draining"] == 0).await;
    slow.send(request("GET", "/other", "")).await;
    assert_eq!(stamp(&slow.answer().await.expect("an answer")), digest(&new), "on the same connection");
}

#[tokio::test]
async fn what_does_not_finish_is_cut_off_and_counted() {
    let store = Accomplice::new();
    let node = start(store.clone(), |config| {
        with_admin(config);
        config.revisions.drain = Duration::from_millis(100);
    });
    let mut slow = begun(node.addr(), &store, "/slow", "").await;
    assert_eq!(upload(&node, "?activate", &guest::version(['2', '.', '0', '.', '0'])).await.status, 200);
    let answer = slow.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.code().as_str()), (503, "instance_lost"));
    assert_eq!(stamp(&answer), digest(&guest::component()));
    until(&node, |standing| standing["draining"] == 0).await;
    let metrics = String::from_utf8(order(&node, "GET", "/metrics", "").await.body).expect("text");
    assert!(metrics.contains("edgepass_swap_cut_requests_total 1"), "{metrics}");
    assert_eq!(ask(node.addr(), "GET", "/other", "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_good_is_refused_with_its_reason() {
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.surroundings.limits.max_cpu = Duration::from_millis(50);
    });
    let good = guest::component();
    let crowd = Crowd::of(2, node.addr());
    for (wasm, code) in [
        (b"<html>".to_vec(), "component_invalid"),
        (good[..good.len() / 2].to_vec(), "component_invalid"),
        (Vec::new(), "component_invalid"),
        (guest::with_an_import(), "exports_wrong"),
        (guest::with_a_problem(), "settings_wrong"),
        (guest::that(Does::Trap), "probe_failed"),
        (guest::that(Does::Spin), "probe_failed"),
        (guest::that(Does::EatMemory), "probe_failed"),
    ] {
        for how in ["", "?activate", "?canary=50%25"] {
            let answer = upload(&node, how, &wasm).await;
            assert_eq!((answer.status, answer.code().as_str()), (422, code), "{how}");
        }
    }
    for (method, target, fields, status, code) in [
        ("POST", format!("/revisions/{}/activate", Digest::of(b"never")), "", 404, "unknown_revision"),
        ("POST", "/revisions/abc/activate".into(), "", 400, "bad_request"),
        ("POST", "/rollback".into(), "", 409, "nothing_to_roll_back"),
        ("POST", "/canary/promote".into(), "", 409, "conflict"),
        ("DELETE", "/canary".into(), "", 409, "conflict"),
        ("PUT", "/revisions?activate&canary=1%25".into(), "", 400, "bad_request"),
        ("PUT", "/revisions?canary=110%25".into(), "", 400, "bad_request"),
    ] {
        let answer = order_bytes(&node, method, &target, fields, &good).await;
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{method} {target}");
    }
    let expect = format!("x-edgepass-expect: {}\r\n", Digest::of(b"another"));
    let new = guest::version(['2', '.', '0', '.', '0']);
    let answer = order_bytes(&node, "PUT", "/revisions?activate", &expect, &new).await;
    assert_eq!((answer.status, answer.code().as_str()), (409, "conflict"));
    let answers = crowd.stop().await;
    assert_eq!(answers.keys().collect::<Vec<_>>(), [&(200, digest(&good))], "what served went on serving");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_a_second_try_made_good_counts_all_the_same() {
    let node = start(Accomplice::new(), with_admin);
    let (good, bad) = (guest::component(), guest::that(Does::TrapNowAndThen));
    assert_eq!(upload(&node, "?activate", &bad).await.status, 200);
    let mut client = Client::connect(node.addr()).await;
    for asked in 1.. {
        client.send(request("GET", "/other", "")).await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!(answer.status, 200, "asked again");
        if stamp(&answer) == digest(&good) {
            break;
        }
        assert!(asked < 100_000, "it is taken back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_traps_now_and_then_is_taken_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.revisions.state_dir = Some(folder.path().to_owned());
    });
    let (good, bad) = (guest::component(), guest::that(Does::TrapNowAndThen));
    let crowd = Crowd::of(8, node.addr());
    crowd.go_on(2000).await;
    assert_eq!(upload(&node, "?activate", &bad).await.status, 200, "it answers the probe");
    let standing = until(&node, |standing| standing["active"]["digest"] == Digest::of(&good).to_string()).await;
    assert_eq!(standing["can_roll_back"], false, "not back to what was taken back");
    let answers = crowd.stop().await;
    let of = |status: u16| answers.get(&(status, digest(&bad))).copied().unwrap_or_default();
    assert!(of(503) > 0, "{answers:?}");
    // Eight share an instance; some more are lost until it is noticed.
    assert!(of(503) * 100 <= (of(200) + of(503)) * 8 + 1600, "{answers:?}");
    let lost: usize = answers
        .iter()
        .filter(|((status, stamp), _)| *status != 200 && *stamp == digest(&good))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(lost, 0, "{answers:?}");
    let metrics = String::from_utf8(order(&node, "GET", "/metrics", "").await.body).expect("text");
    assert!(metrics.contains(r#"edgepass_swap_rollbacks_total{cause="requests_lost"} 1"#), "{metrics}");
    let journal = json(&order(&node, "GET", "/journal", "").await);
    let last = journal["entries"].as_array().and_then(|entries| entries.last()).expect("an entry");
    let said = ["who", "action", "result", "reason", "digest"].map(|name| last[name].as_str().unwrap_or_default());
    assert_eq!(said, ["node", "roll_back", "done", "requests_lost", &Digest::of(&good).to_string()]);
}

#[tokio::test]
async fn a_canary_gets_what_its_rule_says() {
    let node = start(Accomplice::new(), with_admin);
    let (old, new) = (guest::component(), guest::version(['2', '.', '0', '.', '0']));
    let answer = upload(&node, "?canary=header:x-beta%3D1", &new).await;
    assert_eq!((answer.status, &json(&answer)["state"]), (200, &"canary".into()));
    let asked = async |field: &str| {
        let mut client = Client::connect(node.addr()).await;
        client.send(format!("GET /other HTTP/1.1\r\nhost: test\r\n{field}\r\n")).await;
        stamp(&client.answer().await.expect("an answer")).to_owned()
    };
    assert_eq!(asked("x-beta: 1\r\n").await, digest(&new));
    assert_eq!(asked("x-beta: 2\r\n").await, digest(&old));
    assert_eq!(asked("").await, digest(&old));

    // The other way of saying it, and in the place of the first.
    let order_canary = format!(r#"{{"digest":"{}","rule":"100%"}}"#, Digest::of(&new));
    // What is a canary is at hand without being kept on disk.
    assert_eq!(upload(&node, "", &new).await.status, 200);
    assert_eq!(order(&node, "POST", "/canary", &order_canary).await.status, 200);
    assert_eq!(asked("").await, digest(&new));
    assert_eq!(standing(&node).await["canary"]["rule"], "100%");

    assert_eq!(json(&order(&node, "DELETE", "/canary", "").await)["state"], "stopped");
    assert_eq!(asked("x-beta: 1\r\n").await, digest(&old));

    assert_eq!(upload(&node, "?canary=0.01%25", &new).await.status, 200);
    assert_eq!(json(&order(&node, "POST", "/canary/promote", "").await)["state"], "active");
    assert_eq!(asked("").await, digest(&new));
    let standing = until(&node, |standing| standing["draining"] == 0).await;
    assert_eq!((&standing["canary"], &standing["can_roll_back"]), (&Value::Null, &true.into()));

    assert_eq!(json(&order(&node, "POST", "/rollback", "").await)["digest"], Digest::of(&old).to_string());
    assert_eq!(asked("").await, digest(&old));
}

fn kept_in(folder: &Path, component: Vec<u8>) -> Node {
    let mut config = config(component, Accomplice::new());
    with_admin(&mut config);
    config.revisions = revisions::Config { state_dir: Some(folder.to_owned()), ..config.revisions };
    config.cache = Some(folder.join("compiled"));
    Node::start(config).expect("the node starts")
}

#[tokio::test]
async fn a_restart_comes_back_with_what_was_active() {
    let folder = tempfile::tempdir().expect("a folder");
    let versions = ['1', '2', '3', '4'].map(|n| guest::version([n, '.', '0', '.', '0']));
    let [one, two, three, four] = &versions;
    let serves = async |node: &Node, wasm: &[u8]| {
        assert_eq!(stamp(&ask(node.addr(), "GET", "/other", "").await), digest(wasm));
    };
    let node = kept_in(folder.path(), one.clone());
    assert_eq!(upload(&node, "?activate", two).await.status, 200);
    assert_eq!(upload(&node, "", three).await.status, 200, "ready, and no more");
    drop(node);

    let node = kept_in(folder.path(), one.clone());
    serves(&node, two).await;
    assert_eq!(order(&node, "POST", &format!("/revisions/{}/activate", Digest::of(three)), "").await.status, 200);
    serves(&node, three).await;
    assert_eq!(order(&node, "POST", "/rollback", "").await.status, 200);
    serves(&node, two).await;
    drop(node);

    let node = kept_in(folder.path(), four.clone());
    serves(&node, four).await;
    assert_eq!(order(&node, "POST", "/rollback", "").await.status, 200, "a new file is a change like any other");
    serves(&node, two).await;
    let journal = json(&order(&node, "GET", "/journal", "").await);
    let actions: Vec<_> =
        journal["entries"].as_array().expect("a list").iter().map(|entry| entry["action"].clone()).collect();
    assert_eq!(actions, ["activate", "upload", "activate", "roll_back", "roll_back"]);
    drop(node);

    // What is on disk is not what was written.
    fs::write(folder.path().join(format!("revisions/{}.wasm", Digest::of(two))), b"damaged").expect("writes");
    serves(&kept_in(folder.path(), four.clone()), four).await;
}

#[tokio::test]
async fn a_file_is_served_as_it_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("component.wasm");
    let (old, new) = (guest::component(), guest::version(['2', '.', '0', '.', '0']));
    fs::write(&file, &old).expect("writes");
    let node = start(Accomplice::new(), |config| {
        with_admin(config);
        config.revisions.watch = Some(file.clone());
    });
    fs::write(&file, b"half a fi").expect("writes");
    fs::write(&file, &new).expect("writes");
    let standing = until(&node, |standing| standing["active"]["digest"] == Digest::of(&new).to_string()).await;
    assert_eq!(standing["active"]["version"], "2.0.0");
}
