//! Values of the manifest's variables, and the snapshot of them that a component sees.
//!
//! Precedence is that of Spin's code: `--variable`, then `SPIN_VARIABLE_<NAME>` of the environment,
//! then the same name in `.env` of the working folder, then the default. Values are read once, for a
//! whole revision: two requests of one revision never see different ones.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
};

use crate::{
    manifest::Manifest,
    near::nearest,
    template::{self, Template, is_variable_name},
};

/// What variables are called in the environment, before their name in upper case.
pub const ENV_PREFIX: &str = "SPIN_VARIABLE_";

/// Where values come from. `Debug` shows names only.
#[derive(Clone, Default)]
pub struct Sources {
    command_line: BTreeMap<String, String>,
    /// By full name, prefix included.
    environment: BTreeMap<String, String>,
}

/// Everything that is resolved for one revision.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The component's variables.
    pub component: Snapshot,
    /// `allowed_outbound_hosts`, filled in.
    pub allowed_outbound_hosts: Vec<String>,
}

/// The variables of the component: name to value. `Debug` shows no secret.
#[derive(Clone, Default)]
pub struct Snapshot(BTreeMap<String, Value>);

#[derive(Clone)]
struct Value {
    text: String,
    secret: bool,
}

/// Why there are no values. Names variables, never shows a value.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Required variables that nobody gave a value, all of them.
    #[error("no value for {}; give each as `--variable <name>=<value>` or in the environment as {ENV_PREFIX}<NAME>", .0.join(", "))]
    Missing(Vec<String>),
    /// A `--variable` for a variable that the manifest does not declare.
    #[error("--variable {name}: the manifest declares no such variable{}", meant.as_ref().map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default())]
    Undeclared {
        /// Its name.
        name: String,
        /// What may have been meant.
        meant: Option<String>,
    },
    /// The file a `--variable` takes its value from cannot be read.
    #[error("--variable {name}: {} cannot be read", path.display())]
    File {
        /// The variable.
        name: String,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A `--variable` that is none of the three forms.
    #[error("--variable takes <name>=<value>, <name>=@<file> or @<file>.json or .toml{0}")]
    Form(String),
    /// A file named by `--variable`, or `.env`, that cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file that is not what its name says.
    #[error("{} is not {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
    },
    /// A template that names what is not declared.
    #[error("{key}: {source}")]
    Template {
        /// The key of the manifest.
        key: String,
        /// Why.
        source: template::Error,
    },
}

impl Sources {
    /// Takes the arguments of `--variable`, the environment of this process and `.env` of the
    /// working folder, if there is one.
    ///
    /// # Errors
    /// [`Error::Form`], [`Error::Read`] and [`Error::Content`].
    pub fn of_process(arguments: &[String]) -> Result<Self, Error> {
        let environment =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self::new(arguments, environment, Path::new(".env"))
    }

    /// [`Sources::of_process`] with everything given.
    ///
    /// # Errors
    /// [`Error::Form`], [`Error::Read`] and [`Error::Content`].
    pub fn new(
        arguments: &[String],
        environment: impl IntoIterator<Item = (String, String)>,
        dotenv: &Path,
    ) -> Result<Self, Error> {
        let mut sources = Self::default();
        for argument in arguments {
            sources.command_line.extend(parse_argument(argument)?);
        }
        sources.environment = read_dotenv(dotenv)?;
        sources.environment.extend(environment);
        sources.environment.retain(|name, _| name.starts_with(ENV_PREFIX));
        Ok(sources)
    }

    /// Values for what `manifest` declares, in its templates.
    ///
    /// # Errors
    /// [`Error::Missing`] with every missing name, [`Error::Undeclared`], [`Error::Template`].
    pub fn resolve(&self, manifest: &Manifest) -> Result<Resolved, Error> {
        if let Some(name) = self.command_line.keys().find(|name| !manifest.variables.contains_key(*name)) {
            let meant = nearest(name, manifest.variables.keys().map(String::as_str)).map(str::to_owned);
            return Err(Error::Undeclared { name: name.clone(), meant });
        }
        let mut values = BTreeMap::new();
        let mut missing = Vec::new();
        for (name, variable) in &manifest.variables {
            match self.value(name).or(variable.default.as_deref()) {
                Some(value) => _ = values.insert(name.as_str(), value),
                None => missing.push(format!("`{name}`")),
            }
        }
        if !missing.is_empty() {
            return Err(Error::Missing(missing));
        }

        let render = |key: &dyn Fn() -> String, template: &Template| {
            template.render(|name| values.get(name).copied()).map_err(|source| Error::Template { key: key(), source })
        };
        let is_secret = |name: &str| manifest.variables.get(name).is_some_and(|variable| variable.secret);
        let component = &manifest.component;
        let snapshot = component.variables.iter().map(|(name, template)| {
            let text = render(&|| format!("component.{}.variables.{name}", component.id), template)?;
            Ok((name.clone(), Value { text, secret: template.names().any(is_secret) }))
        });
        let hosts = component.allowed_outbound_hosts.iter();
        let hosts = hosts.map(|host| render(&|| format!("component.{}.allowed_outbound_hosts", component.id), host));
        Ok(Resolved {
            component: Snapshot(snapshot.collect::<Result<_, _>>()?),
            allowed_outbound_hosts: hosts.collect::<Result<_, _>>()?,
        })
    }

    /// Names in the environment that nothing declares and that are nearly one of the declared ones, each
    /// with that one. What is far from all of them is some other application's.
    #[must_use]
    pub fn slips(&self, manifest: &Manifest) -> Vec<(String, String)> {
        let known = |name: &str| nearest(name, manifest.variables.keys().map(String::as_str));
        let names = self.environment.keys().map(|full| (full, full[ENV_PREFIX.len()..].to_ascii_lowercase()));
        let unknown = names.filter(|(_, name)| !manifest.variables.contains_key(name));
        unknown
            .filter_map(|(full, name)| Some((full.clone(), format!("{ENV_PREFIX}{}", known(&name)?.to_uppercase()))))
            .collect()
    }

    fn value(&self, name: &str) -> Option<&str> {
        let from_environment = || self.environment.get(&format!("{ENV_PREFIX}{}", name.to_ascii_uppercase()));
        self.command_line.get(name).or_else(from_environment).map(String::as_str)
    }
}

impl Snapshot {
    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.text.as_str())
    }

    /// Adds `item`, a secret, to the comma-separated list that is the value of `name`. A component
    /// that has no such variable is left alone.
    pub fn add_secret_to_list(&mut self, name: &str, item: &str) {
        if let Some(value) = self.0.get_mut(name) {
            if value.text.split(',').any(|other| other.trim() == item) {
                return;
            }
            if !value.text.trim().is_empty() {
                value.text.push(',');
            }
            value.text.push_str(item);
            value.secret = true;
        }
    }

    /// Gives `name` another value, which is no secret. A component that has no such variable is left
    /// alone.
    pub fn set(&mut self, name: &str, text: &str) {
        if let Some(value) = self.0.get_mut(name) {
            *value = Value { text: text.to_owned(), secret: false };
        }
    }

    /// Every name with its value, in order of the names. Secrets are among them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.text.as_str()))
    }
}

/// None of them secret.
impl<const N: usize> From<[(&str, &str); N]> for Snapshot {
    fn from(values: [(&str, &str); N]) -> Self {
        let value = |(name, text): (&str, &str)| (name.to_owned(), Value { text: text.to_owned(), secret: false });
        Self(values.into_iter().map(value).collect())
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(name, value): (&String, &Value)| {
            (name.clone(), if value.secret { "(secret)".to_owned() } else { value.text.clone() })
        };
        f.debug_map().entries(self.0.iter().map(shown)).finish()
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("command_line", &self.command_line.keys().collect::<Vec<_>>())
            .field("environment", &self.environment.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// `<name>=<value>`, `<name>=@<file>`, `@<file>.json`, `@<file>.toml`.
fn parse_argument(argument: &str) -> Result<BTreeMap<String, String>, Error> {
    if let Some(path) = argument.strip_prefix('@') {
        let path = Path::new(path);
        let text = read(path)?;
        let content = |expected| Error::Content { path: path.into(), expected };
        return match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => serde_json::from_str(&text).map_err(|_| content("a JSON object of strings")),
            Some("toml") => toml::from_str(&text).map_err(|_| content("a TOML table of strings")),
            _ => Err(content("a .json or .toml file by its name")),
        };
    }
    let (name, value) = argument.split_once('=').ok_or_else(|| Error::Form(String::new()))?;
    if !is_variable_name(name) {
        return Err(Error::Form("; this one begins with something that is not a variable name".into()));
    }
    let value = match value.strip_prefix('@') {
        Some(path) => {
            let path = Path::new(path);
            let mut text = std::fs::read_to_string(path).map_err(|source| Error::File {
                name: name.into(),
                path: path.into(),
                source,
            })?;
            // Editors end a file with a newline; a key, a token or a JSON document does not.
            text.truncate(text.trim_end_matches(['\r', '\n']).len());
            text
        }
        None => value.to_owned(),
    };
    Ok([(name.to_owned(), value)].into())
}

/// As Spin: the first of several lines for one name counts; no file is no values.
fn read_dotenv(path: &Path) -> Result<BTreeMap<String, String>, Error> {
    let text = match read(path) {
        Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text?,
    };
    let mut values = BTreeMap::new();
    for line in dotenvy::from_read_iter(text.as_bytes()) {
        // The error quotes the line.
        let (name, value) = line.map_err(|_| Error::Content { path: path.into(), expected: "lines of NAME=value" })?;
        values.entry(name).or_insert(value);
    }
    Ok(values)
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r#"
        spin_manifest_version = 2
        [application]
        name = "a"
        [variables]
        host = { default = "default.example" }
        key = { required = true, secret = true }
        other = { required = true }
        [[trigger.http]]
        route = "/..."
        component = "c"
        [component.c]
        source = "c.wasm"
        allowed_outbound_hosts = ["https://{{ host }}"]
        variables = { base = "https://{{ host }}/", key = "{{ key }}" }
    "#;

    fn resolve(arguments: &[&str], environment: &[(&str, &str)], dotenv: &str) -> Result<Resolved, Error> {
        let folder = tempfile::tempdir().expect("has a temporary folder");
        let path = folder.path().join(".env");
        std::fs::write(&path, dotenv).expect("writes");
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>();
        let environment = environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        let manifest = Manifest::parse(MANIFEST, Path::new("")).expect("is a manifest");
        Sources::new(&arguments, environment, &path)?.resolve(&manifest)
    }

    #[test]
    fn the_command_line_beats_the_environment_beats_dotenv_beats_the_default() {
        let given = [("SPIN_VARIABLE_KEY", "k"), ("SPIN_VARIABLE_OTHER", "o")];
        let with_host = [given[0], given[1], ("SPIN_VARIABLE_HOST", "env.example")];
        let dotenv = "# comment\nSPIN_VARIABLE_HOST=file.example\nHOST=no.example\n";
        for (arguments, environment, dotenv, expected) in [
            (&["host=arg.example"][..], &with_host[..], dotenv, "arg.example"),
            (&[], &with_host, dotenv, "env.example"),
            (&[], &given, dotenv, "file.example"),
            (&[], &given, "", "default.example"),
            (&["host="], &given, dotenv, ""),
        ] {
            let resolved = resolve(arguments, environment, dotenv).expect("resolves");
            assert_eq!(resolved.component.get("base"), Some(&*format!("https://{expected}/")));
            assert_eq!(resolved.allowed_outbound_hosts, [format!("https://{expected}")]);
            assert_eq!(resolved.component.get("key"), Some("k"));
            assert_eq!(resolved.component.get("host"), None, "only the component's own names are seen");
            assert_eq!(resolved.component.iter().count(), 2);
        }
    }

    #[test]
    fn every_missing_variable_is_named_at_once() {
        let error = resolve(&[], &[], "").expect_err("two are missing");
        assert!(matches!(&error, Error::Missing(names) if *names == ["`key`", "`other`"]), "{error}");
    }

    #[test]
    fn values_come_from_files_too() {
        let folder = tempfile::tempdir().expect("has a temporary folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("writes");
            path.display().to_string()
        };
        let plain = format!("key=@{}", file("key", "from a file"));
        let json = format!("@{}", file("a.json", r#"{"other": "o", "host": "json.example"}"#));
        let resolved = resolve(&[&plain, &json], &[], "").expect("resolves");
        assert_eq!(resolved.component.get("key"), Some("from a file"));
        assert_eq!(resolved.component.get("base"), Some("https://json.example/"));
        let toml = format!("@{}", file("a.toml", "other = \"o\"\nkey = \"k\""));
        assert_eq!(resolve(&[&toml], &[], "").expect("resolves").component.get("key"), Some("k"));

        let newline = format!("key=@{}", file("newline", "from an editor\r\n"));
        assert_eq!(
            resolve(&[&newline, "other=o"], &[], "").expect("resolves").component.get("key"),
            Some("from an editor")
        );
        let Err(Error::File { name, path, .. }) = Sources::new(&["key=@no-such-file".into()], [], Path::new("no.env"))
        else {
            unreachable!("there is no such file")
        };
        assert_eq!((&*name, path), ("key", PathBuf::from("no-such-file")));

        let wrong = format!("@{}", file("b.json", r#"{"other": canary}"#));
        for argument in ["canary", "Name=canary", &wrong, "@canary-file.json", "@canary.yaml"] {
            let error = resolve(&[argument], &[], "").expect_err(argument);
            assert!(!error.to_string().contains("canary") || argument.starts_with("@canary"), "{error}");
        }
        assert!(
            matches!(resolve(&["hots=x"], &[], ""), Err(Error::Undeclared { name, meant }) if name == "hots" && meant.as_deref() == Some("host"))
        );
        assert!(matches!(resolve(&[], &[], "SPIN_VARIABLE_KEY=canary\n= canary\n"), Err(Error::Content { .. })));
    }

    #[test]
    fn a_name_that_is_nearly_one_is_told_and_another_applications_is_not() {
        let manifest = Manifest::parse(MANIFEST, Path::new("")).expect("is a manifest");
        let environment = ["SPIN_VARIABLE_HSOT", "SPIN_VARIABLE_OTHER", "SPIN_VARIABLE_DATABASE_URL", "SPIN_VARIABLES"];
        let environment = environment.map(|name| (name.to_owned(), "canary".to_owned()));
        let sources = Sources::new(&[], environment, Path::new("no-such.env")).expect("are sources");
        assert_eq!(sources.slips(&manifest), [("SPIN_VARIABLE_HSOT".to_owned(), "SPIN_VARIABLE_HOST".to_owned())]);
    }

    #[test]
    fn a_secret_is_added_to_a_list_that_is_there() {
        let mut snapshot = Snapshot::from([("empty", " "), ("some", "a,b")]);
        for name in ["empty", "some", "absent"] {
            snapshot.add_secret_to_list(name, "canary");
        }
        snapshot.add_secret_to_list("some", "b");
        assert_eq!(snapshot.iter().collect::<Vec<_>>(), [("empty", " canary"), ("some", "a,b,canary")]);
        assert!(!format!("{snapshot:?}").contains("canary"));
    }

    #[test]
    fn debug_shows_no_secret() {
        let resolved = resolve(&["key=canary", "other=o"], &[], "").expect("resolves");
        let shown = format!("{resolved:?}");
        assert!(
            shown.contains("(secret)") && shown.contains("default.example") && !shown.contains("canary"),
            "{shown}"
        );
    }
}
