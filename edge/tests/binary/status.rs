//! `edgepass status` and `edgepass logs`, and the form of the log.

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::running::{self, Running};

fn printed(state: &std::path::Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edgepass"));
    let output =
        command.env_clear().args(arguments).arg("--state-dir").arg(state).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_node_tells_operators_what_it_does() {
    let state = tempfile::tempdir().unwrap();
    let log = fs::File::create(state.path().join("log")).unwrap();
    let mut command = running::serve(state.path());
    command.args(["--sim", "127.0.0.1:0", "--store", "memory", "--log-format", "json"]).stderr(log);
    let running = Running::of(command);
    running.log_in(&running.code().unwrap()).unwrap();
    let garbage = r#"{"code":"never-issued"}"#;
    assert_eq!(running::request(running.node, "POST", "/api/login", "", garbage).unwrap().0, 401);

    let status: Value = serde_json::from_str(&printed(state.path(), &["status", "--json"])).unwrap();
    let digest = status["revisions"]["active"]["digest"].as_str().unwrap();
    assert_eq!(status["operations"][0]["count"], 2);
    let table = printed(state.path(), &["status", "--page"]);
    for part in [digest, "\nlogin", "\n  platform", "client    code_invalid (login)", "/#token="] {
        assert!(table.contains(part), "{part}\n{table}");
    }
    assert!(!printed(state.path(), &["status"]).contains("token="), "only when asked for");

    let lines = printed(state.path(), &["logs", "-n", "1000"]);
    assert!(lines.contains(" info  login.ok ") && lines.contains(" warn  login.fail "), "{lines}");
    let warnings = printed(state.path(), &["logs", "--level", "warn"]);
    assert!(!warnings.contains("login.ok") && warnings.contains("code=code_invalid"), "{warnings}");

    let written = fs::read_to_string(state.path().join("log")).unwrap();
    let lines: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let event = lines.iter().find(|line| line["event"] == "login.fail").unwrap();
    assert_eq!((&event["target"], &event["code"]), (&"component".into(), &"code_invalid".into()));
    assert!(lines.iter().any(|line| line["message"] == "admin listener" && line["level"] == "info"), "{written}");
}

#[test]
fn where_traces_go_is_checked_before_anything_runs() {
    let state = tempfile::tempdir().unwrap();
    for (arguments, said) in [
        (["--otlp", "collector", "--store", "memory"], "no URL to send traces to"),
        (["--otlp", "http://127.0.0.1:1/v1/traces", "--otlp-sample", "2"], "not between 0 and 1"),
    ] {
        let output = running::serve(state.path()).args(["--sim", "127.0.0.1:0"]).args(arguments).output().unwrap();
        assert!(!output.status.success());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(said), "{error}");
    }
}
