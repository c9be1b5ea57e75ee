//! What is logged: one JSON line per request, and security events under stable names.
//!
//! Events and failed requests are always logged, successful requests by a sample. Ids of sessions
//! and users are hashed; codes, tokens, keys, openids, headers and URLs have no field to stand in.
//! Everything is JSON, so a control character cannot begin a line of its own.

use std::borrow::Cow;

use serde::Serialize;

use crate::{clock::UnixMillis, host::Level, session::SessionId, token::keys::Subject, trace::Trace};

/// A security event. Names are stable: alarms are built on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A code became a session.
    LoginOk,
    /// A code did not.
    LoginFail,
    /// A session was renewed.
    TokenRefresh,
    /// The refresh token before the newest was answered with its successor again.
    TokenReplay,
    /// A refresh token was newer than the store knows.
    TokenAhead,
    /// A spent refresh token was used, and its session ended.
    TokenReuse,
    /// A session was not renewed.
    TokenFail,
    /// A session was ended.
    SessionRevoke,
    /// Every session of a user was ended by the user.
    SessionRevokeAll,
    /// An operator ended a session, or all of a user.
    AdminRevoke,
    /// An operator blocked a user.
    AdminBlock,
    /// An operator lets a user log in again.
    AdminUnblock,
    /// An operator had records removed that are over.
    AdminSweep,
    /// Somebody who is no operator tried to be one.
    AdminRefused,
}

/// What became known about a request while it was answered.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Note {
    /// The app, by our name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// Its platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<&'static str>,
    /// The back end that asked, by our name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The session. Only a line hashes it: most requests write none.
    #[serde(skip)]
    pub sid: Option<SessionId>,
    /// The user, likewise.
    #[serde(skip)]
    pub subject: Option<Subject>,
    /// The public code of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Why it failed, closer than the caller is told; or why a session ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// The platform's own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform_code: Option<i64>,
    /// The platform's name for its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform_request_id: Option<String>,
    /// How many sessions were ended, or records removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// Whether the user was unknown so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_new: Option<bool>,
    /// Whether it belongs to a load test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_shadow: Option<bool>,
    /// Whether an earlier login was answered again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_repeated: Option<bool>,
}

/// A note with its ids as they may stand in a log.
#[derive(Serialize)]
pub struct Hashed<'a> {
    /// The session, hashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sid_hash: Option<String>,
    /// The user, hashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid_hash: Option<String>,
    /// The rest.
    #[serde(flatten)]
    pub note: &'a Note,
}

/// The line of one request.
#[derive(Serialize)]
pub struct Access<'a> {
    /// `GET` and the like; `_OTHER` for what is none of HTTP's own.
    pub method: &'static str,
    /// The route, never the path: that is the client's text.
    pub route: &'static str,
    /// HTTP status.
    pub status: u16,
    /// How long it took.
    pub duration_ms: f64,
    /// The share of successful requests that is logged.
    pub sample: f64,
    /// What else is known.
    #[serde(flatten)]
    pub known: Hashed<'a>,
}

#[derive(Serialize)]
struct Line<'a, T> {
    ts: String,
    level: &'static str,
    event: &'a str,
    trace_id: &'a str,
    #[serde(flatten)]
    rest: T,
}

/// A line: the event `name` at `now` in `trace`, and what `rest` has to say.
#[must_use]
pub fn line<T: Serialize>(now: UnixMillis, level: Level, name: &str, trace: &Trace, rest: T) -> String {
    let level = match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    };
    let line = Line { ts: now.to_string(), level, event: name, trace_id: &trace.id, rest };
    serde_json::to_string(&line).unwrap_or_default()
}

impl Event {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LoginOk => "login.ok",
            Self::LoginFail => "login.fail",
            Self::TokenRefresh => "token.refresh",
            Self::TokenReplay => "token.replay",
            Self::TokenAhead => "token.ahead",
            Self::TokenReuse => "token.reuse",
            Self::TokenFail => "token.fail",
            Self::SessionRevoke => "session.revoke",
            Self::SessionRevokeAll => "session.revoke_all",
            Self::AdminRevoke => "admin.revoke",
            Self::AdminBlock => "admin.block",
            Self::AdminUnblock => "admin.unblock",
            Self::AdminSweep => "admin.sweep",
            Self::AdminRefused => "admin.refused",
        }
    }

    /// How much it matters.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self::LoginOk
            | Self::TokenRefresh
            | Self::TokenReplay
            | Self::SessionRevoke
            | Self::SessionRevokeAll
            | Self::AdminRevoke
            | Self::AdminBlock
            | Self::AdminUnblock
            | Self::AdminSweep => Level::Info,
            Self::LoginFail | Self::TokenFail | Self::TokenAhead | Self::AdminRefused => Level::Warn,
            Self::TokenReuse => Level::Error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_whatever_it_holds() {
        let trace = Trace { id: "t".into(), parent: String::new() };
        let note = Note { reason: Some("a\r\n{\"event\":\"login.ok\"}\u{1b}[31m".into()), ..Note::default() };
        let text = line(UnixMillis(1_700_000_000_042), Level::Warn, Event::LoginFail.name(), &trace, &note);
        assert!(!text.contains(['\r', '\n', '\u{1b}']));
        let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (read["event"].as_str(), read["ts"].as_str()),
            (Some("login.fail"), Some("2023-11-14T22:13:20.042Z"))
        );
    }
}
