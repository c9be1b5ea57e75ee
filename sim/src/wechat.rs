//! `WeChat`: its apps, its rules and its wire form.
//!
//! Sources: the platform's pages "小程序登录凭证校验" (`code2Session`), "小程序登录" and the common error codes;
//! 40163 and the tail of `errmsg` are known from users' reports only.

use std::{
    borrow::Cow,
    fmt,
    hash::{BuildHasher, RandomState},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use http::{Method, StatusCode, request::Parts};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Clock, Identity, Platform, SimConfig,
    codes::{CodeKind, Codes, Refused},
    people::{Full, People},
    platform::Call,
    query,
    wire::Answer,
};

/// Where codes are exchanged.
pub(crate) const EXCHANGE_PATH: &str = "/sns/jscode2session";

/// A mini-program. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct App {
    /// `wx` and 16 hexadecimal digits on the real platform; any text here.
    pub appid: String,
    /// 32 hexadecimal digits on the real platform; any text here.
    pub secret: String,
    /// The open-platform account the app is bound to. Apps of one owner share unionids; an app
    /// without an owner answers none.
    pub owner: Option<String>,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("appid", &self.appid).field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// The text is not `appid:secret` or `appid:secret:owner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an app is written appid:secret or appid:secret:owner, with no part empty")]
pub struct BadApp;

impl FromStr for App {
    type Err = BadApp;

    /// Reads `appid:secret` or `appid:secret:owner`, for command lines.
    fn from_str(text: &str) -> Result<Self, BadApp> {
        let parts: Vec<&str> = text.split(':').collect();
        let (appid, secret, owner) = match *parts {
            [appid, secret] => (appid, secret, None),
            [appid, secret, owner] => (appid, secret, Some(owner)),
            _ => return Err(BadApp),
        };
        if appid.is_empty() || secret.is_empty() || owner == Some("") {
            return Err(BadApp);
        }
        Ok(Self { appid: appid.into(), secret: secret.into(), owner: owner.map(Into::into) })
    }
}

/// The platform.
pub(crate) struct WeChat {
    apps: Vec<App>,
    codes: Codes,
    people: People,
    request_ids: RequestIds,
}

/// A call of `code2Session`, with its parameters decoded; of one sent twice the first. All are
/// absent where the method is not GET, because the platform reads the query of a GET only.
pub(crate) struct Exchange<'a> {
    wechat: &'a WeChat,
    appid: Option<Cow<'a, [u8]>>,
    secret: Option<Cow<'a, [u8]>>,
    js_code: Option<Cow<'a, [u8]>>,
    grant_type: Option<Cow<'a, [u8]>>,
}

impl<'a> Exchange<'a> {
    fn read(wechat: &'a WeChat, parts: &'a Parts) -> Self {
        let mut call = Self { wechat, appid: None, secret: None, js_code: None, grant_type: None };
        let query = parts.uri.query().filter(|_| parts.method == Method::GET);
        for (name, value) in query::parameters(query.unwrap_or_default()) {
            let place = match &*name {
                b"appid" => &mut call.appid,
                b"secret" => &mut call.secret,
                b"js_code" => &mut call.js_code,
                b"grant_type" => &mut call.grant_type,
                _ => continue,
            };
            place.get_or_insert(value);
        }
        call
    }

    /// Checks in this order, so that a call with several mistakes is told of the first. Takes the
    /// code only when nothing else is wrong; then `user` is whose it was.
    fn session(&self, user: &mut Option<Arc<str>>) -> Result<Identity, i64> {
        if self.appid().is_empty() {
            return Err(APPID_MISSING);
        }
        let (place, app) = self.wechat.app(self.appid()).ok_or(APPID_INVALID)?;
        let secret = self.secret.as_deref().unwrap_or_default();
        if secret.is_empty() {
            return Err(SECRET_MISSING);
        }
        if secret != app.secret.as_bytes() {
            return Err(SECRET_INVALID);
        }
        if self.code().is_empty() {
            return Err(CODE_MISSING);
        }
        if self.grant_type.as_deref() != Some(b"authorization_code") {
            return Err(GRANT_TYPE_INVALID);
        }
        let code = String::from_utf8_lossy(self.code());
        let redeemed = self.wechat.codes.redeem(&code, place, CodeKind::Login).map_err(|refused| match refused {
            Refused::Invalid => CODE_INVALID,
            Refused::Used => CODE_USED,
        })?;
        let name = user.insert(redeemed.unwrap_or_else(|| format!("code:{code}").into()));
        let recalled = self.wechat.people.recall(name, place);
        match recalled.traits.errcode {
            Some(errcode) => Err(errcode),
            None => Ok(Identity::derive(name, &app.appid, app.owner.as_deref(), recalled)),
        }
    }
}

impl Call for Exchange<'_> {
    fn platform(&self) -> Platform {
        Platform::Wechat
    }

    fn appid(&self) -> &[u8] {
        self.appid.as_deref().unwrap_or_default()
    }

    fn code(&self) -> &[u8] {
        self.js_code.as_deref().unwrap_or_default()
    }

    fn secret_ok(&self) -> Option<bool> {
        let (_, app) = self.wechat.app(self.appid())?;
        Some(self.secret.as_deref()? == app.secret.as_bytes())
    }

    fn answer(&self) -> Answer {
        let mut user = None;
        let answer = match self.session(&mut user) {
            Err(errcode) => self.refusal(errcode, false),
            Ok(Identity { openid, unionid, session_key }) => {
                // No character of these needs escaping in JSON.
                let unionid = unionid.map(|id| format!(r#","unionid":"{id}""#)).unwrap_or_default();
                text(format!(r#"{{"session_key":"{session_key}","openid":"{openid}"{unionid}}}"#))
            }
        };
        Answer { user, ..answer }
    }

    fn refusal(&self, errcode: i64, as_string: bool) -> Answer {
        let quote = if as_string { "\"" } else { "" };
        let (errmsg, rid) = (errmsg(errcode), self.wechat.request_ids.next());
        let body = format!(r#"{{"errcode":{quote}{errcode}{quote},"errmsg":"{errmsg}, rid: {rid}"}}"#);
        Answer { errcode: Some(errcode), ..text(body) }
    }
}

/// Why a control request was refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Not JSON, or a member is missing, unknown or of the wrong type.
    #[error("{0}")]
    Malformed(#[from] serde_json::Error),
    /// Not a user name.
    #[error("user must be 1 to {MAX_USER_BYTES} bytes without control characters")]
    BadUser,
    /// No app has this id.
    #[error("no app has this appid")]
    UnknownApp,
    /// [`SimConfig::capacity`] users are known.
    #[error("no room for another user")]
    Full,
    /// The system gives no randomness.
    #[error("no randomness for a code")]
    Random,
}

impl From<Full> for ControlError {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogIn {
    user: String,
    appid: Option<String>,
    #[serde(default)]
    kind: CodeKind,
    rotate: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tell {
    user: String,
    blocked: Option<bool>,
    errcode: Option<i64>,
    unionid: Option<bool>,
}

impl WeChat {
    pub(crate) fn new(config: &SimConfig) -> Self {
        let clock = || config.clock.clone();
        Self {
            apps: config.apps.clone(),
            codes: Codes::new(clock(), config.reusable_codes, config.capacity),
            people: People::new(clock(), config.session_key_refresh, config.capacity),
            request_ids: RequestIds::new(clock()),
        }
    }

    /// Reads a call of [`EXCHANGE_PATH`].
    pub(crate) fn exchange<'a>(&'a self, parts: &'a Parts) -> Exchange<'a> {
        Exchange::read(self, parts)
    }

    /// `POST /sim/wechat/login`.
    pub(crate) fn control_login(&self, body: &[u8]) -> Result<Value, ControlError> {
        let LogIn { user, appid, kind, rotate } = serde_json::from_slice(body)?;
        Ok(json!({ "code": &*self.log_in(&user, appid.as_deref(), kind, rotate)? }))
    }

    /// `POST /sim/wechat/users`.
    pub(crate) fn control_users(&self, body: &[u8]) -> Result<Value, ControlError> {
        let Tell { user, blocked, errcode, unionid } = serde_json::from_slice(body)?;
        check_user(&user)?;
        let told = match (errcode, blocked) {
            (Some(errcode), _) => Some(Some(errcode)),
            (None, Some(blocked)) => Some(blocked.then_some(USER_BLOCKED)),
            (None, None) => None,
        };
        if told.is_some() || unionid.is_some() {
            self.people.tell(&user, |traits| {
                traits.errcode = told.unwrap_or(traits.errcode);
                traits.has_unionid = unionid.unwrap_or(traits.has_unionid);
            })?;
        }
        let apps: Vec<Value> = (self.apps.iter().enumerate())
            .map(|(place, app)| {
                let Identity { openid, unionid, session_key } = self.identity_in(&user, place, app);
                json!({
                    "appid": app.appid, "openid": openid, "unionid": unionid,
                    "session_key": session_key,
                })
            })
            .collect();
        let errcode = self.people.recall(&user, 0).traits.errcode;
        Ok(json!({ "user": user, "errcode": errcode, "apps": apps }))
    }

    /// `wx.login`: a fresh code of the app named, or of the first.
    pub(crate) fn log_in(
        &self,
        user: &str,
        appid: Option<&str>,
        kind: CodeKind,
        rotate: Option<bool>,
    ) -> Result<Arc<str>, ControlError> {
        check_user(user)?;
        let place = match appid {
            None => 0,
            Some(appid) => self.app(appid.as_bytes()).ok_or(ControlError::UnknownApp)?.0,
        };
        let code = new_code().map_err(|_| ControlError::Random)?;
        let user = self.people.log_in(user, place, rotate)?;
        self.codes.issue(Arc::clone(&code), place, user, kind);
        Ok(code)
    }

    /// `user` as the app with this id sees them.
    pub(crate) fn identity(&self, user: &str, appid: &str) -> Option<Identity> {
        let (place, app) = self.app(appid.as_bytes())?;
        Some(self.identity_in(user, place, app))
    }

    fn identity_in(&self, user: &str, place: usize, app: &App) -> Identity {
        let recalled = self.people.recall(user, place);
        Identity::derive(user, &app.appid, app.owner.as_deref(), recalled)
    }

    fn app(&self, appid: &[u8]) -> Option<(usize, &App)> {
        self.apps.iter().enumerate().find(|(_, app)| app.appid.as_bytes() == appid)
    }
}

/// JSON labelled as text, as the platform does.
fn text(body: String) -> Answer {
    Answer::new(StatusCode::OK, "text/plain", body)
}

fn check_user(user: &str) -> Result<(), ControlError> {
    let fits = (1..=MAX_USER_BYTES).contains(&user.len());
    if fits && !user.contains(char::is_control) { Ok(()) } else { Err(ControlError::BadUser) }
}

/// 32 characters of `0-9A-Za-z`, every one as likely as the others.
fn new_code() -> Result<Arc<str>, getrandom::Error> {
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut code = String::with_capacity(32);
    let mut random = [0; 48];
    loop {
        getrandom::fill(&mut random)?;
        for byte in random {
            // 248 is the largest multiple of 62 in a byte.
            if byte < 248 {
                code.push(char::from(ALPHABET[usize::from(byte % 62)]));
            }
            if code.len() == 32 {
                return Ok(code.into());
            }
        }
    }
}

/// Request ids, ` rid: 8hex-8hex-8hex`: the second, and two numbers that differ each time.
struct RequestIds {
    clock: Clock,
    hasher: RandomState,
    count: AtomicU64,
}

impl RequestIds {
    fn new(clock: Clock) -> Self {
        Self { clock, hasher: RandomState::new(), count: AtomicU64::new(0) }
    }

    fn next(&self) -> String {
        let mixed = self.hasher.hash_one(self.count.fetch_add(1, Ordering::Relaxed));
        let (high, low) = (mixed >> 32, mixed & 0xffff_ffff);
        format!("{:08x}-{high:08x}-{low:08x}", self.clock.now().as_secs() & 0xffff_ffff)
    }
}

/// The platform's words. They are not a contract: users are told to look at the number only.
fn errmsg(errcode: i64) -> &'static str {
    match errcode {
        0 => "ok",
        -1 => "system error",
        GRANT_TYPE_INVALID => "invalid grant_type",
        APPID_INVALID => "invalid appid",
        CODE_INVALID => "invalid code",
        SECRET_INVALID => "invalid appsecret",
        CODE_USED => "code been used",
        40_164 => "invalid ip, not in whitelist",
        USER_BLOCKED => "code blocked",
        40_243 => "appsecret frozen",
        APPID_MISSING => "appid missing",
        SECRET_MISSING => "appsecret missing",
        CODE_MISSING => "missing code",
        45_011 => "api minute-quota reach limit, must slower, retry next minute",
        48_001 => "api unauthorized",
        50_002 => "user limited",
        _ => "simulated error",
    }
}

const GRANT_TYPE_INVALID: i64 = 40_002;
const APPID_INVALID: i64 = 40_013;
const CODE_INVALID: i64 = 40_029;
const SECRET_INVALID: i64 = 40_125;
const CODE_USED: i64 = 40_163;
const USER_BLOCKED: i64 = 40_226;
const APPID_MISSING: i64 = 41_002;
const SECRET_MISSING: i64 = 41_004;
const CODE_MISSING: i64 = 41_008;

/// Enough for any name a test or a load harness makes up.
const MAX_USER_BYTES: usize = 128;
