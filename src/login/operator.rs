//! What an operator may do to sessions and users. All of it may be repeated, and none of it tells
//! whether there was such a session or user.

use super::{Login, StoreFault, read_epoch, read_recent};
use crate::{
    config::LONGEST_SESSION,
    session::{Epoch, SessionId, Why},
    store::{Change, Store, envelope},
    timing::Stages,
    token::keys::Subject,
};

impl<S: Store, P> Login<S, P> {
    /// Ends a session; says whether it was not over before.
    ///
    /// # Errors
    /// [`StoreFault`]; then the session may still be live.
    pub async fn revoke_session(&self, sid: SessionId, stages: &Stages<'_>) -> Result<bool, StoreFault> {
        self.end(sid, Why::Operator, self.now().after(LONGEST_SESSION), stages).await
    }

    /// Ends every session of a user; says how many there were, as far as the list knows.
    ///
    /// # Errors
    /// [`StoreFault`]; then some or all of them may still be live.
    pub async fn revoke_user(&self, subject: Subject, stages: &Stages<'_>) -> Result<usize, StoreFault> {
        self.end_user(subject, |epoch| epoch, stages).await
    }

    /// The same, and lets the user log in no more.
    ///
    /// # Errors
    /// [`StoreFault`]; then nothing may have changed.
    pub async fn block(&self, subject: Subject, stages: &Stages<'_>) -> Result<usize, StoreFault> {
        self.end_user(subject, Epoch::blocked, stages).await
    }

    /// Lets a user log in again; says whether they were blocked. What was over stays over.
    ///
    /// # Errors
    /// [`StoreFault`]; then the user may still be blocked.
    pub async fn unblock(&self, subject: Subject, stages: &Stages<'_>) -> Result<bool, StoreFault> {
        let key = self.layout.epoch(subject);
        let [epoch] = self.get_some([&key], stages).await?;
        let epoch = read_epoch(epoch.as_deref())?;
        if !epoch.is_blocked() {
            return Ok(false);
        }
        let value = envelope::plain(&epoch.next(self.clock.now()).unblocked(), Epoch::EXPIRES);
        self.apply(vec![Change::Put { key, value, expires: Epoch::EXPIRES.0 }], stages).await?;
        Ok(true)
    }

    async fn end_user(
        &self,
        subject: Subject,
        mark: impl FnOnce(Epoch) -> Epoch,
        stages: &Stages<'_>,
    ) -> Result<usize, StoreFault> {
        let [epoch, recent] =
            self.get_some([&self.layout.epoch(subject), &self.layout.recent(subject)], stages).await?;
        let epoch = mark(read_epoch(epoch.as_deref())?.next(self.clock.now()));
        self.end_all(subject, epoch, &read_recent(recent.as_deref()), Why::Operator, stages).await
    }
}
