//! `edgepass doctor`: looks at what `serve` would be given, and says of each thing whether it is in
//! order, what it means and what to do. Changes nothing, and shows no value of a variable.

mod application;
mod machine;
mod reach;
mod running;
mod tls;

use anyhow::bail;
use serde_json::json;

use crate::{cli, kv::redis::Severity, outbound::Shared};

/// Checks everything and prints what was found.
///
/// # Errors
/// When a check failed.
pub fn run(doctor: &cli::Doctor) -> anyhow::Result<()> {
    let mut report = Report::default();
    let subject = application::check(doctor, &mut report);
    store(doctor, &mut report);
    machine::check(doctor, subject.as_ref(), &mut report);
    running::check(doctor, subject.as_ref().and_then(|subject| subject.digest.as_deref()), &mut report);
    if let Some(subject) = &subject {
        tls::check(&subject.settings, &mut report);
        reach::check(doctor, subject, &mut report)?;
    }
    report.print(doctor.json)?;
    match report.count(Level::Fail) {
        0 => Ok(()),
        failed => bail!("{failed} of {} checks failed", report.0.len()),
    }
}

/// A Redis says itself how fit it is; what it says has the advice in it.
fn store(doctor: &cli::Doctor, report: &mut Report) {
    match super::store::examine(&doctor.store_choice, &doctor.state_dir) {
        Ok(findings) => findings.into_iter().for_each(|finding| match finding.severity {
            Severity::Good => report.ok("store", finding.text),
            Severity::Doubtful => report.warn("store", finding.text, ""),
            Severity::Bad => report.fail("store", finding.text, ""),
        }),
        Err(error) => report.fail("store", format!("{error:#}"), "`edgepass serve --help` has the forms of --store"),
    }
}

/// What the manifest asks for, where it can be read.
struct Subject {
    settings: crate::manifest::Settings,
    /// Of the component, where it compiles.
    digest: Option<String>,
    /// Entries of the allow-list, filled in, and the client's side of them; `None` when variables are missing.
    outbound: Option<(Vec<String>, std::sync::Arc<Shared>)>,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Ok,
    /// It works, and may not for long, or not well.
    Warn,
    Fail,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What a check found.
#[derive(Debug)]
struct Finding {
    check: &'static str,
    level: Level,
    found: String,
    /// What to do about it; empty when there is nothing to do.
    advice: String,
}

/// Everything that was found, in order.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.0.push(Finding { check, level: Level::Ok, found: found.into(), advice: String::new() });
    }

    fn warn(&mut self, check: &'static str, found: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Finding { check, level: Level::Warn, found: found.into(), advice: advice.into() });
    }

    fn fail(&mut self, check: &'static str, found: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Finding { check, level: Level::Fail, found: found.into(), advice: advice.into() });
    }

    fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }

    fn print(&self, as_json: bool) -> std::io::Result<()> {
        if as_json {
            let finding = |Finding { check, level, found, advice }: &Finding| json!({"check": check, "level": level.name(), "found": found, "advice": advice});
            let findings: Vec<_> = self.0.iter().map(finding).collect();
            return crate::say(format_args!("{}", json!({ "ok": self.count(Level::Fail) == 0, "checks": findings })));
        }
        for Finding { check, level, found, advice } in &self.0 {
            let style = match level {
                Level::Ok => anstyle::AnsiColor::Green,
                Level::Warn => anstyle::AnsiColor::Yellow,
                Level::Fail => anstyle::AnsiColor::Red,
            };
            let style = style.on_default();
            crate::say(format_args!("{style}{:<5}{style:#}{check:<11}{found}", level.name()))?;
            if !advice.is_empty() {
                crate::say(format_args!("{:16}{advice}", ""))?;
            }
        }
        Ok(())
    }
}
