//! nginx in front of a service, configured with the very text of `docs/proxies.md`.
//!
//! Needs nginx, so it runs when it is asked for: `make proxies`.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::running::{Running, request};

#[test]
#[ignore = "needs nginx: `make proxies`"]
fn a_service_behind_nginx_learns_who_is_calling_from_edgepass_alone() {
    let state = tempfile::tempdir().unwrap();
    let running = Running::start(state.path(), &[]);
    let nginx = Nginx::start(running.node);
    let login = running.log_in_whole(&running.code().unwrap()).unwrap();
    let token = login["access_token"].as_str().unwrap();
    let expected = [
        "x-edgepass-app=wechat".to_owned(),
        format!("x-edgepass-session={}", login["session"]["id"].as_str().unwrap()),
        format!("x-edgepass-user={}", login["user"]["id"].as_str().unwrap()),
    ];
    let spoofed = "X-Edgepass-User: eve\r\nx-edgepass-user: eve\r\nx_edgepass_user: eve\r\nX.Edgepass.User: eve\r\n\
                   X-Edgepass_Session: eve\r\nX-EDGEPASS-SESSION: eve\r\nx-edgepass-app: eve\r\nX~Edgepass~App: eve\r\n";
    let bearer = format!("Authorization: Bearer {token}\r\n");

    for (path, own) in [("/orders/1?a=b", ""), ("/orders/1", spoofed), ("/wechat/a", spoofed)] {
        let answer = nginx.get(path, &format!("{own}{bearer}{own}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.head);
        let forwarded = nginx.forwarded().unwrap();
        assert_eq!(forwarded.target, path);
        assert_eq!(forwarded.claims(), expected, "{path}");
        assert_eq!(forwarded.field("authorization"), None, "the token ends at the gateway");
    }
    assert_eq!(nginx.get("/public/a", &format!("{bearer}{spoofed}")).status, 200);
    assert_eq!(nginx.forwarded().unwrap().claims(), NONE, "where nobody is asked nobody is named");

    for (head, challenge) in [
        (spoofed.to_owned(), "Bearer"),
        (format!("{spoofed}Authorization: Bearer {token}x\r\n"), r#"Bearer error="invalid_token""#),
    ] {
        let answer = nginx.get("/orders/1", &head);
        assert_eq!((answer.status, answer.field("www-authenticate")), (401, Some(challenge)));
    }
    assert_eq!(nginx.get("/_edgepass/any", &bearer).status, 404, "the question is nobody's to ask");
    assert!(nginx.forwarded().is_none(), "what is refused is not forwarded");

    assert_eq!(request(running.node, "POST", "/api/logout", &bearer, "").unwrap().0, 204);
    assert_eq!(nginx.get("/orders/1", &bearer).status, 401, "logged out");
    drop(running);
    let answer = nginx.get("/orders/1", &bearer);
    assert!(answer.status >= 500, "without edgepass nobody gets through: {}", answer.status);
    assert!(nginx.forwarded().is_none());
}

#[test]
#[ignore = "needs nginx: `make proxies`"]
fn only_a_yes_of_edgepass_lets_anybody_through_nginx() {
    // What a node says when its store is down, when it is busy, and what it never says.
    for status in [503, 504, 500, 429, 404, 400, 302] {
        let nginx = Nginx::start(upstream(format!("{status} X")).0);
        let answer = nginx.get("/orders/1", "Authorization: Bearer x\r\nX-Edgepass-User: eve\r\n");
        assert_eq!(answer.status, 500, "{status}");
        assert!(nginx.forwarded().is_none(), "{status}");
    }
    let nginx = Nginx::start(upstream("200 OK").0);
    assert_eq!(nginx.get("/orders/1", "X-Edgepass-User: eve\r\n").status, 200);
    assert_eq!(nginx.forwarded().unwrap().claims(), NONE, "a yes without a name gives no name");
}

#[test]
#[ignore = "needs nginx: `make proxies`"]
fn an_app_s_location_asks_for_that_app() {
    let (edgepass, asked) = upstream("401 X");
    let nginx = Nginx::start(edgepass);
    for (path, target) in [("/wechat/a/b?c=d", "/api/verify/app/wechat/"), ("/a/../b?app=x", "/api/verify/any/")] {
        assert_eq!(nginx.get(path, "").status, 401);
        let asked = asked.recv_timeout(PATIENCE).unwrap();
        assert_eq!(asked.target.split('?').next(), Some(target), "{path}");
        assert_eq!(asked.field("content-length"), None);
    }
}

/// nginx in the foreground, in a folder of its own, with a service behind it that keeps what it is
/// asked.
struct Nginx {
    child: Child,
    folder: TempDir,
    forwarded: mpsc::Receiver<Message>,
}

/// A request or an answer without its body.
struct Message {
    head: String,
    /// Of a request.
    target: String,
    /// Of an answer.
    status: u16,
}

impl Nginx {
    fn start(edgepass: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (service, forwarded) = upstream("200 OK");
        let documents = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/proxies.md");
        let mut text = block(&fs::read_to_string(documents).unwrap());
        let socket = Self::socket(&folder);
        for (shown, here) in [
            ("127.0.0.1:3000", edgepass.to_string()),
            ("127.0.0.1:8081", service.to_string()),
            ("listen 8080", format!("listen unix:{}", socket.display())),
        ] {
            assert_eq!(text.matches(shown).count(), 1, "{shown} in {text}");
            text = text.replace(shown, &here);
        }
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {}/{kind};\n", folder.path().display()))
            .concat();
        let path = folder.path().join("nginx.conf");
        let whole = format!(
            "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{text}}}\n"
        );
        fs::write(&path, whole).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).args(["-e", "error.log", "-c"]).arg(&path);
        let child = command.stdin(Stdio::null()).spawn().expect("nginx: `apt-get install nginx-light`");
        let mut nginx = Self { child, folder, forwarded };
        while UnixStream::connect(Self::socket(&nginx.folder)).is_err() {
            let ended = nginx.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", fs::read_to_string(nginx.folder.path().join("error.log")).unwrap());
            thread::yield_now();
        }
        nginx
    }

    fn socket(folder: &TempDir) -> PathBuf {
        folder.path().join("nginx.sock")
    }

    fn get(&self, target: &str, head: &str) -> Message {
        let mut stream = UnixStream::connect(Self::socket(&self.folder)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: service.example\r\nConnection: close\r\n{head}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        Message::of(answer.split_inclusive("\r\n\r\n").next().unwrap().into())
    }

    /// What reached the service, oldest first.
    fn forwarded(&self) -> Option<Message> {
        self.forwarded.try_recv().ok()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Ended already, or not needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Message {
    fn of(head: String) -> Self {
        let second = head.split(' ').nth(1).unwrap_or_default().to_owned();
        Self { head, status: second.parse().unwrap_or_default(), target: second }
    }

    /// Names in lower case.
    fn fields(&self) -> impl Iterator<Item = (String, &str)> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.map(|(name, value)| (name.to_lowercase(), value.trim()))
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.fields().find_map(|(field, value)| (field == name).then_some(value))
    }

    /// Every field that some service may read as one of ours, sorted: `name=value`.
    fn claims(&self) -> Vec<String> {
        let read_as_ours = |name: &str| name.replace(|c: char| !c.is_alphanumeric(), "-").starts_with("x-edgepass");
        let claims = self.fields().filter(|(name, _)| read_as_ours(name));
        let mut claims: Vec<_> = claims.map(|(name, value)| format!("{name}={value}")).collect();
        claims.sort_unstable();
        claims
    }
}

/// A server that answers every request with this status line, and what it was asked.
fn upstream(answer: impl Into<String>) -> (SocketAddr, mpsc::Receiver<Message>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = format!("HTTP/1.1 {}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", answer.into());
    let (seen, asked) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(reader.read_line(&mut head).unwrap(), 0, "a whole head: {head}");
            }
            // Kept before it is answered, so that whoever has the answer finds it. Some do not look.
            let _ = seen.send(Message::of(head));
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    (address, asked)
}

/// The text between the fences of the one `nginx` block.
fn block(markdown: &str) -> String {
    let (_, rest) = markdown.split_once("```nginx\n").expect("a block");
    rest.split_once("```").expect("its end").0.to_owned()
}

const NONE: [String; 0] = [];
/// Far beyond what any test waits for.
const PATIENCE: Duration = Duration::from_secs(30);
