//! Reads of several keys, and batches of changes.
//!
//! A change is one call of one script with one key, so "was it there" and every condition are decided
//! where the key lies, in one step. A batch is one transaction where there is one server. In a Cluster
//! keys lie on different nodes: there a batch is made in runs, what is written before what is removed
//! behind it, and the changes of a run at the same time, those to one key in order.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use ::redis::{
    Cmd, FromRedisValue as _, Pipeline, RedisResult, Script, Value, cluster_async::ClusterConnection,
    cluster_routing::SingleNodeRoutingInfo,
};
use bytes::Bytes;
use futures::future::try_join_all;
use tokio::time::sleep;

use super::{codes, is_elsewhere, link::Link};
use crate::kv::{Change, Entry, is_expired};

/// `KEYS[1]`; `ARGV`: what to do, value, expiry, and for `if` the value that has to be there, behind
/// `=`, or nothing for none. Answers whether the key was there before; for `if`, whether it was
/// written.
///
/// Lua compares strings by the server's locale, so `greater` compares bytes by itself.
const SOURCE: &str = r"
local key, what, value, expiry = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if what == 'delete' then return redis.call('DEL', key) end
local function greater(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then return x > y end
  end
  return #a > #b
end
local answer = redis.call('EXISTS', key)
if what == 'greater' and answer == 1 and not greater(value, redis.call('GET', key)) then return 1 end
if what == 'if' then
  local current = redis.call('GET', key)
  if (current and '=' .. current or '') ~= ARGV[4] then return 0 end
  answer = 1
end
if expiry == 'past' then redis.call('DEL', key)
elseif expiry == 'never' then redis.call('SET', key, value)
else redis.call('SET', key, value, 'PXAT', expiry) end
return answer";

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SOURCE));

/// Reads `keys`, in order, from the servers that are written to.
pub(super) async fn read(mut link: Link, keys: &[String]) -> RedisResult<Vec<Option<Bytes>>> {
    let mut read = ::redis::cmd("MGET");
    read.arg(keys);
    loop {
        match read.query_async(&mut link).await {
            Err(error) if is_elsewhere(&error) && matches!(link, Link::Cluster(_)) => sleep(MOVING).await,
            done => return done,
        }
    }
}

/// Makes `changes`; says of each what [`crate::kv::Backend::apply`] does.
pub(super) async fn make(mut link: Link, changes: Vec<Change>, now: u64) -> RedisResult<Vec<bool>> {
    let calls: Vec<Call> = changes.into_iter().map(|change| Call::new(change, now)).collect();
    let Link::Cluster(cluster) = &link else { return send(&mut link, &calls).await };
    let mut answers = vec![false; calls.len()];
    let mut rest = &calls[..];
    while let Some(first) = rest.first() {
        let at = calls.len() - rest.len();
        let length = rest.iter().take_while(|call| call.removes() == first.removes()).count();
        let (run, behind) = rest.split_at(length);
        rest = behind;
        let mut by_key = BTreeMap::<&str, (Vec<usize>, Vec<Call>)>::new();
        for (index, call) in run.iter().enumerate() {
            let (indexes, calls) = by_key.entry(&call.key).or_default();
            indexes.push(at + index);
            calls.push(call.clone());
        }
        let sent = by_key.into_values().map(|(indexes, calls)| {
            let cluster = cluster.clone();
            async move { RedisResult::Ok((indexes, send_in_cluster(cluster, &calls).await?)) }
        });
        for (indexes, made) in try_join_all(sent).await? {
            for (index, answer) in indexes.into_iter().zip(made) {
                answers[index] = answer;
            }
        }
    }
    Ok(answers)
}

/// A call of the script. Cheap to clone but for the key.
#[derive(Clone)]
struct Call {
    key: String,
    what: &'static str,
    value: Bytes,
    expiry: String,
    /// For `if` only.
    old: Vec<u8>,
}

impl Call {
    fn new(change: Change, now: u64) -> Self {
        let (what, Entry { key, value, expires }, old) = match change {
            Change::Put(entry) => ("put", entry, Vec::new()),
            Change::PutIfGreater(entry) => ("greater", entry, Vec::new()),
            Change::PutIf { entry, old } => ("if", entry, old.map_or_else(Vec::new, |old| [b"=", &old[..]].concat())),
            Change::Delete(key) => ("delete", Entry { key, value: Bytes::new(), expires: 0 }, Vec::new()),
        };
        let expiry = match expires {
            0 => "never".into(),
            expires if is_expired(expires, now) => "past".into(),
            // It is there up to and including the second it expires in. Redis takes 63 bits.
            expires => expires.saturating_add(1).saturating_mul(1000).min(i64::MAX as u64 / 2).to_string(),
        };
        Self { key, what, value, expiry, old }
    }

    fn removes(&self) -> bool {
        self.what == "delete"
    }

    fn command(&self, form: Form) -> Cmd {
        let (name, script) = match form {
            Form::Digest => ("EVALSHA", SCRIPT.get_hash()),
            Form::Source => ("EVAL", SOURCE),
        };
        let mut command = ::redis::cmd(name);
        command.arg(script);
        command.arg(1).arg(&self.key).arg(self.what).arg(&self.value[..]).arg(&self.expiry).arg(&self.old);
        command
    }
}

/// How the script is named to the server.
#[derive(Clone, Copy)]
enum Form {
    /// By its digest, where the server knows it.
    Digest,
    /// As it is, which also makes it known.
    Source,
}

/// Sends `calls` as one transaction. A server that does not know the script has made none of them: all
/// stand in one step.
async fn send(link: &mut Link, calls: &[Call]) -> RedisResult<Vec<bool>> {
    match send_as(link, calls, Form::Digest).await {
        Err(error) if codes(&error).iter().any(|code| code == "NOSCRIPT") => send_as(link, calls, Form::Source).await,
        done => done,
    }
}

async fn send_as(link: &mut Link, calls: &[Call], form: Form) -> RedisResult<Vec<bool>> {
    if let [call] = calls {
        return Ok(vec![call.command(form).query_async(link).await?]);
    }
    let mut pipeline = Pipeline::with_capacity(calls.len());
    pipeline.atomic();
    for call in calls {
        pipeline.add_command(call.command(form));
    }
    pipeline.query_async(link).await
}

/// Sends `calls` to one key to the node that has it, and after it when it moves: a node that sends us
/// elsewhere has done nothing.
async fn send_in_cluster(cluster: ClusterConnection, calls: &[Call]) -> RedisResult<Vec<bool>> {
    let mut link = Link::Cluster(cluster.clone());
    loop {
        match send(&mut link, calls).await {
            Err(error) if is_elsewhere(&error) => sleep(MOVING).await,
            Err(error) => match error.redirect_node() {
                Some((node, _)) => return send_asking(cluster, node, calls).await,
                None => return Err(error),
            },
            done => return done,
        }
    }
}

/// Sends `calls` to the node a slot is being moved to, which takes one command at a time for it.
async fn send_asking(mut cluster: ClusterConnection, node: &str, calls: &[Call]) -> RedisResult<Vec<bool>> {
    let (host, port) = node.rsplit_once(':').unwrap_or((node, ""));
    let mut answers = Vec::new();
    for call in calls {
        let mut pipeline = Pipeline::new();
        pipeline.add_command(::redis::cmd("ASKING")).add_command(call.command(Form::Source));
        let route = SingleNodeRoutingInfo::ByAddress { host: host.into(), port: port.parse().unwrap_or_default() };
        let mut replies = cluster.route_pipeline(pipeline, 0, 2, route).await?;
        answers.push(bool::from_redis_value(replies.pop().unwrap_or(Value::Nil))?);
    }
    Ok(answers)
}

/// Between two looks at a slot that is on the move.
const MOVING: Duration = Duration::from_millis(20);
