//! `edgepass demo`: a login step by step, on a node and a simulator of its own.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::{
    cli,
    command::serve,
    exchange::{self, Ask},
    log,
    outbound::Client,
};

/// Walks a login and shows each request and answer.
///
/// # Errors
/// When the node does not start, or an answer is not the one the step is about.
pub fn run(demo: cli::Demo) -> anyhow::Result<()> {
    let running = serve::start(&cli::Serve {
        manifest: demo.manifest,
        listen: ([127, 0, 0, 1], 0).into(),
        admin: None,
        tls_cert: None,
        tls_key: None,
        component: demo.component,
        state_dir: demo.state_dir,
        store_choice: cli::StoreChoice { store: Some(cli::Store::memory()), runtime_config_file: None },
        variable: Vec::new(),
        log_format: log::Format::Text,
        otlp: None,
        otlp_sample: None,
        cores: None,
        check: false,
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
    ask: Ask,
    expected: u16,
}

async fn walk(running: &serve::Running) -> anyhow::Result<()> {
    let node = format!("http://{}", running.address());
    let platform = running.platform().context("the simulated platform runs")?;
    let client = exchange::client(&[&node, &platform])?;

    let post = |url: String, body: Value| Ask { body: Some(body), ..Ask::new("POST", url) };
    let code = Step {
        title: "The mini-program calls wx.login and gets a one-time code",
        ask: post(format!("{platform}/sim/wechat/login"), json!({"user": "小明"})),
        expected: 200,
    };
    let code = code.show(&client).await?["code"].clone();

    let login =
        |title, expected| Step { title, ask: post(format!("{node}/api/login"), json!({"code": code})), expected };
    let answer = login("It posts the code; edgepass exchanges it and answers with its own tokens", 200);
    let answer = answer.show(&client).await?;
    let token = answer["access_token"].as_str().context("a login answers with an access token")?;
    let bearing =
        |method, path: &str| Ask { bearer: Some(token.to_owned()), ..Ask::new(method, format!("{node}{path}")) };

    let steps = [
        Step { title: "The access token shows its session", ask: bearing("GET", "/api/session"), expected: 200 },
        Step {
            title: "A gateway asks who is calling; the answer is in the headers",
            ask: bearing("GET", "/api/verify/orders/1"),
            expected: 200,
        },
        login("The same code again: spent, and the platform is not asked", 401),
        Step { title: "Logging out ends the session", ask: bearing("POST", "/api/logout"), expected: 204 },
        Step {
            title: "at once, on every node over the same store",
            ask: bearing("GET", "/api/session"),
            expected: 401,
        },
    ];
    for step in steps {
        step.show(&client).await?;
    }
    Ok(())
}

impl Step {
    /// Makes the exchange and prints both sides of it.
    async fn show(self, client: &Client) -> anyhow::Result<Value> {
        let Self { title: about, ask, expected } = self;
        let answer = ask.send(client).await.with_context(|| format!("{} {}", ask.method, ask.url))?;
        let (head, body) = (ask.head(), ask.text());

        let title = Style::new().bold();
        let sent = AnsiColor::Cyan.on_default();
        let came = if answer.status < 300 { AnsiColor::Green } else { AnsiColor::Yellow }.on_default();
        let mut text = format!("\n{title}{about}{title:#}\n");
        writeln!(text, "{sent}> {} {}{sent:#}", ask.method, ask.url)?;
        for line in head.lines().chain(Some(body.as_str()).filter(|body| !body.is_empty())) {
            writeln!(text, "{sent}> {}{sent:#}", shortened(line))?;
        }
        writeln!(text, "{came}< {}{came:#}", answer.status)?;
        let shown = ["www-authenticate", "x-edgepass-user", "x-edgepass-session", "x-edgepass-app"];
        let is_shown = |line: &&str| line.split_once(':').is_some_and(|(name, _)| shown.contains(&name));
        for line in answer.head.lines().filter(is_shown) {
            writeln!(text, "{came}< {line}{came:#}")?;
        }
        if !answer.body.is_null() {
            for line in serde_json::to_string_pretty(&answer.body)?.lines() {
                writeln!(text, "{came}< {}{came:#}", shortened(line))?;
            }
        }
        crate::say(format_args!("{}", text.trim_end_matches('\n')))?;
        if answer.status != expected {
            bail!("{} {} answered {} where the step is about {expected}", ask.method, ask.url, answer.status);
        }
        Ok(answer.body)
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
