//! What a simulator is started with, and what can be wrong about it.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    time::Duration,
};

use crate::{App, Clock};

/// The app of [`SimConfig::default`].
pub const SAMPLE_APPID: &str = "wx0123456789abcdef";
/// Its secret: 32 characters, as real ones have, and known to everyone.
pub const SAMPLE_SECRET: &str = "5afe5afe5afe5afe5afe5afe5afe5afe";

/// What a simulator is started with.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Where to listen; port 0 takes a free one. Default `127.0.0.1:0`.
    pub listen: SocketAddr,
    /// Lets `listen` be an address other machines reach. Default false.
    pub allow_non_loopback: bool,
    /// `WeChat` apps, at least one, each id once. Default: one sample app of one sample owner.
    pub apps: Vec<App>,
    /// Any code logs in, any number of times: one that was never issued as a user derived from it,
    /// an issued one as its user, without expiry. For load tests. Default false.
    pub reusable_codes: bool,
    /// How many received requests the journal keeps; 0 only counts them. Default 1024.
    pub journal_capacity: usize,
    /// How many codes, and how many users, are remembered; of the codes the oldest is forgotten
    /// first, a user too many is refused. Default 1,000,000.
    pub capacity: usize,
    /// A `session_key` younger than this survives a login (the platform's minimum refresh period,
    /// of unpublished length). Default one minute.
    pub session_key_refresh: Duration,
    /// Threads, each with its own runtime and its own connections. Default 1.
    pub threads: NonZeroUsize,
    /// The time codes live by. Default the machine's.
    pub clock: Clock,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            allow_non_loopback: false,
            apps: vec![App {
                appid: SAMPLE_APPID.to_owned(),
                secret: SAMPLE_SECRET.to_owned(),
                owner: Some("sample-owner".to_owned()),
            }],
            reusable_codes: false,
            journal_capacity: 1024,
            capacity: 1_000_000,
            session_key_refresh: Duration::from_mins(1),
            threads: NonZeroUsize::MIN,
            clock: Clock::system(),
        }
    }
}

impl SimConfig {
    /// Checks everything that can be wrong before a socket is opened.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        // An IPv4-mapped loopback address is loopback too.
        if !self.allow_non_loopback && !self.listen.ip().to_canonical().is_loopback() {
            return Err(StartError::NotLoopback(self.listen));
        }
        if self.apps.is_empty() {
            return Err(StartError::NoApps);
        }
        for (at, app) in self.apps.iter().enumerate() {
            if app.appid.is_empty() || app.secret.is_empty() {
                return Err(StartError::IncompleteApp { index: at });
            }
            if self.apps[..at].iter().any(|other| other.appid == app.appid) {
                return Err(StartError::DuplicateApp(app.appid.clone()));
            }
        }
        Ok(())
    }
}

/// Why a simulator did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Others could reach it, and nobody said that they may.
    #[error(
        "{0} is not a loopback address: the simulator logs anyone in as anyone, so it listens \
         elsewhere only when that is allowed explicitly"
    )]
    NotLoopback(SocketAddr),
    /// [`SimConfig::apps`] is empty.
    #[error("no app: the simulator needs at least one")]
    NoApps,
    /// An app without id or secret.
    #[error("app {index} has an empty id or an empty secret")]
    IncompleteApp {
        /// Its place in [`SimConfig::apps`].
        index: usize,
    },
    /// The same app id twice.
    #[error("app {0} is named twice")]
    DuplicateApp(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}")]
    Bind {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// A thread or its runtime cannot be made.
    #[error("cannot start a simulator thread")]
    Thread(#[source] io::Error),
}
