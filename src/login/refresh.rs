//! Refresh: rotation that is idempotent by construction.
//!
//! The store keeps a counter only; the successor of a token is a pure function of the token. So
//! any number of refreshes at once, on any number of nodes, give one and the same successor, and a
//! lost answer is repaired by asking again. Neither a lost nor a late write of the counter can
//! refuse the owner: a token ahead of the counter is as good as one that equals it.

use super::{
    Grant, Login, StoreFault,
    live::{LiveError, Named},
    read_epoch, read_moved,
};
use crate::{
    clock::UnixSeconds,
    config::App,
    session::{Moved, Session, TOMBSTONE_SECONDS, Why},
    store::{Change, Store, envelope},
    timing::Stages,
    token::refresh::{NotOurs, Refresh},
};

/// A session renewed.
pub struct Refreshed<'l> {
    /// Its tokens.
    pub grant: Grant<'l>,
    /// Whose turn it was.
    pub turn: Turn,
}

/// Where a refresh token stands against the counter of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is the newest.
    Newest,
    /// It is newer than the store knows: a write was lost, or a backup restored.
    Ahead,
    /// It is the one before, within the grace time: the answer was lost, or there are two tabs.
    Replayed,
    /// It was spent before.
    Spent,
}

/// A refresh token and the live session it belongs to.
pub struct Standing<'l> {
    /// The app.
    pub app: &'l App,
    /// The session.
    pub session: Session,
    /// Where the token stands.
    pub turn: Turn,
    /// When the session was last renewed, or began.
    pub used: UnixSeconds,
}

/// Why a session is not renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefreshError {
    /// The session does not count.
    #[error(transparent)]
    Session(#[from] LiveError),
    /// The token was spent before; its session is over now.
    #[error("refresh.reuse")]
    Reuse,
    /// Another device than the one that logged in.
    #[error("refresh.device")]
    Device,
    /// The store did not do its part.
    #[error(transparent)]
    Store(#[from] StoreFault),
}

impl<S: Store, P> Login<S, P> {
    /// Reads a refresh token, without asking the store.
    ///
    /// # Errors
    /// [`NotOurs`] for any text this service did not make.
    pub fn read_refresh(&self, token: &str) -> Result<Refresh, NotOurs> {
        Refresh::verify(token, &self.setup.ring)
    }

    /// The live session of a refresh token, which is not used by this.
    ///
    /// # Errors
    /// [`LiveError`] for a session that does not count, idle ones among them.
    pub async fn inspect_refresh(&self, token: &Refresh, stages: &Stages<'_>) -> Result<Standing<'_>, LiveError> {
        let Refresh { sid, subject, .. } = *token;
        let keys = [
            &self.layout.session(sid),
            &self.layout.tombstone(sid),
            &self.layout.epoch(subject),
            &self.layout.moved(sid),
        ];
        let asked = self.now();
        let [session, tombstone, epoch, moved] = self.get_some(keys, stages).await?;
        let (epoch, moved) = (read_epoch(epoch.as_deref())?, read_moved(moved.as_deref())?);
        let now = self.now();
        // A refresh token carries no time: it is as old as the counter, or as young as any. What counts is the age
        // when the store was asked, however long it took.
        let is_young = self.is_young(asked, moved.map(|moved| moved.at));
        let session = self.live(Named { sid, subject, is_young }, [session, tombstone], epoch, stages)?;
        let app = self.config().app(&session.app).filter(|app| app.tag == token.app);
        let app = app.ok_or(LiveError::Ended("session.other_app"))?;
        let used = Self::last_used(&session, moved);
        let Moved { counter, at } = moved.unwrap_or(Moved { counter: 0, at: session.created });
        let grace = self.config().refresh_grace;
        let turn = match i64::from(counter) - i64::from(token.counter) {
            ..=-1 => Turn::Ahead,
            0 => Turn::Newest,
            1 if !grace.is_zero() && now.since(at) <= grace => Turn::Replayed,
            _ => Turn::Spent,
        };
        // A token ahead of the counter shows that the session was used since the counter was kept.
        if turn != Turn::Ahead && self.is_idle(used) {
            return Err(LiveError::Ended("session.idle"));
        }
        Ok(Standing { app, session, turn, used })
    }

    /// Renews the session of a refresh token: new tokens, or those already made of it. With `app`,
    /// only a token of that app.
    ///
    /// # Errors
    /// [`RefreshError`]. Of these only [`RefreshError::Reuse`] changes anything.
    pub async fn refresh(
        &self,
        token: &Refresh,
        app: Option<&str>,
        device_id: Option<&str>,
        stages: &Stages<'_>,
    ) -> Result<Refreshed<'_>, RefreshError> {
        let Standing { app: of, session, turn, .. } = self.inspect_refresh(token, stages).await?;
        if app.is_some_and(|id| id != of.id) {
            return Err(LiveError::Ended("session.other_app").into());
        }
        if turn == Turn::Spent {
            self.apply(self.revocation(token.sid, Why::Reuse, session.expires), stages).await?;
            return Err(RefreshError::Reuse);
        }
        let bound_to = session.device.as_ref().and_then(|device| device.id.as_deref());
        if bound_to.is_some() && bound_to != device_id {
            return Err(RefreshError::Device);
        }
        let now = self.now();
        let counter = token.counter.saturating_add(1);
        if turn != Turn::Replayed {
            let expires = session.expires.plus(TOMBSTONE_SECONDS);
            let value = envelope::plain(&Moved { counter, at: now }, expires);
            let key = self.layout.moved(token.sid);
            self.apply(vec![Change::PutIfGreater { key, value, expires: expires.0 }], stages).await?;
        }
        // The key that made the token makes its successor, or two nodes in the middle of a
        // rotation would make two.
        let keys = self.setup.ring.by_id(token.key).ok_or(LiveError::Ended("refresh.key"))?;
        let grant =
            stages.run(crate::timing::Stage::Sign, || self.grant(of, token.sid, &session, (keys, counter), now));
        Ok(Refreshed { grant, turn })
    }
}
