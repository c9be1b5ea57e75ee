//! What `edgepass serve` does not do, and what it says then.

use std::{path::Path, process::Command};

use crate::running::{self, Running};

#[test]
fn the_printed_lines_log_in() {
    let state = tempfile::tempdir().unwrap();
    let mut running = Running::start(state.path(), &[]);
    let printed = running.printed_until("/api/session");
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("curl")).collect();
    assert_eq!(lines.len(), 3, "{printed}");
    let shell = Command::new("sh").args(["-c", &lines.join("\n")]).output().unwrap();
    let answer = String::from_utf8_lossy(&shell.stdout).into_owned();
    assert!(answer.contains(r#""platform":"wechat""#), "{answer} {}", String::from_utf8_lossy(&shell.stderr));
}

#[test]
fn development_switches_are_refused_off_loopback() {
    for arguments in [
        &["--sim", "127.0.0.1:0", "--listen", "0.0.0.0:0"][..],
        &["--sim", "0.0.0.0:0"],
        &["--reusable-codes", "--listen", "0.0.0.0:0"],
        &["--reusable-codes"],
        &["--variable", "reusable_codes=true"],
        &[
            "--variable",
            "reusable_codes=true",
            "--variable",
            "wechat_base_url=http://127.0.0.1:1",
            "--listen",
            "0.0.0.0:0",
        ],
        &["--reusable-codes", "--variable", "wechat_base_url=http://localhost:3001"],
        &["--reusable-codes", "--variable", "wechat_base_url=http://127.0.0.1.example"],
    ] {
        let keys = ["--variable", "master_key=x", "--variable", "subject_key=x"];
        let said = refused(&[arguments, &keys].concat());
        assert!(said.contains("loopback"), "{arguments:?}: {said}");
    }
}

#[test]
fn settings_are_refused_by_name() {
    let said = refused(&[]);
    assert!(said.contains("master_key") && said.contains("subject_key"), "all that is missing at once: {said}");

    let said = refused(&["--variable", "master_key=CANARY", "--variable", "subject_key=CANARY"]);
    assert!(said.contains("master_key") && said.contains("subject_key"), "{said}");
    assert!(!said.contains("CANARY"), "{said}");

    let said = refused(&["--variable", "no_such_setting=1"]);
    assert!(said.contains("no_such_setting"), "{said}");
}

#[test]
fn files_are_refused_by_name() {
    let said = refused(&["--manifest", "no-such.toml"]);
    assert!(said.contains("no-such.toml"), "{said}");
    let said = refused(&["--sim", "127.0.0.1:0", "--component", "no-such.wasm"]);
    assert!(said.contains("no-such.wasm") && said.contains("cargo xtask component"), "{said}");
    let said = refused(&["--sim", "127.0.0.1:0", "--component", "spin.toml"]);
    assert!(said.contains("component"), "{said}");
}

/// Starts with `arguments`, which must fail, and returns what it said.
fn refused(arguments: &[&str]) -> String {
    let state = tempfile::tempdir().unwrap();
    let mut command = running::serve(state.path());
    let replaced = |name: &str| arguments.contains(&name);
    if replaced("--listen") || replaced("--component") {
        command = running::bare(&state.path().join("state"));
    }
    let output = command.args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_second_node_on_one_state_folder_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let _first = Running::start(state.path(), &[]);
    let output = running::serve(Path::new(state.path())).args(["--sim", "127.0.0.1:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("store"), "{said}");
}
