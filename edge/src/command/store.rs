//! Which store a node has: `--store`, else a runtime-config file as Spin has it, else its own.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::{
    cli,
    kv::{
        self, Health, Metered, SharedBackend, Watched,
        redis::{Address, Finding, Options, Redis, Severity},
    },
    manifest::{
        place::{line_at, line_of},
        without_value,
    },
    metrics::Metrics,
};

/// Opens what is asked for, says in the log what that is, and has its calls counted in `metrics` and
/// watched by `health`.
pub(crate) fn open(
    serve: &cli::Serve,
    timeout: Duration,
    metrics: &Metrics,
    health: &Health,
) -> anyhow::Result<SharedBackend> {
    let backend: SharedBackend = match Place::chosen(&serve.store_choice, &serve.state_dir)? {
        Place::Memory => {
            tracing::info!("the store is in memory");
            Arc::new(kv::Memory::new())
        }
        Place::Folder(folder) => {
            tracing::info!(folder = %folder.display(), "the store is embedded");
            Arc::new(kv::Durable::open(&folder)?)
        }
        Place::Redis(address) => {
            tracing::info!(%address, "the store is Redis");
            let address = address.or_password(env::var(PASSWORD).ok());
            let redis = Redis::open(address, Options { timeout, ..Options::default() })?;
            metrics.register(|registry| redis.metrics().register(registry));
            Arc::new(redis)
        }
    };
    let calls = kv::metered::Metrics::default();
    metrics.register(|registry| {
        calls.register(registry);
        health.register(registry);
    });
    Ok(Arc::new(Watched::new(Arc::new(Metered::new(backend, calls)), health.clone())))
}

/// What is to be said of the store that is asked for, without opening it: a Redis is looked at.
pub(crate) fn examine(choice: &cli::StoreChoice, state: &Path) -> anyhow::Result<Vec<Finding>> {
    Ok(match Place::chosen(choice, state)? {
        Place::Redis(address) => kv::redis::doctor(&address.or_password(env::var(PASSWORD).ok())),
        Place::Memory => vec![Finding {
            severity: Severity::Doubtful,
            text: "in memory: every session ends with the node; for more than a trial leave --store out".into(),
        }],
        Place::Folder(folder) => {
            vec![Finding { severity: Severity::Good, text: format!("embedded, in {}", folder.display()) }]
        }
    })
}

enum Place {
    Memory,
    Folder(PathBuf),
    Redis(Box<Address>),
}

impl Place {
    fn chosen(choice: &cli::StoreChoice, state: &Path) -> anyhow::Result<Self> {
        match (&choice.store, &choice.runtime_config_file) {
            (Some(place), _) => Self::parse(&place.0, state),
            (None, Some(file)) => Self::of_file(file, state),
            (None, None) => Ok(Self::Folder(state.join(FOLDER))),
        }
    }

    fn parse(text: &str, state: &Path) -> anyhow::Result<Self> {
        match text {
            "memory" => Ok(Self::Memory),
            "embedded" => Ok(Self::Folder(state.join(FOLDER))),
            url => {
                Ok(Self::Redis(Box::new(Address::parse(url).context("--store takes embedded, memory or a Redis URL")?)))
            }
        }
    }

    /// The store that a runtime-config file names `default`.
    fn of_file(file: &Path, state: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        Self::of_text(&text, file.parent().unwrap_or(Path::new("")), state)
            .with_context(|| format!("{}", file.display()))
    }

    fn of_text(text: &str, folder: &Path, state: &Path) -> anyhow::Result<Self> {
        let at = |line: Option<usize>| line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let syntax = |error: toml::de::Error| {
            let line = error.span().map(|span| line_at(text, span.start));
            anyhow::anyhow!("{}{}", at(line), without_value(error.message()))
        };
        let config: RuntimeConfig = toml::from_str(text).map_err(syntax)?;
        let key = |name: &str| format!("{}{name}", at(line_of(text, name)));
        if let Some(label) = config.key_value_store.keys().find(|label| *label != "default") {
            let key = key(&format!("key_value_store.{label}"));
            bail!("{key}: a node has one store, `default`; other labels lie in it");
        }
        if let Some((name, _)) = config.others.iter().next() {
            bail!("{}: not supported by edgepass; key_value_store is", key(name));
        }
        let chosen = config.key_value_store.into_values().next().map(FileStore::deserialize).transpose();
        let chosen = chosen.map_err(|error| {
            anyhow::anyhow!("{}: {}", key("key_value_store.default"), without_value(error.message()))
        })?;
        match chosen {
            None | Some(FileStore::Spin { path: None }) => Ok(Self::Folder(state.join(FOLDER))),
            Some(FileStore::Spin { path: Some(path) }) => {
                let path = folder.join(path);
                if path.is_file() {
                    bail!(
                        "{}: {} is a file of Spin's; name a folder",
                        key("key_value_store.default.path"),
                        path.display()
                    );
                }
                Ok(Self::Folder(path))
            }
            Some(FileStore::Redis { url }) => {
                Ok(Self::Redis(Box::new(Address::parse(&url).context(key("key_value_store.default.url"))?)))
            }
        }
    }
}

/// `--runtime-config-file`, of which the stores are read.
#[derive(Deserialize)]
struct RuntimeConfig {
    #[serde(default)]
    key_value_store: BTreeMap<String, toml::Value>,
    #[serde(flatten)]
    others: toml::Table,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum FileStore {
    /// The host's own.
    Spin { path: Option<PathBuf> },
    /// A Redis.
    Redis { url: String },
}

/// The store of a node on its own, in the state folder.
const FOLDER: &str = "store";
/// Where a password is looked for that the URL does not bring.
const PASSWORD: &str = "EDGEPASS_REDIS_PASSWORD";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        match Place::of_text(text, Path::new("/etc/edgepass"), Path::new("/state")) {
            Ok(Place::Memory) => "memory".into(),
            Ok(Place::Folder(folder)) => folder.display().to_string(),
            Ok(Place::Redis(address)) => address.to_string(),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn a_runtime_config_file_is_read_as_spin_reads_it() {
        for (text, expected) in [
            ("", "/state/store"),
            ("[key_value_store.default]\ntype = \"spin\"\n", "/state/store"),
            ("[key_value_store.default]\ntype = \"spin\"\npath = \"kv\"\n", "/etc/edgepass/kv"),
            ("[key_value_store.default]\ntype = \"redis\"\nurl = \"redis://:pw@h:1/2\"\n", "redis://h:1/2"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_supported_is_said_and_no_password_shown() {
        for (text, part) in [
            (
                "# Ours.\n[key_value_store.cache]\ntype = \"redis\"\nurl = \"redis://:hush@h\"\n",
                "line 2: key_value_store.cache",
            ),
            ("[key_value_store.default]\ntype = \"azure_cosmos\"\n", "azure_cosmos"),
            ("\n[key_value_store.default]\ntype = \"azure_cosmos\"\n", "line 2: key_value_store.default: "),
            (
                "[key_value_store.default]\ntype = \"redis\"\nurl = \"http://:hush@h\"\n",
                "line 3: key_value_store.default.url",
            ),
            ("[key_value_store.default]\ntype = \"redis\"\nurl = [\"redis://:hush@h\"]\n", "expected"),
            ("[key_value_store.default]\ntype = \"redis\"\nurl = \"redis://:hush@h\n", "line 3: "),
            ("\n\n[[variables_provider]]\ntype = \"vault\"\n", "line 3: variables_provider"),
        ] {
            let error = read(text);
            assert!(error.contains(part) && !error.contains("hush"), "{text}: {error}");
        }
    }
}
