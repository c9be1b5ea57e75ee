//! How sessions end: the tombstone first, then the session goes. Existence of the tombstone is
//! what counts, so a revocation that was cut in the middle has either not happened or is complete.

use super::{Login, StoreFault};
use crate::{
    clock::UnixSeconds,
    config::LONGEST_SESSION,
    session::{Session, SessionId, TOMBSTONE_SECONDS, Tombstone, Why},
    store::{Change, Store, envelope},
    timing::Stages,
    token::{
        access::{self, AccessError, Expiry},
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

impl<S: Store, P> Login<S, P> {
    /// Ends the session of a token. Ending one that is over is no error: a genuine token is enough.
    ///
    /// # Errors
    /// [`LogoutError`]; with the store's, the session may still be live.
    pub async fn log_out(&self, credential: Credential<'_>, stages: &Stages<'_>) -> Result<LoggedOut, LogoutError> {
        let (sid, subject, latest_end) = self.named_by(credential)?;
        let now = self.end(sid, Why::Logout, latest_end, stages).await?;
        Ok(LoggedOut { sid, subject, now })
    }

    /// The session and user of a credential, and when the session must be over at the latest.
    pub(super) fn named_by(
        &self,
        credential: Credential<'_>,
    ) -> Result<(SessionId, Subject, UnixSeconds), LogoutError> {
        let now = self.now();
        match credential {
            Credential::Access(token) => {
                let access = access::verify(token, self.config(), &self.setup.ring, now, Expiry::Ignored)?;
                Ok((access.sid, access.subject, access.issued.after(access.app.session_ttl)))
            }
            Credential::Refresh(token) => {
                let refresh = Refresh::verify(token, &self.setup.ring).map_err(|_| LogoutError::Refresh)?;
                Ok((refresh.sid, refresh.subject, now.after(self.config().longest_session())))
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
            // The end of a session nobody can read is as late as any: lifetimes may have been longer
            // when it began, and a tombstone must not go first.
            let session = session.as_deref().and_then(|value| Session::open(value, &key, &self.setup.ring).ok());
            self.revocation(sid, why, session.map_or(now.after(LONGEST_SESSION), |session| session.expires))
        } else if session.is_some() {
            vec![Change::Delete { key }]
        } else {
            return Ok(false);
        };
        self.apply(changes, stages).await?;
        Ok(ends)
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
