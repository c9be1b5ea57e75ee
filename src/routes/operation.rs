//! `GET /healthz`, `/readyz`, `/version`: for those who run the service.

use serde::Serialize;

use super::json;
use crate::{config::SETTINGS, host::Host, login::SubjectKeyError, message::Response, service::Service};

/// Version of this package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit this was built from; `unknown` in a build nobody named one for.
pub const COMMIT: &str = match option_env!("EDGEPASS_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Time of that commit, RFC 3339. Not of the build: two builds of one commit are equal.
pub const BUILT: &str = match option_env!("EDGEPASS_COMMIT_TIME") {
    Some(time) => time,
    None => "unknown",
};

/// How long the answer of the store is taken for true, in milliseconds: `/readyz` is open to all.
const STORE_CHECK_MS: u64 = 1000;

#[derive(Serialize)]
struct Health {
    status: &'static str,
}

#[derive(Serialize)]
struct Ready<'a> {
    status: &'static str,
    /// The settings that are wrong, of the closed list only.
    settings: Vec<&'a str>,
    /// How many settings nobody knows; the log has their names.
    unknown_settings: usize,
    store: &'static str,
}

#[derive(Serialize)]
struct Build {
    version: &'static str,
    commit: &'static str,
    built: &'static str,
    spin_sdk: &'static str,
    wasi: &'static str,
}

pub(super) fn health() -> Response {
    json(200, &Health { status: "ok" })
}

pub(super) async fn ready<H: Host>(service: &Service<H>) -> Response {
    let names: Vec<&str> = service.problems().iter().map(|problem| &*problem.setting).collect();
    let mut settings: Vec<&str> = SETTINGS.into_iter().filter(|name| names.contains(name)).collect();
    let unknown_settings = names.iter().filter(|name| !settings.contains(name)).count();
    let store = match service.live() {
        Err(_) => "unchecked",
        Ok(login) => {
            let now = service.host().clock().now();
            let fresh = |at: u64| now.0.checked_sub(at).is_some_and(|age| age < STORE_CHECK_MS);
            let seen = match service.store_seen.get() {
                Some((at, seen)) if fresh(at.0) => seen,
                _ => {
                    let seen = login.compare_subject_key().await;
                    service.store_seen.set(Some((now, seen)));
                    seen
                }
            };
            match seen {
                Ok(()) => "ok",
                Err(SubjectKeyError::Store(_)) => "unavailable",
                Err(SubjectKeyError::Other) => {
                    settings.push("subject_key");
                    "of_another_subject_key"
                }
            }
        }
    };
    let is_ready = store == "ok";
    let status = if is_ready { "ready" } else { "not_ready" };
    json(if is_ready { 200 } else { 503 }, &Ready { status, settings, unknown_settings, store })
}

pub(super) fn version() -> Response {
    json(200, &Build { version: VERSION, commit: COMMIT, built: BUILT, spin_sdk: "7.0.0", wasi: "0.3.0" })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_sdk_named_is_the_one_in_the_manifest() {
        assert!(include_str!("../../Cargo.toml").contains(r#"spin-sdk = { version = "7.0.0""#));
    }
}
