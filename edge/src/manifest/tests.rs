use super::*;

const HEAD: &str = r#"
spin_manifest_version = 2

[application]
name = "login"
version = "1.2.3"
targets = ["spin-up:4.1"]

[variables]
host = { default = "id.example" }
key = { required = true, secret = true, description = "the key" }

[[trigger.http]]
route = "/..."
component = "login"
"#;

const COMPONENT: &str = r#"
[component.login]
source = "target/login.wasm"
allowed_outbound_hosts = ["https://{{ host }}"]
key_value_stores = ["default"]
variables = { base = "https://{{ host }}", key = "{{ key }}" }
environment = {}
files = []
[component.login.build]
command = ["one", "two"]
workdir = "sub"
watch = ["src"]
[component.login.profile.debug]
build.command = "x"
[component.login.tool.other]
anything = [1, { goes = true }]
"#;

fn parse(text: &str) -> Result<Manifest, Error> {
    Manifest::parse(text, Path::new("/app"))
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    let error = parse(text).expect_err("is not a manifest").to_string();
    assert!(error.contains(expected), "{error:?} does not say {expected:?}");
}

#[test]
fn a_manifest_is_read_whole() {
    let manifest = parse(&format!("{HEAD}{COMPONENT}")).expect("is a manifest");
    assert_eq!(manifest.application, Application { name: "login".into(), version: "1.2.3".into() });
    assert_eq!(manifest.variables["host"], Variable { default: Some("id.example".into()), secret: false });
    assert_eq!(manifest.variables["key"], Variable { default: None, secret: true });
    assert_eq!(manifest.routes.find("/x").map(|route| route.raw()), Some("/..."));
    let component = manifest.component;
    assert_eq!(component.id, "login");
    assert_eq!(component.artefact(), Path::new("/app/target/login.wasm"));
    assert_eq!(component.key_value_stores, BTreeSet::from(["default".to_owned()]));
    let build = Build { commands: vec!["one".into(), "two".into()], workdir: "/app/sub".into() };
    assert_eq!(component.build, Some(build));
    assert_eq!(component.settings, Settings::default());
    assert_eq!(component.variables.keys().collect::<Vec<_>>(), ["base", "key"]);
}

#[test]
fn the_nodes_own_settings_are_read() {
    let tool =
        "[component.login.tool.edgepass]\nnode = \"n.wasm\"\ncores = 2\nrequest_timeout = \"2s\"\nisolated = true\n";
    let component = parse(&format!("{HEAD}{COMPONENT}{tool}")).expect("is a manifest").component;
    assert_eq!(component.artefact(), Path::new("/app/n.wasm"));
    let expected = Settings {
        node: Some("/app/n.wasm".into()),
        cores: std::num::NonZeroUsize::new(2),
        request_timeout: std::time::Duration::from_secs(2),
        isolated: true,
        ..Settings::default()
    };
    assert_eq!(component.settings, expected);
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_what_is_allowed() {
    let text = format!("{HEAD}{COMPONENT}").replace("workdir", "workdri");
    let Err(Error::Syntax { line, table, message }) = parse(&text) else { unreachable!("has an unknown key") };
    assert_eq!(
        (line, table.as_str()),
        (text.lines().position(|l| l.starts_with("workdri")).unwrap_or(0) + 1, "[component.login.build]")
    );
    assert!(message.contains("workdri") && message.contains("workdir"), "{message}");
    for (from, to) in [
        ("[application]", "extra = 1\n[application]"),
        ("version =", "verison ="),
        ("secret = true", "secert = true"),
        ("route =", "rout = 1\nroute ="),
        ("environment =", "enviroment ="),
        ("build.command", "build.comand"),
    ] {
        refused(&format!("{HEAD}{COMPONENT}").replace(from, to), "unknown field");
    }
    let tool = "[component.login.tool.edgepass]\nrequest_timout = \"2s\"\n";
    refused(
        &format!("{HEAD}{COMPONENT}{tool}"),
        "component.login.tool.edgepass.request_timout: unknown field `request_timout`",
    );
}

#[test]
fn a_slip_is_told_what_it_may_have_been_meant_to_be() {
    for (from, to, meant) in [
        ("workdir =", "workdri =", "did you mean `workdir`?"),
        ("secret = true", "secert = true", "did you mean `secret`?"),
        ("version =", "verison =", "did you mean `version`?"),
        ("source =", "surce =", "did you mean `source`?"),
    ] {
        refused(&format!("{HEAD}{COMPONENT}").replace(from, to), meant);
    }
    let tool = "[component.login.tool.edgepass]\nqueue_wiat = \"2s\"\n";
    refused(&format!("{HEAD}{COMPONENT}{tool}"), "did you mean `queue_wait`?");
}

#[test]
fn a_file_is_named_with_the_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("spin.toml");
    let whole = format!("{HEAD}{COMPONENT}[component.login.tool.edgepass]\nqueue_wait = \"1s\"\nmax_reuse = 7\n");
    for (from, to, key) in [
        ("spin_manifest_version = 2", "spin_manifest_version = 1", "spin_manifest_version"),
        ("version = \"1.2.3\"", "version = 1", "[application]"),
        ("host = {", "Host = {", "variables.Host"),
        ("route = \"/...\"", "route = \"api\"", "trigger.http[0].route"),
        ("component = \"login\"", "component = \"logon\"", "trigger.http[0].component"),
        ("source = \"target/login.wasm\"", "source = 3", "component.login.source"),
        ("files = []", "files = [\"a\"]", "component.login.files"),
        ("queue_wait = \"1s\"", "queue_wait = \"soon\"", "component.login.tool.edgepass.queue_wait"),
        ("max_reuse = 7", "max_reuse = 0", "component.login.tool.edgepass.max_reuse"),
        ("max_reuse = 7", "max_reuse = \"CANARY\"", "component.login.tool.edgepass.max_reuse"),
    ] {
        let text = whole.replace(from, to);
        std::fs::write(&path, &text).expect("writes");
        let error = Manifest::read(&path).expect_err(to);
        let line = text.lines().position(|line| line == to || line.starts_with(to)).expect("is there") + 1;
        assert_eq!(error.to_string(), format!("{}:{line}", path.display()), "{to}");
        let cause = std::error::Error::source(&error).expect("has a cause").to_string();
        assert!(cause.contains(key) && !cause.contains("CANARY"), "{cause}");
    }
    // Not about one line, but about the file.
    let text = whole.replace(COMPONENT, "");
    std::fs::write(&path, text).expect("writes");
    assert!(Manifest::read(&path).expect_err("has no component").to_string().contains("spin.toml"));
}

#[test]
fn values_that_cannot_be_are_named() {
    let whole = format!("{HEAD}{COMPONENT}");
    for (from, to, expected) in [
        ("version = 2", "version = 1", "spin_manifest_version: 1 is not known"),
        ("{ default = \"id.example\" }", "{}", "variables.host: needs `default` or `required = true`"),
        ("host = {", "Host = {", "variables.Host: a name is"),
        ("key = \"{{ key }}\"", "key = \"{{ kee }}\"", "component.login.variables.key: variable `kee` is not declared"),
        ("\"https://{{ host }}\"]", "\"{{ host\"]", "component.login.allowed_outbound_hosts[0]: `{{`"),
        ("component = \"login\"", "component = \"logon\"", "there is no component `logon`, there is `login`"),
        ("component = \"login\"", "", "trigger.http[0].component: needs"),
        ("\"/...\"", "\"api\"", "trigger.http[0].route: `api` is not a route"),
        ("[\"default\"]", "[\"De fault\"]", "key_value_stores: `De fault` is not a label"),
        ("\"target/login.wasm\"", "\"\"", "component.login.source"),
    ] {
        refused(&whole.replace(from, to), expected);
    }
    for (setting, expected) in [
        ("queue_wait = \"soon\"", "`soon` is not a duration"),
        ("queue_wait = \"0s\"", "`0s` is not a duration"),
        ("concurrency = 0", "tool.edgepass.concurrency: must be at least 1"),
        ("isolated = 1", "tool.edgepass.isolated: invalid type"),
    ] {
        refused(&format!("{whole}[component.login.tool.edgepass]\n{setting}\n"), expected);
    }
}

#[test]
fn what_only_spin_does_is_refused_by_name() {
    let whole = format!("{HEAD}{COMPONENT}");
    for (from, to, expected) in [
        (
            "component = \"login\"",
            "static_response = { status_code = 200 }",
            "static_response: static responses are not supported",
        ),
        ("\"/...\"", "{ private = true }", "route: private routes are not supported"),
        ("component = \"login\"", "component = \"login\"\nexecutor = { type = \"wagi\" }", "wagi is not supported"),
        (
            "component = \"login\"",
            "component = \"login\"\ndependencies = { middleware = [] }",
            "middleware is not supported",
        ),
        ("files = []", "files = [\"a\"]", "component.login.files: files are not supported"),
        ("environment = {}", "environment = { A = \"b\" }", "environment variables are not supported"),
        ("files = []", "sqlite_databases = [\"a\"]", "SQLite databases are not supported"),
        ("\"target/login.wasm\"", "{ url = \"x\", digest = \"y\" }", "a source that is not a path is not supported"),
    ] {
        refused(&whole.replace(from, to), expected);
    }
    let second = "[component.other]\nsource = \"o.wasm\"\n";
    refused(&format!("{whole}{second}"), "edgepass serves one component, this manifest has `login`, `other`");
}

#[test]
fn no_value_of_a_variable_is_shown() {
    let text = format!("{HEAD}{COMPONENT}").replace("id.example", "canary");
    assert!(!format!("{:?}", parse(&text)).contains("canary"));
    refused(&text.replace("secret = true", "secret = 1"), "in [variables]: invalid type");
    let slipped = format!("{HEAD}{COMPONENT}").replace("[variables]\n", "[variables]\nslip = \"canary\"\n");
    let said = parse(&slipped).expect_err("is no variable").to_string();
    assert!(said.contains("invalid type") && !said.contains("canary"), "{said}");
}
