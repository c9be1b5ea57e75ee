//! The command line: what can be said, and nothing of what it does.

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The edge node of edgepass, and its simulated platforms.
#[derive(Debug, Parser)]
#[command(name = "edgepass", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the component of a spin.toml
    ///
    /// Settings come from `--variable`, then from `SPIN_VARIABLE_<NAME>` in the environment or in
    /// .env, then from the manifest's defaults. The bound address is printed on one line. SIGTERM
    /// and Ctrl-C stop accepting, finish what is under way, and end; a second one ends at once.
    Serve(Serve),
    /// Run the simulated platforms alone
    ///
    /// It logs anyone in as anyone, so it listens on loopback only.
    Sim(Sim),
    /// Walk a login step by step: every request and answer, on a node and a simulator of its own
    Demo(Demo),
}

/// `edgepass serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The manifest
    #[arg(long, value_name = "FILE", default_value = "spin.toml")]
    pub manifest: PathBuf,

    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3000")]
    pub listen: SocketAddr,

    /// The component to serve instead of the manifest's: of world `node`, or any `wasi:http` one
    #[arg(long, value_name = "FILE")]
    pub component: Option<PathBuf>,

    /// Where the store, compiled components and development keys live
    #[arg(long, value_name = "DIR", default_value = ".edgepass")]
    pub state_dir: PathBuf,

    /// Where sessions are kept
    #[arg(long, value_enum, default_value_t = Store::Embedded)]
    pub store: Store,

    /// A variable of the manifest: NAME=VALUE, NAME=@FILE, @FILE.json or @FILE.toml; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub variable: Vec<String>,

    /// Core threads [default: the manifest's, else one per CPU]
    #[arg(long, value_name = "N")]
    pub cores: Option<NonZeroUsize>,

    #[command(flatten)]
    /// Development.
    pub development: Development,
}

/// Switches for development: each is refused unless everything is on loopback.
#[derive(Debug, Args)]
#[command(next_help_heading = "Development")]
pub struct Development {
    /// Start simulated platforms and log in against them [default address: 127.0.0.1:3001]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:3001")]
    pub sim: Option<SocketAddr>,

    /// Accept a code any number of times, each time as a new session
    #[arg(long)]
    pub reusable_codes: bool,
}

/// Where sessions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    /// In the state folder; durable when a login is answered
    Embedded,
    /// In memory; gone when the node ends
    Memory,
}

/// `edgepass sim`.
#[derive(Debug, Args)]
pub struct Sim {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3001")]
    pub listen: SocketAddr,

    /// The app it knows
    #[arg(long, value_name = "APPID", default_value = edgepass_sim::SAMPLE_APPID)]
    pub appid: String,

    /// That app's secret
    #[arg(long, value_name = "SECRET", default_value = edgepass_sim::SAMPLE_SECRET)]
    pub secret: String,

    /// Accept any code any number of times, also one that was never issued
    #[arg(long)]
    pub reusable_codes: bool,

    /// Requests kept for /sim/journal; 0 only counts them
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub journal: usize,

    /// Threads, each with its own connections
    #[arg(long, value_name = "N", default_value = "1")]
    pub threads: NonZeroUsize,

    /// Listen on an address that other machines reach, although it logs anyone in as anyone
    #[arg(long)]
    pub allow_non_loopback: bool,
}

/// `edgepass demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// The manifest
    #[arg(long, value_name = "FILE", default_value = "spin.toml")]
    pub manifest: PathBuf,

    /// The component to walk through instead of the manifest's
    #[arg(long, value_name = "FILE")]
    pub component: Option<PathBuf>,

    /// Where compiled components are kept
    #[arg(long, value_name = "DIR", default_value = ".edgepass")]
    pub state_dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sim_takes_an_address_or_its_own() {
        let sim = |line: &[&str]| {
            let cli = Cli::try_parse_from(line).expect("a valid line");
            let Command::Serve(serve) = cli.command else { unreachable!("{:?}", cli.command) };
            serve.development.sim.map(|address| address.to_string())
        };
        assert_eq!(sim(&["edgepass", "serve"]), None);
        assert_eq!(sim(&["edgepass", "serve", "--sim"]).as_deref(), Some("127.0.0.1:3001"));
        assert_eq!(sim(&["edgepass", "serve", "--sim", "127.0.0.1:0"]).as_deref(), Some("127.0.0.1:0"));
    }
}
