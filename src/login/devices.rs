//! The list of a user's sessions: a hint, each entry of which is checked before it counts.

use super::Login;
use crate::{
    session::{Recent, SessionId},
    store::{
        Change, Store,
        envelope::{self, Unreadable},
    },
    token::keys::Subject,
};

impl<S: Store, P> Login<S, P> {
    /// Names the session in its user's list, which no answer waits for.
    pub fn remember(&self, subject: Subject, sid: SessionId) -> impl Future<Output = ()> + use<S, P> {
        let store = self.store.clone();
        let key = self.layout.recent(subject);
        let expires = self.now().after(self.config().longest_session());
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
}
