//! The file as it is written, and the step from there to [`Manifest`].

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde::Deserialize;
use toml::{Table, Value};

use super::{Application, Build, Component, Error, Manifest, Route, Routes, Settings, Variable, parse_template, value};
use crate::template::{self, is_variable_name};

/// Version 2 of the manifest, every key of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    spin_manifest_version: u32,
    application: FileApplication,
    #[serde(default)]
    variables: BTreeMap<String, FileVariable>,
    trigger: FileTriggers,
    component: BTreeMap<String, FileComponent>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "known to Spin, of no use here")]
struct FileApplication {
    name: String,
    #[serde(default)]
    version: String,
    description: Option<String>,
    authors: Option<Vec<String>>,
    targets: Option<Vec<Value>>,
    tool: Option<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the description is for readers of the file")]
struct FileVariable {
    default: Option<String>,
    #[serde(default)]
    required: bool,
    #[serde(default)]
    secret: bool,
    description: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTriggers {
    #[serde(default)]
    http: Vec<FileTrigger>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the id is for readers of the file")]
struct FileTrigger {
    id: Option<String>,
    route: Value,
    component: Option<Value>,
    executor: Option<FileExecutor>,
    dependencies: Option<Table>,
    static_response: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileExecutor {
    r#type: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "known to Spin, of no use here")]
struct FileComponent {
    description: Option<String>,
    source: Value,
    #[serde(default)]
    allowed_outbound_hosts: Vec<String>,
    #[serde(default)]
    key_value_stores: Vec<String>,
    #[serde(default)]
    variables: BTreeMap<String, String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    files: Vec<Value>,
    exclude_files: Option<Vec<String>>,
    #[serde(default)]
    sqlite_databases: Vec<String>,
    #[serde(default)]
    ai_models: Vec<String>,
    dependencies_inherit_configuration: Option<bool>,
    #[serde(default)]
    dependencies: Table,
    build: Option<FileBuild>,
    profile: Option<BTreeMap<String, FileProfile>>,
    #[serde(default)]
    tool: Table,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "watching is Spin's")]
struct FileBuild {
    command: OneOrMore,
    workdir: Option<String>,
    watch: Option<Vec<String>>,
}

/// Another way to build, chosen with `spin build --profile`; only its shape is checked here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "profiles are Spin's")]
struct FileProfile {
    source: Option<Value>,
    environment: Option<BTreeMap<String, String>>,
    dependencies: Option<Table>,
    build: Option<FileProfileBuild>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "profiles are Spin's")]
struct FileProfileBuild {
    command: OneOrMore,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a command or a list of commands")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// Checks what types cannot say.
pub(super) fn check(file: File, folder: &Path) -> Result<Manifest, Error> {
    if file.spin_manifest_version != 2 {
        return Err(value("spin_manifest_version", format!("{} is not known, 2 is", file.spin_manifest_version)));
    }
    let FileApplication { name, version, .. } = file.application;
    let variables = check_variables(file.variables)?;
    let (id, component) = only_component(file.component)?;
    let routes = file
        .trigger
        .http
        .into_iter()
        .enumerate()
        .map(|(n, trigger)| check_trigger(n, trigger, &id))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Manifest {
        application: Application { name, version },
        routes: Routes::new(routes).map_err(|problem| value("trigger.http", problem))?,
        component: check_component(id, component, &variables, folder)?,
        variables,
    })
}

fn check_variables(variables: BTreeMap<String, FileVariable>) -> Result<BTreeMap<String, Variable>, Error> {
    let check = |(name, FileVariable { default, required, secret, .. }): (String, FileVariable)| {
        let key = format!("variables.{name}");
        if !is_variable_name(&name) {
            return Err(value(key, "a name is lower case letters, digits and single `_`, and begins with a letter"));
        }
        match (&default, required) {
            (None, false) => Err(value(key, "needs `default` or `required = true`")),
            (Some(_), true) => Err(value(key, "has a `default`, so `required = true` says nothing: keep one")),
            _ => Ok((name, Variable { default, secret })),
        }
    };
    variables.into_iter().map(check).collect()
}

fn only_component(components: BTreeMap<String, FileComponent>) -> Result<(String, FileComponent), Error> {
    let ids = components.keys().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
    let mut components = components.into_iter();
    match (components.next(), components.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(value("component", "there is none; one is needed")),
        _ => Err(value("component", format!("edgepass serves one component, this manifest has {ids}"))),
    }
}

fn check_trigger(n: usize, trigger: FileTrigger, component: &str) -> Result<Route, Error> {
    let key = |name: &str| format!("trigger.http[{n}].{name}");
    let unsupported = |name, what| Err(Error::Unsupported { key: key(name), what });
    if trigger.static_response.is_some() {
        return unsupported("static_response", "static responses are");
    }
    if trigger.dependencies.is_some() {
        return unsupported("dependencies", "middleware is");
    }
    match trigger.executor.as_ref().map(|executor| executor.r#type.as_str()) {
        None | Some("http" | "spin") => {}
        Some("wagi") => return unsupported("executor.type", "wagi is"),
        Some(other) => return Err(value(key("executor.type"), format!("`{other}` is not known, `http` is"))),
    }
    match trigger.component {
        Some(Value::String(id)) if id == component => {}
        Some(Value::String(id)) => {
            return Err(value(key("component"), format!("there is no component `{id}`, there is `{component}`")));
        }
        Some(Value::Table(_)) => return unsupported("component", "a component defined in the trigger is"),
        _ => return Err(value(key("component"), format!("needs a component's id, such as \"{component}\""))),
    }
    match trigger.route {
        Value::String(route) => Route::parse(&route).map_err(|problem| value(key("route"), problem)),
        Value::Table(table) if table.contains_key("private") => unsupported("route", "private routes are"),
        _ => Err(value(key("route"), "needs a path such as \"/api/...\"")),
    }
}

fn check_component(
    id: String,
    file: FileComponent,
    declared: &BTreeMap<String, Variable>,
    folder: &Path,
) -> Result<Component, Error> {
    let key = |name: &str| format!("component.{id}.{name}");
    refuse_unsupported(&file, key)?;
    let source = match file.source {
        Value::String(path) if !path.is_empty() => folder.join(path),
        Value::Table(_) => {
            return Err(Error::Unsupported { key: key("source"), what: "a source that is not a path is" });
        }
        _ => return Err(value(key("source"), "needs the path of a component")),
    };

    let template = |key: String, text: &str| {
        let template = parse_template(key.clone(), text)?;
        let undeclared = template.names().find(|name| !declared.contains_key(*name));
        let undeclared = undeclared.map(|name| value(key, template::Error::Undeclared(name.into())));
        undeclared.map_or(Ok(template), Err)
    };
    let allowed_outbound_hosts = file.allowed_outbound_hosts.iter().enumerate();
    let allowed_outbound_hosts = allowed_outbound_hosts
        .map(|(n, text)| template(key(&format!("allowed_outbound_hosts[{n}]")), text))
        .collect::<Result<_, _>>()?;
    let variables = file.variables.into_iter().map(|(name, text)| {
        let key = key(&format!("variables.{name}"));
        if !is_variable_name(&name) {
            return Err(value(key, "a name is lower case letters, digits and single `_`, and begins with a letter"));
        }
        Ok((name, template(key, &text)?))
    });
    let variables = variables.collect::<Result<_, _>>()?;

    let key_value_stores = file.key_value_stores.into_iter().collect::<BTreeSet<_>>();
    if let Some(label) = key_value_stores.iter().find(|label| !is_label(label)) {
        return Err(value(key("key_value_stores"), format!("`{label}` is not a label: 1–64 of a–z, 0–9, `_` and `-`")));
    }
    let build = file.build.map(|FileBuild { command, workdir, .. }| Build {
        commands: match command {
            OneOrMore::One(command) => vec![command],
            OneOrMore::More(commands) => commands,
        },
        workdir: folder.join(workdir.unwrap_or_default()),
    });
    let settings = Settings::read(file.tool, folder).map_err(|(name, problem)| value(key(&name), problem))?;
    Ok(Component { id, source, allowed_outbound_hosts, key_value_stores, variables, build, settings })
}

fn refuse_unsupported(file: &FileComponent, key: impl Fn(&str) -> String) -> Result<(), Error> {
    let used = [
        (!file.environment.is_empty(), "environment", "environment variables are"),
        (!file.files.is_empty(), "files", "files are"),
        (!file.sqlite_databases.is_empty(), "sqlite_databases", "SQLite databases are"),
        (!file.ai_models.is_empty(), "ai_models", "AI models are"),
        (!file.dependencies.is_empty(), "dependencies", "component dependencies are"),
    ];
    match used.into_iter().find(|(used, ..)| *used) {
        Some((_, name, what)) => Err(Error::Unsupported { key: key(name), what }),
        None => Ok(()),
    }
}

fn is_label(label: &str) -> bool {
    (1..=64).contains(&label.len())
        && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
}
