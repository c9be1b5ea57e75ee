//! Listing in order, from a server that lists in none.
//!
//! `SCAN` walks over the whole database; what is kept of it at any time are the smallest keys of the
//! page, so memory is bounded by the page and time by the database.

use std::{collections::BTreeSet, time::Duration};

use ::redis::{
    Cmd, FromRedisValue as _, RedisError, RedisResult,
    aio::ConnectionLike as _,
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};
use tokio::time::timeout;

use super::link::Link;

/// The first `limit` keys in byte order that begin with `prefix` and sort after `after`. Keys that are
/// no text are another program's.
pub(super) async fn page(
    link: Link,
    prefix: String,
    after: Option<String>,
    limit: usize,
    step: Duration,
) -> RedisResult<Vec<String>> {
    let mut page = Page { prefix, after, limit, keys: BTreeSet::new() };
    if limit == 0 {
        return Ok(Vec::new());
    }
    match link {
        Link::Single(mut connection) => {
            let mut cursor = Vec::from(*b"0");
            loop {
                let command = page.command(&cursor);
                let reply = within(step, connection.req_packed_command(&command)).await?;
                cursor = page.take(<(Vec<u8>, Vec<Vec<u8>>)>::from_redis_value(reply)?);
                if cursor == b"0" {
                    break;
                }
            }
        }
        Link::Cluster(mut cluster) => {
            for slot in masters(&mut cluster, step).await? {
                let mut cursor = Vec::from(*b"0");
                loop {
                    let reply = within(step, cluster.route_command(page.command(&cursor), to_master(slot))).await?;
                    cursor = page.take(<(Vec<u8>, Vec<Vec<u8>>)>::from_redis_value(reply)?);
                    if cursor == b"0" {
                        break;
                    }
                }
            }
        }
    }
    Ok(page.keys.into_iter().collect())
}

struct Page {
    prefix: String,
    after: Option<String>,
    limit: usize,
    /// The smallest so far. A key may come twice.
    keys: BTreeSet<String>,
}

impl Page {
    fn command(&self, cursor: &[u8]) -> Cmd {
        let mut scan = ::redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{}*", escaped(&self.prefix))).arg("COUNT").arg(KEYS_PER_STEP);
        scan
    }

    /// Keeps what belongs to the page; the cursor of the next step.
    fn take(&mut self, (cursor, keys): (Vec<u8>, Vec<Vec<u8>>)) -> Vec<u8> {
        for key in keys.into_iter().filter_map(|key| String::from_utf8(key).ok()) {
            if key.starts_with(&self.prefix) && self.after.as_ref().is_none_or(|after| key > *after) {
                self.keys.insert(key);
                if self.keys.len() > self.limit {
                    self.keys.pop_last();
                }
            }
        }
        cursor
    }
}

/// A slot of each master.
pub(super) async fn masters(cluster: &mut ClusterConnection, step: Duration) -> RedisResult<Vec<u16>> {
    let mut ask = ::redis::cmd("CLUSTER");
    ask.arg("SLOTS");
    let any = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
    let reply = within(step, cluster.route_command(ask, any)).await?;
    let mut seen = BTreeSet::new();
    let mut slots = Vec::new();
    for range in Vec::<Vec<::redis::Value>>::from_redis_value(reply)? {
        if let [first, _, master, ..] = &range[..] {
            let master = Vec::<::redis::Value>::from_redis_value(master.clone())?;
            // Host and port; what follows may differ from range to range.
            if seen.insert(format!("{:?}", master.get(..2))) {
                slots.push(u16::from_redis_value(first.clone())?);
            }
        }
    }
    Ok(slots)
}

pub(super) fn to_master(slot: u16) -> RoutingInfo {
    RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master)))
}

async fn within<T>(limit: Duration, work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))))
}

/// `prefix` as a pattern that matches itself.
fn escaped(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 8);
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// About half a millisecond of the server's time.
const KEYS_PER_STEP: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_the_smallest_keys_whatever_order_they_come_in() {
        let mut page = Page { prefix: "p/".into(), after: Some("p/2".into()), limit: 2, keys: BTreeSet::new() };
        let keys = ["p/9", "p/1", "q", "p/3", "p/2", "p/5", "p/3", "p"].map(|key| key.as_bytes().to_vec());
        assert_eq!(page.take((b"7".to_vec(), keys.to_vec())), b"7");
        page.take((b"0".to_vec(), vec![vec![b'p', b'/', 0xff], b"p/4".to_vec()]));
        assert_eq!(page.keys.into_iter().collect::<Vec<_>>(), ["p/3", "p/4"]);
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(escaped(r"a*b?[c]\é"), r"a\*b\?\[c\]\\é");
    }
}
