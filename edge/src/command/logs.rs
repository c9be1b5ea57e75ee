//! `edgepass logs`: the end of a node's log, as its admin listener keeps it.

use std::fmt::Write as _;

use anyhow::Context as _;
use serde_json::Value;

use super::operate::{Service, talk};
use crate::cli;

/// Prints the last lines, and with `--follow` those that come.
///
/// # Errors
/// When there is no node, or it does not answer as it should.
pub fn run(logs: &cli::Logs) -> anyhow::Result<()> {
    let level = logs.level.iter().fold(String::new(), |_, level| format!("&level={level}"));
    talk(&logs.service, async |service: Service| {
        let mut next = print(&service.get(&format!("/logs?limit={}{level}", logs.lines)).await?)?;
        if !logs.follow {
            return Ok(());
        }
        loop {
            // The node answers when there is something, or after a while.
            next = print(&service.get(&format!("/logs?after={next}{level}")).await?)?;
        }
    })
}

/// Prints the lines of an answer; gives the number to go on from.
fn print(kept: &Value) -> anyhow::Result<u64> {
    if let Some(lost @ 1..) = kept["lost"].as_u64() {
        tracing::warn!(lost, "lines that the node no longer had");
    }
    for line in kept["lines"].as_array().context("no lines in the answer")? {
        crate::say(format_args!("{}", text(line))).context("writing to standard output")?;
    }
    kept["next"].as_u64().context("no number in the answer")
}

/// A line for people: time, level, what happened, and the rest.
fn text(line: &Value) -> String {
    let Some(members) = line.as_object() else { return line.to_string() };
    let member = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or_default();
    let what = if members.contains_key("message") { member("message") } else { member("event") };
    let mut text = format!("{} {:5} {what}", member("ts"), member("level"));
    let known = ["ts", "level", "target", "message", "event"];
    for (name, value) in members.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(text, " {name}={value}");
    }
    // What a node says may hold what a component said: no terminal is told what to do by it.
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_for_people_and_harmless() {
        let line = json!({"ts": "2026-01-01T00:00:00Z", "level": "warn", "target": "component", "event": "login.fail",
            "code": "code_used", "status": 401, "reason": "a\u{1b}[2Jb"});
        assert_eq!(text(&line), "2026-01-01T00:00:00Z warn  login.fail code=code_used reason=a [2Jb status=401");
        assert_eq!(text(&json!("plain")), "\"plain\"");
    }
}
