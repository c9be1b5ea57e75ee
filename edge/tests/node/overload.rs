//! Ten times what the node can do, offered by an open loop: it goes on doing what it can, those it
//! serves are served soon, the others are told at once, and when it is over it is over.
//!
//! What it can do is set by its places and by how long a guest waits, not by this machine: eight
//! places and 100 ms are 80 answers a second.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::{
    client::{Client, request, start},
    guest::Accomplice,
};

const PLACES: usize = 8;
const SERVICE: Duration = Duration::from_millis(100);
const CAPACITY: f64 = 80.0;

/// How long the overload lasts: `make soak` asks for more.
fn seconds() -> u64 {
    std::env::var("EDGEPASS_SOAK_SECONDS").map_or(3, |seconds| seconds.parse().expect("a number of seconds"))
}

/// What became of requests: when each was due and when it was answered, since the begin.
#[derive(Default)]
struct Tally(Mutex<Vec<(Duration, Duration, u16)>>);

impl Tally {
    fn add(&self, due: Duration, answered: Duration, status: u16) {
        self.0.lock().expect("not poisoned").push((due, answered, status));
    }

    /// Answers per second between two instants.
    fn goodput(&self, from: Duration, to: Duration) -> f64 {
        let answers = self.0.lock().expect("not poisoned");
        let good = answers.iter().filter(|(_, at, status)| *status == 200 && (from..to).contains(at)).count();
        f64::from(u32::try_from(good).expect("few")) / to.saturating_sub(from).as_secs_f64()
    }

    /// Time from due to answer of those with `status` that were due from `from` on, the `share`-quantile.
    fn latency(&self, status: u16, from: Duration, share: f64) -> Duration {
        let answers = self.0.lock().expect("not poisoned");
        let of = answers.iter().filter(|(due, _, found)| *found == status && *due >= from);
        let mut times: Vec<_> = of.map(|(due, answered, _)| answered.saturating_sub(*due)).collect();
        times.sort_unstable();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "small"
        )]
        let index = (times.len() as f64 * share) as usize;
        times.get(index).or(times.last()).copied().unwrap_or_default()
    }

    fn statuses(&self) -> BTreeMap<u16, usize> {
        let mut counts = BTreeMap::new();
        for (_, _, status) in &*self.0.lock().expect("not poisoned") {
            *counts.entry(*status).or_default() += 1;
        }
        counts
    }

    /// When the last request was due that was not served.
    fn last_refused(&self) -> Option<Duration> {
        let answers = self.0.lock().expect("not poisoned");
        answers.iter().filter(|(_, _, status)| *status != 200).map(|(due, ..)| *due).max()
    }
}

/// Requests at `rate` a second for as long as `lasting`, each when it is due, whatever became of those
/// before; a connection is used again when it is free. Returns when all are answered.
async fn offer(addr: SocketAddr, begin: Instant, rate: f64, lasting: Duration) -> Tally {
    let (tally, idle) = (Arc::new(Tally::default()), Arc::new(Mutex::new(Vec::<Client>::new())));
    let mut requests = tokio::task::JoinSet::new();
    let first = begin.elapsed();
    for n in 0.. {
        let due = first + Duration::from_secs_f64(f64::from(n) / rate);
        if due >= first + lasting {
            break;
        }
        tokio::time::sleep_until((begin + due).into()).await;
        let (tally, idle) = (tally.clone(), idle.clone());
        requests.spawn(async move {
            let kept = idle.lock().expect("not poisoned").pop();
            let mut client = match kept {
                Some(client) => client,
                None => Client::connect(addr).await,
            };
            client.send(request("POST", "/nap", "z")).await;
            let answer = client.answer().await.expect("an answer");
            if answer.status != 200 {
                assert_eq!(answer.code(), "overloaded");
                let after = answer.field("retry-after").expect("when to come back");
                assert!(["1", "2", "3"].contains(&after), "{after}");
            }
            tally.add(due, begin.elapsed(), answer.status);
            idle.lock().expect("not poisoned").push(client);
        });
    }
    while let Some(done) = requests.join_next().await {
        done.expect("is answered");
    }
    Arc::into_inner(tally).expect("all requests have ended")
}

/// Memory of this process.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("is there");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4096
}

#[tokio::test]
async fn at_ten_times_its_capacity_a_node_does_what_it_can() {
    let node = start(Accomplice::new(), |config| {
        config.max_connections = 10_000;
        let limits = &mut config.surroundings.limits;
        (limits.max_instances, limits.in_flight, limits.max_in_flight) = (PLACES, 1, 1);
    });
    let (addr, begin) = (node.addr(), Instant::now());
    let usual = Duration::from_secs(2);

    // As much as it can do, offered by as many clients as it has places for.
    let peak = {
        let from = begin.elapsed();
        let tally = offer(addr, begin, CAPACITY, usual).await;
        tally.goodput(from + SERVICE, from + usual)
    };
    let before = resident_bytes();
    let from = begin.elapsed();
    let lasting = Duration::from_secs(seconds());
    let over = offer(addr, begin, CAPACITY * 10.0, lasting).await;
    let grown = resident_bytes().saturating_sub(before);
    let goodput = over.goodput(from + SERVICE, from + lasting);
    let settled = from + Duration::from_secs(1);
    let (served, refused) = (over.latency(200, settled, 0.99), over.latency(503, settled, 0.99));

    let ended = begin.elapsed();
    let after = offer(addr, begin, CAPACITY / 2.0, usual).await;
    let recovery = after.last_refused().map_or(Duration::ZERO, |last| last.saturating_sub(ended));
    say(&format!(
        "peak {peak:.1}/s, at ten times {goodput:.1}/s, served p99 {served:?}, refused p99 {refused:?}, \
         recovered within {recovery:?}, memory +{} KiB, {:?}",
        grown / 1024,
        over.statuses()
    ));
    assert!(over.statuses().keys().all(|status| [200, 503].contains(status)), "{:?}", over.statuses());
    assert!(goodput >= 0.8 * peak, "{goodput:.1} of {peak:.1} a second");
    assert!(served < Duration::from_secs(1), "{served:?}");
    assert!(refused < Duration::from_secs(1), "{refused:?}");
    assert!(recovery < Duration::from_secs(5), "{recovery:?}");
    assert!(grown < 64 << 20, "{grown} bytes more");
    assert_eq!(node.drain(Duration::from_secs(20)).await.cut, 0);
}

/// What was measured, for those who run it to know: shown with `--nocapture` or when it fails.
fn say(line: &str) {
    use std::io::Write as _;
    writeln!(std::io::stderr(), "{line}").expect("is writable");
}
