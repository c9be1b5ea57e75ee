//! The simulated platforms: a faithful stand-in for development, tests and load, `WeChat` first.
//!
//! **This logs anyone in as anyone.** Whoever can reach it can get a code for any user name, so it
//! listens on loopback and refuses any other address unless [`SimConfig::allow_non_loopback`] says
//! otherwise. It says so in one log line when it starts, and at `/`.
//!
//! ```
//! use edgepass_sim::{SimConfig, Simulator};
//!
//! let simulator = Simulator::start(SimConfig::default())?;
//! let base_url = format!("http://{}", simulator.addr());
//! # assert!(base_url.starts_with("http://127.0.0.1:"));
//! simulator.stop();
//! # Ok::<(), edgepass_sim::StartError>(())
//! ```
//!
//! # The platform's side
//!
//! `GET /sns/jscode2session` answers as `WeChat` does: JSON labelled `text/plain`, HTTP 200 for
//! errors too, no `errcode` on success, `unionid` only for apps of an open-platform account. A
//! code is good once, for five minutes, for the app it was issued to:
//!
//! | what | errcode |
//! |---|---|
//! | method other than GET, or no `appid` | 41002 |
//! | unknown `appid` | 40013 |
//! | no `secret`, wrong `secret` | 41004, 40125 |
//! | no `js_code` | 41008 |
//! | `grant_type` other than `authorization_code` | 40002 |
//! | code unknown, expired, of another app or of another kind | 40029 |
//! | code redeemed before | 40163 |
//! | user blocked | 40226, or the number set for the user |
//!
//! Any other number comes from a fault. Parameters are decoded as a form (`+` is a space); of a
//! parameter sent twice the first counts, and the journal shows both.
//!
//! # The hand on the controls
//!
//! Bodies are JSON whatever their content type says, at most 64 KiB. Unknown members are refused,
//! so that a mistyped fault does not pass for a working one.
//!
//! | route | body | answer |
//! |---|---|---|
//! | `POST /sim/wechat/login` | `{user, appid?, kind?: "login"\|"phone"\|"web", rotate?}` | `{code}`, in the role of `wx.login` |
//! | `POST /sim/wechat/users` | `{user, blocked?, errcode?, unionid?}` | how every app sees the user; only `user` asks without changing |
//! | `POST /sim/faults` | `{kind, …, platform?, match?: {code?, appid?}, times?, every?, spend?}` | 201 `{id}` |
//! | `GET`, `DELETE /sim/faults` | – | those still armed; disarms all |
//! | `GET`, `DELETE /sim/journal` | – | `{total, capacity, entries}`; forgets all |
//! | `GET`, `POST /sim/clock` | `{advance_ms}` | `{unix_ms}` |
//! | `GET /sim/healthz` | – | `{status: "ok"}` |
//!
//! Without `appid`, `/sim/wechat/login` takes the first app. A login makes a new `session_key` and
//! ends the old one when the old one is older than [`SimConfig::session_key_refresh`], or as
//! `rotate` says; whichever code is redeemed, the answer carries the key valid at that moment.
//!
//! Kinds of faults, with their own members ([`Kind`] says more):
//!
//! | kinds | what comes back |
//! |---|---|
//! | `latency{ms}`, `drip{ms}` | the true answer, late or byte by byte |
//! | `stall{ms?}`, `reset`, `close`, `garbage` | no answer: silence, a TCP reset, an end, not HTTP |
//! | `stall_body{ms?}`, `reset_body`, `truncate` | half the true answer, then the same |
//! | `errcode{errcode}`, `string_errcode{errcode}` | the platform's error form |
//! | `http_status{status}`, `html`, `empty`, `huge{bytes?, chunked?}`, `body{body, status?, content_type?}` | another answer |
//! | `patch{set?, unset?}`, `non_utf8` | the true answer, changed |
//!
//! Those made from the true answer use the code up, the others only with `spend: true`. `times`
//! absent means until disarmed; `every: n` hits each n-th matching call; all matching latencies
//! add up, and the oldest other match decides.
//!
//! ```sh
//! curl -d '{"user":"alice"}' http://127.0.0.1:8090/sim/wechat/login
//! curl -d '{"kind":"errcode","errcode":45011,"times":3}' http://127.0.0.1:8090/sim/faults
//! curl -d '{"kind":"latency","ms":80}' http://127.0.0.1:8090/sim/faults
//! curl http://127.0.0.1:8090/sim/journal
//! ```
//!
//! # Cost
//!
//! As the upstream of a load test on two cores shared with the generator (release, 64 kept-alive
//! connections, one thread): 10 µs of CPU per exchange with `journal_capacity: 0`, 10 to 13 µs with the
//! default; the generator was the limit at 30,000 exchanges per second.
//!
//! # Map
//!
//! ```text
//! server     listens, threads, connections, stop     wire     the bytes HTTP forbids: reset, half a body
//! routes     one request: a call or a control        faults   which fault hits which call, and its answer
//! platform   what is common to all platforms         journal  what was received
//! wechat     WeChat's wire form, apps and rules      codes    issue and redeem
//! clock, query, config                               people   who is who
//! ```
//! A second platform is a file beside `wechat.rs`, which keeps its own codes and people and makes
//! a `platform::Call` of a request; a variant of [`Platform`]; and its paths in `routes.rs`.

mod clock;
mod codes;
mod config;
mod faults;
mod journal;
mod people;
mod platform;
mod query;
mod routes;
mod server;
mod wechat;
mod wire;

pub use self::{
    clock::Clock,
    config::{SAMPLE_APPID, SAMPLE_SECRET, SimConfig, StartError},
    faults::{BadFault, Fault, Faults, Kind, Match, Rules},
    journal::{Entry, Journal, Outcome},
    people::Identity,
    platform::Platform,
    server::Simulator,
    wechat::{App, BadApp, ControlError},
};
