//! What is remembered of a signed-in user, and when it still counts.
//!
//! One session is one `s` record, written once by the login and deleted by its revocation. It is
//! live while `s` exists, unexpired and readable, no tombstone `x` exists, and its epoch is not
//! below the user's `e`. Nothing here reads or writes the store.

use serde::{Deserialize, Serialize};

use crate::{
    clock::{UnixMillis, UnixSeconds},
    platforms::Platform,
    random::Random,
    secret::Secret,
    store::envelope::{self, Record, Unreadable},
    token::{
        id128,
        keys::{KeyRing, Subject},
    },
};

id128! {
    /// Names a session. An identifier and no credential; derived from the code that made it, so
    /// that its existence is the memory of a spent code.
    SessionId
}

/// How many sessions of a user the `l` record names.
pub const MAX_RECENT: usize = 50;

/// How long a tombstone outlives its session, in seconds: longer than clocks may differ.
pub const TOMBSTONE_SECONDS: u64 = 24 * 3600;

/// A signed-in user on one device.
#[derive(Debug)]
pub struct Session {
    /// The app, by our name.
    pub app: String,
    /// Its platform.
    pub platform: Platform,
    /// The app, by the platform's name.
    pub appid: String,
    /// The user within the app.
    pub openid: Secret<String>,
    /// The user across the owner's apps.
    pub unionid: Option<Secret<String>>,
    /// The user.
    pub subject: Subject,
    /// The user's epoch when the session began.
    pub epoch: Epoch,
    /// The platform's secret for the user's data.
    pub session_key: Secret<String>,
    /// The device, where the login named one.
    pub device: Option<Device>,
    /// MAC of the login's idempotency key, where it had one.
    pub idempotency: Option<[u8; 32]>,
    /// When it began.
    pub created: UnixSeconds,
    /// When it ends, whatever happens.
    pub expires: UnixSeconds,
}

/// What a client calls its device. At most 128 and 256 characters, without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Stable id, chosen by the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Text for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// `e`: a user's epoch. Sessions of an older one are over. Absent counts as 0. Its stored form grows
/// with it, byte by byte, so a host that compares keeps the higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "[u8; 8]", from = "[u8; 8]")]
pub struct Epoch(pub u64);

/// `x`: a session is over. That it exists is what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// When it was written first.
    pub at: UnixSeconds,
    /// Why.
    pub why: Why,
}

/// Why a session was ended. The order is that of the stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// Its owner logged out.
    Logout,
    /// A spent refresh token was used.
    Reuse,
    /// Its owner logged out everywhere.
    LogoutAll,
    /// Its owner ended it from another session.
    Device,
    /// An operator ended it.
    Operator,
    /// Its user has as many sessions as they may have.
    Evicted,
}

/// `g`: how far the refresh tokens of a session have come. Its stored form grows with the counter,
/// byte by byte, so a host that compares keeps the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "([u8; 4], [u8; 8])", from = "([u8; 4], [u8; 8])")]
pub struct Moved {
    /// The counter of the newest refresh token.
    pub counter: u32,
    /// When it became so.
    pub at: UnixSeconds,
}

/// `o` and `y`: whose an openid or unionid is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity(pub Subject);

/// `f`: which `subject_key` users here are derived with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint(pub [u8; 16]);

/// `l`: the newest sessions of a user, newest first. A hint: each is checked before it counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent(pub Vec<SessionId>);

impl Epoch {
    /// Set in the epoch of a blocked user, which no session reaches. A bit and not a value: what the
    /// epoch was before must still be known when the user is unblocked, or sessions that were over
    /// would live again.
    const BLOCKED: u64 = 1 << 63;

    /// Never: with it what it ended would live again.
    pub const EXPIRES: UnixSeconds = UnixSeconds(0);

    /// Whether the user may not log in.
    #[must_use]
    pub const fn is_blocked(self) -> bool {
        self.0 & Self::BLOCKED != 0
    }

    /// The epoch after this one, at `now`, by which every session so far is over. It follows the
    /// clock so that a lost record cannot make it begin again below sessions that are over.
    #[must_use]
    pub fn next(self, now: UnixMillis) -> Self {
        let blocked = self.0 & Self::BLOCKED;
        let number = (self.0 & !Self::BLOCKED).max(now.0 & !Self::BLOCKED).saturating_add(1) & !Self::BLOCKED;
        Self(number | blocked)
    }

    /// The same for a user who may not log in any more.
    #[must_use]
    pub const fn blocked(self) -> Self {
        Self(self.0 | Self::BLOCKED)
    }

    /// The same for a user who may log in again.
    #[must_use]
    pub const fn unblocked(self) -> Self {
        Self(self.0 & !Self::BLOCKED)
    }
}

impl From<Epoch> for [u8; 8] {
    fn from(epoch: Epoch) -> Self {
        epoch.0.to_be_bytes()
    }
}

impl From<[u8; 8]> for Epoch {
    fn from(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

impl From<Moved> for ([u8; 4], [u8; 8]) {
    fn from(moved: Moved) -> Self {
        (moved.counter.to_be_bytes(), moved.at.0.to_be_bytes())
    }
}

impl From<([u8; 4], [u8; 8])> for Moved {
    fn from((counter, at): ([u8; 4], [u8; 8])) -> Self {
        Self { counter: u32::from_be_bytes(counter), at: UnixSeconds(u64::from_be_bytes(at)) }
    }
}

impl Why {
    /// As it stands in a log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Logout => "logout",
            Self::Reuse => "reuse",
            Self::LogoutAll => "logout_all",
            Self::Device => "device",
            Self::Operator => "operator",
            Self::Evicted => "evicted",
        }
    }
}

impl Recent {
    /// Puts `sid` first, and drops the oldest above [`MAX_RECENT`].
    pub fn add(&mut self, sid: SessionId) {
        self.0.retain(|known| *known != sid);
        self.0.truncate(MAX_RECENT - 1);
        self.0.insert(0, sid);
    }
}

impl Session {
    /// Whether it still counts, as far as the session itself and the user's epoch say.
    #[must_use]
    pub fn is_live(&self, epoch: Epoch, now: UnixSeconds) -> bool {
        now < self.expires && self.epoch >= epoch
    }

    /// The value for `key`.
    #[must_use]
    pub fn seal(&self, key: &str, ring: &KeyRing, random: &dyn Random) -> Vec<u8> {
        let stored = Stored {
            app: &self.app,
            platform: self.platform.name(),
            appid: &self.appid,
            openid: self.openid.expose(),
            unionid: self.unionid.as_ref().map(|unionid| unionid.expose().as_str()),
            subject: self.subject,
            epoch: self.epoch.0,
            session_key: self.session_key.expose(),
            device: self.device.as_ref().map(|d| (d.id.as_deref(), d.label.as_deref())),
            idempotency: self.idempotency,
            created: self.created,
            expires: self.expires,
        };
        envelope::sealed(&stored, self.expires, key, ring, random)
    }

    /// Opens the value of `key`.
    ///
    /// # Errors
    /// [`Unreadable`] for what [`Session::seal`] did not write to this key.
    pub fn open(value: &[u8], key: &str, ring: &KeyRing) -> Result<Self, Unreadable> {
        envelope::open::<Stored<'_>, _>(value, key, ring, |clear| {
            let stored: Stored<'_> = envelope::decode(clear)?;
            let secret = |text: &str| Secret::new(text.to_owned());
            Ok(Self {
                app: stored.app.to_owned(),
                platform: Platform::named(stored.platform).ok_or(Unreadable::Foreign)?,
                appid: stored.appid.to_owned(),
                openid: secret(stored.openid),
                unionid: stored.unionid.map(secret),
                subject: stored.subject,
                epoch: Epoch(stored.epoch),
                session_key: secret(stored.session_key),
                device: stored
                    .device
                    .map(|(id, label)| Device { id: id.map(str::to_owned), label: label.map(str::to_owned) }),
                idempotency: stored.idempotency,
                created: stored.created,
                expires: stored.expires,
            })
        })
    }
}

/// The stored form of a [`Session`], version 1. The platform goes by name, so that adding one
/// renumbers nothing.
#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    app: &'a str,
    platform: &'a str,
    appid: &'a str,
    openid: &'a str,
    unionid: Option<&'a str>,
    subject: Subject,
    epoch: u64,
    session_key: &'a str,
    #[serde(borrow)]
    device: Option<(Option<&'a str>, Option<&'a str>)>,
    idempotency: Option<[u8; 32]>,
    created: UnixSeconds,
    expires: UnixSeconds,
}

impl Record for Stored<'_> {
    const VERSION: u8 = 1;
}

impl Record for Epoch {
    const VERSION: u8 = 1;
}

impl Record for Moved {
    const VERSION: u8 = 1;
}

impl Record for Tombstone {
    const VERSION: u8 = 1;
}

impl Record for Identity {
    const VERSION: u8 = 1;
}

impl Record for Fingerprint {
    const VERSION: u8 = 1;
}

impl Record for Recent {
    const VERSION: u8 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::tests::two_apps, hex::hex, testing::SeededRandom, token::keys::MacKey};

    fn session() -> Session {
        Session {
            app: "one".into(),
            platform: Platform::Wechat,
            appid: "wx1".into(),
            openid: Secret::new("o-1".into()),
            unionid: None,
            subject: Subject::from_bytes([1; 16]),
            epoch: Epoch(3),
            session_key: Secret::new("k==".into()),
            device: Some(Device { id: Some("d".into()), label: None }),
            idempotency: None,
            created: UnixSeconds(1_700_000_000),
            expires: UnixSeconds(1_700_000_600),
        }
    }

    /// Version 1 of each record, as long as one of them may lie in a store.
    #[test]
    fn what_is_stored_never_changes() {
        let (_, ring) = two_apps();
        let forever = UnixSeconds(0);
        let identity = Identity(Subject::from_bytes([1; 16]));
        let tombstone = Tombstone { at: UnixSeconds(1_700_000_000), why: Why::Logout };
        let recent = Recent(vec![SessionId::from_bytes([2; 16])]);
        let seen = [
            hex(&session().seal("k", &ring, &SeededRandom::new(1))),
            hex(&envelope::maced(&identity, forever, "k", &MacKey::of_bytes(b"m"))),
            hex(&envelope::plain(&Epoch(u64::MAX), forever)),
            hex(&envelope::plain(&tombstone, UnixSeconds(1))),
            hex(&envelope::plain(&recent, UnixSeconds(1))),
        ];
        assert_eq!(seen, GOLDEN);
    }

    const GOLDEN: [&str; 5] = [
        "656467657061737301000000006553f3586253d136c15c0289ec2d0a9167ec8e65a18debbe5e5532fbeea293f8c19706bcdadd3f0cd73f14680146c48e628661a3e0065baccd2a34734d12bf6f1e8453bea5dd309953773155b7f17531118cd64c805775b93babab4ca9a692f4ea5bd8b4364e21a847",
        "656467657061737301000000000000000001010101010101010101010101010101e38acef2b8ce7f0884c719a8ce2e6b9fea35e54076a9e82ad26ce63b3b5216c7",
        "6564676570617373010000000000000000ffffffffffffffff",
        "656467657061737301000000000000000180e2cfaa0600",
        "65646765706173730100000000000000010102020202020202020202020202020202",
    ];

    #[test]
    fn a_session_is_read_back_from_its_own_key_only() {
        let (_, ring) = two_apps();
        let value = session().seal("k", &ring, &SeededRandom::new(1));
        let read = Session::open(&value, "k", &ring).expect("our own");
        assert_eq!(format!("{read:?}"), format!("{:?}", session()));
        assert_eq!((read.openid.expose().as_str(), read.session_key.expose().as_str()), ("o-1", "k=="));
        assert_eq!(Session::open(&value, "l", &ring).err(), Some(Unreadable::Damaged));
        assert!(!format!("{read:?}").contains("o-1") && !format!("{read:?}").contains("k=="));
    }

    #[test]
    fn a_session_lives_until_its_end_or_the_next_epoch() {
        let at = |epoch, now| session().is_live(Epoch(epoch), UnixSeconds(now));
        assert!(at(0, 1_700_000_599) && at(3, 0));
        assert!(!at(0, 1_700_000_600) && !at(4, 0));
        assert!(!session().is_live(Epoch::default().blocked(), UnixSeconds(0)));
    }

    #[test]
    fn epochs_only_grow_and_a_block_keeps_the_number() {
        let now = UnixMillis(1000);
        assert_eq!((Epoch(0).next(now), Epoch(5000).next(now)), (Epoch(1001), Epoch(5001)));
        let blocked = Epoch(5000).next(now).blocked();
        assert!(blocked.is_blocked() && blocked > Epoch(u64::MAX >> 1));
        assert_eq!((blocked.unblocked(), blocked.next(now).unblocked()), (Epoch(5001), Epoch(5002)));
        assert!(blocked.next(now).is_blocked(), "who is blocked and logs out everywhere stays blocked");
        let stored = |epoch| envelope::plain(&epoch, UnixSeconds(0));
        assert!(stored(Epoch(256)) > stored(Epoch(255)) && stored(Epoch(1).blocked()) > stored(Epoch(u64::MAX >> 1)));
        assert!(Epoch(u64::MAX).is_blocked() && Epoch(u64::MAX).next(now).is_blocked());
    }

    #[test]
    fn the_stored_counter_compares_as_bytes() {
        let stored = |counter, at| envelope::plain(&Moved { counter, at: UnixSeconds(at) }, UnixSeconds(9));
        assert!(stored(256, 1) > stored(255, 2) && stored(1, 2) > stored(1, 1) && stored(1 << 31, 0) > stored(1, 0));
        let moved = Moved { counter: 300, at: UnixSeconds(1_700_000_000) };
        assert_eq!(envelope::read_plain(&stored(300, 1_700_000_000)), Ok(moved));
    }

    #[test]
    fn the_list_keeps_the_newest_once() {
        let mut recent = Recent::default();
        for n in 0..60 {
            recent.add(SessionId::from_bytes([n; 16]));
        }
        recent.add(SessionId::from_bytes([30; 16]));
        assert_eq!(recent.0.len(), MAX_RECENT);
        assert_eq!(recent.0[0], SessionId::from_bytes([30; 16]));
        assert_eq!(recent.0.iter().filter(|sid| **sid == SessionId::from_bytes([30; 16])).count(), 1);
    }
}
