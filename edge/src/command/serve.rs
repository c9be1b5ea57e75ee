//! `edgepass serve`: manifest, variables, store and component put together into a node.

use std::{fs, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use edgepass_sim::{SAMPLE_APPID, SAMPLE_SECRET, SimConfig, Simulator};

use crate::{
    admin::{self, Announced},
    cli,
    command::store,
    development,
    kv::SharedBackend,
    manifest::Manifest,
    metrics::Metrics,
    node::{self, Node},
    outbound::{Policy, Shared},
    revision::Surroundings,
    signal,
    traces::{self, Traces},
    variables::Sources,
};

/// Serves until told to stop, then drains.
///
/// # Errors
/// When the node cannot start; the chain of causes names the setting and what to do.
pub fn run(serve: &cli::Serve) -> anyhow::Result<()> {
    // Waited for from here on, so that a signal during the start is not lost.
    let stop = signal::Stop::listen().context("waiting for signals")?;
    let running = start(serve)?;
    running.announce()?;
    stop.wait();
    tracing::info!(limit = ?running.drain_timeout, "draining");
    running.stop()
}

/// A node and everything started with it.
pub struct Running {
    node: Node,
    /// Says where its admin listener is, as long as it runs.
    announced: Option<Announced>,
    store: SharedBackend,
    simulator: Option<Simulator>,
    drain_timeout: Duration,
}

/// Starts what `serve` asks for.
///
/// # Errors
/// As [`run`].
pub fn start(serve: &cli::Serve) -> anyhow::Result<Running> {
    serve.admin.map_or(Ok(()), admin::require_loopback)?;
    let development = &serve.development;
    let mut arguments = Vec::new();
    let simulator = match development.sim {
        Some(listen) => {
            development::require_loopback("--sim", serve.listen)?;
            let simulator = simulate(listen, development.reusable_codes)?;
            arguments.extend(simulated(serve, &simulator)?);
            Some(simulator)
        }
        None => None,
    };
    if development.reusable_codes {
        arguments.push("reusable_codes=true".into());
    }
    // Said by the user, so said last: the last of one name counts.
    arguments.extend(serve.variable.iter().cloned());

    let manifest = Manifest::read(&serve.manifest)?;
    let sources = Sources::of_process(&arguments)?;
    for (name, meant) in sources.slips(&manifest) {
        tracing::warn!("{name} in the environment is no variable of the manifest; {meant} is");
    }
    let mut variables = sources.resolve(&manifest)?;
    // Decided on the value, however it was given.
    if !matches!(variables.component.get("reusable_codes"), None | Some("" | "false")) {
        development::require_loopback("reusable_codes", serve.listen)?;
        let platform = variables.component.get("wechat_base_url").unwrap_or_default();
        development::require_loopback_url("reusable_codes", platform)?;
    }

    let path = serve.component.as_deref().unwrap_or_else(|| manifest.component.artefact());
    let component = fs::read(path).with_context(|| {
        format!("component {}: not there to read; `cargo xtask component` makes it", path.display())
    })?;
    let metrics = metrics(serve)?;
    let store = store::open(serve, manifest.component.settings.store_timeout, &metrics)?;
    let (mut announced, mut operators) = (None, None);
    if let Some(listen) = serve.admin {
        announced = Some(Announced::claim(&serve.state_dir)?);
        let token = admin::token(&serve.state_dir)?;
        variables.component.add_secret_to_list(OPERATOR_TOKENS, token.expose());
        operators = Some(admin::Config { listen, token, routes: Vec::new() });
    }
    // What clients see of it is for `server_timing` of the manifest to say; the node counts it.
    variables.component.set(SERVER_TIMING, "true");
    let settings = manifest.component.settings;
    let policy = Policy::parse(&variables.allowed_outbound_hosts)?;
    let outbound = settings.outbound();
    metrics.register(|registry| outbound.guards.metrics().register(registry));
    let node = Node::start(node::Config {
        listen: serve.listen,
        admin: operators,
        cores: serve.cores.or(settings.cores),
        max_connections: settings.max_connections,
        limits: settings.front(),
        component,
        cache: Some(serve.state_dir.join("compiled")),
        surroundings: Surroundings {
            limits: settings.pool(),
            metrics,
            variables: Arc::new(variables.component),
            store_labels: manifest.component.key_value_stores,
            store: store.clone(),
            outbound: Shared::new(policy, outbound)?,
        },
    })?;
    if let (Some(announced), Some(address)) = (&mut announced, node.admin_addr()) {
        announced.write(address).context("writing admin.addr")?;
        tracing::info!(%address, "admin listener");
    }
    Ok(Running { node, announced, store, simulator, drain_timeout: settings.drain_timeout })
}

/// The variable in which our component takes the tokens it asks for on `/internal/*`. The node adds
/// its own, so that its commands work with nothing configured.
const OPERATOR_TOKENS: &str = "operator_tokens";

/// The numbers of the node, and where its traces go: by the command line, else by the environment, with
/// the names that Spin reads too.
fn metrics(serve: &cli::Serve) -> anyhow::Result<Metrics> {
    let metrics = Metrics::default();
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let all = || Some(format!("{}/v1/traces", env("OTEL_EXPORTER_OTLP_ENDPOINT")?.trim_end_matches('/')));
    let endpoint = serve.otlp.clone().or_else(|| env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")).or_else(all);
    if let Some(endpoint) = endpoint {
        let ratio = match (serve.otlp_sample, env("OTEL_TRACES_SAMPLER_ARG")) {
            (Some(ratio), _) => ratio,
            (None, Some(text)) => text.parse().context("OTEL_TRACES_SAMPLER_ARG is no number")?,
            (None, None) => TRACE_RATIO,
        };
        if !(0.0..=1.0).contains(&ratio) {
            bail!("the share of traced requests is {ratio}, and not between 0 and 1");
        }
        metrics.trace_to(Traces::start(&traces::Config { endpoint, ratio })?);
    }
    Ok(metrics)
}

const TRACE_RATIO: f64 = 0.05;

/// The variable with which our component says in which stage the time of a request went.
const SERVER_TIMING: &str = "server_timing";

impl Running {
    /// Where the node listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.node.addr()
    }

    /// Base URL of the simulated platforms, where there are any.
    #[must_use]
    pub fn platform(&self) -> Option<String> {
        self.simulator.as_ref().map(Simulator::base_url)
    }

    /// Finishes what is under way, closes the store, ends.
    ///
    /// # Errors
    /// When the store cannot write what it holds.
    pub fn stop(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let drained = runtime.block_on(self.node.drain(self.drain_timeout));
        if drained.cut > 0 {
            tracing::warn!(connections = drained.cut, "cut after the drain limit");
        }
        runtime.block_on(self.store.close()).context("closing the store")?;
        drop(self.announced);
        drop(self.simulator);
        Ok(())
    }

    fn announce(&self) -> anyhow::Result<()> {
        let node = self.address();
        crate::say(format_args!("listening on http://{node}"))?;
        if let Some(platform) = self.platform() {
            crate::say(format_args!("{}", curl_lines(&platform, node)))?;
        }
        Ok(())
    }
}

/// Three lines for a shell: a code, a login, a session.
fn curl_lines(platform: &str, node: SocketAddr) -> String {
    format!(
        r#"
WeChat is simulated on {platform}: anyone logs in as anyone. Try it from another terminal:

code=$(curl -s {platform}/sim/wechat/login -d '{{"user":"alice"}}' | sed 's/.*"code":"\([^"]*\).*/\1/')
token=$(curl -s http://{node}/api/login -d "{{\"code\":\"$code\"}}" | sed 's/.*"access_token":"\([^"]*\).*/\1/')
curl -s http://{node}/api/session -H "Authorization: Bearer $token"
"#
    )
}

fn simulate(listen: SocketAddr, reusable_codes: bool) -> anyhow::Result<Simulator> {
    let config = SimConfig { listen, reusable_codes, ..SimConfig::default() };
    Simulator::start(config)
        .with_context(|| format!("starting the simulated platforms on {listen}; `--sim <ADDR>` takes another address"))
}

/// Variables that point the component at the simulator, with keys of its own for development.
fn simulated(serve: &cli::Serve, simulator: &Simulator) -> anyhow::Result<Vec<String>> {
    let named = |name: &str| serve.variable.iter().any(|argument| argument.split('=').next() == Some(name));
    if named("wechat_base_url") {
        bail!("--sim sets wechat_base_url; leave one of the two out");
    }
    let mut arguments = vec![
        format!("wechat_base_url={}", simulator.base_url()),
        format!("wechat_appid={SAMPLE_APPID}"),
        format!("wechat_secret={SAMPLE_SECRET}"),
    ];
    for name in ["master_key", "subject_key"] {
        arguments.push(format!("{name}={}", development::key(&serve.state_dir, name)?));
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_for_a_shell_quote_what_a_shell_would_take() {
        let lines = curl_lines("http://127.0.0.1:3001", ([127, 0, 0, 1], 3000).into());
        assert!(lines.contains(r#"-d '{"user":"alice"}'"#), "{lines}");
        assert!(lines.contains(r#"-d "{\"code\":\"$code\"}""#), "{lines}");
        assert!(lines.contains("curl -s http://127.0.0.1:3000/api/session"), "{lines}");
    }
}
