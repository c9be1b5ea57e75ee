//! Whether the store's identities were made with our `subject_key`. With another one every user
//! would be a new one, and nobody would notice before they ask where their orders have gone.

use super::{Login, StoreFault};
use crate::{
    clock::UnixSeconds,
    session::Fingerprint,
    store::{Change, Store, envelope},
};

/// Why users cannot be told from one another here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectKeyError {
    /// The store was filled with another key.
    #[error("config.subject_key")]
    Other,
    /// The store did not do its part.
    #[error(transparent)]
    Store(#[from] StoreFault),
}

impl<S: Store, P> Login<S, P> {
    /// Compares our key with what the store says; an empty store agrees with any.
    ///
    /// # Errors
    /// [`SubjectKeyError`].
    pub async fn compare_subject_key(&self) -> Result<(), SubjectKeyError> {
        self.subject_key_agrees.set(self.stored_fingerprint().await?.is_some());
        Ok(())
    }

    /// Leaves the fingerprint of our key in a store that had none, once the platform has vouched for
    /// somebody. It is read back: of two nodes with two keys that begin at once, one is to notice.
    pub(super) async fn claim_subject_key(&self) -> Result<(), SubjectKeyError> {
        if self.subject_key_agrees.get() {
            return Ok(());
        }
        if self.stored_fingerprint().await?.is_none() {
            let value = envelope::plain(&Fingerprint(self.setup.subjects.fingerprint), UnixSeconds(0));
            let change = Change::Put { key: self.layout.fingerprint(), value, expires: 0 };
            self.store.apply(vec![change]).await.map_err(StoreFault::from)?;
        }
        self.compare_subject_key().await
    }

    async fn stored_fingerprint(&self) -> Result<Option<Fingerprint>, SubjectKeyError> {
        let values = self.store.get(&[&self.layout.fingerprint()]).await.map_err(StoreFault::from)?;
        let read = |value: &Vec<u8>| envelope::read_plain::<Fingerprint>(value).map_err(StoreFault::from);
        let stored = values.first().and_then(Option::as_ref).map(read).transpose()?;
        match stored {
            Some(Fingerprint(stored)) if stored != self.setup.subjects.fingerprint => Err(SubjectKeyError::Other),
            agreed => Ok(agreed),
        }
    }
}
