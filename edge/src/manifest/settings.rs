//! `[component.<id>.tool.edgepass]`: what this node wants to know and Spin does not.

use std::{
    net::IpAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de::Error as _};
use toml::Table;

use crate::{
    front::{self, By, Guard, Limit, Rate},
    outbound, pool,
    revisions::{self, Share, Thresholds, UploadKeys},
};

/// Settings of the node for one component. Durations are written `"250ms"`, `"30s"`, `"1h"`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The artefact of world `node`, served instead of `source`. Default: none.
    pub node: Option<PathBuf>,
    /// Core threads. Default: one per CPU the process may use.
    pub cores: Option<NonZeroUsize>,
    /// Longest request body; longer is 413. Default: 128 KiB, twice what any route reads.
    pub max_body_bytes: usize,
    /// Bytes of the bodies of all requests under way together; beyond it is 503. Default: 64 MiB.
    pub max_buffered_bytes: usize,
    /// Connections at once, all cores together; above it none is accepted. Default: 10,000.
    pub max_connections: usize,
    /// Connections at once of one client, an IPv4 address or an IPv6 network of 64 bits; one more is
    /// closed. Trusted proxies have no such limit. Default: half of `max_connections`, so that nobody
    /// takes all.
    pub max_connections_per_client: Option<NonZeroUsize>,
    /// Networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed. Default: none.
    #[serde(deserialize_with = "networks")]
    pub trusted_proxies: Vec<IpNet>,
    /// How often may be asked what. Default: as often as anybody likes.
    pub limits: Vec<LimitTable>,
    /// How often one client's credentials may be refused (401) before everything it asks is, for a
    /// while. Default: `"50/s"`; `"off"`.
    #[serde(deserialize_with = "rate_or_off")]
    pub refusals: Option<Rate>,
    /// The certificate, and those between it and a root, in PEM; with `tls_key` the node speaks TLS.
    /// `--tls-cert` goes before. Default: none.
    pub tls_cert: Option<PathBuf>,
    /// Its key, in PEM. Default: none.
    pub tls_key: Option<PathBuf>,
    /// For the head of a request to arrive. Default: 10 s.
    #[serde(deserialize_with = "duration")]
    pub header_timeout: Duration,
    /// For the body of a request to arrive. Default: 10 s.
    #[serde(deserialize_with = "duration")]
    pub body_timeout: Duration,
    /// Slowest rate at which a body may come and an answer be taken, in bytes a second, after the first
    /// seconds. Default: 500.
    pub min_rate: u32,
    /// For a client to take what there is for it. Default: 10 s.
    #[serde(deserialize_with = "duration")]
    pub write_timeout: Duration,
    /// Between two requests on a connection. Default: 75 s, above the 60 s of common load balancers,
    /// so that it is they who close.
    #[serde(deserialize_with = "duration")]
    pub idle_timeout: Duration,
    /// From a request's last byte to its answer; later is 504. Default: 15 s.
    #[serde(deserialize_with = "duration")]
    pub request_timeout: Duration,
    /// How long a request may wait for an instance; longer is 503. Default: 1 s.
    #[serde(deserialize_with = "duration")]
    pub queue_wait: Duration,
    /// Between the moment the node says it is not ready and the moment it stops accepting, when it is
    /// told to stop: for load balancers to notice. Default: none.
    #[serde(deserialize_with = "duration_or_none")]
    pub shutdown_delay: Duration,
    /// For requests under way when the node is told to stop. Default: 30 s.
    #[serde(deserialize_with = "duration")]
    pub drain_timeout: Duration,
    /// How long an instance may compute without waiting for anything. Default: 500 ms.
    #[serde(deserialize_with = "duration")]
    pub cpu_limit: Duration,
    /// Instances per core. Default: 128.
    pub max_instances: usize,
    /// Requests an instance is given at once while another has room. Default: 8; four times as many
    /// when none has.
    pub concurrency: usize,
    /// Requests until an instance is replaced, or, each by its own draw, from three quarters of this on. Default: 10,000.
    pub max_reuse: u64,
    /// Age at which an instance is replaced. Default: 1 h.
    #[serde(deserialize_with = "duration")]
    pub max_age: Duration,
    /// Linear memory of an instance; at half of it the instance is replaced. Default: 64 MiB.
    pub memory_limit_bytes: usize,
    /// A fresh instance for every request. Default: no.
    pub isolated: bool,
    /// How long a call to a Redis may take; longer is 503. Default: 500 ms.
    #[serde(deserialize_with = "duration")]
    pub store_timeout: Duration,
    /// Whether `Server-Timing` reaches clients; it tells which check failed. Default: no.
    pub server_timing: bool,
    /// Exchanges at once with one upstream, per core. Default: 512.
    pub upstream_connections: usize,
    /// Exchanges at once with one upstream, all cores together; one more fails at once. Default: 2048.
    pub upstream_in_flight: usize,
    /// Failures in a row after which an upstream counts as down and is left alone for a second, then,
    /// as long as a single probe fails, for twice as long each time; so does more than half of twenty
    /// or more exchanges within 10 s. 0: never. Default: 5.
    pub breaker_failures: u32,
    /// How long an upstream that is down is left alone at most. Default: 30 s.
    #[serde(deserialize_with = "duration")]
    pub breaker_max_wait: Duration,
    /// More certificate authorities for upstreams, in PEM. Default: Mozilla's only.
    pub ca_roots: Option<PathBuf>,
    /// Revisions that served before and are kept, for going back to. Default: 5.
    pub revisions_kept: usize,
    /// Whether the component's file is looked at every second, and served when it has changed. Default: no.
    pub watch: bool,
    /// Public keys, as `edgepass keygen upload` shows them, separated by commas: only what one of
    /// them signed is taken. Default: none, and whatever comes with the admin token is taken.
    #[serde(deserialize_with = "upload_keys")]
    pub upload_keys: UploadKeys,
    /// How long a new revision is watched, and taken back when it does badly. Default: 60 s.
    #[serde(deserialize_with = "duration")]
    pub rollback_window: Duration,
    /// Requests before it is judged. Default: 20.
    pub rollback_min_requests: u64,
    /// The share of requests lost with their instance, above what the old revision loses, that is too
    /// much; `"100%"` is never. Default: `"0.5%"`.
    pub rollback_lost: Share,
    /// As `rollback_lost`, of requests answered with 500 or above or not at all. Default: `"2%"`.
    pub rollback_failed: Share,
}

impl Default for Settings {
    fn default() -> Self {
        let thresholds = Thresholds::default();
        Self {
            node: None,
            cores: None,
            max_body_bytes: 128 * 1024,
            max_buffered_bytes: 64 << 20,
            max_connections: 10_000,
            max_connections_per_client: None,
            trusted_proxies: Vec::new(),
            limits: Vec::new(),
            refusals: Some(Rate { period: Duration::from_millis(20), burst: FIFTY }),
            tls_cert: None,
            tls_key: None,
            min_rate: 500,
            write_timeout: Duration::from_secs(10),
            shutdown_delay: Duration::ZERO,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            request_timeout: Duration::from_secs(15),
            queue_wait: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(30),
            cpu_limit: Duration::from_millis(500),
            max_instances: 128,
            concurrency: 8,
            max_reuse: 10_000,
            max_age: Duration::from_hours(1),
            memory_limit_bytes: 64 * 1024 * 1024,
            isolated: false,
            store_timeout: Duration::from_millis(500),
            server_timing: false,
            upstream_connections: 512,
            upstream_in_flight: 2048,
            breaker_failures: 5,
            breaker_max_wait: Duration::from_secs(30),
            ca_roots: None,
            revisions_kept: 5,
            watch: false,
            upload_keys: UploadKeys::default(),
            rollback_window: thresholds.window,
            rollback_min_requests: thresholds.min_requests,
            rollback_lost: thresholds.max_lost,
            rollback_failed: thresholds.max_failed,
        }
    }
}

impl Settings {
    /// The limits of the front.
    #[must_use]
    pub fn front(&self) -> front::Limits {
        front::Limits {
            max_body_bytes: self.max_body_bytes,
            max_buffered_bytes: self.max_buffered_bytes,
            head_time: self.header_timeout,
            idle_time: self.idle_timeout,
            body_time: self.body_timeout,
            min_rate: self.min_rate,
            write_time: self.write_timeout,
            request_time: self.request_timeout,
            server_timing: self.server_timing,
            ..front::Limits::default()
        }
    }

    /// How often may be asked what.
    #[must_use]
    pub fn guard(&self) -> Guard {
        let limits = self.limits.iter().map(|LimitTable { path, by, rate, burst }| {
            let rate = Rate { burst: burst.unwrap_or(rate.burst), ..*rate };
            Limit { path: path.clone(), by: if *by == Who::Client { By::Client } else { By::All }, rate }
        });
        Guard::new(limits.collect(), self.refusals)
    }

    /// Most connections of one client.
    #[must_use]
    pub fn per_client(&self) -> NonZeroUsize {
        let half = NonZeroUsize::new(self.max_connections / 2).unwrap_or(NonZeroUsize::MIN);
        self.max_connections_per_client.unwrap_or(half)
    }

    /// The limits of the instances of a core.
    #[must_use]
    pub fn pool(&self) -> pool::Limits {
        let shared = pool::Limits {
            max_instances: self.max_instances,
            in_flight: self.concurrency,
            max_in_flight: self.concurrency.saturating_mul(4),
            queue_wait: self.queue_wait,
            max_reuse: u32::try_from(self.max_reuse).unwrap_or(u32::MAX),
            max_age: self.max_age,
            max_memory_bytes: self.memory_limit_bytes,
            max_cpu: self.cpu_limit,
            ..pool::Limits::default()
        };
        if self.isolated { shared.isolated() } else { shared }
    }

    /// How the component's way out is set up.
    #[must_use]
    pub fn outbound(&self) -> outbound::Options {
        outbound::Options {
            connections: self.upstream_connections,
            in_flight: self.upstream_in_flight,
            breaker: outbound::Rules {
                failures: self.breaker_failures,
                longest_wait: self.breaker_max_wait,
                ..outbound::Rules::default()
            },
            extra_roots: self.ca_roots.clone(),
            ..outbound::Options::default()
        }
    }

    /// How the component may become another one, which is kept in `state_dir`; `file` is where it came
    /// from.
    #[must_use]
    pub fn revisions(&self, state_dir: &Path, file: &Path) -> revisions::Config {
        revisions::Config {
            state_dir: Some(state_dir.to_owned()),
            keep: self.revisions_kept,
            thresholds: Thresholds {
                window: self.rollback_window,
                min_requests: self.rollback_min_requests,
                max_lost: self.rollback_lost,
                max_failed: self.rollback_failed,
            },
            upload_keys: self.upload_keys.clone(),
            watch: self.watch.then(|| file.to_owned()),
            drain: self.drain_timeout,
        }
    }

    /// Reads `tool.edgepass`; other tools' tables are theirs. On failure: the key below the
    /// component, and what is wrong.
    pub(super) fn read(mut tool: Table, folder: &Path) -> Result<Self, (String, String)> {
        let Some(table) = tool.remove("edgepass") else { return Ok(Self::default()) };
        let mut settings = Self::deserialize(table.clone()).map_err(|error| {
            // Read from a value, an error has no place; whichever key alone is refused is the one.
            let alone = |(name, value): (&String, &toml::Value)| {
                let alone = Table::from_iter([(name.clone(), value.clone())]);
                Self::deserialize(alone).is_err().then(|| format!("tool.edgepass.{name}"))
            };
            let key = table.as_table().into_iter().flatten().find_map(alone).unwrap_or_else(|| "tool.edgepass".into());
            (key, super::explained(error.message()))
        })?;
        settings.node = settings.node.map(|path| folder.join(path));
        settings.ca_roots = settings.ca_roots.map(|path| folder.join(path));
        settings.tls_cert = settings.tls_cert.map(|path| folder.join(path));
        settings.tls_key = settings.tls_key.map(|path| folder.join(path));
        if let Some(limit) = settings.limits.iter().find(|limit| !limit.path.starts_with('/')) {
            return Err(("tool.edgepass.limits".into(), format!("`{}` is no path: it begins with `/`", limit.path)));
        }
        let counts = [
            ("max_body_bytes", settings.max_body_bytes),
            ("max_buffered_bytes", settings.max_buffered_bytes),
            ("max_connections", settings.max_connections),
            ("min_rate", settings.min_rate as usize),
            ("max_instances", settings.max_instances),
            ("concurrency", settings.concurrency),
            ("max_reuse", usize::try_from(settings.max_reuse).unwrap_or(usize::MAX)),
            ("memory_limit_bytes", settings.memory_limit_bytes),
            ("upstream_connections", settings.upstream_connections),
            ("upstream_in_flight", settings.upstream_in_flight),
        ];
        match counts.into_iter().find(|(_, count)| *count == 0) {
            Some((name, _)) => Err((format!("tool.edgepass.{name}"), "must be at least 1".into())),
            None => Ok(settings),
        }
    }
}

/// An entry of `limits`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitTable {
    /// The path it is for, with all below it.
    path: String,
    /// `"client"`, each on its own, or `"all"` together.
    #[serde(default)]
    by: Who,
    /// `"10/s"`, `"600/m"` or `"1000/h"`.
    #[serde(deserialize_with = "rate")]
    rate: Rate,
    /// How many at once after a pause. Default: the number of `rate`.
    #[serde(default)]
    burst: Option<NonZeroU32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Who {
    #[default]
    Client,
    All,
}

const FIFTY: NonZeroU32 = NonZeroU32::MIN.saturating_add(49);

/// Networks like `10.0.0.0/8`, or single addresses.
fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let networks = texts.into_iter().map(|text| {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map_err(|_| D::Error::custom(format!("`{text}` is neither a network like `10.0.0.0/8` nor an address")))
    });
    networks.collect()
}

fn upload_keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UploadKeys, D::Error> {
    UploadKeys::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_rate(&text)
        .ok_or_else(|| D::Error::custom(format!("`{text}` is not a rate like \"10/s\", \"600/m\" or \"1000/h\"")))
}

fn rate_or_off<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Rate>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text == "off" {
        return Ok(None);
    }
    parse_rate(&text)
        .map(Some)
        .ok_or_else(|| D::Error::custom(format!("`{text}` is neither a rate like \"50/s\" nor \"off\"")))
}

fn parse_rate(text: &str) -> Option<Rate> {
    let (count, per) = text.split_once('/')?;
    let burst: NonZeroU32 = count.parse().ok()?;
    let per = match per {
        "s" => Duration::from_secs(1),
        "m" => Duration::from_mins(1),
        "h" => Duration::from_hours(1),
        _ => return None,
    };
    Some(Rate { period: per / burst.get(), burst })
}

fn duration_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let duration = humantime::parse_duration(&text).ok().filter(|duration| *duration <= Duration::from_hours(1));
    duration.ok_or_else(|| D::Error::custom(format!("`{text}` is not a duration from \"0s\" to \"1h\"")))
}

/// A duration of at least a millisecond: none of the settings means anything at zero.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    // The upper end keeps every instant that is reckoned with it representable.
    let sensible = Duration::from_millis(1)..=Duration::from_hours(24 * 365);
    let duration = humantime::parse_duration(&text).ok().filter(|duration| sensible.contains(duration));
    duration.ok_or_else(|| D::Error::custom(format!("`{text}` is not a duration from \"1ms\" to \"365d\"")))
}
