//! The admin listener as a program, and the commands that talk to it.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::{Value, json};

use crate::{
    running::{self, Running, request},
    stub::{Stub, edgepass, said},
};

#[test]
fn a_node_keeps_its_token_and_shows_it_to_nobody_else() {
    let state = tempfile::tempdir().unwrap();
    let start = || {
        let log = fs::File::options().create(true).append(true).open(state.path().join("log")).unwrap();
        let mut command = running::serve(state.path());
        command.args(["--sim", "127.0.0.1:0"]).env("RUST_LOG", "trace").stderr(log);
        Running::of(command)
    };
    let mut running = start();
    let token = fs::read_to_string(state.path().join("admin.token")).unwrap();
    assert!(token.len() >= 32, "{} characters", token.len());
    let mode = fs::metadata(state.path().join("admin.token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    running.signal("TERM");
    assert!(running.wait().success());

    let mut again = start();
    assert_eq!(fs::read_to_string(state.path().join("admin.token")).unwrap(), token);
    let bearer = format!("authorization: Bearer {token}\r\n");
    let status = request(admin(state.path()), "POST", "/internal/no-such-route", &bearer, "{}").unwrap().0;
    assert_eq!(status, 404);
    again.signal("TERM");
    assert!(again.wait().success());
    let log = fs::read_to_string(state.path().join("log")).unwrap();
    assert!(log.contains("admin listener") && !log.contains(&token), "the token is in the log");
}

#[test]
fn operators_are_served_with_nothing_configured() {
    let state = tempfile::tempdir().unwrap();
    let running = Running::start(state.path(), &[]);
    let ordered = |arguments: &[&str]| {
        let output = edgepass(arguments).arg("--state-dir").arg(state.path()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let log_in = || running.log_in_whole(&running.code().unwrap()).unwrap();
    let text = |login: &Value, pointer: &str| login.pointer(pointer).unwrap().as_str().unwrap().to_owned();

    let (first, second) = (log_in(), log_in());
    let user = text(&first, "/user/id");
    let lives = |login: &Value| running.session_status(&text(login, "/access_token")) == 200;
    assert!(lives(&first) && lives(&second));
    assert_eq!(ordered(&["revoke", "--session", &text(&first, "/session/id")]), "revoked\n");
    assert!(!lives(&first) && lives(&second));
    assert_eq!(ordered(&["revoke", "--user", &user]), "revoked\n");
    assert!(!lives(&second));

    assert_eq!(ordered(&["block", &user]), "blocked\n");
    let body = json!({"code": running.code().unwrap()}).to_string();
    let (status, answer) = request(running.node, "POST", "/api/login", "", &body).unwrap();
    assert_eq!((status, &answer["code"]), (403, &json!("user_blocked")));
    assert_eq!(ordered(&["unblock", &user]), "unblocked\n");
    assert!(lives(&log_in()));
    assert_eq!(ordered(&["sweep", "--limit", "1"]), "removed 0\n", "nothing has expired");

    let (status, _) = request(running.node, "POST", "/internal/sweep", "", "{}").unwrap();
    assert_eq!(status, 404, "not on the public address");
    let (status, _) = request(admin(state.path()), "POST", "/internal/sweep", "", "{}").unwrap();
    assert_eq!(status, 401, "nor without the token");
}

#[test]
fn an_admin_listener_is_for_this_machine() {
    let state = tempfile::tempdir().unwrap();
    let output = running::serve(state.path()).args(["--sim", "127.0.0.1:0", "--admin", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("--admin 0.0.0.0:0 is not a loopback address"), "{}", said(&output));
}

#[test]
fn a_state_folder_has_one_node_whatever_the_store() {
    let state = tempfile::tempdir().unwrap();
    let _first = Running::start(state.path(), &["--store", "memory"]);
    let output = running::serve(state.path()).args(["--sim", "127.0.0.1:0", "--store", "memory"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("another node runs with the state folder"), "{}", said(&output));
}

#[test]
fn a_sweep_goes_on_until_nothing_is_left() {
    let service = Stub::start(vec![
        (200, json!({"removed": 3, "cursor": "a"})),
        (200, json!({"removed": 0, "cursor": "b"})),
        (200, json!({"removed": 4, "cursor": null})),
    ]);
    let output = service.ask(&["sweep", "--limit", "50"]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "removed 7\n");
    let asked: Vec<Value> = service.asked().into_iter().map(|(_, body)| parsed(&body)).collect();
    assert_eq!(asked, [json!({"limit": 50}), json!({"limit": 50, "cursor": "a"}), json!({"limit": 50, "cursor": "b"})]);
}

#[test]
fn an_order_names_whom_it_is_about() {
    for (line, target, body) in [
        ("revoke --session s1", "/internal/revoke", json!({"session_id": "s1"})),
        ("revoke --user u1", "/internal/revoke", json!({"user_id": "u1"})),
        ("block u1", "/internal/block", json!({"user_id": "u1"})),
        ("unblock u1", "/internal/unblock", json!({"user_id": "u1"})),
    ] {
        let service = Stub::start(vec![(204, Value::Null)]);
        let output = service.ask(&line.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{line}: {}", said(&output));
        let (head, sent) = service.asked().pop().unwrap();
        assert!(head.starts_with(&format!("POST {target} ")), "{head}");
        assert!(head.to_lowercase().contains("authorization: bearer file-token\r\n"), "{head}");
        assert_eq!(parsed(&sent), body);
    }
}

#[test]
fn what_goes_wrong_is_said_with_what_to_do() {
    let answered = |answers: &[(u16, Value)], arguments: &[&str]| {
        let output = Stub::start(answers.to_vec()).ask(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
        assert!(!said(&output).contains("file-token"), "{}", said(&output));
        said(&output)
    };
    let problem = |code: &str| json!({"code": code, "detail": "why"});
    let sweep = &["sweep"][..];
    for (answer, expected) in [
        ((401, problem("token_invalid")), "operator_tokens"),
        ((404, problem("not_found")), "admin listener"),
        ((503, problem("store_unavailable")), "503 store_unavailable why"),
        ((200, json!({"swept": true})), "no sweep's answer"),
    ] {
        let told = answered(&[answer], sweep);
        assert!(told.contains(expected), "{told}");
    }
    let on = (200, json!({"removed": 1, "cursor": "a"}));
    let told = answered(&[on.clone(), on.clone()], sweep);
    assert!(told.contains("does not get on; 2 removed"), "{told}");
    let told = answered(&[on], &["sweep", "--max-calls", "1"]);
    assert!(told.contains("not done after 1 calls, 1 removed"), "{told}");

    let state = tempfile::tempdir().unwrap();
    let output = edgepass(&["block", "u1", "--state-dir"]).arg(state.path()).output().unwrap();
    assert!(said(&output).contains("no node runs with the state folder"), "{}", said(&output));

    let file = state.path().join("token");
    fs::write(&file, "file-token").unwrap();
    let output = edgepass(&["sweep", "--admin", "http://login.example", "--token-file"]).arg(&file).output().unwrap();
    assert!(said(&output).contains("the token would travel in clear"), "{}", said(&output));
}

fn parsed(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap()
}

/// Where the node with this state folder says that its admin listener is.
fn admin(state: &Path) -> SocketAddr {
    fs::read_to_string(state.join("admin.addr")).unwrap().trim().parse().unwrap()
}
