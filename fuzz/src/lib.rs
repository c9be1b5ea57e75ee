//! What a stranger can send, as functions of bytes: tokens, requests, trace headers, what a platform
//! answers, and what somebody who can write the store leaves there. Each says what must hold for any
//! bytes at all.
//!
//! `cargo fuzz` runs them without end (`fuzz_targets/`); the tests below play every file of
//! `corpus/` and a bounded number of mutations of them, the same ones each time.

// What must hold is said by panicking.
#![allow(clippy::panic, clippy::missing_panics_doc)]

use std::cell::OnceCell;

use edgepass::{
    Service,
    config::Setup,
    message::{Head, Request, Response},
    outbound::Call,
    platforms::wechat,
    session::{Epoch, Moved, Recent, Session, Tombstone},
    store::envelope::{self, Record},
    testing::{CannedHttp, SeededRandom, TestHost, block_on, reply},
    token::refresh::Refresh,
    trace::Trace,
};
use serde_json::{Value, json};

/// A token, whatever it claims to be: as refresh token and as bearer token.
pub fn token(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let setup = setup();
    if let Ok(refresh) = Refresh::verify(&text, &setup.ring) {
        let keys = setup.ring.by_id(refresh.key).expect("the key that verified it");
        assert_eq!(refresh.issue(keys), text, "a token has one spelling");
    }
    WORLD.with(|world| {
        let world = world.get_or_init(World::new);
        let bearer = [format!("authorization: Bearer {}\n", text.replace(['\n', '\r'], " "))];
        let shown = world.send("GET", "/api/session", bearer.concat().as_bytes(), b"");
        assert!(matches!(shown.status, 200 | 401), "{shown:?}");
        let body = json!({"refresh_token": text}).to_string();
        let refreshed = world.send("POST", "/api/token/refresh", b"", body.as_bytes());
        assert!(matches!(refreshed.status, 200 | 400 | 401 | 413), "{refreshed:?}");
    });
}

/// A stored value: read as every kind of record, and met by requests where one of them lies.
pub fn envelope(data: &[u8]) {
    fn read<'a, R: Record + serde::Deserialize<'a>>(data: &'a [u8]) {
        if let Ok(record) = envelope::read_plain::<R>(data) {
            let expires = edgepass::clock::UnixSeconds(0);
            let again = envelope::plain(&record, expires);
            assert!(again.len() <= data.len(), "nothing is read that was not there");
        }
    }
    read::<Epoch>(data);
    read::<Moved>(data);
    read::<Recent>(data);
    read::<Tombstone>(data);
    assert!(Session::open(data, "edgepass/default/s/x", &setup().ring).is_err(), "no session was sealed for this key");

    // Which kind the length says, for want of time to meet all of them.
    let kind = ["s", "x", "e", "g", "l", "o", "f"][data.len() % 7];
    let world = World::new();
    let granted = world.log_in();
    let genuine = world.plant(kind, data, &granted);
    let bearer = format!("authorization: Bearer {}\n", granted["access_token"].as_str().unwrap_or_default());
    let refresh = json!({"refresh_token": granted["refresh_token"]}).to_string();
    let answers = [
        world.send("GET", "/api/session", bearer.as_bytes(), b""),
        world.send("POST", "/api/token/refresh", b"", refresh.as_bytes()),
        world.send("POST", "/api/login", b"", br#"{"code":"alice-2"}"#),
    ];
    for answer in &answers {
        assert!(matches!(answer.status, 200 | 401 | 403 | 503), "{kind}: {answer:?}");
    }
    if matches!(kind, "s" | "x") && !genuine {
        assert!(answers[..2].iter().all(|answer| answer.status != 200), "{kind} was written by somebody else");
    }
}

/// A whole request: `METHOD target`, header lines, an empty line, the body.
pub fn request(data: &[u8]) {
    let (head, body) = split(data, b"\n\n");
    let (line, fields) = split(head, b"\n");
    let line = String::from_utf8_lossy(line);
    let (method, target) = line.split_once(' ').unwrap_or(("GET", &line));
    let world = World::new();
    let mut fields = fields.to_vec();
    fields.push(b'\n');
    let answer = world.send(method, target, &fields, body);
    assert!(matches!(answer.status, 200 | 204 | 304 | 400..=429 | 503), "{answer:?}");
    let problem = answer.head.get("content-type") == Some("application/problem+json");
    let oauth = target.starts_with("/oauth/");
    if answer.status >= 400 && !oauth {
        assert!(problem, "{answer:?}");
        let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(body["status"], answer.status);
        // Whoever sent no credentials has made no error (RFC 6750, §3.1).
        assert!(body["code"].is_string() || answer.status == 401, "{body}");
        assert!(body["trace_id"].is_string(), "{body}");
    }
    assert!(answer.head.get("x-trace-id").is_some_and(is_trace_id));
}

/// `traceparent` and `x-trace-id`, by the line.
pub fn trace(data: &[u8]) {
    let (parent, id) = split(data, b"\n");
    let mut head = Head::new();
    head.push_bytes("traceparent", parent);
    head.push_bytes("x-trace-id", id);
    let trace = Trace::of(&head, &SeededRandom::new(1));
    assert!(is_trace_id(&trace.id), "{trace:?}");
    let parts: Vec<&str> = trace.parent.split('-').collect();
    assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [2, 32, 16, 2], "{trace:?}");
    assert!(parts.concat().bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)), "{trace:?}");
    assert_ne!(parts[1], "0".repeat(32), "{trace:?}");
}

/// What a platform answers: two bytes of status, then the body.
pub fn platform(data: &[u8]) {
    let (status, body) = data.split_at(data.len().min(2));
    let status = status.iter().fold(0_u16, |status, byte| status << 8 | u16::from(*byte));
    let parsed = wechat::parse(status, body);
    let body = body.to_vec();
    let world = World::answering(move |_| reply(status, body.clone()));
    let answer = world.send("POST", "/api/login", b"", br#"{"code":"alice-1"}"#);
    assert_eq!(answer.status == 200, parsed.is_ok(), "{answer:?}");
    assert!(matches!(answer.status, 200 | 401 | 403 | 429 | 500 | 502 | 503), "{answer:?}");
    if answer.status == 500 {
        let problem: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(problem["code"], "config", "the only 500 a platform can cause");
    }
    if answer.status != 200 {
        assert_eq!(world.host.store.keys().len(), 0, "a login that failed wrote nothing");
    }
}

const KEYS: [(&str, &str); 6] = [
    ("master_key", "5Hh1YBd9n0vQmXcT3rWl8sKfZ2uJpA7gEoNiR6tVyDk"),
    ("subject_key", "Zk4mQ9sXv1TbL6yN0cRjW3hPfUaG7dEoI2uKtS5rHwY"),
    ("wechat_appid", "wx1"),
    ("wechat_secret", "s"),
    ("wechat_base_url", "http://127.0.0.1:9"),
    ("operator_tokens", "operator-token-of-the-fuzz-targets-012345678"),
];

fn settings() -> Vec<(String, String)> {
    KEYS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

fn setup() -> Setup {
    Setup::read(&settings()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

thread_local! {
    /// One world for what changes nothing in it.
    static WORLD: OnceCell<World> = const { OnceCell::new() };
}

/// A service over an empty store and a platform that knows everybody.
struct World {
    host: TestHost,
    service: Service<TestHost>,
}

impl World {
    fn new() -> Self {
        Self::answering(|_| reply(200, r#"{"openid":"o-alice","session_key":"a2V5"}"#))
    }

    fn answering(answer: impl Fn(&Call) -> edgepass::outbound::Reply + 'static) -> Self {
        let host = TestHost::new(CannedHttp::answering(move |call| Ok(answer(call))));
        let service = Service::new(host.clone(), &settings());
        Self { host, service }
    }

    fn send(&self, method: &str, target: &str, head: &[u8], body: &[u8]) -> Response {
        let head = Head::from_lines(head.to_vec());
        let request = Request { method: method.to_owned(), target: target.to_owned(), head, body: body.to_vec() };
        let response = block_on(self.service.handle(request));
        self.host.settle();
        response
    }

    fn log_in(&self) -> Value {
        let answer = self.send("POST", "/api/login", b"", br#"{"code":"alice-1"}"#);
        assert_eq!(answer.status, 200);
        serde_json::from_slice(&answer.body).expect("JSON")
    }

    /// Puts a value where the record of this kind lies, or would lie; says whether it is what lay there.
    fn plant(&self, kind: &str, value: &[u8], granted: &Value) -> bool {
        let id = match kind {
            "s" | "x" | "g" => &granted["session"]["id"],
            _ => &granted["user"]["id"],
        };
        let there = self.host.store.keys().into_iter().find(|key| key.split('/').nth(2) == Some(kind));
        let key = there.unwrap_or_else(|| format!("edgepass/default/{kind}/{}", id.as_str().unwrap_or_default()));
        let genuine = self.host.store.value(&key).as_deref() == Some(value);
        self.host.store.plant(&key, value);
        genuine
    }
}

fn is_trace_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// What is before and behind the first `at`.
fn split<'d>(data: &'d [u8], at: &[u8]) -> (&'d [u8], &'d [u8]) {
    data.windows(at.len()).position(|window| window == at).map_or((data, &[]), |found| {
        let (before, rest) = data.split_at(found);
        (before, &rest[at.len()..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_token_is_good_or_refused() {
        play("token", token);
    }

    #[test]
    fn any_stored_value_is_read_or_refused() {
        play("envelope", envelope);
    }

    #[test]
    fn any_request_is_answered() {
        play("request", request);
    }

    #[test]
    fn any_trace_header_gives_a_trace() {
        play("trace", trace);
    }

    #[test]
    fn any_reply_of_a_platform_is_a_login_or_an_error() {
        play("platform", platform);
    }

    /// Mutations of each test, unless `FUZZ_ROUNDS` says how many.
    const ROUNDS: usize = 20_000;

    /// Every file of the corpus, then mutations of them.
    fn play(name: &str, target: fn(&[u8])) {
        let folder = std::path::Path::new(FOLDER).join("corpus").join(name);
        let mut files: Vec<_> = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        let corpus: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("a file")).collect();
        assert!(corpus.len() > 2, "a corpus");
        for data in &corpus {
            target(data);
        }

        let rounds = std::env::var("FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
        let random = SeededRandom::new(20_261_130);
        for _ in 0..rounds {
            target(&mutated(&corpus, &random));
        }
    }

    const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

    /// One of the corpus with a few changes, of the kinds libFuzzer makes.
    fn mutated(corpus: &[Vec<u8>], random: &SeededRandom) -> Vec<u8> {
        let below = |n: usize| usize::try_from(random.next() % n.max(1) as u64).expect("below n");
        let byte = || random.next().to_le_bytes()[0];
        let mut data = corpus[below(corpus.len())].clone();
        for _ in 0..=below(6) {
            let at = below(data.len() + 1);
            let end = (at + 1 + below(16)).min(data.len());
            match below(8) {
                0 if at < data.len() => data[at] = byte(),
                1 if at < data.len() => data[at] ^= 1 << below(8),
                2 => data.insert(at, byte()),
                3 if at < data.len() => drop(data.drain(at..end)),
                4 if at < data.len() => {
                    let copy = data[at..end].to_vec();
                    let to = below(data.len() + 1);
                    data.splice(to..to, copy);
                }
                5 => {
                    let other = &corpus[below(corpus.len())];
                    let from = below(other.len() + 1);
                    data.truncate(at);
                    data.extend_from_slice(&other[from..]);
                }
                6 => {
                    let word = WORDS[below(WORDS.len())];
                    data.splice(at..at, word.bytes());
                }
                _ => data.truncate(at),
            }
        }
        data
    }

    /// What parsers trip over.
    const WORDS: [&str; 20] = [
        "\"",
        "\\u0000",
        "\\ud800",
        "{",
        "[[[[[[[[",
        "}",
        "null",
        "-1",
        "1e999",
        "18446744073709551616",
        "true",
        "\0",
        "\r\n",
        "\u{feff}",
        "../",
        "%00",
        "epr1_",
        "edgepass\u{1}",
        ".",
        "errcode",
    ];
}
