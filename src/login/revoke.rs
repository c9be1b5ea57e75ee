//! How sessions end: the tombstone first, then the session goes. Existence of the tombstone is
//! what counts, so a revocation that was cut in the middle has either not happened or is complete.

use super::{
    Login, StoreFault,
    live::{AuthError, LiveError, Named},
    read_epoch, read_moved, read_recent,
};
use crate::{
    clock::UnixSeconds,
    config::LONGEST_SESSION,
    session::{Epoch, Session, SessionId, TOMBSTONE_SECONDS, Tombstone, Why},
    store::{Change, Store, envelope},
    timing::Stages,
    token::{
        access::{self, Access, AccessError, Expiry},
        keys::Subject,
        refresh::Refresh,
    },
};

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
    /// The session may be too new for this node to see it.
    #[error("session.lagging")]
    Lagging,
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

/// A user whose sessions are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedOutEverywhere {
    /// The session that asked.
    pub sid: SessionId,
    /// The user.
    pub subject: Subject,
    /// How many sessions this call ended, as far as the list knows; `None` when the one that asked
    /// was over before, and nothing was changed.
    pub sessions: Option<usize>,
}

/// What a credential says of its session.
struct Claimed {
    sid: SessionId,
    subject: Subject,
    /// When it was made. A refresh token carries no time.
    issued: Option<UnixSeconds>,
    /// When the session must be over at the latest.
    latest_end: UnixSeconds,
}

impl<S: Store, P> Login<S, P> {
    /// Ends the session of a token. Ending one that is over is no error: a genuine token is enough.
    ///
    /// # Errors
    /// [`LogoutError`]; with the store's, the session may still be live.
    pub async fn log_out(&self, credential: Credential<'_>, stages: &Stages<'_>) -> Result<LoggedOut, LogoutError> {
        let Claimed { sid, subject, latest_end, .. } = self.claimed_by(credential)?;
        let now = self.end(sid, Why::Logout, latest_end, stages).await?;
        Ok(LoggedOut { sid, subject, now })
    }

    /// Ends every session of a token's user, the one it belongs to and any that is just being made
    /// among them. The token of a session that is over changes nothing: whoever finds one could keep
    /// a user out for ever.
    ///
    /// # Errors
    /// [`LogoutError`]; with the store's, some or all of the sessions may still be live.
    pub async fn log_out_everywhere(
        &self,
        credential: Credential<'_>,
        stages: &Stages<'_>,
    ) -> Result<LoggedOutEverywhere, LogoutError> {
        let Claimed { sid, subject, issued, .. } = self.claimed_by(credential)?;
        let asked = self.now();
        let keys = [
            &self.layout.session(sid),
            &self.layout.tombstone(sid),
            &self.layout.epoch(subject),
            &self.layout.moved(sid),
            &self.layout.recent(subject),
        ];
        let [session, tombstone, epoch, moved, recent] = self.get_some(keys, stages).await?;
        let (epoch, moved) = (read_epoch(epoch.as_deref())?, read_moved(moved.as_deref())?);
        let is_young = self.is_young(asked, issued.or_else(|| moved.map(|moved| moved.at)));
        let is_over = match self.live(Named { sid, subject, is_young }, [session, tombstone], epoch, stages) {
            // A token of theirs that was made since shows that the session was used, whatever the store kept.
            Ok(session) => self.is_idle(issued.unwrap_or_default().max(Self::last_used(&session, moved))),
            Err(LiveError::Ended(_)) => true,
            Err(LiveError::Lagging) => return Err(LogoutError::Lagging),
            Err(LiveError::Store(fault)) => return Err(fault.into()),
        };
        if is_over {
            return Ok(LoggedOutEverywhere { sid, subject, sessions: None });
        }
        let mut sids = read_recent(recent.as_deref());
        if !sids.contains(&sid) {
            sids.push(sid);
        }
        let sessions = self.end_all(subject, epoch.next(self.clock.now()), &sids, Why::LogoutAll, stages).await?;
        Ok(LoggedOutEverywhere { sid, subject, sessions: Some(sessions) })
    }

    /// Ends the session `id` of the user of an access token; `None` when they have no such session.
    /// Any text is an id, and for every one that is not of a live session of theirs the same is done.
    ///
    /// # Errors
    /// [`AuthError`] for a token or a session that no longer counts, and for the store: then the
    /// session may still be live.
    pub async fn end_device(&self, token: &str, id: &str, stages: &Stages<'_>) -> Result<Option<LoggedOut>, AuthError> {
        let sid = SessionId::parse(id).unwrap_or(NOBODYS);
        let access = self.authenticate_offline(token, None, stages)?;
        let also = vec![self.layout.session(sid), self.layout.tombstone(sid)];
        let mut caller = self.caller(&access, also, stages).await?;
        // By its own record alone is it theirs.
        let named = Named { sid, subject: access.subject, is_young: false };
        let session = match self.live(named, caller.also()?, caller.epoch, stages) {
            Ok(session) => session,
            Err(LiveError::Ended(_)) => return Ok(None),
            Err(unknown) => return Err(unknown.into()),
        };
        let changes = self.revocation(sid, Why::Device, session.expires);
        self.apply(changes, stages).await.map_err(LiveError::from)?;
        Ok(Some(LoggedOut { sid, subject: access.subject, now: true }))
    }

    fn claimed_by(&self, credential: Credential<'_>) -> Result<Claimed, LogoutError> {
        let now = self.now();
        match credential {
            Credential::Access(token) => {
                let Access { sid, subject, issued, app, .. } =
                    access::verify(token, self.config(), &self.setup.ring, now, Expiry::Ignored)?;
                Ok(Claimed { sid, subject, issued: Some(issued), latest_end: issued.after(app.session_ttl) })
            }
            Credential::Refresh(token) => {
                let Refresh { sid, subject, .. } =
                    Refresh::verify(token, &self.setup.ring).map_err(|_| LogoutError::Refresh)?;
                Ok(Claimed { sid, subject, issued: None, latest_end: now.after(self.config().longest_session()) })
            }
        }
    }

    /// Ends a session; says whether it was not over before. The first reason stays.
    ///
    /// An absent session is revoked too: a store may not have shown it to this node yet. Not one
    /// that must be over since `latest_end`, or its tokens could write for ever.
    pub(super) async fn end(
        &self,
        sid: SessionId,
        why: Why,
        latest_end: UnixSeconds,
        stages: &Stages<'_>,
    ) -> Result<bool, StoreFault> {
        let key = self.layout.session(sid);
        let [session, tombstone] = self.get_some([&key, &self.layout.tombstone(sid)], stages).await?;
        let now = self.now();
        let ends = tombstone.is_none() && (session.is_some() || now < latest_end);
        let changes = if ends {
            let end = match session.as_deref().map(|value| Session::open(value, &key, &self.setup.ring)) {
                Some(Ok(session)) => session.expires,
                // The end of a session nobody can read is as late as any: lifetimes may have been longer
                // when it began, and a tombstone must not go first.
                Some(Err(_)) => now.after(LONGEST_SESSION),
                None => latest_end,
            };
            self.revocation(sid, why, end)
        } else if session.is_some() {
            vec![Change::Delete { key }]
        } else {
            return Ok(false);
        };
        self.apply(changes, stages).await?;
        Ok(ends)
    }

    /// Ends every session of a user: by `epoch`, which goes first, those that no list names; by their
    /// own tombstones those that `sids` names. So what is cut in the middle has ended all of them or
    /// none, and what is lost later, of the two, revives none. Says how many of `sids` were not over.
    pub(super) async fn end_all(
        &self,
        subject: Subject,
        epoch: Epoch,
        sids: &[SessionId],
        why: Why,
        stages: &Stages<'_>,
    ) -> Result<usize, StoreFault> {
        let keys = sids.iter().flat_map(|&sid| [self.layout.session(sid), self.layout.tombstone(sid)]);
        let mut records = self.get(&keys.collect::<Vec<_>>(), stages).await?.into_iter();
        let value = envelope::plain(&epoch, Epoch::EXPIRES);
        let key = self.layout.epoch(subject);
        // Not over a higher one: another node, whose clock is ahead, may do the same just now.
        let mut changes = vec![Change::PutIfGreater { key, value, expires: Epoch::EXPIRES.0 }];
        let mut ended = 0;
        for &sid in sids {
            let [session, tombstone] = [records.next(), records.next()].map(Option::flatten);
            // One that is not there, or not yet to be seen here, the epoch ends.
            let Some(value) = session else { continue };
            let key = self.layout.session(sid);
            let end = match Session::open(&value, &key, &self.setup.ring) {
                // The list is in the clear; it may not end another user's session.
                Ok(session) if session.subject != subject => continue,
                Ok(session) => session.expires,
                Err(_) => self.now().after(LONGEST_SESSION),
            };
            if tombstone.is_some() {
                changes.push(Change::Delete { key });
                continue;
            }
            ended += 1;
            changes.extend(self.revocation(sid, why, end));
        }
        self.apply(changes, stages).await?;
        Ok(ended)
    }

    /// The changes that end a session which would have lived until `end`.
    pub(super) fn revocation(&self, sid: SessionId, why: Why, end: UnixSeconds) -> Vec<Change> {
        let expires = end.plus(TOMBSTONE_SECONDS);
        let value = envelope::plain(&Tombstone { at: self.now(), why }, expires);
        vec![
            Change::Put { key: self.layout.tombstone(sid), value, expires: expires.0 },
            Change::Delete { key: self.layout.session(sid) },
        ]
    }
}

/// An id that no session has: each is a MAC.
const NOBODYS: SessionId = SessionId::from_bytes([0; 16]);
