//! Settings in, one checked [`Config`] and the keys out, read once per instance.
//!
//! Every problem is collected, and each names its setting and never a value. With a problem
//! anywhere nothing is configured at all: a token route that ran on half of the settings would
//! refuse good tokens, and clients would throw them away.

mod apps;
mod callers;
mod signing;
mod value;

use std::{borrow::Cow, collections::BTreeMap, fmt, time::Duration};

use sha2::{Digest as _, Sha256};

use crate::{
    clock::UnixSeconds,
    platforms::Platform,
    secret::Secret,
    token::keys::{KeyRing, SubjectKeys},
};

pub use apps::referenced;
pub use callers::{Client, ShadowMark, Tokens};
pub use value::{BaseUrl, LONGEST as LONGEST_SESSION};

/// The names of all settings, and with them of what `/readyz` may name.
pub const SETTINGS: [&str; 28] = [
    "access_ttl",
    "app_concurrency",
    "apps",
    "audience",
    "clients",
    "cors_origins",
    "deployment",
    "issuer",
    "load_token",
    "log_sample",
    "master_key",
    "operator_tokens",
    "refresh_grace",
    "reusable_codes",
    "server_timing",
    "session_idle_ttl",
    "session_limit",
    "session_limit_policy",
    "session_ttl",
    "sessions_valid_after",
    "shadow_mark",
    "signing_keys",
    "store_lag",
    "subject_key",
    "wechat_appid",
    "wechat_base_url",
    "wechat_owner",
    "wechat_secret",
];

/// Everything configurable, checked.
#[derive(Debug)]
pub struct Config {
    /// `deployment`: the part of the store that is ours, `[A-Za-z0-9_-]{1,64}`. Default `default`.
    pub deployment: String,
    /// `issuer`: the `iss` of access tokens. Default `edgepass`.
    pub issuer: String,
    /// `session_idle_ttl`: how long a session lives without a refresh. Default 30 days.
    pub session_idle_ttl: Duration,
    /// `refresh_grace`: how long the last refresh token but one is answered with its successor again;
    /// 0, or 10 s to 5 minutes. Default 60 s.
    pub refresh_grace: Duration,
    /// `session_limit`: how many sessions a user may have at once, 0 to 50. Default 0: any number.
    pub session_limit: usize,
    /// `session_limit_policy`: what a login above the limit does. Default `evict_oldest`.
    pub session_limit_policy: LimitPolicy,
    /// `sessions_valid_after`: sessions that began before it are over. For after a restored backup.
    pub sessions_valid_after: UnixSeconds,
    /// `store_lag`: how long another node's write may be invisible. Default 0: never.
    pub store_lag: Duration,
    /// `operator_tokens`: who may use `/internal/*`. Default none: it does not exist.
    pub operator_tokens: Tokens,
    /// `clients`: who may introspect tokens, and those of which apps.
    pub clients: Vec<Client>,
    /// `cors_origins`: whose pages may call `/api/*`. Default none.
    pub cors_origins: Vec<String>,
    /// `shadow_mark` and `load_token`: how load tests on a live service are kept apart.
    pub shadow: Option<ShadowMark>,
    /// `app_concurrency`: exchanges under way at once for one app in one instance, so that garbage
    /// codes cannot burn the platform's quota. 1 to 10000, default 256.
    pub app_concurrency: u32,
    /// `log_sample`: which share of successful requests is logged, 0 to 1. Default 0.05.
    pub log_sample: f64,
    /// `server_timing`: whether answers carry `Server-Timing`. Default no: it tells which check failed.
    pub server_timing: bool,
    /// `reusable_codes`: a development switch under which one code logs in many times. Refused
    /// unless every platform address is a loopback one.
    pub reusable_codes: bool,
    apps: BTreeMap<String, App>,
}

/// One app of one platform.
#[derive(Debug)]
pub struct App {
    /// Our name for it, `[A-Za-z0-9._-]{1,64}`; the `client_id` of its tokens.
    pub id: String,
    /// Its platform.
    pub platform: Platform,
    /// The platform's name for it.
    pub appid: String,
    /// The platform's secret for it.
    pub secret: Secret<String>,
    /// Apps of one owner share their users by unionid. Default: the appid, so none is shared.
    pub owner: String,
    /// The `aud` of its tokens.
    pub audience: String,
    /// How long an access token lives, at most. Default 10 minutes.
    pub access_ttl: Duration,
    /// How long a session lives, whatever happens. Default 90 days.
    pub session_ttl: Duration,
    /// Where its platform is.
    pub base: BaseUrl,
    /// Its name in refresh tokens.
    pub tag: AppTag,
}

/// An app's name in refresh tokens: 64 bits of the SHA-256 of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppTag(pub [u8; 8]);

/// What a login does that would make one session too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitPolicy {
    /// It ends the oldest.
    EvictOldest,
    /// It is refused.
    Refuse,
}

/// What is wrong with one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The setting's name.
    pub setting: Cow<'static, str>,
    /// What is wrong, without any value.
    pub what: Cow<'static, str>,
}

/// Whose traffic it is. The two have keys, tokens and stored state of their own, so that a load test
/// on a live service can touch no user and imitate none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Realm {
    /// Users.
    Live,
    /// A load test.
    Shadow,
}

/// A configured service.
#[derive(Debug)]
pub struct Setup {
    /// Whose traffic it is for.
    pub realm: Realm,
    /// What was set.
    pub config: Config,
    /// The keys of `master_key` and `signing_keys`.
    pub ring: KeyRing,
    /// The keys of `subject_key`.
    pub subjects: SubjectKeys,
}

impl Setup {
    /// Reads the settings. One that is absent or empty has its default.
    ///
    /// # Errors
    /// Every [`Problem`] there is.
    pub fn read(settings: &[(String, String)]) -> Result<Self, Vec<Problem>> {
        Self::read_for(Realm::Live, settings)
    }

    /// The same service for shadow traffic, where such is configured.
    #[must_use]
    pub fn shadow(&self, settings: &[(String, String)]) -> Option<Self> {
        self.config.shadow.as_ref()?;
        Self::read_for(Realm::Shadow, settings).ok()
    }

    fn read_for(realm: Realm, settings: &[(String, String)]) -> Result<Self, Vec<Problem>> {
        let mut reader = Reader { settings, problems: Vec::new() };
        let master = reader.required("master_key", value::keys);
        let subject = reader.required("subject_key", value::key);
        if let (Some(master), Some(subject)) = (&master, &subject)
            && master.iter().any(|key| key.expose() == subject.expose())
        {
            reader.problem("subject_key", "also in master_key");
        }
        let secrets: Vec<_> = master.iter().flatten().chain(&subject).collect();
        let signing = signing::read(&mut reader, &secrets);
        let ring = master.as_deref().and_then(|keys| KeyRing::new(keys, realm));
        if ring.as_ref().is_some_and(|ring| signing.verifying.iter().any(|key| ring.by_kid(key.kid()).is_some())) {
            reader.problem("signing_keys", "a kid that a key of master_key has");
        }
        let named = reader.or("issuer", "edgepass".to_owned(), value::label);
        let audience = reader.or("audience", named.clone(), value::label);
        let issuer = match realm {
            Realm::Live => named,
            Realm::Shadow => format!("{named}/shadow"),
        };
        let access_ttl = reader.or("access_ttl", Duration::from_mins(10), value::duration);
        let session_ttl = reader.or("session_ttl", value::days(90), value::duration);
        let reusable_codes = reader.or("reusable_codes", false, value::switch);
        let apps = apps::read(&mut reader, &apps::Defaults { audience, access_ttl, session_ttl });
        if reusable_codes && !apps.values().all(|app| app.base.is_loopback()) {
            reader.problem("reusable_codes", "only with platforms on a loopback address");
        }
        let config = Config {
            deployment: reader.or("deployment", "default".to_owned(), value::deployment),
            issuer,
            session_idle_ttl: reader.or("session_idle_ttl", value::days(30), value::duration),
            refresh_grace: reader.or("refresh_grace", Duration::from_mins(1), value::grace),
            session_limit: reader.or("session_limit", 0, value::session_limit),
            session_limit_policy: reader.or("session_limit_policy", LimitPolicy::EvictOldest, value::limit_policy),
            sessions_valid_after: reader.or("sessions_valid_after", UnixSeconds(0), value::instant),
            store_lag: reader.or("store_lag", Duration::ZERO, value::duration_or_none),
            operator_tokens: reader.or("operator_tokens", Tokens::default(), callers::operator_tokens),
            clients: callers::clients(&mut reader, &apps),
            cors_origins: reader.or("cors_origins", Vec::new(), value::origins),
            shadow: callers::shadow(&mut reader),
            app_concurrency: reader.or("app_concurrency", 256, value::concurrency),
            log_sample: reader.or("log_sample", 0.05, value::share),
            server_timing: reader.or("server_timing", false, value::switch),
            reusable_codes,
            apps,
        };
        callers::check_distinct(&mut reader, &config);
        reader.name_unknown();
        match (ring, subject) {
            (Some(ring), Some(subject)) if reader.problems.is_empty() => {
                // What verifies the tokens of users never signs those of a load test.
                let ring = if realm == Realm::Live { ring.with_signing_keys(signing) } else { ring };
                Ok(Self { realm, config, ring, subjects: SubjectKeys::new(&subject, realm) })
            }
            _ => Err(reader.problems),
        }
    }
}

impl Config {
    /// The app of this id.
    #[must_use]
    pub fn app(&self, id: &str) -> Option<&App> {
        self.apps.get(id)
    }

    /// Every app.
    pub fn apps(&self) -> impl Iterator<Item = &App> {
        self.apps.values()
    }

    /// The longest a session of any app may live.
    #[must_use]
    pub fn longest_session(&self) -> Duration {
        self.apps.values().map(|app| app.session_ttl).max().unwrap_or_default()
    }

    /// The app a login means: the one named; else the only one of that platform; else the only one.
    #[must_use]
    pub fn choose(&self, app: Option<&str>, platform: Option<&str>) -> Option<&App> {
        let fits = |app: &&App| platform.is_none_or(|platform| app.platform.name() == platform);
        if let Some(id) = app {
            return self.app(id).filter(fits);
        }
        let mut fitting = self.apps.values().filter(fits);
        fitting.next().filter(|_| fitting.next().is_none())
    }
}

impl AppTag {
    fn of(app: &str) -> Self {
        let mut tag = [0; 8];
        tag.iter_mut().zip(Sha256::digest(app)).for_each(|(to, from)| *to = from);
        Self(tag)
    }
}

/// The settings while they are read.
struct Reader<'s> {
    settings: &'s [(String, String)],
    problems: Vec<Problem>,
}

impl<'s> Reader<'s> {
    fn get(&self, name: &str) -> Option<&'s str> {
        let (_, value) = self.settings.iter().find(|(n, _)| n == name)?;
        (!value.is_empty()).then_some(value)
    }

    fn or<T>(&mut self, name: &'static str, default: T, parse: impl FnOnce(&str) -> Result<T, Wrong>) -> T {
        self.optional(name, parse).unwrap_or(default)
    }

    fn required<T>(&mut self, name: &'static str, parse: impl FnOnce(&str) -> Result<T, Wrong>) -> Option<T> {
        if self.get(name).is_none() {
            self.problem(name, "required");
        }
        self.optional(name, parse)
    }

    fn optional<T>(&mut self, name: &'static str, parse: impl FnOnce(&str) -> Result<T, Wrong>) -> Option<T> {
        match self.get(name).map(parse) {
            Some(Ok(value)) => Some(value),
            Some(Err(wrong)) => {
                self.problem(name, wrong);
                None
            }
            None => None,
        }
    }

    fn problem(&mut self, setting: &'static str, what: impl Into<Cow<'static, str>>) {
        self.problems.push(Problem { setting: setting.into(), what: what.into() });
    }

    fn name_unknown(&mut self) {
        let referenced = referenced(self.settings);
        let known = |name: &String| SETTINGS.contains(&name.as_str()) || referenced.contains(name);
        let unknown = self.settings.iter().map(|(name, _)| name).filter(|name| !known(name));
        let unknown = unknown.map(|name| Problem { setting: name.clone().into(), what: "not a setting".into() });
        self.problems.extend(unknown.collect::<Vec<_>>());
    }
}

/// What is wrong with a value, in words that do not repeat it.
type Wrong = &'static str;

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.what)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    pub(crate) const ACTIVE_KEY: &str = "5Hh1YBd9n0vQmXcT3rWl8sKfZ2uJpA7gEoNiR6tVyDk";
    pub(crate) const OLDER_KEY: &str = "q3PzL0wBvN7xMcR5tYkU2jHgFdSaE8oI6uZ1yTrWn4A";
    pub(crate) const SUBJECT_KEY: &str = "Zk4mQ9sXv1TbL6yN0cRjW3hPfUaG7dEoI2uKtS5rHwY";

    /// Two master keys and the apps `one` and `two` on one loopback platform.
    pub(crate) fn two_apps() -> (Config, KeyRing) {
        let setup = Setup::read(&settings(&[
            ("master_key", &format!("{ACTIVE_KEY},{OLDER_KEY}")),
            ("subject_key", SUBJECT_KEY),
            ("issuer", "https://login.example"),
            ("wechat_base_url", "http://127.0.0.1:9"),
            (
                "apps",
                r#"[{"id":"one","platform":"wechat","appid":"wx1","secret":"s1","audience":"api-one"},
                    {"id":"two","platform":"wechat","appid":"wx2","secret":"s2","audience":"api-two"}]"#,
            ),
        ]))
        .expect("a good configuration");
        (setup.config, setup.ring)
    }

    fn good() -> Vec<(String, String)> {
        settings(&[
            ("master_key", ACTIVE_KEY),
            ("subject_key", SUBJECT_KEY),
            ("wechat_appid", "wx1"),
            ("wechat_secret", "canary"),
        ])
    }

    fn problems(changes: &[(&str, &str)]) -> Vec<String> {
        let mut all = settings(changes);
        all.extend(good().into_iter().filter(|(name, _)| !changes.iter().any(|(n, _)| n == name)));
        let found = Setup::read(&all).err().unwrap_or_default();
        let text: Vec<_> = found.iter().map(ToString::to_string).collect();
        for (name, value) in &all {
            let values_shown = text.iter().any(|t| value.len() > 3 && t.contains(value.as_str()));
            assert!(!values_shown, "the value of {name} is shown");
        }
        text
    }

    #[test]
    fn the_short_form_is_an_app_with_defaults() {
        let setup = Setup::read(&good()).expect("good");
        let app = setup.config.choose(None, None).expect("the only one");
        assert_eq!((app.id.as_str(), app.appid.as_str(), app.owner.as_str()), ("wechat", "wx1", "wx1"));
        assert_eq!((app.access_ttl.as_secs(), app.session_ttl.as_secs()), (600, 90 * 86_400));
        assert_eq!((app.audience.as_str(), app.base.as_str()), ("edgepass", "https://api.weixin.qq.com"));
        assert_eq!(setup.config.session_idle_ttl.as_secs(), 30 * 86_400);
        assert!(!format!("{setup:?}").contains("canary"));
    }

    #[test]
    fn every_problem_is_named_and_none_is_quoted() {
        let all = problems(&[
            ("master_key", ""),
            ("subject_key", "dG9vIHNob3J0"),
            ("access_ttl", "10 minutes"),
            ("log_sample", "1.5"),
            ("wechat_secret", ""),
            ("wechat_base_url", "http://api.example"),
            ("acess_ttl", "10m"),
        ]);
        let names: Vec<_> = all.iter().map(|text| text.split(':').next().unwrap_or_default()).collect();
        assert_eq!(
            names,
            ["master_key", "subject_key", "access_ttl", "wechat_base_url", "wechat_secret", "log_sample", "acess_ttl"]
        );
        assert_eq!(problems(&[]), Vec::<String>::new());
    }

    #[test]
    fn short_sample_and_repeated_keys_are_refused() {
        let text = base64(b"correct horse battery staple, correct horse");
        let counting = base64(&(0..32).collect::<Vec<u8>>());
        for bad in ["AAAA", "%%%", &"A".repeat(43), &text, &counting, &ACTIVE_KEY[..42]] {
            assert_eq!(problems(&[("master_key", bad)]).len(), 1, "{bad}");
            assert_eq!(problems(&[("subject_key", bad)]).len(), 1, "{bad}");
        }
        assert_eq!(problems(&[("master_key", &format!("{ACTIVE_KEY}, {ACTIVE_KEY}"))]).len(), 1);
        assert_eq!(problems(&[("master_key", &format!("{ACTIVE_KEY},"))]).len(), 1);
        assert_eq!(problems(&[("subject_key", ACTIVE_KEY)]).len(), 1, "one secret for two purposes");
        assert!(problems(&[("master_key", &format!("{ACTIVE_KEY}=, {OLDER_KEY}"))]).is_empty());
    }

    fn base64(bytes: &[u8]) -> String {
        <base64ct::Base64UrlUnpadded as base64ct::Encoding>::encode_string(bytes)
    }

    #[test]
    fn apps_and_the_short_form_add_up() {
        let app = r#"{"id":"shop","platform":"wechat","appid":"wx2","secret_variable":"shop_secret"}"#;
        let with = |apps: &str| problems(&[("apps", apps), ("shop_secret", "canary2")]);
        assert!(with(&format!("[{app}]")).is_empty());
        assert_eq!(with(&format!("[{app},{app}]")), ["apps: entry 2: an id given twice"]);
        assert_eq!(with(&format!("[{}]", app.replace("shop\"", "wechat\""))), ["apps: entry 1: an id given twice"]);
        assert_eq!(
            problems(&[("apps", &format!("[{app}]"))]),
            ["apps: entry 1: the variable named by secret_variable is not set"]
        );
        for (bad, what) in [
            ("{", "not a JSON list of apps"),
            ("{}", "not a JSON list of apps"),
            (r#"[{"id":"a"}]"#, "not a JSON list of apps"),
            (r#"[{"id":"a","id":"b","platform":"wechat","appid":"x","secret":"y"}]"#, "not a JSON list of apps"),
            (r#"[{"id":"a","platform":"wechat","appid":"x","secret":"canary","extra":1}]"#, "not a JSON list of apps"),
            (r#"[{"id":"a","platform":"myspace","appid":"x","secret":"canary"}]"#, "entry 1: platform: not a platform"),
            (r#"[{"id":"a/b","platform":"wechat","appid":"x","secret":"canary"}]"#, "entry 1: id: "),
            (r#"[{"id":"a","platform":"wechat","appid":"x"}]"#, "entry 1: secret or secret_variable"),
            (r#"[{"id":"a","platform":"wechat","appid":"x","secret":" canary"}]"#, "entry 1: secret: "),
            (
                r#"[{"id":"a","platform":"wechat","appid":"x","secret":"canary","access_ttl":"0s"}]"#,
                "entry 1: access_ttl: ",
            ),
        ] {
            let found = problems(&[("apps", bad)]);
            assert!(found.len() == 1 && found[0].contains(what), "{bad}: {found:?}");
        }
        assert_eq!(problems(&[("wechat_appid", ""), ("wechat_secret", "")]), ["wechat_appid: no app is configured"]);
    }

    #[test]
    fn callers_are_named_with_their_apps() {
        let secret = "canary".repeat(6);
        let client = format!(r#"{{"id":"shop","secret":"{secret}","apps":["wechat"]}}"#);
        assert!(problems(&[("clients", &format!("[{client}]"))]).is_empty());
        for (bad, what) in [
            ("{}".to_owned(), "not a JSON list"),
            (format!("[{client},{client}]"), "entry 2: an id given twice"),
            (format!("[{}]", client.replace("wechat", "other")), "entry 1: apps: "),
            (format!("[{}]", client.replace(r#"["wechat"]"#, "[]")), "entry 1: apps: "),
            (format!("[{}]", client.replace(&secret, "canary")), "entry 1: secret: "),
        ] {
            let found = problems(&[("clients", &bad)]);
            assert!(found.len() == 1 && found[0].contains(what), "{bad}: {found:?}");
        }
        assert_eq!(problems(&[("shadow_mark", "mark-7")]), ["load_token: required"]);
        assert_eq!(problems(&[("load_token", &secret)]), ["shadow_mark: required"]);
        assert_eq!(problems(&[("operator_tokens", "canary")]), ["operator_tokens: shorter than 32 characters"]);
    }

    #[test]
    fn one_secret_is_one_callers() {
        let [one, other, third] = ["canary-1", "canary-2", "canary-3"].map(|text| text.repeat(4));
        let with = |tokens: &str, clients: [&str; 2], load: &str| {
            let [a, b] = clients;
            let clients = format!(
                r#"[{{"id":"a","secret":"{a}","apps":["wechat"]}},{{"id":"b","secret":"{b}","apps":["wechat"]}}]"#
            );
            let changes = [("operator_tokens", tokens), ("clients", &clients), ("load_token", load)];
            problems(&[&changes[..], &[("shadow_mark", "mark-7")]].concat())
        };
        let fourth = "canary-4".repeat(4);
        assert!(with(&one, [&other, &third], &fourth).is_empty());
        assert_eq!(with(&format!("{one},{one}"), [&other, &third], &fourth).len(), 1);
        for (clients, load, setting) in [
            ([&one, &third], &fourth, "clients"),
            ([&other, &other], &fourth, "clients"),
            ([&other, &third], &one, "load_token"),
            ([&other, &third], &third, "load_token"),
        ] {
            let found = with(&one, clients.map(String::as_str), load);
            assert_eq!(found, [format!("{setting}: a secret that another caller has")]);
        }
    }

    #[test]
    fn a_login_names_its_app_when_there_are_several() {
        let (config, _) = two_apps();
        assert!(config.choose(None, None).is_none() && config.choose(None, Some("wechat")).is_none());
        assert!(config.choose(Some("one"), None).is_some() && config.choose(Some("one"), Some("wechat")).is_some());
        assert!(config.choose(Some("one"), Some("alipay")).is_none() && config.choose(Some("three"), None).is_none());
    }

    #[test]
    fn reusable_codes_need_a_loopback_platform() {
        assert_eq!(
            problems(&[("reusable_codes", "true")]),
            ["reusable_codes: only with platforms on a loopback address"]
        );
        assert!(problems(&[("reusable_codes", "true"), ("wechat_base_url", "http://[::1]:8000/")]).is_empty());
    }
}
