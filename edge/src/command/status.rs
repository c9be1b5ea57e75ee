//! `edgepass status`: `GET /status` as tables.

use std::{fmt::Write as _, time::Duration};

use anyhow::Context as _;
use serde_json::Value;

use super::operate::{Service, talk};
use crate::cli;

/// Prints what a node is doing: once, or again and again.
///
/// # Errors
/// When there is no node, or it does not answer as it should.
pub fn run(status: &cli::Status) -> anyhow::Result<()> {
    talk(&status.service, async |service: Service| {
        loop {
            let seen = service.get("/status").await?;
            let mut text = if status.json { serde_json::to_string_pretty(&seen)? } else { table(&seen) };
            if status.page {
                let _ = write!(text, "\n{}/#token={}", service.url, service.token.expose());
            }
            // Home and clear, where there is a terminal; elsewhere the escapes are left out.
            let clear = if status.watch { "\u{1b}[H\u{1b}[2J" } else { "" };
            crate::say(format_args!("{clear}{}", text.trim_end())).context("writing to standard output")?;
            if !status.watch {
                return Ok(());
            }
            tokio::time::sleep(EVERY).await;
        }
    })
}

const EVERY: Duration = Duration::from_secs(2);

fn table(seen: &Value) -> String {
    let mut text = String::new();
    let (node, active) = (&seen["node"], &seen["revisions"]["active"]);
    let uptime = Duration::from_secs(node["uptime_seconds"].as_u64().unwrap_or_default());
    let _ = writeln!(text, "node      {}, up {}", word(&node["version"]), humantime::format_duration(uptime));
    let _ = writeln!(text, "active    {} {}", word(&active["digest"]), word(&active["version"]));
    for revision in seen["revisions"]["revisions"].as_array().into_iter().flatten() {
        let digest: String = word(&revision["digest"]).chars().take(16).collect();
        let _ = writeln!(text, "          {digest} {:10} {}", word(&revision["state"]), word(&revision["at"]));
    }
    let pool = &seen["pool"];
    let _ = writeln!(
        text,
        "pool      {} instances ({} busy), {} of {} places, {} waiting",
        pool["instances"], pool["busy_instances"], pool["taken_places"], pool["places"], pool["waiting"]
    );

    let _ = writeln!(text, "\nlast {} s      per s      p50      p95      p99", seen["window_seconds"]);
    for operation in seen["operations"].as_array().into_iter().flatten().filter(|operation| operation["count"] != 0) {
        row(&mut text, &word(&operation["name"]), &operation["per_second"].to_string(), operation);
        for stage in operation["stages"].as_array().into_iter().flatten() {
            row(&mut text, &format!("  {}", word(&stage["name"])), "", stage);
        }
    }

    let mut failures: Vec<&Value> =
        seen["outcomes"].as_array().into_iter().flatten().filter(|outcome| outcome["fault"] != "none").collect();
    failures.sort_by_key(|failure| std::cmp::Reverse(failure["count"].as_u64()));
    if !failures.is_empty() {
        let _ = writeln!(text, "\nfailures");
    }
    for failure in failures {
        let (fault, what) = (word(&failure["fault"]), word(&failure["outcome"]));
        let _ = writeln!(
            text,
            "{:>8}  {fault:9} {what} ({})",
            failure["count"].as_u64().unwrap_or_default(),
            word(&failure["operation"])
        );
    }

    let gauges = seen["gauges"].as_object().filter(|gauges| !gauges.is_empty());
    for (name, value) in gauges.into_iter().flatten() {
        let _ = writeln!(text, "{}{name} {value}", if text.contains("edgepass_") { "" } else { "\n" });
    }
    text
}

fn row(text: &mut String, name: &str, rate: &str, spent: &Value) {
    let time = |name: &str| spent[name].as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}ms"));
    let _ = writeln!(text, "{name:12} {rate:>9} {:>8} {:>8} {:>8}", time("p50_ms"), time("p95_ms"), time("p99_ms"));
}

/// A text as it may go to a terminal; empty when it is none.
fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_has_what_the_page_has() {
        let seen = json!({
            "node": {"version": "1.2.3", "uptime_seconds": 61},
            "revisions": {"active": {"digest": "abcd", "version": "0.9"}, "revisions": []},
            "pool": {"instances": 2, "busy_instances": 1, "taken_places": 3, "places": 64, "waiting": 0},
            "window_seconds": 60.0,
            "operations": [
                {"name": "login", "count": 9, "per_second": 0.15, "p50_ms": 80.123, "p95_ms": 90.0, "p99_ms": null,
                 "stages": [{"name": "platform", "count": 9, "p50_ms": 79.0, "p95_ms": 80.0, "p99_ms": 80.0}]},
                {"name": "refresh", "count": 0, "per_second": 0.0, "p50_ms": null, "p95_ms": null, "p99_ms": null, "stages": []},
            ],
            "outcomes": [
                {"operation": "login", "outcome": "ok", "fault": "none", "count": 5},
                {"operation": "login", "outcome": "platform_busy", "fault": "platform", "count": 1},
                {"operation": "login", "outcome": "code\u{1b}[2J_used", "fault": "client", "count": 3},
            ],
            "gauges": {"edgepass_kv_keys": 4.0},
        });
        let text = table(&seen);
        for part in [
            "1.2.3, up 1m 1s",
            "abcd 0.9",
            "2 instances (1 busy), 3 of 64 places, 0 waiting",
            "login             0.15  80.12ms  90.00ms        -",
            "  platform",
            "       3  client    code[2J_used (login)\n       1  platform  platform_busy (login)",
            "edgepass_kv_keys 4.0",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("refresh") && !text.contains('\u{1b}'), "{text}");
    }
}
