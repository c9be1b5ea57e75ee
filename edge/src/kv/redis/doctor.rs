//! What a Redis should be like for sessions to be safe in it, asked of one.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use ::redis::{FromRedisValue as _, RedisError, RedisResult, Value, aio::ConnectionLike as _};
use tokio::{runtime, time::timeout};

use super::{
    Address,
    link::Link,
    scan::{masters, to_master},
};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is and, where it is not good, what to do. Shows no password.
    pub text: String,
}

/// How bad a finding is, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Good,
    /// Works, and may hurt one day.
    Doubtful,
    /// Sessions are or will be lost, or it does not work.
    Bad,
}

/// Looks at the Redis at `address`: version, eviction, persistence, replication, clock, round trip; in
/// a Cluster at every master. Blocks, for ten seconds at most; not to be called in a runtime.
#[must_use]
pub fn doctor(address: &Address) -> Vec<Finding> {
    super::keeper::use_our_tls(address);
    let looked =
        runtime::Builder::new_current_thread().enable_all().build().map_err(RedisError::from).and_then(|runtime| {
            let late = |_| Err(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)));
            runtime.block_on(async { timeout(LIMIT, look(address)).await.unwrap_or_else(late) })
        });
    looked.unwrap_or_else(|error| vec![finding(Severity::Bad, format!("{address} cannot be used: {error}"))])
}

async fn look(address: &Address) -> RedisResult<Vec<Finding>> {
    let mut link = Link::connect(address).await?;
    let began = Instant::now();
    let (seconds, _): (u64, u64) = ::redis::cmd("TIME").query_async(&mut link).await?;
    let round_trip = began.elapsed();
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut findings = vec![of_round_trip(round_trip), of_clock(seconds, ours)];
    for (name, info) in infos(&mut link).await? {
        let found = of_info(&Info::parse(&info)).into_iter();
        findings.extend(found.map(|Finding { severity, text }| finding(severity, format!("{name}{text}"))));
    }
    if matches!(link, Link::Cluster(_)) {
        let state: String = ::redis::cmd("CLUSTER").arg("INFO").query_async(&mut link).await?;
        findings.push(of_cluster(&Info::parse(&state)));
    }
    Ok(findings)
}

/// `INFO` of every server that is written to, with a name for it where there are several.
async fn infos(link: &mut Link) -> RedisResult<Vec<(String, String)>> {
    let ask = ::redis::cmd("INFO");
    match link {
        Link::Single(connection) => Ok(vec![(String::new(), text(connection.req_packed_command(&ask).await?)?)]),
        Link::Cluster(cluster) => {
            let mut infos = Vec::new();
            for slot in masters(cluster, LIMIT).await? {
                let name = format!("the master of slot {slot}: ");
                infos.push((name, text(cluster.route_command(ask.clone(), to_master(slot)).await?)?));
            }
            Ok(infos)
        }
    }
}

fn text(value: Value) -> RedisResult<String> {
    Ok(String::from_redis_value(value)?)
}

/// Lines of `name:value`.
struct Info<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Info<'a> {
    fn parse(text: &'a str) -> Self {
        Self(text.lines().filter_map(|line| line.trim_end().split_once(':')).collect())
    }

    fn get(&self, name: &str) -> &'a str {
        self.0.get(name).copied().unwrap_or_default()
    }
}

fn of_info(info: &Info<'_>) -> Vec<Finding> {
    use Severity::{Bad, Doubtful, Good};
    let version = info.get("redis_version");
    let policy = info.get("maxmemory_policy");
    let mut findings = vec![
        judged(is_recent(version), Bad, format!("version {version}"), "expiry needs 6.2 or later"),
        // A maximum of 0 is none, today.
        judged(
            policy == "noeviction",
            if info.get("maxmemory") == "0" { Doubtful } else { Bad },
            format!("maxmemory-policy {policy}"),
            "under pressure Redis drops sessions and, worse, what says that one has ended; set noeviction",
        ),
        judged(
            info.get("aof_enabled") == "1",
            Doubtful,
            format!("appendonly {}", if info.get("aof_enabled") == "1" { "yes" } else { "no" }),
            "what was written since the last snapshot goes with the process; set appendonly yes",
        ),
        judged(
            info.get("role") == "master",
            Bad,
            format!("role {}", info.get("role")),
            "a replica takes no writes; name the master, or the Sentinels",
        ),
    ];
    for name in ["aof_last_write_status", "rdb_last_bgsave_status"] {
        let status = info.get(name);
        if !matches!(status, "" | "ok") {
            findings.push(finding(Bad, format!("{name} {status}: Redis cannot write to its disk")));
        }
    }
    findings.push(match info.get("connected_slaves") {
        "" | "0" => finding(Doubtful, "no replica: while this server is down nobody logs in".into()),
        replicas => finding(Good, format!("replicas {replicas}")),
    });
    findings
}

fn of_cluster(state: &Info<'_>) -> Finding {
    let value = state.get("cluster_state");
    judged(value == "ok", Severity::Bad, format!("cluster_state {value}"), "some slots have no master")
}

fn of_round_trip(time: Duration) -> Finding {
    let near = time < Duration::from_millis(5);
    judged(near, Severity::Doubtful, format!("round trip {time:.1?}"), "a login makes several, one after the other")
}

fn of_clock(theirs: u64, ours: u64) -> Finding {
    let apart = theirs.abs_diff(ours);
    judged(
        apart <= 2,
        Severity::Doubtful,
        format!("clocks {apart} s apart"),
        "entries expire by Redis's clock; use NTP",
    )
}

fn is_recent(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) >= (6, 2)
}

fn judged(good: bool, otherwise: Severity, what: String, why: &str) -> Finding {
    if good { finding(Severity::Good, what) } else { finding(otherwise, format!("{what}: {why}")) }
}

fn finding(severity: Severity, text: String) -> Finding {
    Finding { severity, text }
}

const LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(info: &str) -> (Severity, String) {
        let worst = of_info(&Info::parse(info)).into_iter().max_by_key(|finding| finding.severity);
        worst.map(|finding| (finding.severity, finding.text)).expect("something is looked at")
    }

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n\
                        aof_enabled:1\r\naof_last_write_status:ok\r\nrole:master\r\nconnected_slaves:1\r\n";

    #[test]
    fn what_is_as_it_should_be_is_good() {
        assert_eq!(worst(GOOD).0, Severity::Good, "{GOOD}");
    }

    #[test]
    fn each_thing_that_loses_sessions_is_found() {
        for (good, bad, severity) in [
            ("noeviction", "allkeys-lru", Severity::Bad),
            ("7.0.15", "6.0.16", Severity::Bad),
            ("7.0.15", "", Severity::Bad),
            ("aof_enabled:1", "aof_enabled:0", Severity::Doubtful),
            ("aof_last_write_status:ok", "aof_last_write_status:err", Severity::Bad),
            ("role:master", "role:slave", Severity::Bad),
            ("connected_slaves:1", "connected_slaves:0", Severity::Doubtful),
        ] {
            let (found, text) = worst(&GOOD.replace(good, bad));
            assert_eq!(found, severity, "{bad}: {text}");
        }
        let unbounded = GOOD.replace("maxmemory:100", "maxmemory:0").replace("noeviction", "volatile-lru");
        assert_eq!(worst(&unbounded).0, Severity::Doubtful);
    }

    #[test]
    fn clocks_and_distance_are_judged() {
        assert_eq!(of_clock(1000, 1002).severity, Severity::Good);
        assert_eq!(of_clock(1000, 1003).severity, Severity::Doubtful);
        assert_eq!(of_round_trip(Duration::from_millis(1)).severity, Severity::Good);
        assert_eq!(of_round_trip(Duration::from_millis(50)).severity, Severity::Doubtful);
    }

    #[test]
    fn an_unreachable_server_is_a_finding() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("is bound");
        let address = Address::parse(&format!("redis://:hush@{free}")).expect("a URL");
        let findings = doctor(&address);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].severity, Severity::Bad);
        assert!(!findings[0].text.contains("hush"), "{findings:?}");
    }
}
