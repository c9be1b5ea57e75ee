//! Platforms: who turns a login code into a user. Each has a file with two pure functions,
//! `request` and `parse`; how the exchange travels is [`crate::outbound`]'s business.

pub mod wechat;

use std::{fmt, time::Duration};

use crate::{
    config::{App, BaseUrl},
    outbound::{Call, HttpClient, Limits, Reply, SendError, SendErrorKind},
    secret::Secret,
};

/// Exchanges login codes, as a port.
pub trait PlatformClient: 'static {
    /// Exchanges `code` for the platform's session. One call, never repeated: a code whose bytes
    /// were sent may be spent. `exclusive` as in [`Call::exclusive`].
    fn exchange(
        &self,
        app: &App,
        code: &LoginCode,
        exclusive: Option<[u8; 32]>,
    ) -> impl Future<Output = Result<PlatformSession, PlatformError>>;
}

/// A platform there is a codec for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// 微信小程序 and mini-games.
    Wechat,
}

/// The one-time code a mini-program gets from `wx.login` and its like.
#[derive(Clone)]
pub struct LoginCode(Secret<String>);

/// What the platform says about a code it accepted.
#[derive(Debug)]
pub struct PlatformSession {
    /// The user within one app.
    pub openid: Secret<String>,
    /// The user across an owner's apps; absent unless the platform knows it.
    pub unionid: Option<Secret<String>>,
    /// The platform's secret for the user's data. Never leaves the server.
    pub session_key: Secret<String>,
}

/// Why a code brought no session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlatformError {
    /// The platform said no.
    #[error("refused with {number}")]
    Refused {
        /// Who has to act.
        class: Class,
        /// The platform's own number.
        number: i64,
        /// What its support asks for, where the answer had one.
        request_id: Option<String>,
    },
    /// An answer outside 200.
    #[error("answered with HTTP status {0}")]
    Status(u16),
    /// An answer that is none of the platform's forms.
    #[error("answered with something else")]
    Malformed,
    /// No answer.
    #[error(transparent)]
    Unanswered(#[from] SendError),
}

/// Who has to act on a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The client: the code is wrong, expired or of another app.
    CodeInvalid,
    /// The client: the code was used before.
    CodeUsed,
    /// Nobody: the platform blocks this person.
    UserBlocked,
    /// Too many calls.
    RateLimited,
    /// The platform.
    Busy,
    /// The operator: app id, secret, permissions, addresses.
    Config,
    /// A number we do not know.
    Unknown,
}

/// Limits of one exchange. A login is to end within three seconds, the store's part included.
pub const LIMITS: Limits = Limits {
    connect: Duration::from_secs(1),
    first_byte: Duration::from_secs(2),
    total: Duration::from_millis(2500),
    max_body_bytes: 64 * 1024,
};

/// Longest code taken, in bytes. The longest known have 64.
pub const MAX_CODE_BYTES: usize = 512;

/// Longest id or key taken from a platform, in bytes; the longest known has 64.
const MAX_FIELD_BYTES: usize = 256;

/// Sends what the codec of `app`'s platform builds, and reads what comes back.
///
/// # Errors
/// [`PlatformError`], for anything but one accepted code.
pub async fn exchange(
    http: &impl HttpClient,
    app: &App,
    code: &LoginCode,
    exclusive: Option<[u8; 32]>,
) -> Result<PlatformSession, PlatformError> {
    let mut call = match app.platform {
        Platform::Wechat => wechat::request(app, code),
    };
    call.exclusive = exclusive;
    let sent = match http.send(call.clone()).await {
        // A kept connection had been closed, and nothing of the request went out on it: the code is
        // untouched. Anything else is never sent again.
        Err(SendError { kind: SendErrorKind::Broken, sent: false }) => http.send(call).await,
        first => first,
    };
    let Reply { status, body, .. } = sent?;
    match app.platform {
        Platform::Wechat => wechat::parse(status, &body),
    }
}

impl Platform {
    /// Its name in requests, answers and settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wechat => "wechat",
        }
    }

    /// The platform of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Wechat].into_iter().find(|platform| platform.name() == name)
    }

    /// Where it is when no setting says otherwise.
    #[must_use]
    pub fn base(self) -> BaseUrl {
        match self {
            Self::Wechat => BaseUrl::of_host("api.weixin.qq.com"),
        }
    }
}

impl LoginCode {
    /// A code that may be sent: 1 to [`MAX_CODE_BYTES`] visible ASCII characters, as every platform's are.
    #[must_use]
    pub fn new(code: String) -> Option<Self> {
        let fits = (1..=MAX_CODE_BYTES).contains(&code.len()) && code.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| Self(Secret::new(code)))
    }

    /// The code itself, for the codec and the keys.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl fmt::Debug for LoginCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoginCode(_)")
    }
}

/// A `GET` of `url` with the limits of a login.
fn get(url: String) -> Call {
    Call { method: "GET", url, head: crate::message::Head::new(), body: Vec::new(), limits: LIMITS, exclusive: None }
}
