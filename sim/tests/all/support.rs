//! A simulator under test, and the smallest client that shows what was on the wire.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    ops::Deref,
    time::Duration,
};

use edgepass_sim::{App, Clock, SimConfig, Simulator};
use serde_json::Value;

pub(crate) const APPID: &str = "wxaaaaaaaaaaaaaaaa";
/// What a careless client would send unescaped.
pub(crate) const SECRET: &str = "s+e/c=r&e%t";
pub(crate) const SECRET_ESCAPED: &str = "s%2Be%2Fc%3Dr%26e%25t";
/// Of the same owner.
pub(crate) const SISTER: &str = "wxbbbbbbbbbbbbbbbb";
/// Of no owner.
pub(crate) const LONER: &str = "wxcccccccccccccccc";

/// A simulator of three apps whose clock stands still.
pub(crate) struct Sim(Simulator);

impl Deref for Sim {
    type Target = Simulator;

    fn deref(&self) -> &Simulator {
        &self.0
    }
}

impl Sim {
    pub(crate) fn start() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut SimConfig)) -> Self {
        let app = |appid: &str, owner: Option<&str>| App {
            appid: appid.to_owned(),
            secret: SECRET.to_owned(),
            owner: owner.map(str::to_owned),
        };
        let mut config = SimConfig {
            apps: vec![app(APPID, Some("owner")), app(SISTER, Some("owner")), app(LONER, None)],
            clock: Clock::manual(Duration::from_secs(1_700_000_000)),
            ..SimConfig::default()
        };
        change(&mut config);
        Self(Simulator::start(config).expect("a sound configuration"))
    }

    /// A code for alice of the first app.
    pub(crate) fn code(&self) -> String {
        self.log_in("alice", None).expect("a code")
    }

    /// Exchanges `code` (already escaped) for the first app.
    pub(crate) fn exchange(&self, code: &str) -> Reply {
        self.exchange_for(APPID, code)
    }

    pub(crate) fn exchange_for(&self, appid: &str, code: &str) -> Reply {
        self.get(&query(appid, code))
    }

    pub(crate) fn get(&self, target: &str) -> Reply {
        self.send("GET", target, "")
    }

    pub(crate) fn post(&self, target: &str, body: &str) -> Reply {
        self.send("POST", target, body)
    }

    pub(crate) fn send(&self, method: &str, target: &str, body: &str) -> Reply {
        let raw = request(self.addr(), &head(method, target, body)).expect("a whole answer");
        Reply::read(&raw)
    }

    /// Arms a fault through HTTP.
    pub(crate) fn fault(&self, fault: &str) {
        let reply = self.post("/sim/faults", fault);
        assert_eq!(reply.status, 201, "{fault}: {}", reply.text());
    }
}

pub(crate) fn query(appid: &str, code: &str) -> String {
    format!(
        "/sns/jscode2session?appid={appid}&secret={SECRET_ESCAPED}&js_code={code}\
         &grant_type=authorization_code"
    )
}

/// A request that asks for the connection to be closed afterwards.
pub(crate) fn head(method: &str, target: &str, body: &str) -> String {
    format!(
        "{method} {target} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(addr).expect("the simulator listens");
    // Bounds a test that fails; none waits for it.
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit above zero");
    socket
}

/// All bytes until the orderly end, or how it ended otherwise.
pub(crate) fn request(addr: SocketAddr, request: &str) -> io::Result<Vec<u8>> {
    let mut socket = connect(addr);
    socket.write_all(request.as_bytes())?;
    let mut raw = Vec::new();
    socket.read_to_end(&mut raw)?;
    Ok(raw)
}

/// An answer taken apart.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn read(raw: &[u8]) -> Self {
        let end = raw.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(raw[..end].to_vec()).expect("an ASCII head");
        let status = head.split(' ').nth(1).expect("a status line").parse().expect("a number");
        Self { status, head: head.to_ascii_lowercase(), body: raw[end + 4..].to_vec() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The platform's number, after checking that this is its error form.
    pub(crate) fn errcode(&self) -> i64 {
        let json = self.json();
        assert_eq!(self.status, 200, "errors are HTTP 200: {json}");
        assert_eq!(self.header("content-type"), Some("text/plain"));
        assert!(json["openid"].is_null() && json["session_key"].is_null(), "{json}");
        json["errcode"].as_i64().unwrap_or_else(|| panic!("no number: {json}"))
    }

    /// The openid, after checking that this is a success.
    pub(crate) fn openid(&self) -> String {
        let json = self.json();
        assert_eq!(self.status, 200);
        assert!(json.get("errcode").is_none(), "{json}");
        json["openid"].as_str().unwrap_or_else(|| panic!("no openid: {json}")).to_owned()
    }
}
