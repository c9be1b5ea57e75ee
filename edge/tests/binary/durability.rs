//! What was answered is kept, whatever ends the node.

use std::{sync::mpsc, thread};

use crate::running::Running;

#[test]
fn a_kill_during_logins_loses_no_acknowledged_session() {
    let state = tempfile::tempdir().unwrap();
    for _ in 0..3 {
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
            tokens.extend(acknowledged.iter().take(100));
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
