//! What an operator asks of a running service: `edgepass sweep`, `revoke`, `block`, `unblock`.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    admin::{Token, Whereabouts},
    cli, development,
    exchange::{self, Answer, Ask},
    outbound::{Client, Kind},
};

/// Sweeps until there is nothing left to look at; prints how many entries are gone.
///
/// # Errors
/// When the service does not answer as it should, or not within the calls it may take.
pub fn sweep(sweep: &cli::Sweep) -> anyhow::Result<()> {
    let removed = talk(&sweep.service, async |service| service.sweep(sweep.limit, sweep.max_calls).await)?;
    say(&format!("removed {removed}"))
}

/// Ends a session or all sessions of a user.
///
/// # Errors
/// When the service does not say that it is done.
pub fn revoke(revoke: &cli::Revoke) -> anyhow::Result<()> {
    let ids = [("session_id", &revoke.what.session), ("user_id", &revoke.what.user)];
    let body: Map<String, Value> =
        ids.into_iter().filter_map(|(name, id)| Some((name.to_owned(), id.clone()?.into()))).collect();
    talk(&revoke.service, async |service| service.order("/internal/revoke", body.into()).await)?;
    say("revoked")
}

/// Refuses a user's logins.
///
/// # Errors
/// When the service does not say that it is done.
pub fn block(block: &cli::User) -> anyhow::Result<()> {
    let body = json!({"user_id": block.user});
    talk(&block.service, async |service| service.order("/internal/block", body).await)?;
    say("blocked")
}

/// Lets a user log in again.
///
/// # Errors
/// When the service does not say that it is done.
pub fn unblock(unblock: &cli::User) -> anyhow::Result<()> {
    let body = json!({"user_id": unblock.user});
    talk(&unblock.service, async |service| service.order("/internal/unblock", body).await)?;
    say("unblocked")
}

fn say(line: &str) -> anyhow::Result<()> {
    crate::say(format_args!("{line}")).context("writing to standard output")
}

/// Finds the service and does `work` with it.
pub(super) fn talk<T>(to: &cli::Service, work: impl AsyncFnOnce(Service) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let service = Service::find(to)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    runtime.block_on(work(service))
}

/// A service and what opens its `/internal/*`.
pub(super) struct Service {
    pub(super) url: String,
    pub(super) token: Token,
    client: Client,
}

/// What a sweep answers. Where it goes on is the service's to read; `null` and absent is: all done.
#[derive(Deserialize)]
struct Swept {
    removed: u64,
    #[serde(default)]
    cursor: Option<Value>,
}

impl Service {
    fn find(to: &cli::Service) -> anyhow::Result<Self> {
        let (url, token) = if let (Some(url), Some(file)) = (&to.admin, &to.token_file) {
            if !url.starts_with("https://") && development::require_loopback_url("--admin", url).is_err() {
                bail!("--admin: the token would travel in clear; name an https URL, or a loopback address");
            }
            let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            (url.trim_end_matches('/').to_owned(), Token::new(&text))
        } else {
            let found = Whereabouts::of(&to.state_dir)?;
            (format!("http://{}", found.address), found.token)
        };
        let origin = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
        Ok(Self { client: exchange::client(&[&origin])?, url, token })
    }

    async fn sweep(&self, limit: Option<u32>, max_calls: u32) -> anyhow::Result<u64> {
        let (mut removed, mut cursor) = (0_u64, None);
        let mut told = Instant::now();
        for call in 1..=max_calls {
            let mut body = Map::new();
            body.extend(limit.map(|limit| ("limit".to_owned(), limit.into())));
            body.extend(cursor.clone().map(|cursor| ("cursor".to_owned(), cursor)));
            let answer = self.post("/internal/sweep", body.into()).await?;
            let swept = Swept::deserialize(answer.body).ok().filter(|_| answer.status == 200);
            let swept = swept.with_context(|| format!("{}/internal/sweep gave no sweep's answer", self.url))?;
            removed = removed.saturating_add(swept.removed);
            if swept.cursor.is_none() {
                return Ok(removed);
            }
            if swept.cursor == cursor {
                bail!("the sweep does not get on; {removed} removed so far");
            }
            cursor = swept.cursor;
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                tracing::info!(call, removed, "sweeping");
            }
        }
        bail!("not done after {max_calls} calls, {removed} removed so far; --max-calls takes more")
    }

    /// Asks for something that is answered with nothing.
    async fn order(&self, path: &str, body: Value) -> anyhow::Result<()> {
        self.post(path, body).await.map(drop)
    }

    async fn post(&self, path: &str, body: Value) -> anyhow::Result<Answer> {
        self.ask("POST", path, Some(body)).await
    }

    /// What a `GET` answers.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(self.ask("GET", path, None).await?.body)
    }

    /// A question with what opens the service.
    pub(super) fn question(&self, method: &'static str, path: &str) -> Ask {
        Ask { bearer: Some(self.token.expose().to_owned()), ..Ask::new(method, format!("{}{path}", self.url)) }
    }

    /// Whatever is answered.
    pub(super) async fn send(&self, ask: &Ask) -> anyhow::Result<Answer> {
        ask.send(&self.client).await.map_err(|failure| {
            let advice = match failure.kind {
                Kind::Unreachable | Kind::Unresolved => "; is it running there?",
                _ => "",
            };
            anyhow::anyhow!("{} {}: {failure}{advice}", ask.method, ask.url)
        })
    }

    /// An answer that is no failure.
    async fn ask(&self, method: &'static str, path: &str, body: Option<Value>) -> anyhow::Result<Answer> {
        let ask = Ask { body, ..self.question(method, path) };
        let (answer, url) = (self.send(&ask).await?, &ask.url);
        let advice = match answer.status {
            200..300 => return Ok(answer),
            401 => "; it does not take this token: is it one of its operator_tokens?",
            404 => "; it has no such route: is operator_tokens set there, and is this its admin listener?",
            _ => "",
        };
        let text = |member: &str| answer.body[member].as_str().unwrap_or_default().to_owned();
        bail!("{method} {url}: {} {} {}{advice}", answer.status, text("code"), text("detail"))
    }
}

const TELL_EVERY: Duration = Duration::from_secs(2);
