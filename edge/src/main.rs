//! `edgepass`, the edge node: parses, delegates, prints the chain of causes.

use std::process::ExitCode;

use clap::Parser as _;
use edgepass_edge::{
    cli::{Cli, Command},
    command, log,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The demo's answers and the doctor's findings are their output; everything else says what it does.
    let level = if matches!(cli.command, Command::Demo(_) | Command::Doctor(_)) { "error" } else { "info" };
    let format = if let Command::Serve(serve) = &cli.command { serve.log_format } else { log::Format::Text };
    log::init(level, format);

    let done = match cli.command {
        Command::Serve(serve) => command::serve::run(&serve),
        Command::Sim(sim) => command::sim::run(sim),
        Command::Sweep(sweep) => command::operate::sweep(&sweep),
        Command::Revoke(revoke) => command::operate::revoke(&revoke),
        Command::Block(block) => command::operate::block(&block),
        Command::Unblock(unblock) => command::operate::unblock(&unblock),
        Command::Status(status) => command::status::run(&status),
        Command::Logs(logs) => command::logs::run(&logs),
        Command::Swap(swap) => command::revisions::swap(&swap),
        Command::Rollback(rollback) => command::revisions::roll_back(&rollback),
        Command::Revisions(revisions) => command::revisions::list(&revisions),
        Command::Sign(sign) => command::revisions::sign(&sign),
        Command::Canary(canary) => command::revisions::canary(&canary),
        Command::Keygen(keygen) => command::keygen::run(&keygen),
        Command::Doctor(doctor) => command::doctor::run(&doctor),
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
