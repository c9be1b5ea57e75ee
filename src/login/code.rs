//! A code becomes a session.
//!
//! In order: choose the app; note the code as under way; ask the store whether it was spent;
//! exchange it, once; find whose it is; write the session; sign. Only a code the platform accepted
//! ever causes a write.
//!
//! A login with an idempotency key may be sent again. Where the code was spent, by a request whose
//! answer was lost or by one that is still under way here or on another node, the session it made is
//! looked for, for a while, and answered again.

use std::time::Duration;

use super::{
    Grant, Listed, Login, StoreFault, SubjectKeyError,
    devices::Room,
    idempotency::{REPEATED_SECONDS, Wish},
    live::{LiveError, Named},
    read_epoch, read_moved,
};
use crate::{
    config::App,
    outbound::{SendError, SendErrorKind},
    platforms::{Class, LoginCode, PlatformClient, PlatformError, PlatformSession},
    session::{Device, Session, SessionId, Why},
    store::{Change, Store, envelope::Unreadable},
    timing::{Stage, Stages},
    token::keys::{CodeMac, MasterKeys, Subject, random_session},
};

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
    /// The client's name for this wish, under which it may send it again.
    pub idempotency: Option<&'r str>,
}

/// A login that succeeded.
pub struct LoggedIn<'l> {
    /// Its tokens.
    pub grant: Grant<'l>,
    /// Whether the user was unknown so far. A hint: two first logins at once both say so.
    pub is_new: bool,
    /// Whether an earlier request made the session.
    pub is_repeated: bool,
    /// The user's sessions that ended for this one.
    pub evicted: Vec<SessionId>,
    /// What the user's list names and is known to be over, for [`Login::remember`].
    pub over: Vec<SessionId>,
}

/// Why there is no login.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// No app is meant, or several are.
    #[error("app_unknown")]
    AppUnknown,
    /// The code was used before, by a wish that is not this one or may not be repeated.
    #[error("code_used")]
    CodeUsed,
    /// The code is being used now.
    #[error("code_under_way")]
    UnderWay,
    /// The idempotency key came with another body before.
    #[error("idempotency_mismatch")]
    OtherWish,
    /// Too many exchanges of this app are under way.
    #[error("overloaded")]
    Overloaded,
    /// An operator blocked this user.
    #[error("user.blocked")]
    Blocked(Subject),
    /// This user has as many sessions as they may have. The code is spent.
    #[error("session.limit")]
    SessionLimit(Subject),
    /// The users here were derived with another `subject_key`.
    #[error("config.subject_key")]
    OtherSubjectKey,
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

impl From<SubjectKeyError> for LoginError {
    fn from(error: SubjectKeyError) -> Self {
        match error {
            SubjectKeyError::Other => Self::OtherSubjectKey,
            SubjectKeyError::Store(fault) => Self::Store(fault),
        }
    }
}

impl LoginError {
    /// The same after the platform has taken the code.
    fn spent(self) -> Self {
        match self {
            Self::Store(fault) => Self::Unstored(fault),
            other => other,
        }
    }

    /// Who it was that may not log in, where the platform has vouched for somebody.
    #[must_use]
    pub const fn subject(&self) -> Option<Subject> {
        match self {
            Self::Blocked(subject) | Self::SessionLimit(subject) => Some(*subject),
            _ => None,
        }
    }

    /// Whether somebody else has used the code, or is using it, whose session may be there soon.
    fn may_be_repeated(&self) -> bool {
        matches!(
            self,
            Self::UnderWay
                | Self::Platform(
                    PlatformError::Refused { class: Class::CodeUsed, .. }
                        | PlatformError::Unanswered(SendError { kind: SendErrorKind::Duplicate, .. })
                )
        )
    }
}

/// A code under one of our keys.
struct Derived<'l> {
    keys: &'l MasterKeys,
    mac: CodeMac,
    wish: Option<Wish>,
}

impl<S: Store, P: PlatformClient> Login<S, P> {
    /// Turns a code into a session.
    ///
    /// # Errors
    /// [`LoginError`]; then nothing was written but, at most, whose the user is. After
    /// [`LoginError::Unstored`] the session may be there or not.
    pub async fn log_in(&self, attempt: Attempt<'_>, stages: &Stages<'_>) -> Result<LoggedIn<'_>, LoginError> {
        let app = self.config().choose(attempt.app, attempt.platform).ok_or(LoginError::AppUnknown)?;
        // Once in the life of an instance.
        if !self.subject_key_agrees.get() {
            self.compare_subject_key().await?;
        }
        if self.config().reusable_codes {
            let sid = random_session(&*self.random);
            let user = self.exchange(app, &attempt.code, None, stages).await?;
            return self.begin(app, sid, user, attempt.device, None, stages).await.map_err(LoginError::spent);
        }
        // A spent code is found under any key that may have derived its session.
        let derive = |keys| {
            let mac = MasterKeys::code(keys, app, attempt.code.expose());
            Derived { keys, mac, wish: Wish::of(&attempt, keys) }
        };
        let derived: Vec<Derived<'_>> = stages.run(Stage::Sign, || self.setup.ring.iter().map(derive).collect());
        let outcome = self.log_in_once(app, &derived, &attempt, stages).await;
        match outcome {
            Err(error) if error.may_be_repeated() && attempt.idempotency.is_some() => {
                self.await_session(app, &derived, stages).await?.ok_or(error)
            }
            outcome => outcome,
        }
    }

    async fn log_in_once<'l>(
        &'l self,
        app: &'l App,
        derived: &[Derived<'l>],
        attempt: &Attempt<'_>,
        stages: &Stages<'_>,
    ) -> Result<LoggedIn<'l>, LoginError> {
        let active = derived.first().ok_or(LoginError::CodeUsed)?;
        // Noted before the store is asked: else a second request could read "not spent", wait, and
        // call the platform after the first has ended.
        let _under_way = self.flights.code(active.mac.exchange()).ok_or(LoginError::UnderWay)?;
        if let Some(repeated) = self.session_of(app, derived, stages).await? {
            return Ok(repeated);
        }
        let user = self.exchange(app, &attempt.code, Some(active.mac.exchange()), stages).await?;
        let begun = self.begin(app, active.mac.session(), user, attempt.device.clone(), active.wish, stages).await;
        begun.map_err(LoginError::spent)
    }

    /// Looks for the session of a code that somebody else has used, until it is there or nobody
    /// would wait for it any longer.
    async fn await_session<'l>(
        &'l self,
        app: &'l App,
        derived: &[Derived<'l>],
        stages: &Stages<'_>,
    ) -> Result<Option<LoggedIn<'l>>, LoginError> {
        // Together a second and a half: most of what an exchange may take.
        for wait in [50, 100, 150, 200, 300, 300, 400].map(Duration::from_millis) {
            self.clock.sleep(wait).await;
            if let Some(repeated) = self.session_of(app, derived, stages).await? {
                return Ok(Some(repeated));
            }
        }
        Ok(None)
    }

    /// The session a code has made, for whoever may have it again; `None` for a code that was not
    /// spent.
    async fn session_of<'l>(
        &'l self,
        app: &'l App,
        derived: &[Derived<'l>],
        stages: &Stages<'_>,
    ) -> Result<Option<LoggedIn<'l>>, LoginError> {
        let keys = derived.iter().map(|derived| derived.mac.session());
        let keys: Vec<String> = keys.flat_map(|sid| [self.layout.session(sid), self.layout.tombstone(sid)]).collect();
        let mut records = self.get(&keys, stages).await?.into_iter();
        for derived in derived {
            match (records.next().flatten(), records.next().flatten()) {
                (None, None) => {}
                (Some(session), None) => return self.repeat(app, derived, session, stages).await.map(Some),
                (_, Some(_)) => return Err(LoginError::CodeUsed),
            }
        }
        Ok(None)
    }

    /// Answers a login again: the same refresh token, and an access token of now.
    async fn repeat<'l>(
        &'l self,
        app: &'l App,
        derived: &Derived<'l>,
        value: Vec<u8>,
        stages: &Stages<'_>,
    ) -> Result<LoggedIn<'l>, LoginError> {
        let wish = derived.wish.ok_or(LoginError::CodeUsed)?;
        let sid = derived.mac.session();
        let key = self.layout.session(sid);
        let subject = match Session::open(&value, &key, &self.setup.ring) {
            Ok(session) => session.subject,
            Err(Unreadable::Damaged) => return Err(LoginError::CodeUsed),
            Err(foreign) => return Err(StoreFault::from(foreign).into()),
        };
        let keys = [&self.layout.epoch(subject), &self.layout.moved(sid)];
        let [epoch, moved] = self.get_some(keys, stages).await?;
        let (epoch, moved) = (read_epoch(epoch.as_deref())?, read_moved(moved.as_deref())?);
        let live = self.live(Named { sid, subject, is_young: false }, [Some(value), None], epoch, stages);
        let session = match live {
            Ok(session) => session,
            Err(LiveError::Store(fault)) => return Err(fault.into()),
            Err(_) => return Err(LoginError::CodeUsed),
        };
        let kept = session.idempotency.as_ref().and_then(|kept| wish.matches(kept)).ok_or(LoginError::CodeUsed)?;
        let now = self.now();
        if now.since(session.created).as_secs() > REPEATED_SECONDS || moved.is_some() {
            return Err(LoginError::CodeUsed);
        }
        if !kept {
            return Err(LoginError::OtherWish);
        }
        let grant = stages.run(Stage::Sign, || self.grant(app, sid, &session, (derived.keys, 0), now));
        Ok(LoggedIn { grant, is_new: false, is_repeated: true, evicted: Vec::new(), over: Vec::new() })
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
        wish: Option<Wish>,
        stages: &Stages<'_>,
    ) -> Result<LoggedIn<'l>, LoginError> {
        self.claim_subject_key().await?;
        let owner = self.identify(app, &user, stages).await?;
        if owner.epoch.is_blocked() {
            return Err(LoginError::Blocked(owner.subject));
        }
        let Room { surplus, mut over } = self.make_room(owner.subject, stages).await?;
        let created = self.now();
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
            idempotency: wish.map(Wish::to_bytes),
            created,
            expires,
        };
        let value = stages.run(Stage::Sign, || session.seal(&key, &self.setup.ring, &*self.random));
        let mut changes = vec![Change::Put { key, value, expires: expires.0 }];
        // In the same write and not behind the answer, where a host may never get to it: a limit that
        // holds only mostly is none, and the log would tell of ends that never came.
        let ends = |ended: &Listed| self.revocation(ended.sid, Why::Evicted, ended.session.expires);
        changes.extend(surplus.iter().flat_map(ends));
        self.apply(changes, stages).await?;
        let first = (self.setup.ring.active(), 0);
        let grant = stages.run(Stage::Sign, || self.grant(app, sid, &session, first, created));
        let evicted: Vec<_> = surplus.into_iter().map(|ended| ended.sid).collect();
        over.extend(&evicted);
        Ok(LoggedIn { grant, is_new: owner.is_new, is_repeated: false, evicted, over })
    }
}
