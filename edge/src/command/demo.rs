//! `edgepass demo`: a login step by step, on a node and a simulator of its own.

use std::{fmt::Write as _, time::Duration};

use anstyle::{AnsiColor, Style};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::{
    cli,
    command::serve,
    outbound::{self, Call, Client, Policy, Shared},
};

/// Walks a login and shows each request and answer.
///
/// # Errors
/// When the node does not start, or an answer is not the one the step is about.
pub fn run(demo: cli::Demo) -> anyhow::Result<()> {
    let running = serve::start(&cli::Serve {
        manifest: demo.manifest,
        listen: ([127, 0, 0, 1], 0).into(),
        component: demo.component,
        state_dir: demo.state_dir,
        store: cli::Store::Memory,
        variable: Vec::new(),
        cores: None,
        development: cli::Development { sim: Some(([127, 0, 0, 1], 0).into()), reusable_codes: false },
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting a runtime")?;
    let told = runtime.block_on(walk(&running));
    running.stop()?;
    told
}

/// One step: what is asked, and what the step is there to show.
struct Step {
    title: &'static str,
    method: &'static str,
    url: String,
    bearer: Option<String>,
    body: Option<Value>,
    expected: u16,
}

async fn walk(running: &serve::Running) -> anyhow::Result<()> {
    let node = format!("http://{}", running.address());
    let platform = running.platform().context("the simulated platform runs")?;
    let policy = Policy::parse(&[&node, &platform])?;
    let client = Client::new(Shared::new(policy, outbound::Options::default())?);

    let code = Step {
        title: "The mini-program calls wx.login and gets a one-time code",
        body: Some(json!({"user": "小明"})),
        ..Step::new("POST", format!("{platform}/sim/wechat/login"), 200)
    };
    let code = code.show(&client).await?["code"].clone();

    let login = Step {
        title: "It posts the code; edgepass exchanges it and answers with its own tokens",
        body: Some(json!({"code": code})),
        ..Step::new("POST", format!("{node}/api/login"), 200)
    };
    let login = login.show(&client).await?;
    let token = login["access_token"].as_str().context("a login answers with an access token")?.to_owned();
    let bearer = || Some(token.clone());

    let steps = [
        Step {
            title: "The access token shows its session",
            bearer: bearer(),
            ..Step::new("GET", format!("{node}/api/session"), 200)
        },
        Step {
            title: "A gateway asks who is calling; the answer is in the headers",
            bearer: bearer(),
            ..Step::new("GET", format!("{node}/api/verify/orders/1"), 200)
        },
        Step {
            title: "The same code again: spent, and the platform is not asked",
            body: Some(json!({"code": code})),
            ..Step::new("POST", format!("{node}/api/login"), 401)
        },
        Step {
            title: "Logging out ends the session",
            bearer: bearer(),
            ..Step::new("POST", format!("{node}/api/logout"), 204)
        },
        Step {
            title: "at once, on every node over the same store",
            bearer: bearer(),
            ..Step::new("GET", format!("{node}/api/session"), 401)
        },
    ];
    for step in steps {
        step.show(&client).await?;
    }
    Ok(())
}

impl Step {
    fn new(method: &'static str, url: String, expected: u16) -> Self {
        Self { title: "", method, url, bearer: None, body: None, expected }
    }

    /// Makes the exchange and prints both sides of it.
    async fn show(self, client: &Client) -> anyhow::Result<Value> {
        let body = self.body.as_ref().map_or(String::new(), Value::to_string);
        let mut head = String::new();
        if let Some(token) = &self.bearer {
            writeln!(head, "authorization: Bearer {token}")?;
        }
        if !body.is_empty() {
            writeln!(head, "content-type: application/json")?;
        }
        let reply = client
            .send(Call {
                method: self.method.into(),
                url: self.url.clone(),
                head: head.clone().into_bytes(),
                body: body.clone().into_bytes(),
                limits: outbound::Limits {
                    connect: Duration::from_secs(5),
                    first_byte: Duration::from_secs(30),
                    total: Duration::from_secs(30),
                    max_body_bytes: 1 << 20,
                },
                exclusive: None,
            })
            .await
            .with_context(|| format!("{} {}", self.method, self.url))?;
        let answer: Value = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);

        let title = Style::new().bold();
        let sent = AnsiColor::Cyan.on_default();
        let came = if reply.status < 300 { AnsiColor::Green } else { AnsiColor::Yellow }.on_default();
        let mut text = format!("\n{title}{}{title:#}\n", self.title);
        writeln!(text, "{sent}> {} {}{sent:#}", self.method, self.url)?;
        for line in head.lines().chain(Some(body.as_str()).filter(|body| !body.is_empty())) {
            writeln!(text, "{sent}> {}{sent:#}", shortened(line))?;
        }
        writeln!(text, "{came}< {}{came:#}", reply.status)?;
        let shown = ["www-authenticate", "x-edgepass-user", "x-edgepass-session", "x-edgepass-app"];
        for line in String::from_utf8_lossy(&reply.head)
            .lines()
            .filter(|line| line.split_once(':').is_some_and(|(name, _)| shown.contains(&name)))
        {
            writeln!(text, "{came}< {line}{came:#}")?;
        }
        if !answer.is_null() {
            for line in serde_json::to_string_pretty(&answer)?.lines() {
                writeln!(text, "{came}< {}{came:#}", shortened(line))?;
            }
        }
        crate::say(format_args!("{}", text.trim_end_matches('\n')))?;
        if reply.status != self.expected {
            bail!("{} {} answered {} where the step is about {}", self.method, self.url, reply.status, self.expected);
        }
        Ok(answer)
    }
}

/// A line with its long words cut: a token is hundreds of characters that nobody reads.
fn shortened(line: &str) -> String {
    let longest = 48;
    let cut = |word: &str| match word.char_indices().nth(longest) {
        Some((at, _)) => format!(
            "{}…{}",
            &word[..at],
            if word.ends_with("\",") {
                "\","
            } else if word.ends_with('"') {
                "\""
            } else {
                ""
            }
        ),
        None => word.to_owned(),
    };
    line.split(' ').map(cut).collect::<Vec<_>>().join(" ")
}
