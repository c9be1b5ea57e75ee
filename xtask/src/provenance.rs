//! What `/version` says about the build: the commit and its time, never the time of the build,
//! so that two builds of one commit give the same bytes.

use std::{
    env,
    time::{Duration, SystemTime},
};

use crate::cargo;

/// Commit and instant a component is built from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Provenance {
    /// Full hash, with `-dirty` behind it when tracked files were changed; `unknown` outside git.
    pub commit: String,
    /// RFC 3339 in UTC, of the commit or of `SOURCE_DATE_EPOCH`; `unknown` without either.
    pub time: String,
}

/// Asks git and the environment.
pub(crate) fn read() -> Provenance {
    let git = |arguments: &[&str]| cargo::output(cargo::clean("git").args(arguments));
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|files| !files.is_empty());
    let commit = git(&["rev-parse", "HEAD"]).map(|hash| if changed { hash + "-dirty" } else { hash });
    let epoch = env::var("SOURCE_DATE_EPOCH").ok().or_else(|| git(&["log", "-1", "--format=%ct"]));
    Provenance {
        commit: commit.unwrap_or_else(|| UNKNOWN.to_owned()),
        time: epoch.and_then(|seconds| rfc3339(&seconds)).unwrap_or_else(|| UNKNOWN.to_owned()),
    }
}

fn rfc3339(unix_seconds: &str) -> Option<String> {
    let since = Duration::from_secs(unix_seconds.trim().parse().ok()?);
    // humantime refuses years beyond 9999 while formatting, which would panic in `to_string`.
    let instant = SystemTime::UNIX_EPOCH.checked_add(since).filter(|_| since.as_secs() < YEAR_10000)?;
    Some(humantime::format_rfc3339_seconds(instant).to_string())
}

const UNKNOWN: &str = "unknown";
const YEAR_10000: u64 = 253_402_300_800;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_an_instant_in_utc() {
        assert_eq!(rfc3339("1796056066"), Some("2026-11-30T16:27:46Z".into()));
        assert_eq!(rfc3339("253402300799"), Some("9999-12-31T23:59:59Z".into()));
    }

    #[test]
    fn nonsense_is_not_an_instant() {
        for text in ["", "-1", "today", "253402300800", "99999999999999999999"] {
            assert_eq!(rfc3339(text), None, "{text}");
        }
    }
}
