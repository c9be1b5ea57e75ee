//! Checks on `spin.toml`: Spin refuses a manifest with an unknown key, and where no Spin is at
//! hand, this is what says so first.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use toml::{Table, Value};

use crate::{cargo, world};

/// Every key of a version 2 manifest, as `crates/manifest/src/schema/v2.rs` of Spin 4.1 has them.
/// `*` is any name, `[]` an element of a list, and below `**` everything is allowed.
const SPIN_KEYS: &[&str] = &[
    "application.authors",
    "application.description",
    "application.name",
    "application.targets",
    "application.tool.**",
    "application.version",
    "component.*.ai_models",
    "component.*.allowed_outbound_hosts",
    "component.*.build.command",
    "component.*.build.watch",
    "component.*.build.workdir",
    "component.*.dependencies.**",
    "component.*.dependencies_inherit_configuration",
    "component.*.description",
    "component.*.environment.*",
    "component.*.exclude_files",
    "component.*.files",
    "component.*.key_value_stores",
    "component.*.profile.*.build.command",
    "component.*.profile.*.dependencies.**",
    "component.*.profile.*.environment.*",
    "component.*.profile.*.source",
    "component.*.source",
    "component.*.source.digest",
    "component.*.source.url",
    "component.*.sqlite_databases",
    "component.*.tool.**",
    "component.*.variables.*",
    "spin_manifest_version",
    "trigger.http.[].component",
    "trigger.http.[].dependencies.**",
    "trigger.http.[].executor.type",
    "trigger.http.[].id",
    "trigger.http.[].route",
    "trigger.http.[].route.private",
    "trigger.http.[].static_response.**",
    "variables.*.default",
    "variables.*.description",
    "variables.*.required",
    "variables.*.secret",
];

fn manifest() -> Table {
    let text = fs::read_to_string(cargo::root().join("spin.toml")).expect("the manifest is in the root");
    text.parse().expect("the manifest is TOML")
}

/// The dotted path of everything in `value` that is not a table.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Table(table) => {
            for (name, value) in table {
                paths(value, &below(name), found);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_table) => {
            for value in list {
                paths(value, &below("[]"), found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

fn fits(path: &str, pattern: &str) -> bool {
    let mut names = path.split('.');
    for part in pattern.split('.') {
        match (part, names.next()) {
            ("**", Some(_)) => return true,
            ("*", Some(name)) if name != "[]" => {}
            (part, Some(name)) if part == name => {}
            _ => return false,
        }
    }
    names.next().is_none()
}

fn unknown_keys(manifest: Table) -> Vec<String> {
    let mut found = Vec::new();
    paths(&Value::Table(manifest), "", &mut found);
    found.retain(|path| !SPIN_KEYS.iter().any(|pattern| fits(path, pattern)));
    found
}

fn names(table: &Value) -> BTreeSet<&str> {
    table.as_table().expect("a table").keys().map(String::as_str).collect()
}

#[test]
fn spin_knows_every_key() {
    assert_eq!(unknown_keys(manifest()), Vec::<String>::new());
}

#[test]
fn a_key_spin_does_not_know_is_noticed() {
    let text = "
        [component.login]
        timeout = '5s'
        build = { command = 'x', shell = 'y' }
        [component.login.tool.edgepass]
        timeout = '5s'
        [[trigger.http]]
        routes = '/...'";
    let unknown = unknown_keys(text.parse().expect("TOML"));
    assert_eq!(unknown, ["component.login.build.shell", "component.login.timeout", "trigger.http.[].routes"]);
}

#[test]
fn a_variable_has_a_default_or_is_required() {
    for (name, variable) in manifest()["variables"].as_table().expect("a table") {
        let required = variable.get("required").and_then(Value::as_bool).unwrap_or(false);
        assert_ne!(variable.get("default").is_some(), required, "{name}");
        assert_eq!(required, ["master_key", "subject_key"].contains(&name.as_str()), "{name}");
    }
}

#[test]
fn secrets_are_marked() {
    for (name, variable) in manifest()["variables"].as_table().expect("a table") {
        let secret = variable.get("secret").and_then(Value::as_bool).unwrap_or(false);
        let must =
            ["_key", "_keys", "_secret", "_token", "_tokens", "apps", "clients"].iter().any(|end| name.ends_with(end));
        assert_eq!(secret, must, "{name}");
    }
}

#[test]
fn the_component_sees_every_variable_under_its_own_name() {
    let manifest = manifest();
    let seen = &manifest["component"]["login"]["variables"];
    assert_eq!(names(seen), names(&manifest["variables"]));
    for (name, template) in seen.as_table().expect("a table") {
        assert_eq!(template.as_str(), Some(format!("{{{{ {name} }}}}").as_str()));
    }
}

#[test]
fn the_variables_are_the_settings_the_component_knows() {
    let manifest = manifest();
    assert_eq!(names(&manifest["variables"]), edgepass::config::SETTINGS.into_iter().collect());
}

#[test]
fn with_two_keys_and_one_app_the_defaults_are_a_configuration() {
    let own = BTreeMap::from([
        ("master_key", "q7Vt0mZpX3c9YwLk2JdRfHs8BnGuTe5oA1iQ4xDvEzM"),
        ("subject_key", "Zk3Jt8Xn1QvLb6Yd0RwMs4GhUe9FcPi2OaT7xBzCKqo"),
        ("wechat_appid", "wx0123456789abcdef"),
        ("wechat_secret", "0123456789abcdef0123456789abcdef"),
    ]);
    let manifest = manifest();
    let value = |(name, variable): (&String, &Value)| {
        let default = variable.get("default").and_then(Value::as_str);
        (name.clone(), own.get(name.as_str()).copied().or(default).expect("a value").to_owned())
    };
    let settings: Vec<_> = manifest["variables"].as_table().expect("a table").iter().map(value).collect();
    let problems = edgepass::config::Setup::read(&settings).err().unwrap_or_default();
    assert_eq!(problems, []);
}

#[test]
fn pointing_the_platform_elsewhere_takes_one_variable() {
    let manifest = manifest();
    let hosts = manifest["component"]["login"]["allowed_outbound_hosts"].as_array().expect("a list");
    assert_eq!(hosts, &[Value::from("{{ wechat_base_url }}")]);
    assert_eq!(manifest["variables"]["wechat_base_url"]["default"].as_str(), Some("https://api.weixin.qq.com"));
}

#[test]
fn both_artefacts_are_those_the_build_command_writes() {
    let manifest = manifest();
    let login = &manifest["component"]["login"];
    assert_eq!(login["build"]["command"].as_str(), Some("cargo xtask component"));
    assert_eq!(login["source"].as_str(), Some(format!("target/{}", world::SERVICE.file).as_str()));
    assert_eq!(login["tool"]["edgepass"]["node"].as_str(), Some(format!("target/{}", world::NODE.file).as_str()));
}
