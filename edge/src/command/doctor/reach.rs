//! Whether the platforms can be reached: name, connection and TLS, and no request.

use std::time::Duration;

use super::{Report, Subject};
use crate::{
    cli,
    outbound::{Client, Kind},
};

pub(super) fn check(doctor: &cli::Doctor, subject: &Subject, report: &mut Report) -> anyhow::Result<()> {
    let Some((entries, shared)) = &subject.outbound else { return Ok(()) };
    if doctor.offline {
        report.ok("platforms", "not tried: --offline");
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for url in entries.iter().filter(|entry| entry.starts_with("http") && !entry.contains('*')) {
        let client = Client::new(shared.clone());
        match runtime.block_on(client.reach(url, PATIENCE)) {
            Ok(()) => report.ok("platforms", format!("{url} can be reached")),
            Err(failure) => report.fail("platforms", format!("{url}: {failure}"), advice(failure.kind)),
        }
    }
    runtime.shutdown_background();
    Ok(())
}

const PATIENCE: Duration = Duration::from_secs(5);

fn advice(kind: Kind) -> &'static str {
    match kind {
        Kind::Denied => {
            "it leads to a private address: name that address in allowed_outbound_hosts too, if it is meant"
        }
        Kind::Unresolved => "look at /etc/resolv.conf, and whether the name is written right",
        Kind::Tls => "a proxy that opens TLS needs its authority in `ca_roots`; else look at the clock",
        _ => "look at the firewall: outgoing connections to it have to be allowed",
    }
}
