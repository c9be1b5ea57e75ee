//! The node that runs with this state folder, if one does: whether it is this program, with this component.

use serde_json::Value;

use super::{Report, application::chain};
use crate::{admin::Whereabouts, cli, command::operate};

pub(super) fn check(doctor: &cli::Doctor, digest: Option<&str>, report: &mut Report) {
    if Whereabouts::of(&doctor.state_dir).is_err() {
        return;
    }
    let service = cli::Service { state_dir: doctor.state_dir.clone(), admin: None, token_file: None };
    match operate::talk(&service, async |service| service.get("/status").await) {
        Ok(status) => compare(&status, digest, report),
        Err(error) => report.fail("running", chain(error.as_ref()), "is it stuck? `edgepass status` asks the same"),
    }
}

fn compare(status: &Value, digest: Option<&str>, report: &mut Report) {
    let said = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or("unknown");
    let (version, active) = (said("/node/version"), said("/revisions/active/digest"));
    let own = env!("CARGO_PKG_VERSION");
    if version == own {
        report.ok("running", format!("the node that runs is version {version}, as this program"));
    } else {
        let found = format!("the node that runs is version {version}, this program is {own}");
        report.warn("running", found, "SIGUSR2 to it, once this program is where it was started from");
    }
    match digest {
        None => {}
        Some(digest) if digest == active => report.ok("running", format!("it serves this component, {digest}")),
        Some(digest) => {
            let found = format!("it serves {active}, and the component here is {digest}");
            report.warn("running", found, "if that is not meant: restart it, or swap the component in");
        }
    }
}
