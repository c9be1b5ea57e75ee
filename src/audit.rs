//! What is logged: one JSON line per request, and security events under stable names.
//!
//! Events and failed requests are always logged, successful requests by a sample. Ids of sessions
//! and users are hashed; codes, tokens, keys, openids, headers and URLs have no field to stand in.
//! Everything is JSON, so a control character cannot begin a line of its own.

use std::borrow::Cow;

use serde::Serialize;

use crate::{clock::UnixMillis, host::Level, session::SessionId, token::keys::Subject, trace::Trace};

/// Defines [`Event`] and its table from one list.
macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident = $name:literal $level:ident;)*) => {
        /// A security event. Names are stable: alarms are built on them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event {
            $($(#[$doc])* $variant,)*
        }

        impl Event {
            /// Every event there is.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// How much it matters.
            #[must_use]
            pub const fn level(self) -> Level {
                match self {
                    $(Self::$variant => Level::$level,)*
                }
            }
        }
    };
}

events! {
    /// A code became a session.
    LoginOk = "login.ok" Info;
    /// A code did not.
    LoginFail = "login.fail" Warn;
    /// A session was renewed.
    TokenRefresh = "token.refresh" Info;
    /// The refresh token before the newest was answered with its successor again.
    TokenReplay = "token.replay" Info;
    /// A refresh token was newer than the store knows.
    TokenAhead = "token.ahead" Warn;
    /// A spent refresh token was used, and its session ended.
    TokenReuse = "token.reuse" Error;
    /// A session was not renewed.
    TokenFail = "token.fail" Warn;
    /// A session was ended.
    SessionRevoke = "session.revoke" Info;
    /// Every session of a user was ended by the user.
    SessionRevokeAll = "session.revoke_all" Info;
    /// An operator ended a session, or all of a user.
    AdminRevoke = "admin.revoke" Info;
    /// An operator blocked a user.
    AdminBlock = "admin.block" Info;
    /// An operator lets a user log in again.
    AdminUnblock = "admin.unblock" Info;
    /// An operator had records removed that are over.
    AdminSweep = "admin.sweep" Info;
    /// Somebody who is no operator tried to be one.
    AdminRefused = "admin.refused" Warn;
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

    /// H5. Alarms are built on these names; one that is changed here is a change for every operator.
    #[test]
    fn every_event_is_documented_and_none_was_renamed() {
        const DOCUMENT: &str = include_str!("../docs/sessions.md");
        let names: Vec<_> = Event::ALL.iter().map(|event| event.name()).collect();
        for stable in [
            "login.ok",
            "login.fail",
            "token.refresh",
            "token.replay",
            "token.reuse",
            "session.revoke",
            "session.revoke_all",
        ] {
            assert!(names.contains(&stable), "{stable}");
        }
        for event in Event::ALL {
            let level = format!("{:?}", event.level()).to_lowercase();
            let row = format!("| `{}` | {level} |", event.name());
            assert!(DOCUMENT.contains(&row), "{row}");
        }
    }
}
