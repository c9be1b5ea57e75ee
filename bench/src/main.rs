//! `edgepass-bench`: measures, and prints what it measured.

// A report is what this program is for.
#![allow(clippy::print_stdout)]

use std::{fmt::Display, path::PathBuf};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use edgepass_bench::{cold_start, kv_engines};
use serde::Serialize;

/// Measures edgepass on this machine.
#[derive(Parser)]
#[command(name = "edgepass-bench", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// From compiled component on disk to first login, and a login on a fresh and a warm instance
    ColdStart(ColdStart),
    /// Embedded key-value engines under the load of logins
    KvEngines(KvEngines),
}

#[derive(Args)]
struct ColdStart {
    /// The manifest; its components are measured
    #[arg(long, value_name = "FILE", default_value = "spin.toml")]
    manifest: PathBuf,
    /// Cold starts of each door
    #[arg(long, value_name = "N", default_value_t = 20)]
    starts: usize,
    /// Logins on a fresh instance of each target
    #[arg(long, value_name = "N", default_value_t = 200)]
    fresh: usize,
    /// Logins on a warm instance of each target
    #[arg(long, value_name = "N", default_value_t = 2000)]
    warm: usize,
}

#[derive(Args)]
struct KvEngines {
    /// Where the databases are made, and removed again [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Keys in each database before anything is timed
    #[arg(long, value_name = "N", default_value_t = kv_engines::Settings::default().keys)]
    keys: u64,
    /// Seconds for each number of writers
    #[arg(long, value_name = "S", default_value_t = kv_engines::Settings::default().seconds)]
    seconds: u64,
}

fn main() -> anyhow::Result<()> {
    let Cli { command, json } = Cli::parse();
    match command {
        Command::ColdStart(ColdStart { manifest, starts, fresh, warm }) => {
            show(&cold_start::run(&cold_start::Settings { manifest, starts, fresh, warm })?, json)
        }
        Command::KvEngines(KvEngines { folder, keys, seconds }) => {
            let default = kv_engines::Settings::default();
            let settings =
                kv_engines::Settings { folder: folder.unwrap_or(default.folder.clone()), keys, seconds, ..default };
            show(&kv_engines::run(&settings)?, json)
        }
    }
}

fn show(report: &(impl Display + Serialize), json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(report).context("writing JSON")?);
    } else {
        println!("{report}");
    }
    Ok(())
}
