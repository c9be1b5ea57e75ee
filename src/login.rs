//! What the service does, without JSON, HTTP or a host: a code becomes a session, a token is
//! looked up, a session is ended.
//!
//! A login, in order: choose the app; note the code as under way (a second request with it ends
//! here); ask the store whether it was spent; exchange it, once; find whose it is; write the
//! session; sign. Only a code the platform accepted ever causes a write.

mod flight;
mod identity;

use crate::{
    clock::{Clock, UnixSeconds},
    config::{App, Config, Setup},
    platforms::{LoginCode, PlatformClient, PlatformError, PlatformSession},
    random::Random,
    session::{Device, Epoch, Recent, Session, SessionId, TOMBSTONE_SECONDS, Tombstone, Why},
    store::{
        Change, Store, StoreError,
        envelope::{self, Unreadable},
        key::Layout,
    },
    timing::{Stage, Stages},
    token::{
        access::{self, Access, AccessError, Expiry},
        keys::{CodeMac, Subject, random_session},
        refresh::Refresh,
    },
};

use flight::Flights;

/// The login service over a store and its platforms. One per instance.
pub struct Login<S, P> {
    store: S,
    platforms: P,
    clock: Box<dyn Clock>,
    random: Box<dyn Random>,
    setup: Setup,
    layout: Layout,
    flights: Flights,
}

/// What a client asks for.
pub struct Attempt<'r> {
    /// The app by id; absent where there is only one.
    pub app: Option<&'r str>,
    /// The app by platform, where there is only one of it.
    pub platform: Option<&'r str>,
    /// The code.
    pub code: LoginCode,
    /// What the client calls its device.
    pub device: Option<Device>,
}

/// A login that succeeded.
pub struct LoggedIn<'l> {
    /// The app.
    pub app: &'l App,
    /// The new session.
    pub sid: SessionId,
    /// The user.
    pub subject: Subject,
    /// Whether the user was unknown so far. A hint: two first logins at once both say so.
    pub is_new: bool,
    /// When the session began.
    pub created: UnixSeconds,
    /// When it ends.
    pub expires: UnixSeconds,
    /// The access token.
    pub access_token: String,
    /// How long the access token lives, in seconds.
    pub expires_in: u64,
    /// The refresh token.
    pub refresh_token: String,
    /// How long the refresh token lives without being used, in seconds.
    pub refresh_expires_in: u64,
}

/// Why there is no login.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// No app is meant, or several are.
    #[error("app_unknown")]
    AppUnknown,
    /// The code was used before, or is being used now.
    #[error("code_used")]
    CodeUsed,
    /// Too many exchanges of this app are under way.
    #[error("overloaded")]
    Overloaded,
    /// An operator blocked the user.
    #[error("blocked")]
    Blocked,
    /// The platform gave no session.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The store did not do its part, and the code is as good as before.
    #[error(transparent)]
    Store(#[from] StoreFault),
    /// The store did not do its part, and the code is spent.
    #[error("{0}")]
    Unstored(StoreFault),
}

impl LoginError {
    /// The same after the platform has taken the code.
    fn spent(self) -> Self {
        match self {
            Self::Store(fault) => Self::Unstored(fault),
            other => other,
        }
    }
}

/// The store cannot be relied on; whatever was asked is neither so nor not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFault {
    /// It did not answer.
    #[error(transparent)]
    Unanswered(#[from] StoreError),
    /// It answered with something that cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// It answered with fewer values than were asked for.
    #[error("store answered another question")]
    Short,
}

/// Why a bearer token opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The token is not good.
    #[error(transparent)]
    Token(#[from] AccessError),
    /// Its session is over, for this reason.
    #[error("{0}")]
    Ended(&'static str),
    /// The store did not do its part.
    #[error(transparent)]
    Store(#[from] StoreFault),
}

/// What ends a session.
#[derive(Clone, Copy)]
pub enum Credential<'r> {
    /// An access token, expired or not.
    Access(&'r str),
    /// A refresh token.
    Refresh(&'r str),
}

/// Why a session was not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogoutError {
    /// The access token is not ours.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The refresh token is not ours.
    #[error("refresh.form")]
    Refresh,
    /// The store did not do its part.
    #[error(transparent)]
    Store(#[from] StoreFault),
}

/// A session that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedOut {
    /// The session.
    pub sid: SessionId,
    /// Its user.
    pub subject: Subject,
    /// Whether this call ended it; it may have been over already.
    pub now: bool,
}

impl<S: Store, P: PlatformClient> Login<S, P> {
    /// A service over these parts.
    #[must_use]
    pub fn new(store: S, platforms: P, clock: Box<dyn Clock>, random: Box<dyn Random>, setup: Setup) -> Self {
        let layout = Layout::new(&setup.config.deployment);
        let flights = Flights::new(setup.config.app_concurrency);
        Self { store, platforms, clock, random, setup, layout, flights }
    }

    /// What was configured.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.setup.config
    }

    /// An id as it may stand in a log.
    #[must_use]
    pub fn log_hash(&self, id: &[u8; 16]) -> String {
        self.setup.subjects.log_hash(id)
    }

    /// Whether the store answers.
    pub async fn store_answers(&self) -> bool {
        self.store.get(&[&self.layout.probe()]).await.is_ok()
    }

    /// Turns a code into a session.
    ///
    /// # Errors
    /// [`LoginError`]; then nothing was written but, at most, whose the user is.
    pub async fn log_in(&self, attempt: Attempt<'_>, stages: &Stages<'_>) -> Result<LoggedIn<'_>, LoginError> {
        let app = self.config().choose(attempt.app, attempt.platform).ok_or(LoginError::AppUnknown)?;
        if self.config().reusable_codes {
            let sid = random_session(&*self.random);
            let platform_session = self.exchange(app, &attempt.code, None, stages).await?;
            return self.begin(app, sid, platform_session, attempt.device, stages).await.map_err(LoginError::spent);
        }
        // A spent code is found under any key that may have derived its session.
        let macs: Vec<CodeMac> = stages
            .run(Stage::Sign, || self.setup.ring.iter().map(|keys| keys.code(app, attempt.code.expose())).collect());
        let active = macs.first().ok_or(LoginError::CodeUsed)?;
        // Noted before the store is asked: else a second request could read "not spent", wait, and
        // call the platform after the first has ended.
        let _under_way = self.flights.code(active.exchange()).ok_or(LoginError::CodeUsed)?;
        let keys: Vec<String> = macs
            .iter()
            .flat_map(|mac| [self.layout.session(mac.session()), self.layout.tombstone(mac.session())])
            .collect();
        if self.get(&keys, stages).await?.iter().any(Option::is_some) {
            return Err(LoginError::CodeUsed);
        }
        let platform_session = self.exchange(app, &attempt.code, Some(active.exchange()), stages).await?;
        self.begin(app, active.session(), platform_session, attempt.device, stages).await.map_err(LoginError::spent)
    }

    /// Names the session in its user's list, which no answer waits for.
    pub fn remember(&self, subject: Subject, sid: SessionId) -> impl Future<Output = ()> + use<S, P> {
        let store = self.store.clone();
        let key = self.layout.recent(subject);
        let expires = self.clock.now().seconds().after(self.config().longest_session());
        async move {
            let Ok(values) = store.get(&[&key]).await else { return };
            let read = |value: &Vec<u8>| envelope::read_plain::<Recent>(value);
            let mut recent = match values.first().and_then(Option::as_ref).map(read).transpose() {
                Ok(recent) => recent.unwrap_or_default(),
                Err(Unreadable::Damaged) => Recent::default(),
                // A newer build's list is better than a new one of ours.
                Err(Unreadable::Foreign) => return,
            };
            recent.add(sid);
            let value = envelope::plain(&recent, expires);
            // A lost list costs a line in the list of devices and nothing else.
            let _ = store.apply(vec![Change::Put { key, value, expires: expires.0 }]).await;
        }
    }

    /// The live session of an access token; with `only`, of that app alone.
    ///
    /// # Errors
    /// [`AuthError`] for a token or a session that no longer counts.
    pub async fn authenticate(
        &self,
        token: &str,
        only: Option<&str>,
        stages: &Stages<'_>,
    ) -> Result<(Access<'_>, Session), AuthError> {
        let now = self.clock.now().seconds();
        let access = stages
            .run(Stage::Sign, || access::verify(token, self.config(), &self.setup.ring, now, Expiry::Enforced))?;
        if only.is_some_and(|app| app != access.app.id) {
            return Err(AuthError::Ended("session.other_app"));
        }
        let key = self.layout.session(access.sid);
        let keys = [&key, &self.layout.tombstone(access.sid), &self.layout.epoch(access.subject)];
        let [session, tombstone, epoch] = self.get_some(keys, stages).await?;
        let epoch = read_epoch(epoch.as_deref())?;
        if tombstone.is_some() {
            return Err(AuthError::Ended("session.revoked"));
        }
        let value = session.ok_or(AuthError::Ended("session.absent"))?;
        let session = match stages.run(Stage::Sign, || Session::open(&value, &key, &self.setup.ring)) {
            Ok(session) => session,
            Err(Unreadable::Damaged) => return Err(AuthError::Ended("session.damaged")),
            Err(foreign) => return Err(StoreFault::from(foreign).into()),
        };
        if session.subject != access.subject || session.app != access.app.id {
            return Err(AuthError::Ended("session.other_owner"));
        }
        if !session.is_live(epoch, now) {
            return Err(AuthError::Ended("session.ended"));
        }
        Ok((access, session))
    }

    /// Ends the session of a token. Ending one that is over is no error: a genuine token is enough.
    ///
    /// # Errors
    /// [`LogoutError`]; with the store's, the session may still be live.
    pub async fn log_out(&self, credential: Credential<'_>, stages: &Stages<'_>) -> Result<LoggedOut, LogoutError> {
        let now = self.clock.now().seconds();
        let (sid, subject, latest_end) = match credential {
            Credential::Access(token) => {
                let access = access::verify(token, self.config(), &self.setup.ring, now, Expiry::Ignored)?;
                (access.sid, access.subject, access.issued.after(access.app.session_ttl))
            }
            Credential::Refresh(token) => {
                let refresh = Refresh::verify(token, &self.setup.ring).map_err(|_| LogoutError::Refresh)?;
                (refresh.sid, refresh.subject, now.after(self.config().longest_session()))
            }
        };
        let [session_key, tombstone_key] = [self.layout.session(sid), self.layout.tombstone(sid)];
        let [session, tombstone] = self.get_some([&session_key, &tombstone_key], stages).await?;
        let mut changes = Vec::new();
        // An absent session is revoked too: a store may not have shown it to this node yet. Not one
        // that must be over, or its tokens could write for ever.
        let ends = tombstone.is_none() && (session.is_some() || now < latest_end);
        if ends {
            let ring = &self.setup.ring;
            let end = session.as_deref().and_then(|value| Session::open(value, &session_key, ring).ok());
            let UnixSeconds(end) = end.map_or(latest_end.max(now), |session| session.expires);
            let expires = UnixSeconds(end.saturating_add(TOMBSTONE_SECONDS));
            let value = envelope::plain(&Tombstone { at: now, why: Why::Logout }, expires);
            changes.push(Change::Put { key: tombstone_key, value, expires: expires.0 });
        }
        if session.is_some() {
            changes.push(Change::Delete { key: session_key });
        }
        if !changes.is_empty() {
            self.apply(changes, stages).await?;
        }
        Ok(LoggedOut { sid, subject, now: ends })
    }

    async fn exchange(
        &self,
        app: &App,
        code: &LoginCode,
        exclusive: Option<[u8; 32]>,
        stages: &Stages<'_>,
    ) -> Result<PlatformSession, LoginError> {
        let _counted = self.flights.exchange(app.tag).ok_or(LoginError::Overloaded)?;
        Ok(stages.wait(Stage::Platform, self.platforms.exchange(app, code, exclusive)).await?)
    }

    /// The session of a user the platform has vouched for.
    async fn begin<'l>(
        &'l self,
        app: &'l App,
        sid: SessionId,
        user: PlatformSession,
        device: Option<Device>,
        stages: &Stages<'_>,
    ) -> Result<LoggedIn<'l>, LoginError> {
        let owner = self.identify(app, &user, stages).await?;
        if owner.epoch == Epoch::BLOCKED {
            return Err(LoginError::Blocked);
        }
        let created = self.clock.now().seconds();
        let expires = created.after(app.session_ttl);
        let key = self.layout.session(sid);
        let session = Session {
            app: app.id.clone(),
            platform: app.platform,
            appid: app.appid.clone(),
            openid: user.openid,
            unionid: user.unionid,
            subject: owner.subject,
            epoch: owner.epoch,
            session_key: user.session_key,
            device,
            idempotency: None,
            created,
            expires,
        };
        let value = stages.run(Stage::Sign, || session.seal(&key, &self.setup.ring, &*self.random));
        self.apply(vec![Change::Put { key, value, expires: expires.0 }], stages).await?;
        Ok(stages.run(Stage::Sign, || self.sign(app, sid, &session, owner.is_new)))
    }

    fn sign<'l>(&'l self, app: &'l App, sid: SessionId, session: &Session, is_new: bool) -> LoggedIn<'l> {
        let Session { subject, created, expires, .. } = *session;
        let ring = &self.setup.ring;
        let access = Access { app, subject, sid, issued: created, expires: created.after(app.access_ttl).min(expires) };
        let keys = ring.active();
        let refresh = Refresh { key: keys.id, sid, subject, app: app.tag, counter: 0 };
        LoggedIn {
            app,
            sid,
            subject,
            is_new,
            created,
            expires,
            access_token: access::issue(&access, &self.config().issuer, ring, &*self.random),
            expires_in: access.expires.0 - created.0,
            refresh_token: refresh.issue(keys),
            refresh_expires_in: (expires.0 - created.0).min(self.config().session_idle_ttl.as_secs()),
        }
    }

    async fn get(&self, keys: &[impl AsRef<str>], stages: &Stages<'_>) -> Result<Vec<Option<Vec<u8>>>, StoreFault> {
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        let values = stages.wait(Stage::Store, self.store.get(&keys)).await?;
        if values.len() == keys.len() { Ok(values) } else { Err(StoreFault::Short) }
    }

    async fn get_some<const N: usize>(
        &self,
        keys: [&String; N],
        stages: &Stages<'_>,
    ) -> Result<[Option<Vec<u8>>; N], StoreFault> {
        self.get(&keys, stages).await?.try_into().map_err(|_| StoreFault::Short)
    }

    async fn apply(&self, changes: Vec<Change>, stages: &Stages<'_>) -> Result<(), StoreFault> {
        Ok(stages.wait(Stage::Store, self.store.apply(changes)).await?)
    }
}

/// A user's epoch; nothing stored is 0, and something unreadable is never nothing.
fn read_epoch(value: Option<&[u8]>) -> Result<Epoch, StoreFault> {
    Ok(value.map(envelope::read_plain).transpose()?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        config::tests::{ACTIVE_KEY, SUBJECT_KEY, settings},
        secret::Secret,
        session::Identity,
        store::MemoryStore,
        testing::{FixedClock, SeededRandom, block_on},
    };

    /// A platform without HTTP: the code is the openid.
    struct Canned;

    impl PlatformClient for Canned {
        async fn exchange(
            &self,
            _: &App,
            code: &LoginCode,
            _: Option<[u8; 32]>,
        ) -> Result<PlatformSession, PlatformError> {
            let secret = |text: &str| Secret::new(text.to_owned());
            Ok(PlatformSession { openid: secret(code.expose()), unionid: None, session_key: secret("k") })
        }
    }

    /// A store on which another node's identity always arrives just after ours.
    #[derive(Clone, Default)]
    struct Raced {
        store: MemoryStore,
        rival: Option<(Subject, crate::token::keys::MacKey)>,
    }

    impl Store for Raced {
        async fn get(&self, keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
            self.store.get(keys).await
        }

        async fn apply(&self, changes: Vec<Change>) -> Result<(), StoreError> {
            self.store.apply(changes).await?;
            for key in self.store.keys().iter().filter(|key| key.contains("/o/")) {
                if let Some((subject, mac)) = &self.rival {
                    self.store.plant(key, envelope::maced(&Identity(*subject), UnixSeconds(0), key, mac));
                }
            }
            Ok(())
        }

        async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, StoreError> {
            self.store.scan(prefix, after, limit).await
        }
    }

    fn setup() -> Setup {
        let given =
            [("master_key", ACTIVE_KEY), ("subject_key", SUBJECT_KEY), ("wechat_appid", "wx1"), ("wechat_secret", "s")];
        Setup::read(&settings(&given)).expect("good settings")
    }

    fn login<S: Store>(store: S) -> Login<S, Canned> {
        let clock = Box::new(FixedClock::at(1_700_000_000_000));
        Login::new(store, Canned, clock, Box::new(SeededRandom::new(1)), setup())
    }

    fn attempt(code: &str) -> Attempt<'_> {
        let code = LoginCode::new(code.to_owned()).expect("a code");
        Attempt { app: None, platform: None, code, device: None }
    }

    #[test]
    fn the_core_logs_in_without_http_and_without_a_host() {
        let login = login(MemoryStore::default());
        let stages = Stages::new(None);
        let granted = block_on(login.log_in(attempt("alice"), &stages)).expect("a login");
        assert_eq!(granted.expires.0 - granted.created.0, Duration::from_hours(90 * 24).as_secs());
        let (access, session) =
            block_on(login.authenticate(&granted.access_token, None, &stages)).expect("a live session");
        assert_eq!((access.sid, session.subject), (granted.sid, granted.subject));
        assert_eq!(session.openid.expose(), "alice");
        assert_eq!(block_on(login.log_in(attempt("alice"), &stages)).err(), Some(LoginError::CodeUsed));
        let ended = block_on(login.log_out(Credential::Refresh(&granted.refresh_token), &stages));
        assert_eq!(ended, Ok(LoggedOut { sid: granted.sid, subject: granted.subject, now: true }));
        let after = block_on(login.authenticate(&granted.access_token, None, &stages)).err();
        assert_eq!(after, Some(AuthError::Ended("session.revoked")));
    }

    #[test]
    fn two_first_logins_at_once_end_with_one_user() {
        let rival = Subject::from_bytes([9; 16]);
        let raced = Raced { rival: Some((rival, setup().subjects.record)), ..Raced::default() };
        let login = login(raced);
        let granted = block_on(login.log_in(attempt("alice"), &Stages::new(None))).expect("a login");
        assert_eq!(granted.subject, rival, "what was read back is used");
    }

    #[test]
    fn the_list_of_sessions_is_newest_first_and_never_a_newer_builds_loss() {
        let store = MemoryStore::default();
        let login = login(store.clone());
        let subject = Subject::from_bytes([1; 16]);
        let key = Layout::new("default").recent(subject);
        let sids = [SessionId::from_bytes([1; 16]), SessionId::from_bytes([2; 16])];
        for sid in sids {
            block_on(login.remember(subject, sid));
        }
        let stored = store.value(&key).expect("a list");
        assert_eq!(envelope::read_plain(&stored), Ok(Recent(vec![sids[1], sids[0]])));
        store.plant(&key, "edgepass\u{2}from a newer build");
        block_on(login.remember(subject, sids[0]));
        assert_eq!(store.value(&key).as_deref(), Some(&b"edgepass\x02from a newer build"[..]));
    }
}
