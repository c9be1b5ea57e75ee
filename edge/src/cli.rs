//! The command line: what can be said, and nothing of what it does.

mod revisions;

use std::{convert::Infallible, fmt, net::SocketAddr, num::NonZeroUsize, path::PathBuf, str::FromStr};

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use self::revisions::{Canary, CanaryAction, Revisions, Rollback, Sign, Swap};
use crate::log;

/// The edge node of edgepass, and its simulated platforms.
#[derive(Debug, Parser)]
#[command(name = "edgepass", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the component of a spin.toml
    ///
    /// Settings come from `--variable`, then from `SPIN_VARIABLE_<NAME>` in the environment or in
    /// .env, then from the manifest's defaults. The bound address is printed on one line. SIGTERM
    /// and Ctrl-C stop accepting, finish what is under way, and end; a second one ends at once.
    Serve(Box<Serve>),
    /// Run the simulated platforms alone
    ///
    /// It logs anyone in as anyone, so it listens on loopback only.
    Sim(Sim),
    /// Remove what has expired from the store
    ///
    /// Calls `POST /internal/sweep` until there is nothing left to look at, and prints how many
    /// entries are gone. The edge node's own stores expire by themselves; this is for a store that
    /// does not, such as Spin's, and for what is kept until its session is gone.
    Sweep(Sweep),
    /// End a session, or all sessions of a user
    Revoke(Revoke),
    /// Refuse a user's logins, and end all sessions
    Block(User),
    /// Let a blocked user log in again
    Unblock(User),
    /// Show what a node serves, how fast, and what fails
    Status(Status),
    /// Show the last lines of a node's log
    Logs(Logs),
    /// Serve another component, without losing a request
    ///
    /// The node checks it and lets it answer before anybody is sent to it; what it refuses changes
    /// nothing. If it then does worse than the one before, the node takes that one again by itself.
    Swap(Swap),
    /// Serve what was served before
    Rollback(Rollback),
    /// Show what a node serves, what it served before, and what was changed
    Revisions(Revisions),
    /// End a canary: serve it to all, or to nobody
    Canary(Canary),
    /// Print the signature of a component, for a file that a node watches
    ///
    /// `edgepass swap --sign-key` makes and sends one by itself.
    Sign(Sign),
    /// Make a key or a token, and say how to set and replace it
    ///
    /// The value goes to standard output and the rest to standard error, so that
    /// `$(edgepass keygen master)` is the value.
    Keygen(Keygen),
    /// Look at what `serve` would be given, and say what is wrong and what to do
    ///
    /// Manifest, variables (by name), component, store, state folder, disk, limits, clock, and whether the
    /// platforms can be reached. Changes nothing. Ends with 1 when a check failed.
    Doctor(Doctor),
    /// Walk a login step by step: every request and answer, on a node and a simulator of its own
    Demo(Demo),
}

/// `edgepass serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The manifest
    #[arg(long, value_name = "FILE", default_value = "spin.toml")]
    pub manifest: PathBuf,

    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3000")]
    pub listen: SocketAddr,

    /// Where `/internal/*` is served, on loopback; where it is and what opens it is kept in the state
    /// folder, in admin.addr and admin.token [default: a free port]
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", hide_default_value = true)]
    pub admin: Option<SocketAddr>,

    /// The certificate of the public listener, in PEM, with those between it and a root; both files
    /// are read again when they change [default: `SPIN_TLS_CERT`, else the manifest's, else no TLS]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Its private key, in PEM [default: `SPIN_TLS_KEY`, else the manifest's]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// The component to serve instead of the manifest's: of world `node`, or any `wasi:http` one
    #[arg(long, value_name = "FILE")]
    pub component: Option<PathBuf>,

    /// Where the store, compiled components and development keys live
    #[arg(long, value_name = "DIR", default_value = ".edgepass")]
    pub state_dir: PathBuf,

    #[command(flatten)]
    /// Where sessions are kept.
    pub store_choice: StoreChoice,

    /// A variable of the manifest: NAME=VALUE, NAME=@FILE, @FILE.json or @FILE.toml; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub variable: Vec<String>,

    /// How the log is written
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub log_format: log::Format,

    /// Send traces to this collector, by OTLP over HTTP [default: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`,
    /// else `OTEL_EXPORTER_OTLP_ENDPOINT` with /v1/traces, else none]
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,

    /// The share of requests that is traced, 0 to 1 [default: `OTEL_TRACES_SAMPLER_ARG`, else 0.05]
    #[arg(long, value_name = "RATIO")]
    pub otlp_sample: Option<f64>,

    /// Core threads [default: the manifest's, else one per CPU]
    #[arg(long, value_name = "N")]
    pub cores: Option<NonZeroUsize>,

    /// Say whether this would start, and do not: the manifest, its settings, the component and the
    /// certificate are read and checked, the component is compiled, nothing is listened on or opened
    #[arg(long)]
    pub check: bool,

    #[command(flatten)]
    /// Development.
    pub development: Development,
}

/// Where sessions are kept.
#[derive(Debug, Default, Args)]
pub struct StoreChoice {
    /// Where sessions are kept: `embedded` (in the state folder, durable when a login is answered),
    /// `memory`, or the URL of a Redis or Valkey: `redis://HOST`, `rediss://`,
    /// `redis+cluster://HOST,HOST`, `redis+sentinel://HOST,HOST/MASTER`; its password is taken from
    /// `?password_file=FILE` or from `EDGEPASS_REDIS_PASSWORD` [default: what the runtime-config file says, else embedded]
    #[arg(long, value_name = "WHERE")]
    pub store: Option<Store>,

    /// A runtime-config file as Spin has it; its `key_value_store.default` is read
    #[arg(long, value_name = "FILE")]
    pub runtime_config_file: Option<PathBuf>,
}

/// Switches for development: each is refused unless everything is on loopback.
#[derive(Debug, Args)]
#[command(next_help_heading = "Development")]
pub struct Development {
    /// Start simulated platforms and log in against them [default address: 127.0.0.1:3001]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:3001")]
    pub sim: Option<SocketAddr>,

    /// Accept a code any number of times, each time as a new session
    #[arg(long)]
    pub reusable_codes: bool,
}

/// Where sessions are kept, unread: clap shows what it cannot read, and a URL may bring a password.
#[derive(Clone)]
pub struct Store(pub(crate) String);

impl Store {
    /// Gone when the node ends.
    pub(crate) fn memory() -> Self {
        Self("memory".into())
    }
}

impl FromStr for Store {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

/// `edgepass sim`.
#[derive(Debug, Args)]
pub struct Sim {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3001")]
    pub listen: SocketAddr,

    /// The app it knows
    #[arg(long, value_name = "APPID", default_value = edgepass_sim::SAMPLE_APPID)]
    pub appid: String,

    /// That app's secret
    #[arg(long, value_name = "SECRET", default_value = edgepass_sim::SAMPLE_SECRET)]
    pub secret: String,

    /// Accept any code any number of times, also one that was never issued
    #[arg(long)]
    pub reusable_codes: bool,

    /// Requests kept for /sim/journal; 0 only counts them
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub journal: usize,

    /// Threads, each with its own connections
    #[arg(long, value_name = "N", default_value = "1")]
    pub threads: NonZeroUsize,

    /// Listen on an address that other machines reach, although it logs anyone in as anyone
    #[arg(long)]
    pub allow_non_loopback: bool,
}

/// Which service a command talks to.
#[derive(Debug, Args)]
pub struct Service {
    /// The state folder of the node that runs here; its address and token are taken from there
    #[arg(long, value_name = "DIR", default_value = ".edgepass")]
    pub state_dir: PathBuf,

    /// Another service instead: the URL below which it has `/internal/*`
    #[arg(long, value_name = "URL", requires = "token_file", conflicts_with = "state_dir")]
    pub admin: Option<String>,

    /// The file with its operator token
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub token_file: Option<PathBuf>,
}

/// `edgepass sweep`.
#[derive(Debug, Args)]
pub struct Sweep {
    #[command(flatten)]
    /// Whose store.
    pub service: Service,

    /// Entries to look at per call [default: the service's]
    #[arg(long, value_name = "N")]
    pub limit: Option<u32>,

    /// Calls after which it gives up
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub max_calls: u32,
}

/// `edgepass revoke`.
#[derive(Debug, Args)]
pub struct Revoke {
    #[command(flatten)]
    /// Whose session.
    pub service: Service,

    #[command(flatten)]
    /// What ends.
    pub what: Revoked,
}

/// What `edgepass revoke` ends.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Revoked {
    /// This session
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,

    /// Every session of this user
    #[arg(long, value_name = "ID")]
    pub user: Option<String>,
}

/// `edgepass block` and `edgepass unblock`.
#[derive(Debug, Args)]
pub struct User {
    #[command(flatten)]
    /// Where.
    pub service: Service,

    /// The user: `user.id` of a login
    #[arg(value_name = "USER")]
    pub user: String,
}

/// `edgepass status`.
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    /// Which node.
    pub service: Service,

    /// Again every two seconds, until interrupted
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,

    /// The answer of `GET /status` as it is
    #[arg(long)]
    pub json: bool,

    /// Also print the address of the status page, with the token: whoever sees it can swap the component
    #[arg(long)]
    pub page: bool,
}

/// `edgepass logs`.
#[derive(Debug, Args)]
pub struct Logs {
    #[command(flatten)]
    /// Which node.
    pub service: Service,

    /// Go on with what comes, until interrupted
    #[arg(short, long)]
    pub follow: bool,

    /// This level and worse: error, warn, info or debug
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<String>,

    /// How many of the last lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub lines: u16,
}

/// `edgepass keygen`.
#[derive(Debug, Args)]
pub struct Keygen {
    /// What to make
    #[command(subcommand)]
    pub what: Making,

    /// Only the value
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// What `edgepass keygen` makes.
#[derive(Debug, Subcommand)]
pub enum Making {
    /// A key for `master_key`
    Master,
    /// The key for `subject_key`
    Subject,
    /// A token for `operator_tokens`
    Operator,
    /// The token for `load_token`
    Load,
    /// A list of one entry for `clients`
    Client(Client),
    /// A set of one key for `signing_keys`
    Signing(Signing),
    /// A pair of keys: `edgepass swap --sign-key` signs with the private one, and a node that has the
    /// public one in `upload_keys` takes nothing else
    Upload(Upload),
    /// Take a set of signing keys one step on: add a key, promote it, drop the key before it
    ///
    /// The file is rewritten, for its owner only; what was done and when to go on is said.
    Rotate(Rotate),
}

/// `edgepass keygen client`.
#[derive(Debug, Args)]
pub struct Client {
    /// Its name
    pub id: String,

    /// An app whose tokens it may ask about; repeatable
    #[arg(long = "app", value_name = "ID", required = true)]
    pub apps: Vec<String>,
}

/// `edgepass keygen signing`.
#[derive(Debug, Args)]
pub struct Signing {
    /// What it signs with
    #[arg(long, value_enum, default_value_t = KeyAlgorithm::EdDsa)]
    pub alg: KeyAlgorithm,

    /// What it is for; with `next` a service that has no signing keys begins to have them
    #[arg(long, value_enum, default_value_t = KeyStatus::Current)]
    pub status: KeyStatus,
}

/// `edgepass keygen upload`.
#[derive(Debug, Args)]
pub struct Upload {
    /// Where the private key is kept, for its owner only; the public one goes to standard output
    /// [default: the private key goes to standard output, the public one to standard error]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `edgepass keygen rotate`.
#[derive(Debug, Args)]
pub struct Rotate {
    /// The set, as `edgepass keygen signing` makes it
    pub file: PathBuf,
}

/// What a key signs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyAlgorithm {
    /// Ed25519 by the name that most libraries know
    #[value(name = "EdDSA")]
    EdDsa,
    /// Ed25519 by its newer name (RFC 9864)
    #[value(name = "Ed25519")]
    Ed25519,
    /// HMAC: nothing is published, so nobody else can verify
    #[value(name = "HS256")]
    Hs256,
}

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeyStatus {
    /// Verifies, and signs later
    Next,
    /// Signs
    Current,
    /// Verifies what it signed before
    Previous,
}

/// `edgepass doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The manifest
    #[arg(long, value_name = "FILE", default_value = "spin.toml")]
    pub manifest: PathBuf,

    /// The component to look at instead of the manifest's
    #[arg(long, value_name = "FILE")]
    pub component: Option<PathBuf>,

    /// The state folder
    #[arg(long, value_name = "DIR", default_value = ".edgepass")]
    pub state_dir: PathBuf,

    #[command(flatten)]
    /// Where sessions are kept.
    pub store_choice: StoreChoice,

    /// A variable, as for `serve`; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub variable: Vec<String>,

    /// Do not connect to the platforms
    #[arg(long)]
    pub offline: bool,

    /// As JSON: {"ok", "checks": [{"check", "level", "found", "advice"}]}
    #[arg(long)]
    pub json: bool,
}

/// `edgepass demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// The manifest
    #[arg(long, value_name = "FILE", default_value = "spin.toml")]
    pub manifest: PathBuf,

    /// The component to walk through instead of the manifest's
    #[arg(long, value_name = "FILE")]
    pub component: Option<PathBuf>,

    /// Where compiled components are kept
    #[arg(long, value_name = "DIR", default_value = ".edgepass")]
    pub state_dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_talks_to_one_service_and_revokes_one_thing() {
        let accepts = |line: &str| Cli::try_parse_from(line.split(' ')).is_ok();
        for good in [
            "edgepass sweep",
            "edgepass sweep --state-dir a --limit 10",
            "edgepass revoke --session s --admin https://a --token-file t",
            "edgepass block u",
        ] {
            assert!(accepts(good), "{good}");
        }
        for bad in [
            "edgepass sweep --admin https://a",
            "edgepass sweep --token-file t",
            "edgepass sweep --admin https://a --token-file t --state-dir a",
            "edgepass revoke",
            "edgepass revoke --session s --user u",
            "edgepass block",
        ] {
            assert!(!accepts(bad), "{bad}");
        }
    }

    #[test]
    fn sim_takes_an_address_or_its_own() {
        let sim = |line: &[&str]| {
            let cli = Cli::try_parse_from(line).expect("a valid line");
            let Command::Serve(serve) = cli.command else { unreachable!("{:?}", cli.command) };
            serve.development.sim.map(|address| address.to_string())
        };
        assert_eq!(sim(&["edgepass", "serve"]), None);
        assert_eq!(sim(&["edgepass", "serve", "--sim"]).as_deref(), Some("127.0.0.1:3001"));
        assert_eq!(sim(&["edgepass", "serve", "--sim", "127.0.0.1:0"]).as_deref(), Some("127.0.0.1:0"));
    }
}
