//! What can be said about revisions.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Service;
use crate::{engine::Digest, revisions::Rule};

/// `edgepass swap`.
#[derive(Debug, Args)]
pub struct Swap {
    /// The component
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    #[command(flatten)]
    /// Where it is to be served.
    pub service: Service,

    /// Serve it to some at first: 10%, 0.5%, header:NAME=VALUE or cookie:NAME=VALUE
    #[arg(long, value_name = "RULE")]
    pub canary: Option<Rule>,

    /// Check it and have it ready, and serve it to nobody
    #[arg(long, conflicts_with = "canary")]
    pub no_activate: bool,

    /// The file with the private key to sign it with, as `edgepass keygen upload` makes it
    #[arg(long, value_name = "KEYFILE")]
    pub sign_key: Option<PathBuf>,

    /// Only if this is active now: 64 hexadecimal digits, as `edgepass revisions --json` shows them
    #[arg(long, value_name = "DIGEST")]
    pub expect: Option<Digest>,
}

/// `edgepass rollback`.
#[derive(Debug, Args)]
pub struct Rollback {
    #[command(flatten)]
    /// Where.
    pub service: Service,

    /// Only if this is active now
    #[arg(long, value_name = "DIGEST")]
    pub expect: Option<Digest>,
}

/// `edgepass revisions`.
#[derive(Debug, Args)]
pub struct Revisions {
    #[command(flatten)]
    /// Which node.
    pub service: Service,

    /// Also the last changes: who made them, when, and how they went
    #[arg(long, conflicts_with = "json")]
    pub journal: bool,

    /// The answer of `GET /revisions` as it is
    #[arg(long)]
    pub json: bool,
}

/// `edgepass canary`.
#[derive(Debug, Args)]
pub struct Canary {
    /// How it ends
    #[arg(value_enum)]
    pub action: CanaryAction,

    #[command(flatten)]
    /// Where.
    pub service: Service,

    /// Only if this is active now
    #[arg(long, value_name = "DIGEST")]
    pub expect: Option<Digest>,
}

/// `edgepass sign`.
#[derive(Debug, Args)]
pub struct Sign {
    /// The component
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The file with the private key, as `edgepass keygen upload` makes it
    #[arg(long, value_name = "KEYFILE")]
    pub key: PathBuf,
}

/// How a canary ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CanaryAction {
    /// It is served to all
    Promote,
    /// It is served to nobody
    Stop,
}
