//! The keys, derived once from the configured secrets and scheduled for use.
//!
//! Two secrets with two lives. `master_key` is a list: the first makes, all of them read, so it is
//! rotated by append, promote, drop. What it keys names its key. `subject_key` is never rotated:
//! subjects, and where they are stored, depend on it.

use std::fmt;

use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305};
use hkdf::Hkdf;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::{
    config::{App, Realm},
    hex::hex,
    platforms::Platform,
    random::Random,
    secret::Secret,
    session::SessionId,
    token::{
        id128,
        signing::{Jwk, Private, SigningKey, SigningKeys, VerifyingKey},
    },
};

/// Shortest secret taken, in bytes: as long as the keys derived from it.
pub const MIN_SECRET_BYTES: usize = 32;

id128! {
    /// A user of ours, the `sub` of tokens: derived, so every node finds the same.
    Subject
}

id128! {
    /// Where an openid or unionid is stored, without telling which one it is.
    IdentityHash
}

/// Names a master key in what it made: four bytes derived from the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyId(pub [u8; 4]);

/// An HMAC-SHA256 key, scheduled: each use costs its message and nothing for the key.
#[derive(Clone)]
pub struct MacKey(Hmac<Sha256>);

/// All master keys, the active one first.
pub struct KeyRing {
    active: MasterKeys,
    older: Vec<MasterKeys>,
    signing: SigningKey,
    /// Those of the `signing_keys` setting, then one of each master key.
    verifying: Vec<VerifyingKey>,
}

/// What one master key gives.
pub struct MasterKeys {
    /// Its name.
    pub id: KeyId,
    /// The name in the `kid` of access tokens: [`KeyId`] as eight hex digits.
    pub kid: String,
    /// Signs access tokens (HS256) where no signing key is set, and verifies them always.
    pub access: MacKey,
    /// Authenticates refresh tokens.
    pub refresh: MacKey,
    /// Seals stored records.
    pub seal: XChaCha20Poly1305,
    sid: MacKey,
    idempotency: MacKey,
}

/// What `subject_key` gives.
pub struct SubjectKeys {
    /// Tells whether another node has the same key.
    pub fingerprint: [u8; 16],
    /// Authenticates the stored identities.
    pub record: MacKey,
    identity: MacKey,
    log: MacKey,
}

/// What an id of a platform is under the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Where its user is stored.
    pub place: IdentityHash,
    /// Its user, while nothing is stored.
    pub subject: Subject,
}

/// A code under the keys: which session it makes, and what to call the exchange.
pub struct CodeMac([u8; 32]);

impl KeyRing {
    /// Derives from the secrets, the active one first; `None` for an empty list.
    #[must_use]
    pub fn new(secrets: &[Secret<Vec<u8>>], realm: Realm) -> Option<Self> {
        let mut keys = secrets.iter().map(|secret| MasterKeys::new(secret.expose(), realm));
        let (active, older): (_, Vec<_>) = (keys.next()?, keys.collect());
        let signing = active.signing();
        let verifying = std::iter::once(&active).chain(&older).map(|keys| keys.signing().verifying()).collect();
        Some(Self { active, older, signing, verifying })
    }

    /// With keys of their own for access tokens. Those derived from the master keys go on verifying,
    /// so that a service moves to signing keys, node by node, without refusing what it issued.
    #[must_use]
    pub fn with_signing_keys(mut self, keys: SigningKeys) -> Self {
        self.signing = keys.current.unwrap_or(self.signing);
        self.verifying.splice(0..0, keys.verifying);
        self
    }

    /// The key for everything new.
    #[must_use]
    pub const fn active(&self) -> &MasterKeys {
        &self.active
    }

    /// Every key, the active one first.
    pub fn iter(&self) -> impl Iterator<Item = &MasterKeys> {
        std::iter::once(&self.active).chain(&self.older)
    }

    /// The key of this name.
    #[must_use]
    pub fn by_id(&self, id: KeyId) -> Option<&MasterKeys> {
        self.iter().find(|keys| keys.id == id)
    }

    /// The master key whose `kid` is exactly this text.
    #[must_use]
    pub fn by_kid(&self, kid: &str) -> Option<&MasterKeys> {
        self.iter().find(|keys| keys.kid == kid)
    }

    /// The key that signs access tokens.
    #[must_use]
    pub const fn signing(&self) -> &SigningKey {
        &self.signing
    }

    /// The key whose `kid` is exactly this text, for access tokens.
    #[must_use]
    pub fn verifying(&self, kid: &str) -> Option<&VerifyingKey> {
        self.verifying.iter().find(|key| key.kid() == kid)
    }

    /// What verifiers elsewhere may know: the public halves, and of MACs nothing.
    pub fn public(&self) -> impl Iterator<Item = Jwk<'_>> {
        self.verifying.iter().filter_map(VerifyingKey::jwk)
    }
}

impl MasterKeys {
    fn new(secret: &[u8], realm: Realm) -> Self {
        let root = root(secret, realm);
        let id = KeyId(derive(&root, b"master/id"));
        let seal: Zeroizing<[u8; 32]> = Zeroizing::new(derive(&root, b"master/seal"));
        Self {
            id,
            kid: hex(&id.0),
            access: MacKey::derived(&root, b"master/access/HS256"),
            refresh: MacKey::derived(&root, b"master/refresh"),
            seal: XChaCha20Poly1305::new((&*seal).into()),
            sid: MacKey::derived(&root, b"master/sid"),
            idempotency: MacKey::derived(&root, b"master/idempotency"),
        }
    }

    fn signing(&self) -> SigningKey {
        SigningKey::new(self.kid.clone(), Private::Hs256(self.access.clone()))
    }

    /// What this key makes of a code.
    #[must_use]
    pub fn code(&self, app: &App, code: &str) -> CodeMac {
        CodeMac(self.sid.over(&[app.id.as_bytes(), code.as_bytes()]))
    }

    /// What this key makes of an idempotency key and what came with it.
    #[must_use]
    pub fn idempotency(&self, fields: &[&[u8]]) -> [u8; 16] {
        left(&self.idempotency.over(fields))
    }
}

impl CodeMac {
    /// The id of the session this code makes: the first 128 bits.
    #[must_use]
    pub fn session(&self) -> SessionId {
        SessionId::from_bytes(left(&self.0))
    }

    /// The key of the one exchange this code may make, for [`crate::outbound::Call::exclusive`].
    #[must_use]
    pub const fn exchange(&self) -> [u8; 32] {
        self.0
    }
}

impl SubjectKeys {
    /// Derives from the secret.
    #[must_use]
    pub fn new(secret: &Secret<Vec<u8>>, realm: Realm) -> Self {
        let root = root(secret.expose(), realm);
        Self {
            fingerprint: derive(&root, b"subject/fingerprint"),
            record: MacKey::derived(&root, b"subject/record"),
            identity: MacKey::derived(&root, b"subject/identity"),
            log: MacKey::derived(&root, b"subject/log"),
        }
    }

    /// Where the user of an openid is stored, and who it is while nothing is.
    #[must_use]
    pub fn openid(&self, app: &App, openid: &str) -> Known {
        self.known("openid", app.platform, &app.appid, openid)
    }

    /// Where the user of a unionid is stored, and who it is while nothing is.
    #[must_use]
    pub fn unionid(&self, app: &App, unionid: &str) -> Known {
        self.known("unionid", app.platform, &app.owner, unionid)
    }

    fn known(&self, kind: &str, platform: Platform, scope: &str, id: &str) -> Known {
        let fields = [kind, platform.name(), scope, id].map(str::as_bytes);
        let mac = self.identity.over(&fields);
        // Two halves of one MAC: neither tells anything about the other.
        let (place, subject) = (left(&mac), *mac.last_chunk().expect("16 of 32 bytes"));
        Known { place: IdentityHash(place), subject: Subject(subject) }
    }

    /// An id as it may stand in a log: the same everywhere, and of no use elsewhere.
    #[must_use]
    pub fn log_hash(&self, id: &[u8; 16]) -> String {
        hex(&left::<8>(&self.log.over(&[id])))
    }
}

impl MacKey {
    /// The MAC of `fields`, each with its length before it, so that no two lists look alike.
    #[must_use]
    pub fn over(&self, fields: &[&[u8]]) -> [u8; 32] {
        self.absorb(fields).finalize().into_bytes().into()
    }

    /// Compares the whole MAC, in constant time.
    #[must_use]
    pub fn verifies(&self, fields: &[&[u8]], mac: &[u8]) -> bool {
        self.absorb(fields).verify_slice(mac).is_ok()
    }

    /// The bare HMAC of a message, as JWS wants it.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(message).finalize().into_bytes().into()
    }

    /// Compares the whole bare HMAC, in constant time.
    #[must_use]
    pub fn verifies_message(&self, message: &[u8], mac: &[u8]) -> bool {
        self.0.clone().chain_update(message).verify_slice(mac).is_ok()
    }

    /// Compares the left part of the bare HMAC, in constant time.
    #[must_use]
    pub fn verifies_left(&self, message: &[u8], mac: &[u8]) -> bool {
        self.0.clone().chain_update(message).verify_truncated_left(mac).is_ok()
    }

    fn absorb(&self, fields: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for field in fields {
            mac.update(&u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
            mac.update(field);
        }
        mac
    }

    fn derived(root: &Hkdf<Sha256>, label: &[u8]) -> Self {
        let key: Zeroizing<[u8; 32]> = Zeroizing::new(derive(root, label));
        Self::of_bytes(&*key)
    }

    /// The key of these bytes, however many.
    ///
    /// # Panics
    /// Never: HMAC takes a key of any length.
    #[must_use]
    pub fn of_bytes(key: &[u8]) -> Self {
        Self(<Hmac<Sha256> as hmac::Mac>::new_from_slice(key).expect("HMAC takes a key of any length"))
    }
}

fn root(secret: &[u8], realm: Realm) -> Hkdf<Sha256> {
    let salt = match realm {
        Realm::Live => SALT,
        Realm::Shadow => SHADOW_SALT,
    };
    Hkdf::new(Some(salt), secret)
}

fn derive<const N: usize>(root: &Hkdf<Sha256>, label: &[u8]) -> [u8; N] {
    let mut key = [0; N];
    root.expand(label, &mut key).expect("HKDF gives up to 8160 bytes");
    key
}

/// The left part of a MAC.
fn left<const N: usize>(mac: &[u8; 32]) -> [u8; N] {
    *mac.first_chunk().expect("no part is longer than the whole")
}

/// A fresh id, for what is not derived.
#[must_use]
pub fn random_session(random: &dyn Random) -> SessionId {
    SessionId::from_bytes(crate::random::bytes(random))
}

/// Names only.
impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|keys| &keys.kid)).finish()
    }
}

impl fmt::Debug for SubjectKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubjectKeys(_)")
    }
}

impl fmt::Debug for MacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacKey(_)")
    }
}

/// One salt for each realm; labels tell the keys apart. A change of either is a new format.
const SALT: &[u8] = b"edgepass/1";
const SHADOW_SALT: &[u8] = b"edgepass/1/shadow";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::two_apps;

    #[test]
    fn hkdf_and_hmac_are_those_of_their_documents() {
        // RFC 5869, A.1 (32 of its 42 bytes) and RFC 4231, test case 2.
        let salt: Vec<u8> = (0..=0x0c).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let root = Hkdf::<Sha256>::new(Some(&salt), &[0x0b; 22]);
        assert_eq!(
            hex(&derive::<32>(&root, &info)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
        );
        assert_eq!(
            hex(&MacKey::of_bytes(b"Jefe").sign(b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn what_is_derived_never_changes() {
        // Golden: a change here ends every session and every identity there is.
        let (config, ring) = two_apps();
        let app = config.app("one").expect("configured");
        let keys = SubjectKeys::new(&Secret::new((0..32).collect()), Realm::Live);
        let seen = [
            ring.active().kid.clone(),
            hex(&ring.active().code(app, "c").exchange()),
            hex(&ring.active().refresh.over(&[b"x"])),
            hex(&ring.active().access.over(&[b"x"])),
            hex(keys.openid(app, "o").place.bytes()),
            hex(keys.openid(app, "o").subject.bytes()),
            hex(keys.unionid(app, "u").place.bytes()),
            hex(keys.unionid(app, "u").subject.bytes()),
            hex(&keys.record.over(&[b"x"])),
            keys.log_hash(&[0; 16]),
        ];
        assert_eq!(seen, GOLDEN);
    }

    // Computed a second time with Python's hmac and hashlib.
    const GOLDEN: [&str; 10] = [
        "6253d136",
        "7cf0484a9155e7c59cd74f9b71adea9b52409b5cf9850ad8447fdfbac6686e31",
        "8e23825461255cedb995810eb3859dd8e87324b24fd5749af7b11887c32410be",
        "9f72e048bc3f23f66e66d1bc8c9bb64476ce99a513f08d8034652539f3638a76",
        "809c24b32a6631e7525e9135a6072184",
        "19c5a05c3d1bc5b98f14521e5a94429f",
        "6febb979b6f321c92a1d251123fe2f87",
        "e24e29489266507198fd2a7194979ec7",
        "761ca791e81be21d0aa95810907cfa884503b79eafaace3b79487eea08d2f05d",
        "f76a7424dc11d8fe",
    ];

    #[test]
    fn a_load_test_shares_no_key_with_users() {
        let secret = Secret::new((0..32).collect::<Vec<u8>>());
        let [live, shadow] = [Realm::Live, Realm::Shadow].map(|realm| {
            let ring = KeyRing::new(std::slice::from_ref(&secret), realm).expect("one key");
            let (config, _) = two_apps();
            let app = config.app("one").expect("configured");
            let subjects = SubjectKeys::new(&secret, realm);
            let keys = ring.active();
            [
                keys.kid.clone(),
                hex(&keys.code(app, "c").exchange()),
                hex(&keys.refresh.over(&[b"x"])),
                hex(&keys.access.over(&[b"x"])),
                hex(&keys.idempotency(&[b"x"])),
                hex(subjects.openid(app, "o").place.bytes()),
                hex(subjects.openid(app, "o").subject.bytes()),
                hex(&subjects.record.over(&[b"x"])),
                hex(&subjects.fingerprint),
            ]
        });
        assert!(live.iter().zip(&shadow).all(|(live, shadow)| live != shadow));
    }

    #[test]
    fn fields_cannot_run_into_each_other() {
        let key = MacKey::of_bytes(b"k");
        assert_ne!(key.over(&[b"ab", b"c"]), key.over(&[b"a", b"bc"]));
        assert_ne!(key.over(&[b"ab"]), key.over(&[b"ab", b""]));
        let mac = key.over(&[b"a"]);
        assert!(key.verifies(&[b"a"], &mac) && !key.verifies(&[b"b"], &mac) && !key.verifies(&[b"a"], &mac[..31]));
        assert!(key.verifies_left(b"a", &key.sign(b"a")[..20]));
        assert!(!key.verifies_left(b"a", &[]), "an empty MAC proves nothing");
    }

    #[test]
    fn a_code_makes_another_session_for_each_app_and_key() {
        let (config, ring) = two_apps();
        let (one, two) = (config.app("one").expect("configured"), config.app("two").expect("configured"));
        let of = |keys: &MasterKeys, app| keys.code(app, "code").session();
        let older = ring.iter().nth(1).expect("two keys");
        assert_ne!(of(ring.active(), one), of(ring.active(), two));
        assert_ne!(of(ring.active(), one), of(older, one));
        assert!(ring.by_id(older.id).is_some() && ring.by_kid(&older.kid).is_some() && ring.by_kid("").is_none());
    }
}
