//! What the service does, without JSON, HTTP or a host: a code becomes a session, a token is
//! looked up or renewed, a session is ended.
//!
//! `code` is the way in, `live` the one rule of which sessions count, `refresh` the rotation,
//! `revoke` every way out. Each reads the store once, all it needs at the same time.

mod code;
mod devices;
mod flight;
mod idempotency;
mod identity;
mod inspect;
mod live;
mod operator;
mod refresh;
mod revoke;
mod subject_key;
mod sweep;

use std::cell::Cell;

use crate::{
    clock::{Clock, UnixSeconds},
    config::{App, Config, Setup},
    random::Random,
    session::{Epoch, MAX_RECENT, Moved, Recent, Session, SessionId},
    store::{
        Change, Store, StoreError,
        envelope::{self, Unreadable},
        key::Layout,
    },
    timing::{Stage, Stages},
    token::{
        access::{self, Access},
        keys::{KeyRing, MasterKeys, Subject},
        refresh::Refresh,
    },
};

pub use code::{Attempt, LoggedIn, LoginError};
pub use devices::{Devices, Listed};
pub use inspect::Inspected;
pub use live::{AuthError, LiveError};
pub use refresh::{RefreshError, Refreshed, Standing, Turn};
pub use revoke::{Credential, LoggedOut, LoggedOutEverywhere, LogoutError};
pub use subject_key::SubjectKeyError;
pub use sweep::Swept;

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
    subject_key_agrees: Cell<bool>,
}

/// The tokens of a session.
pub struct Grant<'l> {
    /// The app.
    pub app: &'l App,
    /// The session.
    pub sid: SessionId,
    /// The user.
    pub subject: Subject,
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

impl<S: Store, P> Login<S, P> {
    /// A service over these parts.
    #[must_use]
    pub fn new(store: S, platforms: P, clock: Box<dyn Clock>, random: Box<dyn Random>, setup: Setup) -> Self {
        let layout = Layout::new(&setup.config.deployment, setup.realm);
        let flights = Flights::new(setup.config.app_concurrency);
        Self { store, platforms, clock, random, setup, layout, flights, subject_key_agrees: Cell::new(false) }
    }

    /// What was configured.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.setup.config
    }

    /// The keys.
    #[must_use]
    pub const fn ring(&self) -> &KeyRing {
        &self.setup.ring
    }

    /// An id as it may stand in a log.
    #[must_use]
    pub fn log_hash(&self, id: &[u8; 16]) -> String {
        self.setup.subjects.log_hash(id)
    }

    fn now(&self) -> UnixSeconds {
        self.clock.now().seconds()
    }

    /// The tokens of `session` at `now`: a fresh access token, and the refresh token of `counter`
    /// under `keys`, which is the same whoever makes it.
    fn grant<'l>(
        &'l self,
        app: &'l App,
        sid: SessionId,
        session: &Session,
        (keys, counter): (&MasterKeys, u32),
        now: UnixSeconds,
    ) -> Grant<'l> {
        let Session { subject, created, expires, .. } = *session;
        // A session that nobody refreshes is over after the idle time, and so are its tokens.
        let ends = now.after(app.access_ttl.min(self.config().session_idle_ttl)).min(expires);
        let access = Access { app, subject, sid, issued: now, expires: ends };
        let refresh = Refresh { key: keys.id, sid, subject, app: app.tag, counter };
        Grant {
            app,
            sid,
            subject,
            created,
            expires,
            access_token: access::issue(&access, &self.config().issuer, &self.setup.ring, &*self.random),
            expires_in: access.expires.since(now).as_secs(),
            refresh_token: refresh.issue(keys),
            refresh_expires_in: expires.since(now).min(self.config().session_idle_ttl).as_secs(),
        }
    }

    async fn get(&self, keys: &[impl AsRef<str>], stages: &Stages<'_>) -> Result<Vec<Option<Vec<u8>>>, StoreFault> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
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

/// How far a session's refresh tokens have come; `None` before the first refresh.
fn read_moved(value: Option<&[u8]>) -> Result<Option<Moved>, StoreFault> {
    Ok(value.map(envelope::read_plain).transpose()?)
}

/// The sessions a user's list names, the newest first. A list nobody can read names none: it is a
/// hint, and nothing that must hold depends on it.
fn read_recent(value: Option<&[u8]>) -> Vec<SessionId> {
    let read = value.map(envelope::read_plain::<Recent>).and_then(Result::ok);
    let mut sids = read.map_or_else(Vec::new, |Recent(sids)| sids);
    // It is in the clear, and nobody is to be made to read more.
    sids.truncate(MAX_RECENT);
    sids
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        config::tests::{ACTIVE_KEY, SUBJECT_KEY, settings},
        platforms::{LoginCode, PlatformClient, PlatformError, PlatformSession},
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
        Attempt { app: None, platform: None, code, device: None, idempotency: None }
    }

    #[test]
    fn the_core_logs_in_without_http_and_without_a_host() {
        let login = login(MemoryStore::default());
        let stages = Stages::new(None);
        let granted = block_on(login.log_in(attempt("alice"), &stages)).expect("a login");
        assert_eq!(granted.grant.expires.0 - granted.grant.created.0, Duration::from_hours(90 * 24).as_secs());
        let (access, session) =
            block_on(login.authenticate(&granted.grant.access_token, None, &stages)).expect("a live session");
        assert_eq!((access.sid, session.subject), (granted.grant.sid, granted.grant.subject));
        assert_eq!(session.openid.expose(), "alice");
        assert_eq!(block_on(login.log_in(attempt("alice"), &stages)).err(), Some(LoginError::CodeUsed));
        let ended = block_on(login.log_out(Credential::Refresh(&granted.grant.refresh_token), &stages));
        assert_eq!(ended, Ok(LoggedOut { sid: granted.grant.sid, subject: granted.grant.subject, now: true }));
        let after = block_on(login.authenticate(&granted.grant.access_token, None, &stages)).err();
        assert_eq!(after, Some(AuthError::Session(LiveError::Ended("session.revoked"))));
    }

    #[test]
    fn two_first_logins_at_once_end_with_one_user() {
        let rival = Subject::from_bytes([9; 16]);
        let raced = Raced { rival: Some((rival, setup().subjects.record)), ..Raced::default() };
        let login = login(raced);
        let granted = block_on(login.log_in(attempt("alice"), &Stages::new(None))).expect("a login");
        assert_eq!(granted.grant.subject, rival, "what was read back is used");
    }

    #[test]
    fn the_list_of_sessions_is_newest_first_and_never_a_newer_builds_loss() {
        let store = MemoryStore::default();
        let login = login(store.clone());
        let subject = Subject::from_bytes([1; 16]);
        let key = Layout::new("default", crate::config::Realm::Live).recent(subject);
        let sids = [SessionId::from_bytes([1; 16]), SessionId::from_bytes([2; 16])];
        for sid in sids {
            block_on(login.remember(subject, sid, Vec::new()));
        }
        let stored = store.value(&key).expect("a list");
        assert_eq!(envelope::read_plain(&stored), Ok(Recent(vec![sids[1], sids[0]])));
        store.plant(&key, "edgepass\u{2}from a newer build");
        block_on(login.remember(subject, sids[0], Vec::new()));
        assert_eq!(store.value(&key).as_deref(), Some(&b"edgepass\x02from a newer build"[..]));
    }
}
