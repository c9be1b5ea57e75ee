//! A service that answers what it is told to, for the commands that talk to one.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    process::{Command, Output, Stdio},
    thread,
};

use serde_json::Value;

/// The program, with an empty environment.
pub(crate) fn edgepass(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edgepass"));
    command.env_clear().args(arguments).stdin(Stdio::null());
    command
}

/// What it said on standard error.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Gives these answers, one per connection, and keeps what it was asked: heads and bodies.
pub(crate) struct Stub {
    address: SocketAddr,
    asked: thread::JoinHandle<Vec<(String, Vec<u8>)>>,
}

impl Stub {
    pub(crate) fn start(answers: Vec<(u16, Value)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = thread::spawn(move || answers.iter().map(|answer| Self::answer(&listener, answer)).collect());
        Self { address, asked }
    }

    fn answer(listener: &TcpListener, (status, body): &(u16, Value)) -> (String, Vec<u8>) {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "a whole head: {head}");
        }
        let field = |line: &str| line.to_lowercase().strip_prefix("content-length: ")?.trim().parse::<usize>().ok();
        let mut sent = vec![0; head.lines().find_map(field).unwrap_or_default()];
        reader.read_exact(&mut sent).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        write!(
            reader.get_mut(),
            "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        (head, sent)
    }

    /// Runs `edgepass` against it, with a token `file-token`.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "file-token\n").unwrap();
        let mut command = edgepass(arguments);
        command.arg("--admin").arg(format!("http://{}/", self.address)).arg("--token-file").arg(&file);
        command.output().unwrap()
    }

    pub(crate) fn asked(self) -> Vec<(String, Vec<u8>)> {
        self.asked.join().unwrap()
    }
}
