//! The platforms there are, and what faults and the journal need to know of a call to any of them.

use serde::{Deserialize, Serialize};

use crate::wire::Answer;

/// A platform the simulator speaks for; its name in faults and in the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Platform {
    /// `wechat`
    #[default]
    Wechat,
}

/// A call to a platform: read, not yet carried out.
pub(crate) trait Call {
    fn platform(&self) -> Platform;

    /// The app named, decoded; empty where there is none.
    fn appid(&self) -> &[u8];

    /// The one-time code, decoded; empty where there is none.
    fn code(&self) -> &[u8];

    /// Whether the secret is that of the app named; `None` without a secret or a known app.
    fn secret_ok(&self) -> Option<bool>;

    /// Carries the call out, using the code up where it is good.
    fn answer(&self) -> Answer;

    /// The platform's error form for a number, which is written as a string when `as_string`.
    fn refusal(&self, errcode: i64, as_string: bool) -> Answer;
}
