//! SIGUSR2: another program in the same place, and nobody notices.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use crate::running::{self, Running};

/// A client that keeps its connection as long as it may. Counts what it got, and what failed.
fn keep_asking(node: SocketAddr, stop: &AtomicBool) -> (u32, Vec<String>, Duration) {
    let (mut answered, mut failed, mut slowest) = (0, Vec::new(), Duration::ZERO);
    let mut kept: Option<BufReader<TcpStream>> = None;
    while !stop.load(Relaxed) {
        let begun = Instant::now();
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => match TcpStream::connect(node) {
                Ok(stream) => BufReader::new(stream),
                Err(error) => {
                    failed.push(format!("connect: {error}"));
                    continue;
                }
            },
        };
        match ask(&mut connection) {
            Ok(close) => {
                answered += 1;
                kept = (!close).then_some(connection);
            }
            Err(error) => failed.push(error.to_string()),
        }
        slowest = slowest.max(begun.elapsed());
    }
    (answered, failed, slowest)
}

/// Whether the node says goodbye.
fn ask(connection: &mut BufReader<TcpStream>) -> std::io::Result<bool> {
    connection.get_ref().set_read_timeout(Some(Duration::from_mins(1)))?;
    connection.get_mut().write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let (mut length, mut close, mut line) = (0, false, String::new());
    if connection.read_line(&mut line)? == 0 || !line.starts_with("HTTP/1.1 200 ") {
        return Err(std::io::Error::other(format!("answered {line:?}")));
    }
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        let field = line.trim_end().to_ascii_lowercase();
        if field.is_empty() {
            break;
        }
        close |= field == "connection: close";
        if let Some(value) = field.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
    }
    connection.read_exact(&mut vec![0; length])?;
    Ok(close)
}

fn start(state: &Path) -> Running {
    let mut command = running::serve(state);
    command.args(["--sim", "127.0.0.1:0", "--cores", "1"]).stderr(std::process::Stdio::null());
    Running::of(command)
}

#[test]
fn a_program_is_replaced_and_no_request_is_lost() {
    let state = tempfile::tempdir().unwrap();
    let mut running = start(state.path());
    let stop = AtomicBool::new(false);
    let (node, admin) = (running.node, state.path().join("admin.addr"));
    let before = fs::read_to_string(&admin).unwrap();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| keep_asking(node, &stop))).collect();
        running.signal("USR2");
        // The new program says where it listens, as the old one did.
        let said = running.printed_until("listening on http://");
        assert!(said.contains(&node.to_string()), "on the same socket: {said}");
        running.printed_until("curl -s");
        thread::sleep(Duration::from_millis(200));
        stop.store(true, Relaxed);
        for client in clients {
            let (answered, failed, slowest) = client.join().unwrap();
            assert_eq!(failed, [""; 0], "after {answered}");
            assert!(answered > 0);
            assert!(slowest < Duration::from_secs(30), "{slowest:?}");
        }
    });
    assert_eq!(fs::read_to_string(&admin).unwrap(), before, "operators find it where it was");
    running.signal("TERM");
    assert!(running.wait().success());
}

#[test]
fn a_program_that_would_not_start_does_not_get_its_turn() {
    let state = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("spin.toml");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::copy(root.join("spin.toml"), &manifest).unwrap();
    let mut command = running::serve(state.path());
    command.args(["--sim", "127.0.0.1:0", "--cores", "1", "--manifest"]).arg(&manifest);
    let mut running = Running::of(command);
    fs::write(&manifest, "spin_manifest_version = 2\nwrong = true\n").unwrap();
    running.signal("USR2");
    let said = running.logged_until("not replaced");
    assert!(said.contains("wrong"), "the reason is said: {said}");
    assert_eq!(running::request(running.node, "GET", "/healthz", "", "").unwrap().0, 200, "the old one serves");
}

#[test]
fn an_order_to_stop_does_not_wait_for_the_check() {
    let (state, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (program, started) = (folder.path().join("edgepass"), folder.path().join("started"));
    fs::copy(env!("CARGO_BIN_EXE_edgepass"), &program).unwrap();
    let serve = running::serve(state.path());
    let mut command = Command::new(&program);
    command.args(serve.get_args()).args(["--sim", "127.0.0.1:0", "--cores", "1"]).env_clear();
    command.current_dir(serve.get_current_dir().unwrap());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut running = Running::of(command);
    // Another program in its place, which never says whether it would start.
    fs::remove_file(&program).unwrap();
    fs::write(&program, format!("#!/bin/sh\n: > {}\nexec sleep 170\n", started.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    running.signal("USR2");
    let begun = Instant::now();
    while !started.exists() {
        assert!(begun.elapsed() < Duration::from_mins(1), "it is never asked");
        thread::sleep(Duration::from_millis(10));
    }
    running.signal("TERM");
    assert!(running.wait().success());
    assert!(begun.elapsed() < Duration::from_secs(100), "it was waited for: {:?}", begun.elapsed());
}

#[test]
fn a_check_opens_nothing() {
    let state = tempfile::tempdir().unwrap();
    let running = Running::start(state.path(), &[]);
    // The store is open and locked, the simulator's port is taken, and so is the folder's lock.
    let mut command = running::serve(state.path());
    let checked = command.args(["--sim", &running.platform.to_string(), "--check"]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let refused = Command::new(env!("CARGO_BIN_EXE_edgepass"))
        .args(["serve", "--check", "--manifest", "nowhere.toml"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
}

#[test]
fn a_socket_from_outside_is_listened_on() {
    // What systemd does for a socket unit, done by Python: a socket as descriptor 3.
    let state = tempfile::tempdir().unwrap();
    let script = "import os,socket,sys\n\
        s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(64)\n\
        print(s.getsockname()[1], flush=True)\n\
        os.dup2(s.fileno(),3); os.set_inheritable(3,True); os.environ.update(LISTEN_FDS='1',LISTEN_PID=str(os.getpid()))\n\
        os.execv(sys.argv[1],sys.argv[1:])";
    let serve = running::serve(state.path());
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(serve.get_program()).args(serve.get_args()).args(["--sim", "127.0.0.1:0"]);
    command.current_dir(serve.get_current_dir().unwrap());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let running = Running::of(command);
    assert_eq!(running::request(running.node, "GET", "/healthz", "", "").unwrap().0, 200);
}
