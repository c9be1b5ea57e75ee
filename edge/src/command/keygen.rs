//! `edgepass keygen`: makes keys and tokens, and says how each is set and replaced.
//!
//! The value goes to standard output and everything else to standard error, so that
//! `$(edgepass keygen master)` is the value and no log ever holds it.

use std::{fs, io::Write as _, path::Path};

use anyhow::{Context as _, bail, ensure};
use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    cli::{self, KeyAlgorithm, KeyStatus, Making},
    revisions::signature::UploadKey,
    secret_file,
};

/// What was made.
pub struct Made {
    /// The value of the setting, or of one entry of it; `None` when a file holds it.
    pub value: Option<String>,
    /// What to do with it. Holds nothing secret.
    pub advice: String,
}

/// Makes what is asked for and prints it.
///
/// # Errors
/// When the system gives no random bytes, or a file is not a key set or cannot be written.
pub fn run(keygen: &cli::Keygen) -> anyhow::Result<()> {
    let made = make(&keygen.what)?;
    if let Some(value) = made.value {
        crate::say(format_args!("{value}"))?;
    }
    if !keygen.quiet {
        writeln!(anstream::stderr(), "{}", made.advice)?;
    }
    Ok(())
}

/// Makes what is asked for.
///
/// # Errors
/// As [`run`].
pub fn make(what: &Making) -> anyhow::Result<Made> {
    Ok(match what {
        Making::Master => secret(MASTER)?,
        Making::Subject => secret(SUBJECT)?,
        Making::Operator => secret(OPERATOR)?,
        Making::Load => secret(LOAD)?,
        Making::Client(client) => {
            let entry = json!([{"id": client.id, "secret": secret_file::random()?, "apps": client.apps}]);
            Made { value: Some(entry.to_string()), advice: CLIENT.into() }
        }
        Making::Signing(signing) => {
            let set = json!({ "keys": [signing_key(signing.alg, signing.status)?] });
            Made { value: Some(set.to_string()), advice: SIGNING.into() }
        }
        Making::Upload(upload) => upload_pair(upload.file.as_deref())?,
        Making::Rotate(rotate) => {
            let file = &rotate.file;
            let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            let (set, step) = advance(&text).with_context(|| format!("key set {}", file.display()))?;
            secret_file::replace(file, &set).with_context(|| format!("writing {}", file.display()))?;
            Made { value: None, advice: format!("{}: {step}", file.display()) }
        }
    })
}

/// The next step of a rotation: drops what is previous, else promotes what is next, else adds a key.
/// Returns the new set and what happened.
///
/// # Errors
/// When `text` is not a set of which one key is current or all are next.
pub fn advance(text: &str) -> anyhow::Result<(String, String)> {
    // Of serde's own words none are used: they quote what they did not like.
    let mut set: Value = serde_json::from_str(text).map_err(|_| anyhow::anyhow!("not JSON"))?;
    let keys = set.get_mut("keys").and_then(Value::as_array_mut).context("not a JWK set")?;
    let find = |keys: &[Value], status: KeyStatus| keys.iter().position(|key| key["status"] == status.name());
    let current = find(keys, KeyStatus::Current);
    ensure!(current.is_some() || find(keys, KeyStatus::Next).is_some(), "no key is current");

    let step = if find(keys, KeyStatus::Previous).is_some() {
        keys.retain(|key| key["status"] != KeyStatus::Previous.name());
        "the previous key is dropped, and its tokens are refused. The rotation is over.".to_owned()
    } else if let Some(next) = find(keys, KeyStatus::Next) {
        if let Some(current) = current {
            keys[current]["status"] = KeyStatus::Previous.name().into();
        }
        keys[next]["status"] = KeyStatus::Current.name().into();
        format!("key {} is current. {PROMOTED}", keys[next]["kid"])
    } else {
        let Some(alg) = current.and_then(|at| KeyAlgorithm::named(keys[at]["alg"].as_str()?)) else {
            bail!("the current key is of no known algorithm");
        };
        let key = signing_key(alg, KeyStatus::Next)?;
        let step = format!("key {} is next. {ADDED}", key["kid"]);
        keys.push(key);
        step
    };
    Ok((set.to_string(), step))
}

/// A pair of upload keys, the private one in `file` if there is one.
fn upload_pair(file: Option<&Path>) -> anyhow::Result<Made> {
    let secret = secret_file::random()?;
    let public = UploadKey::parse(&secret).context("a key just made is a key")?.public();
    let Some(file) = file else {
        return Ok(Made { value: Some(secret), advice: format!("upload_keys = \"{public}\"\n{UPLOAD}") });
    };
    secret_file::create(file, &secret).with_context(|| format!("writing {}", file.display()))?;
    Ok(Made { value: Some(public), advice: format!("The private key is in {}.\n{UPLOAD}", file.display()) })
}

/// 32 random bytes for the setting named first, and what is to know about it.
fn secret((setting, more): (&str, &str)) -> anyhow::Result<Made> {
    let variable = format!("{}{}", crate::variables::ENV_PREFIX, setting.to_uppercase());
    let advice = format!("{setting}: set {variable} to it, in the environment or in .env, on every node.\n{more}");
    Ok(Made { value: Some(secret_file::random()?), advice })
}

/// A key of `signing_keys`.
fn signing_key(alg: KeyAlgorithm, status: KeyStatus) -> anyhow::Result<Value> {
    let secret = secret_file::random()?;
    let mut key = json!({"alg": alg.name(), "use": "sig", "status": status.name()});
    match alg {
        KeyAlgorithm::Hs256 => {
            key["kty"] = "oct".into();
            // Not the thumbprint: that is a hash of the secret.
            key["kid"] = secret_file::random()?.split_at(22).0.into();
            key["k"] = secret.into();
        }
        KeyAlgorithm::EdDsa | KeyAlgorithm::Ed25519 => {
            let mut seed = [0; 32];
            Base64UrlUnpadded::decode(&secret, &mut seed).context("a key just made is base64url")?;
            let public = ed25519_dalek::SigningKey::from_bytes(&seed).verifying_key();
            let x = Base64UrlUnpadded::encode_string(public.as_bytes());
            key["kty"] = "OKP".into();
            key["crv"] = "Ed25519".into();
            // RFC 7638, with the members of RFC 8037.
            let thumbprint = Sha256::digest(format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#));
            key["kid"] = Base64UrlUnpadded::encode_string(&thumbprint).into();
            key["x"] = x.into();
            key["d"] = secret.into();
        }
    }
    Ok(key)
}

impl KeyAlgorithm {
    /// Its name in a JWK.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Ed25519 => "Ed25519",
            Self::Hs256 => "HS256",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::EdDsa, Self::Ed25519, Self::Hs256].into_iter().find(|alg| alg.name() == name)
    }
}

impl KeyStatus {
    const fn name(self) -> &'static str {
        match self {
            Self::Next => "next",
            Self::Current => "current",
            Self::Previous => "previous",
        }
    }
}

const MASTER: (&str, &str) = (
    "master_key",
    "To replace it without logging anyone out, in three steps, each on every node before the next:\n\
     1. append the new one:   old,new\n\
     2. put it first:         new,old\n\
     3. drop the old one when no session is older than the second step: after the longest session_ttl of any app, 90 days by default.",
);

const SUBJECT: (&str, &str) =
    ("subject_key", "Keep a copy: user ids follow from it, so it is never replaced. Another one makes every user new.");

const OPERATOR: (&str, &str) = (
    "operator_tokens",
    "It opens /internal/*, as Authorization: Bearer. Two may be set, separated by a comma, while one replaces the other.",
);

const LOAD: (&str, &str) =
    ("load_token", "A load test sends it as x-edgepass-load-token, with the value of shadow_mark as x-env.");

const CLIENT: &str = "clients: set SPIN_VARIABLE_CLIENTS to it, or add the entry to the list that is set, on every node.\n\
     The client authenticates with HTTP Basic, its id and secret.";

const SIGNING: &str = "signing_keys: keep it in a file that only its owner reads, and give it as --variable \
     signing_keys=@FILE or SPIN_VARIABLE_SIGNING_KEYS=\"$(cat FILE)\", on every node.\n\
     Where the service runs without signing keys so far, make it with --status next; `edgepass keygen rotate FILE` takes the \
     next step.";

const UPLOAD: &str = "Name the public key in upload_keys of [component.<id>.tool.edgepass], on every node; several are separated by \
     commas.\nThe private key signs: edgepass swap FILE --sign-key KEYFILE. Keep it where components are made, not on a node.";

const ADDED: &str = "Start every node with the set, wait 5 minutes, which is how long verifiers keep the published \
     keys, and rotate again: then it signs.";

const PROMOTED: &str = "Start every node with the set, wait until the last token of the key before has expired: the longest access_ttl of any app \
     (10 minutes by default) and a minute; and rotate again: then that key is dropped.";
