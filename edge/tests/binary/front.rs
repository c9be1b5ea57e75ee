//! The public listener of a whole node: its settings, its limits, its system's limits.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::running::{self, Running, request};

/// The repository's manifest with more settings of the node.
fn manifest(settings: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("spin.toml")).unwrap();
    fs::write(folder.path().join("spin.toml"), format!("{text}\n{settings}\n")).unwrap();
    folder
}

/// `serve` with these settings, as a shell runs it after `before`.
fn shell(state: &Path, manifest: &TempDir, before: &str) -> Command {
    let mut serve = running::serve(state);
    serve.args(["--sim", "127.0.0.1:0", "--cores", "1", "--manifest"]).arg(manifest.path().join("spin.toml"));
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{before}; exec \"$@\""), "bash"]).arg(serve.get_program()).args(serve.get_args());
    command.current_dir(serve.get_current_dir().unwrap()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

#[test]
fn f2_g4_who_tries_tokens_is_slowed_and_others_are_not() {
    let manifest = manifest("refusals = \"3/h\"\ntrusted_proxies = [\"127.0.0.1\"]");
    let state = tempfile::tempdir().unwrap();
    let running = Running::of(shell(state.path(), &manifest, ":"));
    let ask = |client: &str, path: &str| {
        let head = format!("x-forwarded-for: {client}\r\nauthorization: Bearer none\r\n");
        request(running.node, "GET", path, &head, "").unwrap()
    };
    for _ in 0..4 {
        assert_eq!(ask("192.0.2.1", "/api/session").0, 401);
    }
    let (status, body) = ask("192.0.2.1", "/api/session");
    assert_eq!((status, body["code"].as_str()), (429, Some("rate_limited")));
    assert_eq!(ask("192.0.2.1", "/healthz").0, 429, "whatever it asks");
    assert_eq!(ask("192.0.2.2", "/api/session").0, 401);
    let info = request(running.node, "GET", "/.well-known/spin/info", "", "").unwrap();
    assert_eq!((info.0, info.1["name"].as_str()), (200, Some("edgepass")));
}

#[test]
fn a_wrong_limit_is_named() {
    for (settings, key) in [
        ("refusals = \"often\"", "refusals"),
        ("trusted_proxies = [\"10.0.0.0/33\"]", "trusted_proxies"),
        ("limits = [{ path = \"api\", rate = \"1/s\" }]", "limits"),
        ("limits = [{ path = \"/\", rate = \"0/s\" }]", "limits"),
        ("tls_cert = \"missing.pem\"\ntls_key = \"missing.key\"", "missing.pem"),
        ("tls_cert = \"missing.pem\"", "tls_key"),
    ] {
        let manifest = manifest(settings);
        let state = tempfile::tempdir().unwrap();
        let mut command = shell(state.path(), &manifest, ":");
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(key), "{settings}: {said}");
    }
}

#[test]
fn a_node_told_to_stop_serves_while_it_is_said_not_to_be_ready() {
    let manifest = manifest("shutdown_delay = \"2s\"");
    let state = tempfile::tempdir().unwrap();
    let mut running = Running::of(shell(state.path(), &manifest, ":"));
    assert_eq!(request(running.node, "GET", "/readyz", "", "").unwrap().0, 200);
    running.signal("TERM");
    while request(running.node, "GET", "/readyz", "", "").unwrap().0 == 200 {
        thread::yield_now();
    }
    assert_eq!(request(running.node, "GET", "/readyz", "", "").unwrap().0, 503);
    assert_eq!(request(running.node, "GET", "/healthz", "", "").unwrap().0, 200);
    assert!(running.wait().success());
}

#[test]
fn a_node_out_of_descriptors_goes_on_when_there_are_some_again() {
    let manifest = manifest("");
    let state = tempfile::tempdir().unwrap();
    let running = Running::of(shell(state.path(), &manifest, "ulimit -n 128"));
    let code = running.code().unwrap();
    let held: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(running.node).unwrap()).collect();
    // Whoever is beyond what it can open waits in the system's queue.
    let mut last = TcpStream::connect(running.node).unwrap();
    last.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    drop(held);
    last.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let mut line = String::new();
    BufReader::new(last).read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200 "), "{line:?}");
    assert!(running.log_in(&code).is_some(), "and everything works");
}

#[test]
fn ten_thousand_idle_connections_leave_room_for_others() {
    let manifest = manifest("max_connections = 12000\nmax_connections_per_client = 12000\nheader_timeout = \"5m\"");
    let state = tempfile::tempdir().unwrap();
    let running = Running::of(shell(state.path(), &manifest, "ulimit -n 16000 || ulimit -n $(ulimit -Hn)"));
    let script = "import resource, socket, sys\n\
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n\
        if hard != resource.RLIM_INFINITY and hard < 13000: print('hard limit', hard, flush=True); sys.exit()\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (13000, hard))\n\
        held = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for _ in range(10000)]\n\
        print('held', len(held), flush=True); sys.stdin.read()";
    let mut crowd = Command::new("python3")
        .args(["-c", script, &running.node.port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(crowd.stdout.take().unwrap()).read_line(&mut said).unwrap();
    // On a machine that allows nobody so many files there is nothing to see.
    if !said.starts_with("hard limit") {
        assert_eq!(said, "held 10000\n");
        assert!(running.log_in(&running.code().unwrap()).is_some());
        assert_eq!(request(running.node, "GET", "/healthz", "", "").unwrap().0, 200);
    }
    drop(crowd.stdin.take());
    assert!(crowd.wait().unwrap().success());
    assert_eq!(request(running.node, "GET", "/healthz", "", "").unwrap().0, 200);
}
