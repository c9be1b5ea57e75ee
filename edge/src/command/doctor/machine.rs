//! The state folder and the machine under it.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use procfs::process::{LimitValue, Process};

use super::{Report, Subject};
use crate::{admin, cli, manifest::Settings};

pub(super) fn check(doctor: &cli::Doctor, subject: Option<&Subject>, report: &mut Report) {
    state_folder(&doctor.state_dir, report);
    disk(&doctor.state_dir, report);
    descriptors(
        subject.map_or(Settings::default().max_connections, |subject| subject.settings.max_connections),
        report,
    );
    clock(&doctor.manifest, report);
}

fn state_folder(folder: &Path, report: &mut Report) {
    let shown = folder.display();
    let Ok(held) = fs::metadata(folder) else {
        return report.ok("state", format!("{shown} is not there yet; the first start makes it"));
    };
    if !held.is_dir() {
        return report.fail("state", format!("{shown} is no folder"), "name another one with --state-dir");
    }
    let me = Process::myself().and_then(|process| process.uid()).ok();
    if me.is_some_and(|me| me != held.uid()) {
        report.fail("state", format!("{shown} is another user's"), "run as its owner, or give the folder to this user");
    }
    for (name, allowed) in
        [("", 0o700), ("store", 0o700), ("compiled", 0o700), ("admin.token", 0o600), ("admin.addr", 0o600)]
    {
        let path = if name.is_empty() { folder.to_owned() } else { folder.join(name) };
        let Ok(found) = fs::metadata(&path) else { continue };
        let mode = found.permissions().mode() & 0o777;
        if mode & !allowed & 0o077 != 0 {
            let found = format!("{} is open to others, mode {mode:03o}", path.display());
            report.fail(
                "state",
                found,
                format!("chmod {allowed:o} {}: it holds sessions and what opens the admin listener", path.display()),
            );
        }
    }
    let running = match admin::Whereabouts::of(folder) {
        Ok(admin::Whereabouts { address, .. }) => format!("a node runs with it, its admin listener is {address}"),
        Err(_) => "no node runs with it".to_owned(),
    };
    report.ok("state", format!("{shown}: {running}"));
}

/// By the system's own tool: a call to statfs would be unsafe code for one number.
fn disk(folder: &Path, report: &mut Report) {
    let existing = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let output = Command::new("df").arg("-Pk").arg(existing).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let Some(free) = free_kib(&text) else {
        return report.warn("disk", "free space is unknown: `df -Pk` says nothing", "look yourself");
    };
    let found = format!("{} MiB are free", free / 1024);
    if free < LEAST_KIB {
        report.fail("disk", found, "make room: the store refuses writes on a full disk, and logins answer 503");
    } else if free < FEW_KIB {
        report.warn("disk", found, "a million sessions take about 1 GiB, and compaction as much again for a while");
    } else {
        report.ok("disk", found);
    }
}

/// The fourth column of the second line of `df -P`.
fn free_kib(df: &str) -> Option<u64> {
    df.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

const LEAST_KIB: u64 = 64 * 1024;
const FEW_KIB: u64 = 1024 * 1024;

fn descriptors(max_connections: usize, report: &mut Report) {
    let limits = Process::myself().and_then(|process| process.limits());
    let Ok(open) = limits.map(|limits| match limits.max_open_files.soft_limit {
        LimitValue::Unlimited => u64::MAX,
        LimitValue::Value(open) => open,
    }) else {
        return report.warn("files", "the limit of open files is unknown", "look with `ulimit -n`");
    };
    // One for a connection and one for its upstream, and the store's.
    let wanted = u64::try_from(max_connections).unwrap_or(u64::MAX).saturating_mul(2).saturating_add(512);
    let found = format!("{open} files may be open, max_connections is {max_connections}");
    if open < wanted {
        report.warn(
            "files",
            found,
            format!("LimitNOFILE={wanted} in the unit, `ulimit -n {wanted}` in a shell; or lower max_connections"),
        );
    } else {
        report.ok("files", found);
    }
}

/// Sessions and tokens carry times; a clock that is behind accepts what has expired.
fn clock(manifest: &Path, report: &mut Report) {
    let now = SystemTime::now();
    let advice = "let chrony, ntpd or systemd-timesyncd set it; the time zone does not matter";
    if now < UNIX_EPOCH + Duration::from_secs(BUILT) {
        return report.fail("clock", "the clock is years behind", advice);
    }
    let written = fs::metadata(manifest).and_then(|found| found.modified());
    match written.ok().and_then(|written| written.duration_since(now).ok()).filter(|ahead| *ahead > TOLERANCE) {
        Some(ahead) => {
            let found = format!("{} was written {} s from now", manifest.display(), ahead.as_secs());
            report.warn("clock", found, advice);
        }
        None => report.ok("clock", "the clock is not obviously wrong"),
    }
}

/// The first second of 2026: this program is younger.
const BUILT: u64 = 1_767_225_600;
const TOLERANCE: Duration = Duration::from_mins(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_read_off() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda1 100 40 60 40% /\n";
        assert_eq!(free_kib(df), Some(60));
        assert_eq!(free_kib("df: no such file\n"), None);
    }
}
