//! The names of what is stored. Every key begins with `edgepass/<deployment>/`, so a shared store
//! can hold several deployments, and no id of a platform or a client enters a key in the clear.

use crate::{
    config::Realm,
    session::SessionId,
    token::keys::{IdentityHash, Subject},
};

/// Builds keys for one deployment.
#[derive(Clone, Debug)]
pub struct Layout {
    prefix: String,
}

impl Layout {
    /// For a deployment whose name [`crate::config`] has checked: at most 64 characters, so that
    /// every key stays far below 200 bytes.
    #[must_use]
    pub fn new(deployment: &str, realm: Realm) -> Self {
        // Below the users', so that one sweep sees both; kinds have one letter, so none is `shadow`.
        let realm = match realm {
            Realm::Live => "",
            Realm::Shadow => SHADOW,
        };
        Self { prefix: format!("edgepass/{deployment}/{realm}") }
    }

    /// `s/<sid>`: the session.
    #[must_use]
    pub fn session(&self, sid: SessionId) -> String {
        self.key("s", &sid.text())
    }

    /// `x/<sid>`: its tombstone.
    #[must_use]
    pub fn tombstone(&self, sid: SessionId) -> String {
        self.key("x", &sid.text())
    }

    /// `g/<sid>`: how far its refresh tokens have come.
    #[must_use]
    pub fn moved(&self, sid: SessionId) -> String {
        self.key("g", &sid.text())
    }

    /// `e/<sub>`: the user's epoch.
    #[must_use]
    pub fn epoch(&self, subject: Subject) -> String {
        self.key("e", &subject.text())
    }

    /// `l/<sub>`: the user's recent sessions.
    #[must_use]
    pub fn recent(&self, subject: Subject) -> String {
        self.key("l", &subject.text())
    }

    /// `o/<hash>`: the subject of an openid.
    #[must_use]
    pub fn openid(&self, hash: IdentityHash) -> String {
        self.key("o", &hash.text())
    }

    /// `y/<hash>`: the subject of a unionid.
    #[must_use]
    pub fn unionid(&self, hash: IdentityHash) -> String {
        self.key("y", &hash.text())
    }

    /// `f/subject`: which `subject_key` the identities here were made with.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.key("f", "subject")
    }

    /// What every key begins with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A key of ours, taken apart: what stands before its kind, the kind, the id. `None` for any other.
    #[must_use]
    pub fn parts<'k>(&self, key: &'k str) -> Option<(&'k str, &'k str, &'k str)> {
        let below = key.strip_prefix(self.prefix.as_str())?;
        let below = below.strip_prefix(SHADOW).unwrap_or(below);
        let place = key.strip_suffix(below)?;
        let (kind, id) = below.split_once('/')?;
        Some((place, kind, id))
    }

    fn key(&self, kind: &str, id: &str) -> String {
        let mut key = String::with_capacity(self.prefix.len() + kind.len() + 1 + id.len());
        for part in [self.prefix.as_str(), kind, "/", id] {
            key.push_str(part);
        }
        key
    }
}

/// Where shadow traffic lies.
const SHADOW: &str = "shadow/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_taken_apart_in_either_realm() {
        let [live, shadow] = [Realm::Live, Realm::Shadow].map(|realm| Layout::new("d", realm));
        let sid = SessionId::from_bytes([0; 16]);
        let id = sid.text();
        assert_eq!(live.parts(&live.moved(sid)), Some(("edgepass/d/", "g", id.as_str())));
        let key = shadow.session(sid);
        let parts = Some(("edgepass/d/shadow/", "s", id.as_str()));
        assert_eq!((live.parts(&key), shadow.parts(&key)), (parts, parts));
        for foreign in ["", "edgepass/d/", "edgepass/d/s", "edgepass/dd/s/1", "other"] {
            assert_eq!(live.parts(foreign), None, "{foreign}");
        }
        assert_eq!(shadow.parts(&live.session(sid)), None);
    }

    #[test]
    fn every_kind_has_its_place_below_the_deployment() {
        let layout = Layout::new(&"d".repeat(64), Realm::Shadow);
        let sid = SessionId::from_bytes([0xfb; 16]);
        assert_eq!(Layout::new("default", Realm::Live).session(sid), "edgepass/default/s/-_v7-_v7-_v7-_v7-_v7-w");
        let subject = Subject::from_bytes([0; 16]);
        let hash = IdentityHash::from_bytes([0; 16]);
        let keys = [
            layout.session(sid),
            layout.tombstone(sid),
            layout.moved(sid),
            layout.epoch(subject),
            layout.recent(subject),
            layout.openid(hash),
            layout.unionid(hash),
            layout.fingerprint(),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert!(keys.iter().all(|key| key.len() < 200));
    }
}
