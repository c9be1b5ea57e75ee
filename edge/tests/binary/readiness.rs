//! `/readyz`, for everybody and for operators, while the store of a whole node is away, and after it.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    running::{Running, request},
    servers::Servers,
};

/// The listener for operators of the node with this state folder.
fn admin(state: &Path) -> SocketAddr {
    fs::read_to_string(state.join("admin.addr")).unwrap().trim().parse().unwrap()
}

/// What both listeners say.
fn readiness(running: &Running, state: &Path) -> [(u16, Option<String>); 2] {
    [running.node, admin(state)].map(|listener| {
        let (status, body) = request(listener, "GET", "/readyz", "", "").unwrap();
        (status, body["code"].as_str().map(str::to_owned))
    })
}

/// Asks until both say so, as a balancer would.
pub(crate) fn until_ready(running: &Running, state: &Path, ready: bool) {
    let wanted = if ready { (200, None) } else { (503, Some("store_unavailable".to_owned())) };
    let begun = Instant::now();
    while readiness(running, state) != [wanted.clone(), wanted.clone()] {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", readiness(running, state));
        thread::sleep(Duration::from_millis(20));
    }
}

/// The sum of all series of this name at `/metrics`.
fn metric(state: &Path, name: &str) -> u64 {
    let mut stream = TcpStream::connect(admin(state)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let of_name = |line: &&str| line.split(['{', ' ']).next() == Some(name);
    let values: Vec<u64> =
        text.lines().filter(of_name).map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(!values.is_empty(), "{name} is not there");
    values.iter().sum()
}

fn log_in(running: &Running) -> (u16, Option<String>) {
    let body = format!(r#"{{"code":"{}"}}"#, running.code().unwrap());
    let (status, answer) = request(running.node, "POST", "/api/login", "", &body).unwrap();
    (status, answer["code"].as_str().map(str::to_owned))
}

#[test]
fn a_redis_that_is_down_makes_the_node_unready_until_it_is_back() {
    let (state, servers) = (tempfile::tempdir().unwrap(), Servers::single());
    let running = Running::start(state.path(), &["--store", servers.url()]);
    until_ready(&running, state.path(), true);
    assert_eq!(log_in(&running), (200, None));
    servers.nodes[0].kill();
    assert_eq!(log_in(&running), (503, Some("store_unavailable".into())));
    until_ready(&running, state.path(), false);
    assert_eq!(metric(state.path(), "edgepass_kv_failing"), 1);
    assert_eq!(metric(state.path(), "edgepass_kv_redis_connected"), 0);
    servers.nodes[0].restart();
    until_ready(&running, state.path(), true);
    assert_eq!(metric(state.path(), "edgepass_kv_failing"), 0);
    assert_eq!(metric(state.path(), "edgepass_kv_redis_connected"), 1);
    for counted in ["edgepass_kv_operation_duration_seconds_count", "edgepass_outbound_duration_seconds_count"] {
        assert!(metric(state.path(), counted) > 0, "{counted}");
    }
    assert!(metric(state.path(), "edgepass_connections_accepted_total") > 0);
    assert_eq!(metric(state.path(), "edgepass_breaker_state"), 0);
    assert_eq!(log_in(&running), (200, None));
}

#[test]
fn a_store_that_cannot_be_read_is_noticed_by_who_reads() {
    let (state, servers) = (tempfile::tempdir().unwrap(), Servers::single());
    let running = Running::start(state.path(), &["--store", servers.url()]);
    let token = running.log_in(&running.code().unwrap()).unwrap();
    until_ready(&running, state.path(), true);
    // Writes go on working.
    servers.nodes[0].done(&["ACL", "SETUSER", "default", "-get", "-mget"]);
    assert_eq!(running.session_status(&token), 503);
    until_ready(&running, state.path(), false);
    servers.nodes[0].done(&["ACL", "SETUSER", "default", "+get", "+mget"]);
    until_ready(&running, state.path(), true);
    assert_eq!(running.session_status(&token), 200, "nobody was told that it had ended");
}

#[test]
fn a_full_redis_takes_no_login_and_says_so() {
    let (state, servers) = (tempfile::tempdir().unwrap(), Servers::single());
    let running = Running::start(state.path(), &["--store", servers.url()]);
    assert_eq!(log_in(&running), (200, None));
    servers.nodes[0].done(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(log_in(&running), (503, Some("store_unavailable".into())));
    until_ready(&running, state.path(), false);
    servers.nodes[0].done(&["CONFIG", "SET", "maxmemory", "0"]);
    until_ready(&running, state.path(), true);
    assert_eq!(log_in(&running), (200, None));
}
