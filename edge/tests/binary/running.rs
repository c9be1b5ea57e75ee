//! A running `edgepass serve --sim`, ended when dropped.

use std::{
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::Duration,
};

use serde_json::Value;

pub(crate) struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) node: SocketAddr,
    pub(crate) platform: SocketAddr,
}

/// `edgepass serve` with the component under test, on a port of its own.
pub(crate) fn serve(state: &Path) -> Command {
    let mut command = bare(state);
    command.args(["--listen", "127.0.0.1:0", "--component"]).arg(component(&root()));
    command
}

/// `edgepass serve` in the root of the repository.
pub(crate) fn bare(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edgepass"));
    command.current_dir(root()).env_clear();
    command.arg("serve").arg("--state-dir").arg(state);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn component(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = target.join("edgepass-node.wasm");
    assert!(path.exists(), "{}: `cargo xtask component` makes it", path.display());
    path
}

impl Running {
    pub(crate) fn start(state: &Path, arguments: &[&str]) -> Self {
        let mut command = serve(state);
        command.args(["--sim", "127.0.0.1:0"]).args(arguments).stderr(Stdio::null());
        Self::of(command)
    }

    /// What `command`, a `serve --sim`, starts.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let node = address_in(&mut stdout, "listening on http://");
        let platform = address_in(&mut stdout, "WeChat is simulated on http://");
        Self { child, stdout, node, platform }
    }

    /// What is printed up to and including the line that contains `part`.
    pub(crate) fn printed_until(&mut self, part: &str) -> String {
        let mut text = String::new();
        while !text.contains(part) {
            assert_ne!(self.stdout.read_line(&mut text).expect("a line"), 0, "ends before {part:?}: {text}");
        }
        text
    }

    /// What is logged up to and including the line that contains `part`, where the log is kept.
    pub(crate) fn logged_until(&mut self, part: &str) -> String {
        let mut log = BufReader::new(self.child.stderr.take().expect("piped"));
        let mut text = String::new();
        while !text.contains(part) {
            assert_ne!(log.read_line(&mut text).expect("a line"), 0, "ends before {part:?}: {text}");
        }
        text
    }

    /// A fresh code; `None` when the simulator is gone.
    pub(crate) fn code(&self) -> Option<String> {
        let (status, body) = request(self.platform, "POST", "/sim/wechat/login", "", r#"{"user":"alice"}"#)?;
        assert_eq!(status, 200, "{body}");
        Some(body["code"].as_str().expect("a code").to_owned())
    }

    /// The access token of a login that succeeds; `None` when the node does not answer any more.
    pub(crate) fn log_in(&self, code: &str) -> Option<String> {
        Some(self.log_in_whole(code)?["access_token"].as_str().expect("a token").to_owned())
    }

    /// The whole answer of such a login.
    pub(crate) fn log_in_whole(&self, code: &str) -> Option<Value> {
        let body = format!(r#"{{"code":"{code}"}}"#);
        let (status, answer) = request(self.node, "POST", "/api/login", "", &body)?;
        assert_eq!(status, 200, "{answer}");
        Some(answer)
    }

    pub(crate) fn session_status(&self, token: &str) -> u16 {
        let bearer = format!("authorization: Bearer {token}\r\n");
        request(self.node, "GET", "/api/session", &bearer, "").expect("the node answers").0
    }

    /// Sends a signal by its number, as `kill` does.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("the program ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already, or not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address_in(lines: &mut impl BufRead, before: &str) -> SocketAddr {
    let mut line = String::new();
    loop {
        line.clear();
        assert_ne!(lines.read_line(&mut line).expect("a line"), 0, "ends before it says {before:?}");
        if let Some(rest) = line.strip_prefix(before) {
            let address = rest.split([':', ' ', '\n']).take(2).collect::<Vec<_>>().join(":");
            return address.parse().unwrap_or_else(|error| panic!("{error} in {line:?}"));
        }
    }
}

/// One exchange on a connection of its own: status, and the body where it is JSON. `None` when the
/// other side is gone.
pub(crate) fn request(to: SocketAddr, method: &str, path: &str, head: &str, body: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(Duration::from_mins(1))).expect("a time limit");
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n{head}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}
