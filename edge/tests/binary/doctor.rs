//! `edgepass doctor`: what it finds, what it says, how it ends.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

use crate::running::bare;

/// What `edgepass doctor` says about this state folder, and whether it ends well.
fn doctor(state: &Path, arguments: &[&str]) -> (bool, Value) {
    let output = run(state, arguments.iter().chain(&["--json"]));
    let said = serde_json::from_slice(&output.stdout);
    let said = said.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.success(), said)
}

fn run<'a>(state: &Path, arguments: impl IntoIterator<Item = &'a &'a str>) -> Output {
    // The same surroundings as `serve` has in the other tests.
    let serve = bare(state);
    let mut command = Command::new(serve.get_program());
    command.current_dir(serve.get_current_dir().unwrap()).env_clear().env("PATH", "/usr/bin:/bin");
    command.args(["doctor", "--state-dir"]).arg(state).args(arguments).output().unwrap()
}

/// The same with settings that are in order, and then these arguments.
fn doctor_of_good(state: &Path, arguments: &[&str]) -> (bool, Value) {
    let settings = settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
    doctor(state, &settings)
}

/// Level, finding and advice of the checks of this name.
fn of<'a>(said: &'a Value, check: &str) -> Vec<(&'a str, &'a str, &'a str)> {
    let checks = said["checks"].as_array().unwrap().iter().filter(|found| found["check"] == check);
    let text = |found: &'a Value, member: &str| found[member].as_str().unwrap();
    checks.map(|found| (text(found, "level"), text(found, "found"), text(found, "advice"))).collect()
}

/// Settings that are in order; the secret is one to look for.
fn settings() -> Vec<String> {
    let key = |what: &str| {
        let made = Command::new(env!("CARGO_BIN_EXE_edgepass")).args(["keygen", "--quiet", what]).output().unwrap();
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let settings = [
        format!("master_key={}", key("master")),
        format!("subject_key={}", key("subject")),
        "wechat_appid=wx1234567890abcdef".into(),
        "wechat_secret=CANARY0123456789CANARY0123456789".into(),
    ];
    settings.into_iter().flat_map(|setting| ["--variable".into(), setting]).collect()
}

#[test]
fn what_is_in_order_is_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let (well, said) = doctor_of_good(&state, &["--offline"]);
    assert!(well && said["ok"] == true, "{said:#}");
    for check in ["manifest", "variables", "outbound", "component", "store", "state", "clock", "platforms"] {
        let found = of(&said, check);
        assert!(!found.is_empty() && found.iter().all(|(level, ..)| *level == "ok"), "{check}: {said:#}");
    }
    assert!(of(&said, "component")[0].1.contains("version"), "{said:#}");
    assert!(!said.to_string().contains("CANARY"), "{said:#}");
    assert!(!state.exists(), "it changes nothing");
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let state = tempfile::tempdir().unwrap();
    let (well, said) = doctor(state.path(), &["--offline"]);
    assert!(!well && said["ok"] == false);
    let (level, found, advice) = of(&said, "variables")[0];
    assert_eq!(level, "fail");
    assert!(found.contains("master_key") && found.contains("subject_key") && advice.contains("keygen"), "{said:#}");

    let (well, said) = doctor_of_good(state.path(), &["--variable", "master_key=CANARY", "--offline"]);
    let (level, found, _) = of(&said, "component")[0];
    assert!(!well && level == "fail" && found.contains("master_key"), "{said:#}");
    assert!(!said.to_string().contains("CANARY"), "{said:#}");
}

#[test]
fn a_manifest_that_is_none_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("spin.toml");
    fs::write(&manifest, "spin_manifest_version = 2\n[application]\nnmae = \"a\"\n").unwrap();
    let (well, said) = doctor(folder.path(), &["--offline", "--manifest", manifest.to_str().unwrap()]);
    let (level, found, _) = of(&said, "manifest")[0];
    assert!(!well && level == "fail");
    assert!(found.contains("spin.toml:3") && found.contains("did you mean `name`?"), "{found}");
}

#[test]
fn a_state_folder_that_is_open_is_told() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("admin.token"), "x").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(folder.path().join("admin.token"), fs::Permissions::from_mode(0o640)).unwrap();
    let (well, said) = doctor_of_good(folder.path(), &["--offline"]);
    let advice: Vec<_> =
        of(&said, "state").into_iter().filter(|found| found.0 == "fail").map(|found| found.2).collect();
    assert!(!well && advice.len() == 2, "{said:#}");
    assert!(advice[0].starts_with("chmod 700 ") && advice[1].starts_with("chmod 600 "), "{advice:?}");
}

#[test]
fn a_platform_that_is_not_there_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("wechat_base_url=http://{free}");
    let (well, said) = doctor_of_good(&state, &["--variable", &url]);
    let (level, found, advice) = of(&said, "platforms")[0];
    assert!(!well && level == "fail" && found.contains("not reached") && advice.contains("firewall"), "{said:#}");

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("wechat_base_url=http://{}", listener.local_addr().unwrap());
    let (well, said) = doctor_of_good(&state, &["--variable", &url]);
    assert!(well && of(&said, "platforms")[0].0 == "ok", "{said:#}");
}

#[test]
fn the_store_that_is_asked_for_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (store, level, part) in [
        ("memory", "warn", "every session ends"),
        ("embedded", "ok", "embedded"),
        (&format!("redis://:CANARY@{free}"), "fail", "cannot be used"),
        ("ftp://:CANARY@h", "fail", "--store takes"),
    ] {
        let (_, said) = doctor(&state, &["--offline", "--store", store]);
        let found = of(&said, "store");
        assert!(found.iter().any(|found| found.0 == level && found.1.contains(part)), "{store}: {found:?}");
        assert!(!said.to_string().contains("CANARY"), "{said:#}");
    }
}

#[test]
fn for_people_it_is_lines() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&folder.path().join("state"), &["--offline"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().any(|line| line.starts_with("ok   manifest")), "{text}");
    assert!(text.lines().any(|line| line.starts_with("fail variables")), "{text}");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("1 of ") && error.contains("checks failed"), "{error}");
}

#[test]
fn a_certificate_is_looked_at_with_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("spin.toml")).unwrap();
    let manifest = folder.path().join("spin.toml");
    fs::write(&manifest, format!("{text}\ntls_cert = \"tls.crt\"\ntls_key = \"tls.key\"\n")).unwrap();
    let write = |years: std::ops::Range<i32>, mode: u32| {
        let mut wanted = rcgen::CertificateParams::new(["node.test".to_owned()]).unwrap();
        wanted.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        wanted.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(folder.path().join("tls.crt"), wanted.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(folder.path().join("tls.key"), key.serialize_pem()).unwrap();
        fs::set_permissions(folder.path().join("tls.key"), fs::Permissions::from_mode(mode)).unwrap();
    };
    let look = || {
        let (_, said) = doctor(&state, &["--offline", "--manifest", manifest.to_str().unwrap()]);
        of(&said, "tls").into_iter().map(|(level, found, _)| (level.to_owned(), found.to_owned())).collect::<Vec<_>>()
    };
    let has = |found: &[(String, String)], level: &str, part: &str| {
        assert!(found.iter().any(|found| found.0 == level && found.1.contains(part)), "{level} {part}: {found:?}");
    };
    write(2020..2090, 0o600);
    let found = look();
    has(&found, "ok", "fits");
    has(&found, "ok", "2090");
    write(2020..2021, 0o644);
    let found = look();
    has(&found, "fail", "expired");
    has(&found, "fail", "mode 644");
    let other = rcgen::generate_simple_self_signed(["other.test".to_owned()]).unwrap();
    fs::write(folder.path().join("tls.crt"), other.cert.pem()).unwrap();
    has(&look(), "fail", "tls.key");
}

#[test]
fn the_node_that_runs_is_compared_with_what_is_here() {
    let state = tempfile::tempdir().unwrap();
    let running = crate::running::Running::start(state.path(), &[]);
    let (_, said) = doctor_of_good(state.path(), &["--offline"]);
    let found = of(&said, "running");
    assert_eq!(found.len(), 2, "{said:#}");
    assert!(found.iter().all(|(level, ..)| *level == "ok"), "{said:#}");
    assert!(found[0].1.contains(env!("CARGO_PKG_VERSION")), "{said:#}");
    drop(running);
    let (_, said) = doctor_of_good(state.path(), &["--offline"]);
    assert!(of(&said, "running").iter().all(|(level, ..)| *level != "ok"), "{said:#}");
}
