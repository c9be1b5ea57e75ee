//! SIGTERM: what is under way is finished, nothing new begins.

use std::thread;

use crate::running::{Running, request};

#[test]
fn a_login_under_way_is_answered_before_the_node_ends() {
    let state = tempfile::tempdir().unwrap();
    let mut running = Running::start(state.path(), &[]);
    let code = running.code().unwrap();
    let slow = r#"{"kind":"latency","ms":700,"times":1}"#;
    assert_eq!(request(running.platform, "POST", "/sim/faults", "", slow).unwrap().0, 201);

    let token = thread::scope(|scope| {
        let login = scope.spawn(|| running.log_in(&code));
        // The journal has the call once it has arrived: then the login is under way.
        let calls = || request(running.platform, "GET", "/sim/journal", "", "").unwrap().1["total"].as_u64().unwrap();
        while calls() == 0 {
            thread::yield_now();
        }
        running.signal("TERM");
        login.join().unwrap()
    });
    assert!(token.is_some(), "answered");
    assert!(running.wait().success());
    assert!(request(running.node, "GET", "/healthz", "", "").is_none(), "nobody listens any more");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let state = tempfile::tempdir().unwrap();
    let mut running = Running::start(state.path(), &[]);
    let code = running.code().unwrap();
    let stalled = r#"{"kind":"latency","ms":60000,"times":1}"#;
    assert_eq!(request(running.platform, "POST", "/sim/faults", "", stalled).unwrap().0, 201);
    thread::scope(|scope| {
        scope.spawn(|| request(running.node, "POST", "/api/login", "", &format!(r#"{{"code":"{code}"}}"#)));
        let calls = || request(running.platform, "GET", "/sim/journal", "", "").unwrap().1["total"].as_u64().unwrap();
        while calls() == 0 {
            thread::yield_now();
        }
        running.signal("INT");
        // The first one has been taken when the node no longer accepts.
        while request(running.node, "GET", "/healthz", "", "").is_some() {
            thread::yield_now();
        }
        running.signal("INT");
    });
    let status = running.wait();
    assert!(!status.success(), "{status}");
}
