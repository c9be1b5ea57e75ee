//! The node's own certificate: whether it fits its key, until when it is good, and who may read the key.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Report, application::chain};
use crate::{manifest::Settings, tls::Certificates};

pub(super) fn check(settings: &Settings, report: &mut Report) {
    let given = |variable: &str, setting: &Option<PathBuf>| {
        env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from).or_else(|| setting.clone())
    };
    match (given("SPIN_TLS_CERT", &settings.tls_cert), given("SPIN_TLS_KEY", &settings.tls_key)) {
        (None, None) => report.ok("tls", "the manifest and SPIN_TLS_CERT name no certificate: HTTP without TLS"),
        (Some(certificate), Some(key)) => pair(&certificate, &key, report),
        _ => report.fail("tls", "a certificate without a key, or a key without one", "set tls_cert and tls_key"),
    }
}

fn pair(certificate: &Path, key: &Path, report: &mut Report) {
    if let Err(error) = Certificates::read(certificate, key) {
        return report.fail("tls", chain(&error), "the node does not start with it");
    }
    report.ok("tls", format!("{} fits {}", certificate.display(), key.display()));
    let mode = fs::metadata(key).map_or(0, |found| found.permissions().mode() & 0o777);
    if mode & 0o077 != 0 {
        let found = format!("{} is open to others, mode {mode:03o}", key.display());
        report.fail("tls", found, format!("chmod 600 {}, and change the key if others have seen it", key.display()));
    }
    expiry(certificate, report);
}

/// By the system's own tool: rustls has no word for the date.
fn expiry(certificate: &Path, report: &mut Report) {
    let openssl = |arguments: &[&str]| {
        Command::new("openssl").args(["x509", "-noout", "-in"]).arg(certificate).args(arguments).output()
    };
    let end = openssl(&["-enddate"]).map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let Some(end) = end.ok().as_deref().and_then(|text| text.trim().strip_prefix("notAfter=")).map(str::to_owned)
    else {
        return report.warn("tls", "until when it is good is unknown: `openssl x509` says nothing", "look yourself");
    };
    let lasts = |seconds: &str| openssl(&["-checkend", seconds]).is_ok_and(|output| output.status.success());
    if !lasts("0") {
        report.fail("tls", format!("it has expired: {end}"), "renew it; a running node takes the new files by itself");
    } else if !lasts(SOON) {
        report.warn("tls", format!("it expires soon: {end}"), "renew it; a running node takes the new files by itself");
    } else {
        report.ok("tls", format!("it is good until {end}"));
    }
}

/// Fourteen days, in seconds: who renews at two thirds of ninety has done so long before.
const SOON: &str = "1209600";
