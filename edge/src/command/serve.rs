//! `edgepass serve`: manifest, variables, store and component put together into a node.

use std::{fs, net::SocketAddr, num::NonZeroUsize, path::PathBuf, sync::Arc, thread, time::Duration};

use anyhow::{Context as _, bail};
use edgepass_sim::{SAMPLE_APPID, SAMPLE_SECRET, SimConfig, Simulator};
use procfs::process::LimitValue;
use sd_notify::NotifyState;

use crate::{
    admin::{self, Announced, Token},
    cli,
    command::store,
    development, front, handover,
    kv::{self, SharedBackend},
    manifest::{Manifest, Settings},
    metrics::Metrics,
    node::{self, Node, Sockets},
    outbound::{self, Exclusive, Guards, Policy, Shared},
    revision::Surroundings,
    revisions::{By, Change, Done, Refusal},
    server,
    signal::{self, Order},
    tls::Certificates,
    traces::{self, Traces},
    variables::Sources,
};

/// Serves until told to stop, then drains.
///
/// # Errors
/// When the node cannot start; the chain of causes names the setting and what to do.
pub fn run(serve: &cli::Serve) -> anyhow::Result<()> {
    if serve.check {
        return check(serve);
    }
    // Before there is a thread, which must not find the environment change.
    let sockets = handover::inherited().context("sockets from the process before")?;
    let program = handover::Program::current().context("finding this program")?;
    // Waited for from here on, so that a signal during the start is not lost.
    let mut orders = signal::Orders::listen().context("waiting for signals")?;
    let mut running = start_with(serve, sockets)?;
    running.announce()?;
    tell(&[NotifyState::Ready]);
    loop {
        match orders.wait() {
            Order::Stop => break,
            Order::Reload => running.reload(),
            // An order to stop does not wait for it.
            Order::Replace => match program.check(|time| orders.pause(time).is_some()) {
                Ok(()) => {
                    orders.stop_at_once();
                    return running.replace(&program);
                }
                Err(handover::Error::BrokenOff { .. }) => break,
                Err(error) => {
                    tracing::error!(error = %format_args!("{:#}", anyhow::Error::from(error)), "not replaced");
                }
            },
        }
    }
    tell(&[NotifyState::Stopping]);
    running.node.leave();
    if !running.shutdown_delay.is_zero() {
        tracing::info!(delay = ?running.shutdown_delay, "not ready any more; still serving");
        if let Some(status) = orders.pause(running.shutdown_delay) {
            std::process::exit(status);
        }
    }
    orders.stop_at_once();
    tracing::info!(limit = ?running.drain_timeout, "draining");
    running.stop()
}

/// Says whether `serve` would start. The store is not opened: the process that has it may be running.
fn check(serve: &cli::Serve) -> anyhow::Result<()> {
    let prepared = prepare(serve)?;
    Node::check(prepared.config)?;
    Ok(())
}

/// To systemd, if it is there to be told.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd is not told");
    }
}

/// A node and everything started with it.
pub struct Running {
    node: Node,
    tls: Option<Arc<Certificates>>,
    /// Says where its admin listener is, as long as it runs.
    announced: Option<Announced>,
    store: SharedBackend,
    simulator: Option<Simulator>,
    shutdown_delay: Duration,
    drain_timeout: Duration,
    ground: Ground,
}

/// What stays when the manifest and the variables are read anew.
struct Ground {
    manifest: PathBuf,
    /// Variables of the command line, and of the simulator.
    arguments: Vec<String>,
    /// Where the node listens.
    listen: SocketAddr,
    operator: Option<Token>,
    metrics: Metrics,
    store: SharedBackend,
    exclusive: Exclusive,
    guards: Guards,
}

/// Starts what `serve` asks for.
///
/// # Errors
/// As [`run`].
pub fn start(serve: &cli::Serve) -> anyhow::Result<Running> {
    start_with(serve, Sockets::default())
}

fn start_with(serve: &cli::Serve, sockets: Sockets) -> anyhow::Result<Running> {
    let Prepared { mut config, simulator, shutdown_delay, drain_timeout, ground } = prepare(serve)?;
    let store = config.surroundings.store.clone();
    let mut announced = serve.admin.map(|_| Announced::claim(&serve.state_dir)).transpose()?;
    let tls = config.options.tls.clone();
    config.options.inherited = sockets.public;
    config.inherited_admin = sockets.admin;
    let node = Node::start(config)?;
    if let (Some(announced), Some(address)) = (&mut announced, node.admin_addr()) {
        announced.write(address).context("writing admin.addr")?;
        tracing::info!(%address, "admin listener");
    }
    Ok(Running { node, tls, announced, store, simulator, shutdown_delay, drain_timeout, ground })
}

/// All that a node needs, checked.
struct Prepared {
    config: node::Config,
    simulator: Option<Simulator>,
    shutdown_delay: Duration,
    drain_timeout: Duration,
    ground: Ground,
}

fn prepare(serve: &cli::Serve) -> anyhow::Result<Prepared> {
    serve.admin.map_or(Ok(()), admin::require_loopback)?;
    let development = &serve.development;
    let mut arguments = Vec::new();
    let simulator = match development.sim {
        Some(listen) => {
            development::require_loopback("--sim", serve.listen)?;
            // Where it is to be there may be one already.
            let listen = if serve.check { SocketAddr::new(listen.ip(), 0) } else { listen };
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
    let settings = &manifest.component.settings;
    let path = serve.component.as_deref().unwrap_or_else(|| manifest.component.artefact());
    let component = fs::read(path).with_context(|| {
        format!("component {}: not there to read; `cargo xtask component` makes it", path.display())
    })?;
    let metrics = metrics(serve)?;
    // A check looks at what may be running, and only one process may have the store open.
    let health = kv::Health::default();
    let store = if serve.check {
        Arc::new(kv::Memory::new())
    } else {
        store::open(serve, settings.store_timeout, &metrics, &health)?
    };
    let operator = serve.admin.map(|_| admin::token(&serve.state_dir)).transpose()?;
    let ground = Ground {
        manifest: serve.manifest.clone(),
        arguments,
        listen: serve.listen,
        operator: operator.clone(),
        metrics,
        store,
        exclusive: Exclusive::default(),
        guards: Guards::default(),
    };
    ground.metrics.register(|registry| ground.guards.metrics().register(registry));
    let surroundings = ground.surroundings(&manifest)?;
    let operators = serve.admin.zip(operator);
    let operators = operators.map(|(listen, token)| admin::Config { listen, token, routes: Vec::new() });
    let options = server::Options {
        inherited: None,
        tls: certificates(serve, settings)?,
        max_per_client: Some(settings.per_client()),
        context: Arc::new(front::Context {
            trusted_proxies: settings.trusted_proxies.clone(),
            guard: settings.guard(),
            routes: manifest.routes.clone(),
            application: Some(front::Application {
                name: manifest.application.name.clone(),
                version: Some(manifest.application.version.clone()).filter(|version| !version.is_empty()),
            }),
            readiness: front::Readiness::with(health),
            ..front::Context::default()
        }),
    };
    let config = node::Config {
        listen: serve.listen,
        admin: operators,
        cores: serve.cores.or(settings.cores),
        max_connections: settings.max_connections,
        limits: settings.front(),
        component,
        cache: Some(serve.state_dir.join("compiled")),
        surroundings,
        revisions: settings.revisions(&serve.state_dir, path),
        options,
        inherited_admin: None,
    };
    warn_of_descriptors(&config, settings.upstream_connections);
    let (shutdown_delay, drain_timeout) = (settings.shutdown_delay, settings.drain_timeout);
    Ok(Prepared { config, simulator, shutdown_delay, drain_timeout, ground })
}

impl Ground {
    /// What the component of `manifest` is given, with the variables as they are now.
    fn surroundings(&self, manifest: &Manifest) -> anyhow::Result<Surroundings> {
        let sources = Sources::of_process(&self.arguments)?;
        for (name, meant) in sources.slips(manifest) {
            tracing::warn!("{name} in the environment is no variable of the manifest; {meant} is");
        }
        let mut variables = sources.resolve(manifest)?;
        // Decided on the value, however it was given.
        if !matches!(variables.component.get("reusable_codes"), None | Some("" | "false")) {
            development::require_loopback("reusable_codes", self.listen)?;
            let platform = variables.component.get("wechat_base_url").unwrap_or_default();
            development::require_loopback_url("reusable_codes", platform)?;
        }
        if let Some(token) = &self.operator {
            variables.component.add_secret_to_list(OPERATOR_TOKENS, token.expose());
        }
        // What clients see of it is for `server_timing` of the manifest to say; the node counts it.
        variables.component.set(SERVER_TIMING, "true");
        let policy = Policy::parse(&variables.allowed_outbound_hosts)?;
        let settings = &manifest.component.settings;
        let outbound =
            outbound::Options { exclusive: self.exclusive.clone(), guards: self.guards.clone(), ..settings.outbound() };
        Ok(Surroundings {
            limits: settings.pool(),
            metrics: self.metrics.clone(),
            variables: Arc::new(variables.component),
            store_labels: manifest.component.key_value_stores.clone(),
            store: self.store.clone(),
            outbound: Shared::new(policy, outbound)?,
        })
    }

    /// As [`Ground::surroundings`], of the manifest as it is now.
    fn again(&self) -> anyhow::Result<Surroundings> {
        self.surroundings(&Manifest::read(&self.manifest)?)
    }
}

/// A connection is a descriptor, and so is an exchange; the store has its files.
fn warn_of_descriptors(config: &node::Config, upstream_connections: usize) {
    let Ok(limits) = procfs::process::Process::myself().and_then(|process| process.limits()) else { return };
    let LimitValue::Value(there) = limits.max_open_files.soft_limit else { return };
    let cores =
        config.cores.map_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get), NonZeroUsize::get);
    let wanted = config.max_connections.saturating_add(OF_THE_NODE);
    if there < wanted as u64 {
        tracing::warn!(
            limit = there,
            wanted,
            upstream = upstream_connections.saturating_mul(cores),
            "fewer open files are allowed than max_connections wants: raise `ulimit -n` (LimitNOFILE), or lower it"
        );
    }
}

/// Files of the store, sockets that listen, runtimes, logs.
const OF_THE_NODE: usize = 128;

/// The pair that is asked for: on the command line, in Spin's variables, in the manifest, in this order.
fn certificates(serve: &cli::Serve, settings: &Settings) -> anyhow::Result<Option<Arc<Certificates>>> {
    let given = |argument: &Option<PathBuf>, variable: &str, setting: &Option<PathBuf>| {
        let variable = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        argument.clone().or(variable).or_else(|| setting.clone())
    };
    let chain = given(&serve.tls_cert, "SPIN_TLS_CERT", &settings.tls_cert);
    let key = given(&serve.tls_key, "SPIN_TLS_KEY", &settings.tls_key);
    match (chain, key) {
        (None, None) => Ok(None),
        (Some(chain), Some(key)) => Ok(Some(Arc::new(Certificates::read(&chain, &key)?))),
        (Some(_), None) => bail!("TLS has a certificate and no key: --tls-key, SPIN_TLS_KEY or tool.edgepass.tls_key"),
        (None, Some(_)) => {
            bail!("TLS has a key and no certificate: --tls-cert, SPIN_TLS_CERT or tool.edgepass.tls_cert")
        }
    }
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

    fn change(&self, change: Change) -> Result<Done, Refusal> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|_| Refusal::ending())?;
        runtime.block_on(self.node.change(change, By::node()))
    }

    /// Reads again what can be while it serves.
    fn reload(&mut self) {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            tell(&[NotifyState::Reloading, now]);
        }
        if let Some(certificates) = &self.tls {
            match certificates.reload() {
                Ok(true) => tracing::info!("new TLS certificate"),
                Ok(false) => tracing::info!("the TLS files are as they were"),
                Err(error) => tracing::error!(error = %error, "the TLS certificate stays"),
            }
        }
        // Its limits of connections and clients stay; what the component is given does not.
        match self.ground.again() {
            Ok(around) => match self.change(Change::Reload(around.into())) {
                Ok(_) => tracing::info!("new variables and limits"),
                Err(refusal) => tracing::error!(%refusal, "the variables and limits stay"),
            },
            Err(error) => tracing::error!(error = %format_args!("{error:#}"), "the variables and limits stay"),
        }
        tell(&[NotifyState::Ready]);
    }

    /// Ends, and runs what is at our path now in our place, with our sockets. Who connects meanwhile
    /// waits.
    fn replace(self, program: &handover::Program) -> anyhow::Result<()> {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            tell(&[NotifyState::Reloading, now]);
        }
        tracing::info!("making way for the program that is there now");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (drained, sockets) = runtime.block_on(self.node.hand_over(self.drain_timeout));
        if drained.cut > 0 {
            tracing::warn!(connections = drained.cut, "cut after the drain limit");
        }
        runtime.block_on(self.store.close()).context("closing the store")?;
        // Files it has open are locked: they have to be closed, and not only by the new program's start.
        drop((runtime, self.ground, self.store, self.announced, self.simulator));
        match program.execute(sockets) {
            Ok(never) => match never {},
            Err(error) => Err(error).context("running the new program; this one has ended already"),
        }
    }

    fn announce(&self) -> anyhow::Result<()> {
        let node = self.address();
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        crate::say(format_args!("listening on {scheme}://{node}"))?;
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
