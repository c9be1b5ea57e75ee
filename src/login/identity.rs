//! Whose a platform session is: the subject rule.
//!
//! What `o` says decides. Where it says nothing: with a unionid the subject `y` knows, else the one
//! derived from owner and unionid; without one, the one derived from app and openid. What was
//! written to `o` without a unionid is read back and used: another login, to which the platform has
//! just begun to tell the unionid, may have written another subject.

use super::{Login, LoginError, StoreFault, read_epoch};
use crate::{
    clock::UnixSeconds,
    config::App,
    platforms::{PlatformClient, PlatformSession},
    session::{Epoch, Identity},
    store::{Change, Store, envelope},
    timing::Stages,
    token::keys::Subject,
};

/// Identities are never forgotten.
const FOREVER: UnixSeconds = UnixSeconds(0);

/// A user and the epoch read for it.
pub(super) struct Owner {
    pub(super) subject: Subject,
    pub(super) epoch: Epoch,
    pub(super) is_new: bool,
}

impl<S: Store, P: PlatformClient> Login<S, P> {
    pub(super) async fn identify(
        &self,
        app: &App,
        user: &PlatformSession,
        stages: &Stages<'_>,
    ) -> Result<Owner, LoginError> {
        let subjects = &self.setup.subjects;
        let by_openid = subjects.openid(app, user.openid.expose());
        let by_unionid = user.unionid.as_ref().map(|unionid| subjects.unionid(app, unionid.expose()));
        let derived = by_unionid.unwrap_or(by_openid).subject;
        let openid_key = self.layout.openid(by_openid.place);
        let [known, epoch] = self.get_some([&openid_key, &self.layout.epoch(derived)], stages).await?;
        let epoch = read_epoch(epoch.as_deref())?;
        if let Some(value) = known {
            let subject = self.read_identity(&value, &openid_key)?;
            return self.owner(subject, (derived, epoch), false, stages).await;
        }

        // The first login with this openid.
        let unionid_key = by_unionid.map(|known| self.layout.unionid(known.place));
        let joined = match &unionid_key {
            Some(key) => {
                let [value] = self.get_some([key], stages).await?;
                value.map(|value| self.read_identity(&value, key)).transpose()?
            }
            None => None,
        };
        let is_new = joined.is_none();
        let owner = self.owner(joined.unwrap_or(derived), (derived, epoch), is_new, stages).await?;
        if owner.epoch.is_blocked() {
            return Ok(owner);
        }
        let writes = [Some(openid_key.clone()), unionid_key.filter(|_| is_new)].into_iter().flatten();
        let writes = writes.map(|key| Change::Put {
            value: envelope::maced(&Identity(owner.subject), FOREVER, &key, &subjects.record),
            key,
            expires: FOREVER.0,
        });
        self.apply(writes.collect(), stages).await?;
        // Two first logins at once that know the unionid arrive at one subject by themselves.
        if by_unionid.is_some() {
            return Ok(owner);
        }
        let [written] = self.get_some([&openid_key], stages).await?;
        let subject = self.read_identity(&written.ok_or(StoreFault::Short)?, &openid_key)?;
        self.owner(subject, (owner.subject, owner.epoch), is_new, stages).await
    }

    /// The owner `subject`; its epoch is read unless the one at hand is its own.
    async fn owner(
        &self,
        subject: Subject,
        (of, epoch): (Subject, Epoch),
        is_new: bool,
        stages: &Stages<'_>,
    ) -> Result<Owner, LoginError> {
        if subject == of {
            return Ok(Owner { subject, epoch, is_new });
        }
        let [epoch] = self.get_some([&self.layout.epoch(subject)], stages).await?;
        Ok(Owner { subject, epoch: read_epoch(epoch.as_deref())?, is_new })
    }

    /// Fails closed: an identity nobody can read is not a new user.
    fn read_identity(&self, value: &[u8], key: &str) -> Result<Subject, StoreFault> {
        let Identity(subject) = envelope::read_maced(value, key, &self.setup.subjects.record)?;
        Ok(subject)
    }
}
