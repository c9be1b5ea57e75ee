//! Redis servers of a test's own, from Debian's `redis-server`: one, a Cluster of three masters, or a
//! master with a replica and three Sentinels. They end with the test.

#![allow(clippy::panic, reason = "a test says what is wrong by panicking")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Mutex,
    thread::sleep,
    time::{Duration, Instant},
};

/// Some servers and the URL they are reached by.
pub(crate) struct Servers {
    /// Those that hold entries, a replica last.
    pub(crate) nodes: Vec<Server>,
    #[allow(dead_code, reason = "end with the rest")]
    sentinels: Vec<Server>,
    url: String,
}

/// One server.
pub(crate) struct Server {
    pub(crate) port: u16,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    child: Mutex<Option<Child>>,
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(String),
    Error(String),
    Number(i64),
    Nothing,
    List(Vec<Reply>),
}

#[allow(dead_code, reason = "not every suite needs all of it")]
impl Servers {
    /// One server.
    pub(crate) fn single() -> Self {
        let server = Server::start(&[]);
        let url = format!("redis://127.0.0.1:{}", server.port);
        Self { nodes: vec![server], sentinels: Vec::new(), url }
    }

    /// One server that also speaks TLS, and the port where it does.
    pub(crate) fn tls(certificate: &str, key: &str) -> (Self, u16) {
        let port = free_port();
        let tls = ["--tls-port", &port.to_string(), "--tls-cert-file", certificate, "--tls-key-file", key];
        let server = Server::start(&[&tls[..], &["--tls-auth-clients", "no"]].concat());
        (Self { url: format!("rediss://127.0.0.1:{port}"), nodes: vec![server], sentinels: Vec::new() }, port)
    }

    /// Three masters, each with a third of the slots.
    pub(crate) fn cluster() -> Self {
        let start = || {
            let bus = free_port().to_string();
            Server::start(&["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", &bus])
        };
        let nodes: Vec<Server> = std::iter::repeat_with(start).take(3).collect();
        for (node, (first, last)) in nodes.iter().zip([(0, 5460), (5461, 10922), (10923, 16383)]) {
            node.done(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        for (epoch, node) in nodes.iter().enumerate() {
            // Given, so that they need not agree on it first.
            node.done(&["CLUSTER", "SET-CONFIG-EPOCH", &(epoch + 1).to_string()]);
        }
        for node in &nodes[1..] {
            let bus = &node.arguments[node.arguments.len() - 1];
            nodes[0].done(&["CLUSTER", "MEET", "127.0.0.1", &node.port.to_string(), bus]);
        }
        for node in &nodes {
            until("the cluster is whole", || {
                let Reply::Text(info) = node.ask(&["CLUSTER", "INFO"]) else { return false };
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            });
        }
        let hosts: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        Self { url: format!("redis+cluster://{}", hosts.join(",")), nodes, sentinels: Vec::new() }
    }

    /// A master, a replica, and three Sentinels that know them as `sessions`.
    pub(crate) fn sentinel() -> Self {
        let master = Server::start(&[]);
        let replica =
            Server::start(&["--replicaof", "127.0.0.1", &master.port.to_string(), "--repl-diskless-sync-delay", "0"]);
        let start = || {
            let config = format!(
                "sentinel monitor sessions 127.0.0.1 {} 2\nsentinel down-after-milliseconds sessions 500\n\
                 sentinel failover-timeout sessions 3000\n",
                master.port
            );
            Server::start_with(Some(&config), &["--sentinel"])
        };
        let sentinels: Vec<Server> = std::iter::repeat_with(start).take(3).collect();
        until("the replica follows", || {
            let Reply::Text(info) = replica.ask(&["INFO", "replication"]) else { return false };
            info.contains("master_link_status:up")
        });
        for sentinel in &sentinels {
            until("the Sentinels know each other and the replica", || {
                let count = |of| match sentinel.ask(&["SENTINEL", of, "sessions"]) {
                    Reply::List(list) => list.len(),
                    _ => 0,
                };
                count("SENTINELS") == 2 && count("REPLICAS") == 1
            });
        }
        let hosts: Vec<String> = sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        Self { nodes: vec![master, replica], sentinels, url: format!("redis+sentinel://{}/sessions", hosts.join(",")) }
    }

    /// What a node is given.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The servers that are written to, as things are now.
    pub(crate) fn masters(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| {
            matches!(node.ask(&["ROLE"]), Reply::List(role) if role.first() == Some(&Reply::Text("master".into())))
        })
    }

    /// Removes what expires before a time, in milliseconds: for them it is that late.
    pub(crate) fn expire_before(&self, time: u64) {
        for master in self.masters() {
            let script = "for _, key in ipairs(redis.call('KEYS', '*')) do
                            local at = redis.call('PEXPIRETIME', key)
                            if at >= 0 and at <= tonumber(ARGV[1]) then redis.call('DEL', key) end
                          end";
            master.done(&["EVAL", script, "0", &time.to_string()]);
        }
    }

    /// Removes everything.
    pub(crate) fn empty(&self) {
        for master in self.masters() {
            master.done(&["FLUSHALL"]);
        }
    }
}

#[allow(dead_code, reason = "not every suite needs all of it")]
impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::start_with(None, arguments)
    }

    fn start_with(config: Option<&str>, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config.map(|text| {
            let path = folder.path().join("server.conf");
            fs::write(&path, text).expect("writes");
            path.to_string_lossy().into_owned()
        });
        // Somebody else may take a port that was free a moment ago.
        for _ in 0..5 {
            let port = free_port();
            let mut all: Vec<String> = config.iter().cloned().collect();
            all.extend(["--port".into(), port.to_string(), "--bind".into(), "127.0.0.1".into()]);
            all.extend(["--save".into(), String::new()]);
            all.extend(["--dir".into(), folder.path().to_string_lossy().into_owned()]);
            // For the tests of what a slow server does.
            if config.is_none() {
                all.extend(["--enable-debug-command".into(), "yes".into()]);
            }
            all.extend(arguments.iter().map(ToString::to_string));
            if let Some(child) = run(&all, port) {
                return Self { port, folder, arguments: all, child: Mutex::new(Some(child)) };
            }
        }
        panic!("redis-server does not start");
    }

    /// Kills it, as a machine does that loses power.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().expect("nobody panics with it").take() {
            child.kill().expect("is killed");
            child.wait().expect("has ended");
        }
    }

    /// Starts it again where it was.
    pub(crate) fn restart(&self) {
        let mut restarted = None;
        until("the server starts again", || {
            restarted = run(&self.arguments, self.port);
            restarted.is_some()
        });
        *self.child.lock().expect("nobody panics with it") = restarted;
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a command on a connection of its own.
    pub(crate) fn ask(&self, command: &[&str]) -> Reply {
        let parts: Vec<&[u8]> = command.iter().map(|part| part.as_bytes()).collect();
        ask(self.port, &parts).unwrap_or_else(|error| Reply::Error(error.to_string()))
    }

    /// Sets a key to bytes, as any client does.
    pub(crate) fn set(&self, key: &str, value: &[u8]) {
        let reply = ask(self.port, &[b"SET", key.as_bytes(), value]).expect("an answer");
        assert_eq!(reply, Reply::Text("OK".into()));
    }

    /// [`Server::ask`] for what must not fail.
    pub(crate) fn done(&self, command: &[&str]) {
        let reply = self.ask(command);
        assert!(!matches!(reply, Reply::Error(_)), "{command:?}: {reply:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server and waits until it answers; `None` when it ends instead.
fn run(arguments: &[String], port: u16) -> Option<Child> {
    let started = Command::new("redis-server").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child =
        started.unwrap_or_else(|error| panic!("redis-server: {error}; Debian: apt-get install redis-server"));
    let begun = Instant::now();
    loop {
        if ask(port, &[b"PING"]).is_ok_and(|reply| !matches!(reply, Reply::Error(_))) {
            return Some(child);
        }
        if child.try_wait().expect("is ours").is_some() {
            return None;
        }
        assert!(begun.elapsed() < PATIENCE, "redis-server does not answer");
        sleep(LOOK);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        sleep(LOOK);
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(10);

/// The protocol, as another client speaks it.
fn ask(port: u16, command: &[&[u8]]) -> std::io::Result<Reply> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = format!("*{}\r\n", command.len()).into_bytes();
    for part in command {
        request.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        request.extend_from_slice(part);
        request.extend_from_slice(b"\r\n");
    }
    stream.write_all(&request)?;
    read_reply(&mut BufReader::new(stream))
}

fn read_reply(from: &mut BufReader<TcpStream>) -> std::io::Result<Reply> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let broken = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(broken)?;
    let number = || rest.parse::<i64>().map_err(|_| broken());
    Ok(match kind {
        "+" => Reply::Text(rest.into()),
        "-" => Reply::Error(rest.into()),
        ":" => Reply::Number(number()?),
        "$" => match usize::try_from(number()?) {
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                from.read_exact(&mut bytes)?;
                Reply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned())
            }
            Err(_) => Reply::Nothing,
        },
        "*" => Reply::List((0..number()?).map(|_| read_reply(from)).collect::<Result<_, _>>()?),
        _ => return Err(broken()),
    })
}
