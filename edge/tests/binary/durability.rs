//! What was answered is kept, whatever ends the node, and whatever its disk does.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    readiness::until_ready,
    running::{Running, request},
};

#[test]
fn a_kill_during_logins_loses_no_acknowledged_session() {
    let state = tempfile::tempdir().unwrap();
    // Many more rounds, without a node around it: `an_acknowledged_write_survives_kill_9` of the store.
    for count in [1, 30, 100, 250] {
        let mut running = Running::start(state.path(), &[]);
        let (acknowledge, acknowledged) = mpsc::channel();
        let mut tokens: Vec<String> = Vec::new();
        thread::scope(|scope| {
            for _ in 0..8 {
                let (running, acknowledge) = (&running, acknowledge.clone());
                scope.spawn(move || {
                    // Until the node is gone; the bound is for a kill that does not work.
                    for _ in 0..10_000 {
                        let Some(token) = running.code().and_then(|code| running.log_in(&code)) else { break };
                        acknowledge.send(token).unwrap();
                    }
                });
            }
            drop(acknowledge);
            tokens.extend(acknowledged.iter().take(count));
            running.signal("KILL");
            tokens.extend(acknowledged.iter());
        });
        running.wait();

        let again = Running::start(state.path(), &[]);
        for token in &tokens {
            assert_eq!(again.session_status(token), 200, "of {} acknowledged", tokens.len());
        }
    }
}

#[test]
fn a_stop_in_order_keeps_every_session() {
    let state = tempfile::tempdir().unwrap();
    let mut running = Running::start(state.path(), &[]);
    let token = running.code().and_then(|code| running.log_in(&code)).unwrap();
    running.signal("TERM");
    assert!(running.wait().success());
    assert_eq!(Running::start(state.path(), &[]).session_status(&token), 200);
}

/// On a disk of its own, in a mount namespace of its own.
#[test]
fn a_full_disk_is_503_and_over_when_there_is_room() {
    let may_mount = Command::new("unshare").args(["--mount", "--map-root-user", "true"]).stderr(Stdio::null()).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        writeln!(io::stderr(), "skipped: mount namespaces are not to be had here").unwrap();
        return;
    }
    let disk = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=64m tmpfs \"$EDGEPASS_TEST_DISK\" && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", mount]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "durability::on_a_disk_that_fills_up", "--ignored", "--nocapture"]);
    let output = command.env("EDGEPASS_TEST_DISK", disk.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// The other process of the test above.
#[test]
#[ignore = "is run by a_full_disk_is_503_and_over_when_there_is_room"]
fn on_a_disk_that_fills_up() {
    let disk = std::env::var("EDGEPASS_TEST_DISK").unwrap();
    let disk = Path::new(&disk);
    let running = Running::start(&disk.join("state"), &[]);
    let early = running.log_in(&running.code().unwrap()).unwrap();
    let ballast = disk.join("ballast");
    fill(&ballast);

    let mut acknowledged = Vec::new();
    let log_in = || {
        let body = format!(r#"{{"code":"{}"}}"#, running.code().unwrap());
        request(running.node, "POST", "/api/login", "", &body).unwrap()
    };
    let refused = loop {
        match log_in() {
            (200, answer) => acknowledged.push(answer["access_token"].as_str().unwrap().to_owned()),
            refused => break refused,
        }
        assert!(acknowledged.len() < 50_000, "the disk does not fill up");
    };
    assert_eq!((refused.0, refused.1["code"].as_str()), (503, Some("store_unavailable")), "{}", refused.1);
    // Again and again, and nobody is told that a session has ended.
    for _ in 0..5 {
        assert_eq!(log_in().0, 503);
        assert!([200, 503].contains(&running.session_status(&early)));
    }
    until_ready(&running, &disk.join("state"), false);

    fs::remove_file(&ballast).unwrap();
    let began = Instant::now();
    while log_in().0 != 200 {
        assert!(began.elapsed() < Duration::from_secs(30), "there is room, and no login yet");
        thread::sleep(Duration::from_millis(100));
    }
    for token in acknowledged.iter().chain([&early]) {
        assert_eq!(running.session_status(token), 200, "of {}", acknowledged.len());
    }
    until_ready(&running, &disk.join("state"), true);
}

/// Takes all the room there is, but for a little.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let piece = vec![1; 64 << 10];
    let mut length = 0;
    while file.write_all(&piece).is_ok() {
        length += piece.len() as u64;
    }
    file.set_len(length.saturating_sub(256 << 10)).unwrap();
}
