//! `spin.toml`, version 2, read into a [`Manifest`] in which nothing is left to check.
//!
//! The same file serves Spin, so every key Spin knows is known here, unknown keys are refused as
//! Spin refuses them, and what this node cannot do is refused by name instead of being left out in
//! silence. The node's own settings live in `[component.<id>.tool.edgepass]`, which Spin ignores.
//! Values of variables are the business of [`crate::variables`].

pub(crate) mod place;
mod route;
mod schema;
mod settings;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
};

use crate::{
    near::nearest,
    template::{self, Template},
};

pub use self::{
    route::{Route, Routes},
    settings::Settings,
};

/// A checked manifest with its one component.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// `[application]`.
    pub application: Application,
    /// `[variables]`.
    pub variables: BTreeMap<String, Variable>,
    /// `[[trigger.http]]`, all of them served by [`Manifest::component`].
    pub routes: Routes,
    /// `[component.<id>]`.
    pub component: Component,
}

/// What the application is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// Its name.
    pub name: String,
    /// Its version; empty if there is none.
    pub version: String,
}

/// A declared variable: it has a default, or somebody must give it a value.
#[derive(Clone, PartialEq, Eq)]
pub struct Variable {
    /// Value when nobody gives one; `None` means `required = true`.
    pub default: Option<String>,
    /// Whether its value must not be shown.
    pub secret: bool,
}

/// The component that is served.
#[derive(Clone, Debug)]
pub struct Component {
    /// Its id in the manifest.
    pub id: String,
    /// The `wasi:http` artefact.
    pub source: PathBuf,
    /// Where it may connect to; see [`crate::outbound::Policy`].
    pub allowed_outbound_hosts: Vec<Template>,
    /// Labels of the key-value stores it may open.
    pub key_value_stores: BTreeSet<String>,
    /// What it sees as its variables.
    pub variables: BTreeMap<String, Template>,
    /// How it is built.
    pub build: Option<Build>,
    /// `[component.<id>.tool.edgepass]`.
    pub settings: Settings,
}

impl Component {
    /// The artefact this node serves: the `node` one if the manifest names it, else the source.
    #[must_use]
    pub fn artefact(&self) -> &Path {
        self.settings.node.as_deref().unwrap_or(&self.source)
    }
}

/// `[component.<id>.build]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// Shell commands, in order.
    pub commands: Vec<String>,
    /// Folder they run in.
    pub workdir: PathBuf,
}

/// Why a manifest was refused. Says where and what would have been allowed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something is wrong in a file.
    #[error("{}{}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    In {
        /// The file.
        path: PathBuf,
        /// Counted from 1; `None` when it is not about one line.
        line: Option<usize>,
        /// What.
        source: Box<Error>,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("in {table}: {message}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// The table header above that line, brackets included.
        table: String,
        /// What is wrong and, for an unknown key, which ones there are.
        message: String,
    },
    /// A value that cannot be.
    #[error("{key}: {problem}")]
    Value {
        /// Dotted path of the key.
        key: String,
        /// What is wrong and what is allowed.
        problem: String,
    },
    /// Something Spin does and this node does not.
    #[error("{key}: {what} not supported by edgepass")]
    Unsupported {
        /// Dotted path of the key.
        key: String,
        /// With its verb: "static responses are".
        what: &'static str,
    },
}

impl Manifest {
    /// Reads the file. Paths in it are taken from the folder it lies in.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        Self::parse(&text, path.parent().unwrap_or(Path::new(""))).map_err(|error| {
            let line = match &error {
                Error::Syntax { line, .. } => Some(*line),
                Error::Value { key, .. } | Error::Unsupported { key, .. } => place::line_of(&text, key),
                Error::Read { .. } | Error::In { .. } => None,
            };
            Error::In { path: path.into(), line, source: Box::new(error) }
        })
    }

    /// Checks `text`; its paths are relative to `folder`.
    ///
    /// # Errors
    /// [`Error`], but never [`Error::Read`] or [`Error::In`].
    pub fn parse(text: &str, folder: &Path) -> Result<Self, Error> {
        schema::check(toml::from_str(text).map_err(|error| syntax(text, &error))?, folder)
    }
}

/// Names and places only: a value may be secret.
impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable")
            .field("required", &self.default.is_none())
            .field("secret", &self.secret)
            .finish_non_exhaustive()
    }
}

fn value(key: impl Into<String>, problem: impl fmt::Display) -> Error {
    Error::Value { key: key.into(), problem: problem.to_string() }
}

fn parse_template(key: impl Into<String>, text: &str) -> Result<Template, Error> {
    Template::parse(text).map_err(|error: template::Error| value(key, error))
}

/// The TOML error without the quoted source line, which may hold a secret.
fn syntax(text: &str, error: &toml::de::Error) -> Error {
    let line = place::line_at(text, error.span().map_or(0, |span| span.start));
    let header = text.lines().take(line).filter(|line| line.trim_start().starts_with('[')).last();
    Error::Syntax {
        line,
        table: header.map_or_else(|| "the top level".into(), |header| header.trim().into()),
        message: explained(error.message()),
    }
}

/// The message without values, and with what an unknown key may have been meant to be.
fn explained(message: &str) -> String {
    let message = without_value(message);
    let mut quoted = message.split('`').skip(1).step_by(2);
    let meant = quoted.next().filter(|_| message.starts_with("unknown field")).and_then(|name| nearest(name, quoted));
    match meant {
        Some(meant) => format!("{message}; did you mean `{meant}`?"),
        None => message,
    }
}

/// The message without what was found where something else was expected: `invalid type: string "x",
/// expected a boolean` quotes what may be a secret in the wrong place.
pub(crate) fn without_value(message: &str) -> String {
    match (message.split_once(": "), message.split_once(", expected ")) {
        (Some((kind @ ("invalid type" | "invalid value"), _)), Some((_, expected))) => {
            format!("{kind}, expected {expected}")
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests;
