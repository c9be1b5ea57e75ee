//! `edgepass sim`.

use anyhow::Context as _;
use edgepass_sim::{App, SimConfig, Simulator};

use crate::{cli, signal};

/// Runs the simulated platforms until told to stop.
///
/// # Errors
/// When it cannot listen, or must not.
pub fn run(sim: cli::Sim) -> anyhow::Result<()> {
    let stop = signal::Stop::listen().context("waiting for signals")?;
    let simulator = Simulator::start(SimConfig {
        listen: sim.listen,
        allow_non_loopback: sim.allow_non_loopback,
        apps: vec![App { appid: sim.appid, secret: sim.secret, owner: Some("sample-owner".into()) }],
        reusable_codes: sim.reusable_codes,
        journal_capacity: sim.journal,
        threads: sim.threads,
        ..SimConfig::default()
    })
    .context("starting the simulated platforms")?;
    crate::say(format_args!("simulating on {}", simulator.base_url()))?;
    stop.wait();
    simulator.stop();
    Ok(())
}
