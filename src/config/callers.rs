//! Who may call what users may not: `operator_tokens` for `/internal/*`, `clients` for
//! `/oauth/introspect`, `load_token` for shadow traffic.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;

use super::{App, Config, Reader, Wrong, value};
use crate::{json, secret::Secret};

/// Most operator tokens: two for a rotation, and the one a node adds of its own.
const MAX_OPERATOR_TOKENS: usize = 3;

/// Shortest token or client secret, in bytes.
const MIN_TOKEN_BYTES: usize = 32;

/// A back end that may ask about tokens.
#[derive(Debug)]
pub struct Client {
    /// Its name.
    pub id: String,
    secret: Secret<String>,
    apps: Vec<String>,
}

/// Tokens of which any one opens.
#[derive(Debug, Default)]
pub struct Tokens(Vec<Secret<String>>);

/// How shadow traffic is told from real traffic.
#[derive(Debug)]
pub struct ShadowMark {
    /// The value of `x-env` that marks it.
    pub mark: String,
    /// The value of `x-edgepass-load-token` without which a mark is refused.
    pub token: Secret<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    secret: String,
    apps: Vec<String>,
}

impl Client {
    /// Whether this is its secret. Takes equally long for any text of the same length.
    #[must_use]
    pub fn is_secret(&self, given: &str) -> bool {
        self.secret.is(given)
    }

    /// Whether it may ask about tokens of this app.
    #[must_use]
    pub fn may_ask_about(&self, app: &App) -> bool {
        self.apps.contains(&app.id)
    }
}

impl Tokens {
    /// Whether none is configured.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is one of them. Every one is compared, each in constant time.
    #[must_use]
    pub fn contains(&self, given: &str) -> bool {
        self.0.iter().fold(false, |found, token| found | token.is(given))
    }
}

pub(super) fn operator_tokens(text: &str) -> Result<Tokens, Wrong> {
    let tokens = text.split(',').map(|text| token(text.trim())).collect::<Result<Vec<_>, _>>()?;
    if tokens.len() <= MAX_OPERATOR_TOKENS {
        Ok(Tokens(tokens))
    } else {
        Err("more than two tokens, or three with the node's own")
    }
}

pub(super) fn clients(reader: &mut Reader<'_>, apps: &BTreeMap<String, App>) -> Vec<Client> {
    let text = reader.get("clients").unwrap_or("[]");
    let entries: Vec<Entry<'_>> = match json::read(text.as_bytes()) {
        Ok(entries) => entries,
        Err(error) => {
            reader.problem("clients", format!("not a JSON list of {{id, secret, apps}}: {error}"));
            return Vec::new();
        }
    };
    let mut clients: Vec<Client> = Vec::new();
    for (at, entry) in (1..).zip(entries) {
        match entry.check(apps) {
            Ok(client) if clients.iter().any(|known| known.id == client.id) => {
                reader.problem("clients", format!("entry {at}: an id given twice"));
            }
            Ok(client) => clients.push(client),
            Err(wrong) => reader.problem("clients", format!("entry {at}: {wrong}")),
        }
    }
    clients
}

/// One secret is one caller's: whoever has a secret that is given twice has the other's rights too.
pub(super) fn check_distinct(reader: &mut Reader<'_>, config: &Config) {
    let operators = config.operator_tokens.0.iter().map(|token| ("operator_tokens", token));
    let clients = config.clients.iter().map(|client| ("clients", &client.secret));
    let load = config.shadow.iter().map(|shadow| ("load_token", &shadow.token));
    let mut seen: Vec<&Secret<String>> = Vec::new();
    for (setting, secret) in operators.chain(clients).chain(load) {
        if seen.iter().any(|other| other.expose() == secret.expose()) {
            reader.problem(setting, "a secret that another caller has");
        }
        seen.push(secret);
    }
}

/// `shadow_mark` and `load_token`: both or neither.
pub(super) fn shadow(reader: &mut Reader<'_>) -> Option<ShadowMark> {
    let set = ["shadow_mark", "load_token"].map(|name| reader.get(name).is_some());
    if set == [false, false] {
        return None;
    }
    let mark = reader.required("shadow_mark", value::label);
    let token = reader.required("load_token", token);
    Some(ShadowMark { mark: mark?, token: token? })
}

/// 32 to 256 visible ASCII characters.
fn token(text: &str) -> Result<Secret<String>, Wrong> {
    let text = Secret::new(value::label(text)?);
    if text.expose().len() >= MIN_TOKEN_BYTES { Ok(text) } else { Err("shorter than 32 characters") }
}

impl Entry<'_> {
    fn check(self, apps: &BTreeMap<String, App>) -> Result<Client, String> {
        let named = |name: &'static str| move |wrong: &'static str| format!("{name}: {wrong}");
        let id = value::app_id(&self.id).map_err(named("id"))?;
        let secret = token(&self.secret).map_err(named("secret"))?;
        if self.apps.is_empty() || !self.apps.iter().all(|app| apps.contains_key(app)) {
            return Err("apps: not a list of configured apps".to_owned());
        }
        Ok(Client { id, secret, apps: self.apps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_of_the_tokens_opens_and_nothing_else() {
        let (old, new) = ("o".repeat(32), "n".repeat(40));
        let tokens = operator_tokens(&format!("{old}, {new}")).expect("two tokens");
        assert!(tokens.contains(&old) && tokens.contains(&new));
        for other in ["", "o", &old[1..], &format!("{old}, {new}"), &format!("{old}o")] {
            assert!(!tokens.contains(other), "{other}");
        }
        assert!(Tokens::default().is_empty() && !Tokens::default().contains(""));
        for bad in ["", &old[1..], &format!("{old},"), &[old.as_str(); 4].join(",")] {
            assert!(operator_tokens(bad).is_err(), "{bad}");
        }
    }
}
