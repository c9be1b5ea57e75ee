//! Starting, refusing to start, and stopping.

use std::{
    io::{Read, Write},
    net::TcpStream,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use edgepass_sim::{App, BadApp, SAMPLE_APPID, SAMPLE_SECRET, SimConfig, Simulator, StartError};

use crate::support::{APPID, Reply, Sim, connect, head, query};

fn error_of(change: impl FnOnce(&mut SimConfig)) -> StartError {
    let mut config = SimConfig::default();
    change(&mut config);
    Simulator::start(config).err().expect("refused")
}

#[test]
fn other_addresses_than_loopback_are_refused_unless_allowed() {
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let error = error_of(|config| config.listen = listen.parse().expect("an address"));
        assert!(matches!(error, StartError::NotLoopback(_)), "{error}");
        assert!(error.to_string().contains("logs anyone in as anyone"), "{error}");
    }
    let allowed = Simulator::start(SimConfig {
        listen: "0.0.0.0:0".parse().expect("an address"),
        allow_non_loopback: true,
        ..SimConfig::default()
    });
    assert!(allowed.expect("allowed").addr().ip().is_unspecified());
}

#[test]
fn unsound_apps_are_refused() {
    let app = |appid: &str, secret: &str| App { appid: appid.to_owned(), secret: secret.to_owned(), owner: None };
    assert!(matches!(error_of(|config| config.apps.clear()), StartError::NoApps));
    let error = error_of(|config| config.apps.push(app("wx", "")));
    assert!(matches!(error, StartError::IncompleteApp { index: 1 }), "{error}");
    let error = error_of(|config| config.apps.push(app(SAMPLE_APPID, "other")));
    assert!(matches!(error, StartError::DuplicateApp(_)), "{error}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let sim = Sim::start();
    let taken = sim.addr();
    let error = error_of(|config| config.listen = taken);
    assert!(matches!(error, StartError::Bind { addr, .. } if addr == taken), "{error}");
}

#[test]
fn apps_are_written_on_one_line_and_their_secret_is_not_shown() {
    let app: App = "wx1:s3cret:owner".parse().expect("three parts");
    assert_eq!((app.appid.as_str(), app.secret.as_str()), ("wx1", "s3cret"));
    assert_eq!(app.owner.as_deref(), Some("owner"));
    assert_eq!("wx1:s3cret".parse::<App>().expect("two parts").owner, None);
    for bad in ["", "wx1", "wx1:", ":s", "wx1:s:", "wx1:s:o:more"] {
        assert_eq!(bad.parse::<App>(), Err(BadApp), "{bad}");
    }
    let config = SimConfig { apps: vec![app], ..SimConfig::default() };
    assert!(!format!("{config:?}").contains("s3cret"));
    assert!(!format!("{:?}", SimConfig::default()).contains(SAMPLE_SECRET));
}

#[test]
fn stop_closes_idle_and_stalled_connections_and_the_port() {
    let sim = Sim::with(|config| config.threads = NonZeroUsize::new(2).expect("two"));
    let idle = connect(sim.addr());
    sim.fault(r#"{"kind":"stall","match":{"code":"stalled"}}"#);
    let mut stalled = connect(sim.addr());
    stalled.write_all(head("GET", &query(APPID, "stalled"), "").as_bytes()).expect("written");
    assert!(sim.journal().wait(1, Duration::from_secs(20)), "the stalled call has arrived");

    let (addr, started) = (sim.addr(), Instant::now());
    drop(sim);
    assert!(started.elapsed() < Duration::from_secs(10), "no connection holds it up");
    for mut socket in [idle, stalled] {
        let mut byte = [0];
        assert_eq!(socket.read(&mut byte).unwrap_or(0), 0);
    }
    assert!(TcpStream::connect(addr).is_err());
}

#[test]
fn stop_lets_a_call_in_flight_end() {
    let sim = Sim::start();
    sim.fault(r#"{"kind":"latency","ms":100}"#);
    let mut socket = connect(sim.addr());
    socket.write_all(head("GET", &query(APPID, &sim.code()), "").as_bytes()).expect("written");
    assert!(sim.journal().wait(1, Duration::from_secs(20)), "the call has arrived");
    drop(sim);
    let mut raw = Vec::new();
    socket.read_to_end(&mut raw).expect("an orderly end");
    Reply::read(&raw).openid();
}

#[test]
fn two_simulators_keep_apart() {
    let (one, two) = (Sim::start(), Sim::start());
    let code = one.code();
    assert_eq!(two.exchange(&code).errcode(), 40029);
    one.exchange(&code).openid();
    assert_eq!((one.journal().total(), two.journal().total()), (1, 1));
}
