//! `edgepass`, the edge node: parses, delegates, prints the chain of causes.

use std::process::ExitCode;

use clap::Parser as _;
use edgepass_edge::{
    cli::{Cli, Command},
    command, log,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The demo's answers are its output; everything else says what it does.
    let level = if matches!(cli.command, Command::Demo(_)) { "error" } else { "info" };
    log::init(level);

    let done = match cli.command {
        Command::Serve(serve) => command::serve::run(&serve),
        Command::Sim(sim) => command::sim::run(sim),
        Command::Sweep(sweep) => command::operate::sweep(&sweep),
        Command::Revoke(revoke) => command::operate::revoke(&revoke),
        Command::Block(block) => command::operate::block(&block),
        Command::Unblock(unblock) => command::operate::unblock(&unblock),
        Command::Keygen(keygen) => command::keygen::run(&keygen),
        Command::Demo(demo) => command::demo::run(demo),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
