//! Why a change is not made: a code for programs, words for people.

use std::fmt;

use http::StatusCode;

use crate::{admin::Fault, engine, revision};

/// A change that was not made. What was served is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One of [`CODES`].
    pub code: &'static str,
    /// What was found; never a value of a setting.
    pub detail: String,
}

/// Every code there is, with the status it is answered with.
pub const CODES: [(&str, StatusCode); 14] = [
    ("component_invalid", StatusCode::UNPROCESSABLE_ENTITY),
    ("imports_missing", StatusCode::UNPROCESSABLE_ENTITY),
    ("exports_wrong", StatusCode::UNPROCESSABLE_ENTITY),
    ("types_wrong", StatusCode::UNPROCESSABLE_ENTITY),
    ("settings_wrong", StatusCode::UNPROCESSABLE_ENTITY),
    ("does_not_start", StatusCode::UNPROCESSABLE_ENTITY),
    ("probe_failed", StatusCode::UNPROCESSABLE_ENTITY),
    ("signature_missing", StatusCode::FORBIDDEN),
    ("signature_wrong", StatusCode::FORBIDDEN),
    ("busy", StatusCode::CONFLICT),
    ("conflict", StatusCode::CONFLICT),
    ("nothing_to_roll_back", StatusCode::CONFLICT),
    ("unknown_revision", StatusCode::NOT_FOUND),
    ("internal", StatusCode::INTERNAL_SERVER_ERROR),
];

impl Refusal {
    pub(super) fn new(code: &'static str, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    pub(crate) fn ending() -> Self {
        Self::new("internal", "the node is about to end")
    }

    /// The node itself could not.
    pub(super) fn failed(error: &dyn std::error::Error) -> Self {
        Self::new("internal", chain(error))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl std::error::Error for Refusal {}

impl From<engine::Error> for Refusal {
    fn from(error: engine::Error) -> Self {
        let code = match error {
            engine::Error::Engine(_) => "internal",
            engine::Error::Compile(_) | engine::Error::Load(_) | engine::Error::UnknownNeeds => "component_invalid",
        };
        Self::new(code, chain(&error))
    }
}

impl From<revision::Error> for Refusal {
    fn from(error: revision::Error) -> Self {
        let code = match error {
            revision::Error::Engine(error) => return error.into(),
            revision::Error::Kind(_) => "exports_wrong",
            revision::Error::Imports(_) => "imports_missing",
            revision::Error::Link(_) => "types_wrong",
            revision::Error::Start(_) => "does_not_start",
            revision::Error::Settings(_) => "settings_wrong",
        };
        Self::new(code, chain(&error))
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let known = CODES.iter().find(|(code, _)| *code == refusal.code);
        Self::new(known.map_or(StatusCode::INTERNAL_SERVER_ERROR, |(_, status)| *status), refusal.code, refusal.detail)
    }
}

/// An error with its causes, on one line of bounded length.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    let end = text.floor_char_boundary(MAX_DETAIL_BYTES);
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A backtrace of a guest is of no use to whoever uploads it, beyond its first lines.
const MAX_DETAIL_BYTES: usize = 1000;
