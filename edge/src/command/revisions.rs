//! What an operator asks about revisions: `edgepass swap`, `rollback`, `revisions`, `canary`.
//!
//! A line for each step that is done goes to standard output, what is under way to standard error.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::time::{Instant, interval_at};

use super::operate::{Service, talk};
use crate::{
    cli::{self, CanaryAction},
    engine::Digest,
    exchange::Ask,
    revisions::{
        MAX_COMPONENT_BYTES,
        signature::{self, UploadKey},
    },
};

/// Has another component served.
///
/// # Errors
/// When the file cannot be read or signed, or the node refuses the component.
pub fn swap(swap: &cli::Swap) -> anyhow::Result<()> {
    let component = component(&swap.file)?;
    let digest = Digest::of(&component);
    let signature = swap.sign_key.as_deref().map(|file| signed(file, digest)).transpose()?;
    let query = match &swap.canary {
        Some(rule) => format!("?canary={}", utf8_percent_encode(&rule.to_string(), NON_ALPHANUMERIC)),
        None if swap.no_activate => String::new(),
        None => "?activate=true".into(),
    };
    talk(&swap.service, async |service: Service| {
        let size = megabytes(component.len());
        progress(&format!("sending {} ({size}) to {}, which compiles and tries it", digest.short(), service.url));
        let mut ask = change(&service, "PUT", &format!("/revisions{query}"), swap.expect);
        ask.component = Some(component);
        ask.fields.extend(signature.map(|signature| (signature::FIELD, signature)));
        let done = order(&service, &ask).await?;
        for (step, name) in [("compiled", "compile"), ("checked", "check"), ("answers", "probe"), ("swapped", "swap")] {
            if let Some(seconds) = done["seconds"][name].as_f64() {
                say(step, &format!("in {seconds:.3} s"))?;
            }
        }
        changed(&done, swap.canary.as_ref().map(ToString::to_string))
    })
}

/// Prints the signature of a component.
///
/// # Errors
/// When the component or the key cannot be read.
pub fn sign(sign: &cli::Sign) -> anyhow::Result<()> {
    print(&signed(&sign.key, Digest::of(&component(&sign.file)?))?)
}

/// Has what was served before served again.
///
/// # Errors
/// When there is nothing to go back to, or the node does not take the order.
pub fn roll_back(rollback: &cli::Rollback) -> anyhow::Result<()> {
    talk(&rollback.service, async |service: Service| {
        let ask = change(&service, "POST", "/rollback", rollback.expect);
        changed(&order(&service, &ask).await?, None)
    })
}

/// Ends a canary.
///
/// # Errors
/// When there is none, or the node does not take the order.
pub fn canary(canary: &cli::Canary) -> anyhow::Result<()> {
    let (method, path) = match canary.action {
        CanaryAction::Promote => ("POST", "/canary/promote"),
        CanaryAction::Stop => ("DELETE", "/canary"),
    };
    talk(&canary.service, async |service: Service| {
        let ask = change(&service, method, path, canary.expect);
        changed(&order(&service, &ask).await?, None)
    })
}

/// Prints the revisions of a node, and what was done to them.
///
/// # Errors
/// When there is no node, or it does not answer as it should.
pub fn list(revisions: &cli::Revisions) -> anyhow::Result<()> {
    talk(&revisions.service, async |service: Service| {
        let standing = service.get("/revisions").await?;
        if revisions.json {
            return print(&serde_json::to_string_pretty(&standing)?);
        }
        for revision in standing["revisions"].as_array().context("no revisions in the answer")? {
            print(&row(revision))?;
        }
        if let Some(draining @ 1..) = standing["draining"].as_u64() {
            print(&format!("{draining} more only finish what they have"))?;
        }
        if revisions.journal {
            let journal = service.get("/journal").await?;
            for entry in journal["entries"].as_array().context("no entries in the answer")? {
                print(&line(entry))?;
            }
        }
        Ok(())
    })
}

/// The file, if it can be a component; one that is longer than a node takes is not sent.
fn component(file: &Path) -> anyhow::Result<Vec<u8>> {
    let read = || -> anyhow::Result<Vec<u8>> {
        let mut component = Vec::new();
        let most = u64::try_from(MAX_COMPONENT_BYTES).unwrap_or(u64::MAX);
        fs::File::open(file)?.take(most.saturating_add(1)).read_to_end(&mut component)?;
        ensure!(
            component.len() <= MAX_COMPONENT_BYTES,
            "too_large: longer than the {} a node takes",
            megabytes(MAX_COMPONENT_BYTES)
        );
        Ok(component)
    };
    read().with_context(|| format!("reading {}", file.display()))
}

/// The signature of a component with the key in `file`.
fn signed(file: &Path, digest: Digest) -> anyhow::Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let key = UploadKey::parse(&text).with_context(|| format!("reading {}", file.display()))?;
    Ok(signature::sign(&key, digest))
}

/// An order to change something: who gives it, and what they believe is active.
fn change(service: &Service, method: &'static str, path: &str, expect: Option<Digest>) -> Ask {
    let expect = expect.map(|digest| ("x-edgepass-expect", digest.to_string()));
    let fields = [("x-edgepass-actor", actor())].into_iter().chain(expect).collect();
    Ask { fields, time: CHANGE_TIME, ..service.question(method, path) }
}

/// Who runs this, as far as the system tells: `user@host`.
fn actor() -> String {
    let user = ["USER", "LOGNAME"].into_iter().find_map(|name| env::var(name).ok());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let [user, host] = [user, host].map(|text| {
        let text = text.unwrap_or_default();
        let kept: String = text.chars().filter(|c| c.is_ascii_graphic() && *c != '@').take(40).collect();
        if kept.is_empty() { "unknown".to_owned() } else { kept }
    });
    format!("{user}@{host}")
}

/// What is answered to an order that is carried out; says now and then that it still is under way.
async fn order(service: &Service, ask: &Ask) -> anyhow::Result<Value> {
    let begun = Instant::now();
    let mut told = interval_at(begun + TELL_EVERY, TELL_EVERY);
    let mut sent = std::pin::pin!(service.send(ask));
    let answer = loop {
        tokio::select! {
            answer = &mut sent => break answer?,
            _ = told.tick() => progress(&format!("still under way after {} s", begun.elapsed().as_secs())),
        }
    };
    let text = |member: &str| tame(answer.body[member].as_str().unwrap_or_default());
    let advice = match (answer.status, &*text("code")) {
        (200, _) if answer.body["digest"].is_string() => return Ok(answer.body),
        (200..300, _) => bail!("{} {}: not the answer of a node", ask.method, ask.url),
        (401, _) => "; is the token that of this node?",
        (404 | 405, "not_found" | "") => "; is this the admin listener of a node that swaps?",
        (413, _) => "; the node takes no component that long",
        _ => "",
    };
    bail!("refused: {} {}{advice}; what was served is served", text("code"), text("detail"))
}

/// Prints what a change has led to.
fn changed(done: &Value, rule: Option<String>) -> anyhow::Result<()> {
    let digest = |name: &str| done[name].as_str().map(short);
    let takes = rule.map(|rule| format!(" takes {rule}"));
    let before = digest("previous").map(|before| format!(", before: {before}"));
    let cut = done["cut"].as_u64().filter(|cut| *cut > 0).map(|cut| format!(", requests cut off: {cut}"));
    let what: String = [digest("digest"), takes, before, cut].into_iter().flatten().collect();
    say(&tame(done["state"].as_str().unwrap_or("done")), &what)
}

/// A revision of a list.
fn row(revision: &Value) -> String {
    let text = |name: &str| tame(revision[name].as_str().unwrap_or_default());
    let digest = short(&text("digest"));
    let row = [text("version"), text("rule"), text("at"), text("by")];
    let row = row.iter().filter(|text| !text.is_empty()).fold(digest, |row, text| format!("{row}  {text}"));
    format!("{:9} {row}", text("state"))
}

/// An entry of the journal.
fn line(entry: &Value) -> String {
    let text = |name: &str| tame(entry[name].as_str().unwrap_or_default());
    let line = format!("{} {:9} {:8} {:12}", text("at"), text("action"), text("result"), short(&text("digest")));
    let rest = [text("who"), text("reason"), text("detail")];
    rest.iter().filter(|text| !text.is_empty()).fold(line, |line, text| format!("{line} {text}"))
}

/// The first digits of a digest.
fn short(digest: &str) -> String {
    tame(digest).chars().take(12).collect()
}

/// A text as it may go to a terminal.
fn tame(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

fn megabytes(bytes: usize) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

fn say(step: &str, what: &str) -> anyhow::Result<()> {
    print(&format!("{step:9} {what}"))
}

fn print(line: &str) -> anyhow::Result<()> {
    crate::say(format_args!("{line}")).context("writing to standard output")
}

/// Nobody has to see it, so nothing is lost where it cannot be written.
fn progress(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

const TELL_EVERY: Duration = Duration::from_secs(5);
/// Longer than the two minutes a node takes for a change at most.
const CHANGE_TIME: Duration = Duration::from_secs(150);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_revision_and_an_entry_are_lines() {
        let revision = json!({"digest": DIGEST, "state": "canary", "rule": "10%", "version": "0.1.0", "commit": "c",
            "at": "2026-01-01T00:00:00.000Z", "by": "eve\u{1b}[2J@host"});
        assert_eq!(row(&revision), "canary    ba7816bf8f01  0.1.0  10%  2026-01-01T00:00:00.000Z  eve[2J@host");
        let kept =
            json!({"digest": DIGEST, "state": "previous", "version": null, "commit": null, "at": null, "by": null});
        assert_eq!(row(&kept), "previous  ba7816bf8f01");
        let entry = json!({"at": "2026-01-01T00:00:00.000Z", "who": "node", "action": "roll_back", "digest": DIGEST,
            "result": "done", "reason": "requests_lost", "detail": "9 of 100 requests lost"});
        assert_eq!(
            line(&entry),
            "2026-01-01T00:00:00.000Z roll_back done     ba7816bf8f01 node requests_lost 9 of 100 requests lost"
        );
    }

    #[test]
    fn whoever_runs_this_is_somebody_and_harmless() {
        let actor = actor();
        let (user, host) = actor.split_once('@').expect("two parts");
        assert!(!user.is_empty() && !host.is_empty() && !host.contains('@'), "{actor}");
        assert!(actor.len() <= 100 && actor.bytes().all(|byte| byte.is_ascii_graphic()), "{actor}");
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(
            [0, 1 << 20, 1_258_292, MAX_COMPONENT_BYTES].map(megabytes),
            ["0.0 MiB", "1.0 MiB", "1.2 MiB", "32.0 MiB"]
        );
    }
}
