//! Which sessions count, and who is behind a bearer token.
//!
//! A session is live while `s` exists, opens under its key and has not ended, no `x` exists, and
//! its epoch is not below the user's `e`. A store that fails, or holds a record of a newer build, ends
//! nothing and lets nobody in.

use super::{Login, StoreFault, read_epoch};
use crate::{
    clock::UnixSeconds,
    session::{Epoch, Moved, Session, SessionId},
    store::{Store, envelope::Unreadable},
    timing::{Stage, Stages},
    token::{
        access::{self, Access, AccessError, Expiry},
        keys::Subject,
    },
};

/// Why a session does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// It is over, for this reason.
    #[error("{0}")]
    Ended(&'static str),
    /// It may be too new for this node to see it.
    #[error("session.lagging")]
    Lagging,
    /// The store did not do its part.
    #[error(transparent)]
    Store(#[from] StoreFault),
}

/// Why a bearer token opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The token is not good.
    #[error(transparent)]
    Token(#[from] AccessError),
    /// Its session does not count.
    #[error(transparent)]
    Session(#[from] LiveError),
}

/// What the store says of the caller of an access token.
pub(super) struct Caller {
    pub(super) session: Session,
    pub(super) epoch: Epoch,
    also: Vec<Option<Vec<u8>>>,
}

impl Caller {
    /// What was read besides: as much as was asked for.
    pub(super) fn also<const N: usize>(&mut self) -> Result<[Option<Vec<u8>>; N], LiveError> {
        std::mem::take(&mut self.also).try_into().map_err(|_| StoreFault::Short.into())
    }
}

/// What a token says of its session, for [`Login::live`].
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub(super) sid: SessionId,
    pub(super) subject: Subject,
    /// Whether the token may be younger than [`crate::config::Config::store_lag`].
    pub(super) is_young: bool,
}

impl<S: Store, P> Login<S, P> {
    /// What an access token says, without asking the store: its session may be over.
    ///
    /// # Errors
    /// [`AuthError::Token`]; [`AuthError::Session`] for another app than `only`.
    pub fn authenticate_offline(
        &self,
        token: &str,
        only: Option<&str>,
        stages: &Stages<'_>,
    ) -> Result<Access<'_>, AuthError> {
        let now = self.now();
        let access = stages
            .run(Stage::Sign, || access::verify(token, self.config(), &self.setup.ring, now, Expiry::Enforced))?;
        if only.is_some_and(|app| app != access.app.id) {
            return Err(LiveError::Ended("session.other_app").into());
        }
        if access.issued < self.config().sessions_valid_after {
            return Err(LiveError::Ended("session.before_valid_after").into());
        }
        Ok(access)
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
        let access = self.authenticate_offline(token, only, stages)?;
        let caller = self.caller(&access, Vec::new(), stages).await?;
        Ok((access, caller.session))
    }

    /// The live session of an access token, with what the store holds under the keys of `also`, read
    /// at the same time. Their number is not in the type: each would be a copy of this in the component.
    pub(super) async fn caller(
        &self,
        access: &Access<'_>,
        also: Vec<String>,
        stages: &Stages<'_>,
    ) -> Result<Caller, LiveError> {
        let (sid, subject) = (access.sid, access.subject);
        let mut keys = vec![self.layout.session(sid), self.layout.tombstone(sid), self.layout.epoch(subject)];
        keys.extend(also);
        let is_young = self.is_young(self.now(), Some(access.issued));
        let mut records = self.get(&keys, stages).await?;
        let also = records.split_off(3);
        let [session, tombstone, epoch] = records.try_into().map_err(|_| StoreFault::Short)?;
        let epoch = read_epoch(epoch.as_deref())?;
        let session = self.live(Named { sid, subject, is_young }, [session, tombstone], epoch, stages)?;
        if session.app != access.app.id {
            return Err(LiveError::Ended("session.other_app"));
        }
        Ok(Caller { session, epoch, also })
    }

    /// The session of these records, `s` and `x`, if it counts under the user's epoch.
    pub(super) fn live(
        &self,
        named: Named,
        [session, tombstone]: [Option<Vec<u8>>; 2],
        epoch: Epoch,
        stages: &Stages<'_>,
    ) -> Result<Session, LiveError> {
        if tombstone.is_some() {
            return Err(LiveError::Ended("session.revoked"));
        }
        let absent = if named.is_young { LiveError::Lagging } else { LiveError::Ended("session.absent") };
        let value = session.ok_or(absent)?;
        let key = self.layout.session(named.sid);
        let session = match stages.run(Stage::Sign, || Session::open(&value, &key, &self.setup.ring)) {
            Ok(session) => session,
            Err(Unreadable::Damaged) => return Err(LiveError::Ended("session.damaged")),
            Err(foreign) => return Err(StoreFault::from(foreign).into()),
        };
        if session.subject != named.subject {
            return Err(LiveError::Ended("session.other_owner"));
        }
        if session.created < self.config().sessions_valid_after {
            return Err(LiveError::Ended("session.before_valid_after"));
        }
        if !session.is_live(epoch, self.now()) {
            return Err(LiveError::Ended("session.ended"));
        }
        Ok(session)
    }

    /// Whether what was written at `since`, or who knows when, may have been invisible when the store
    /// was `asked`.
    pub(super) fn is_young(&self, asked: UnixSeconds, since: Option<UnixSeconds>) -> bool {
        let lag = self.config().store_lag;
        !lag.is_zero() && since.is_none_or(|since| asked.since(since) < lag)
    }

    /// Whether a session that was last used then has gone without it for too long.
    pub(super) fn is_idle(&self, used: UnixSeconds) -> bool {
        self.now().since(used) >= self.config().session_idle_ttl
    }

    /// When a session was last refreshed, or began.
    pub(super) fn last_used(session: &Session, moved: Option<Moved>) -> UnixSeconds {
        moved.map_or(session.created, |moved| moved.at)
    }
}
