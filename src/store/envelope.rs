//! How a record lies in the store: 8-byte magic, version, absolute expiry, then the record.
//!
//! ```text
//! "edgepass" | version u8 | expires u64 BE, Unix seconds, 0 = never | body
//! body, plain  : record
//! body, maced  : record | HMAC-SHA256
//! body, sealed : key id 4 | nonce 24 | XChaCha20-Poly1305 of the record | tag 16
//! ```
//! The magic and the expiry are where a host finds them that expires keys natively. Under a seal or
//! a MAC stand the head and the full key as well, so nothing can be moved, prolonged or edited by
//! someone who can write the store. Records are postcard; reading one consumes every byte.

use chacha20poly1305::{AeadInPlace as _, Tag, XNonce};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    clock::UnixSeconds,
    random::Random,
    token::keys::{KeyId, KeyRing, MacKey},
};

/// The first eight bytes of every value.
pub const MAGIC: [u8; 8] = *b"edgepass";

const HEAD_BYTES: usize = 17;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
const MAC_BYTES: usize = 32;

/// Why a stored value cannot be read. Never "absent".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Not in a form this build knows: it may be that of a newer one, and good.
    #[error("stored value of an unknown form")]
    Foreign,
    /// Changed, moved here from another key, cut off, or made with a key that is gone.
    #[error("stored value damaged")]
    Damaged,
}

/// A record with a place in the store.
pub trait Record: Serialize {
    /// The version it is written as, and the only one it is read from.
    const VERSION: u8;
}

/// Writes a record in the clear.
#[must_use]
pub fn plain<R: Record>(record: &R, expires: UnixSeconds) -> Vec<u8> {
    body(head::<R>(expires, 0), record)
}

/// Reads a record in the clear.
///
/// # Errors
/// [`Unreadable`] unless it is one whole record of this kind.
pub fn read_plain<'a, R: Record + Deserialize<'a>>(value: &'a [u8]) -> Result<R, Unreadable> {
    decode(split::<R>(value)?.1)
}

/// Writes a record under a MAC.
#[must_use]
pub fn maced<R: Record>(record: &R, expires: UnixSeconds, key: &str, mac: &MacKey) -> Vec<u8> {
    let mut value = body(head::<R>(expires, MAC_BYTES), record);
    let tag = mac.over(&[key.as_bytes(), &value]);
    value.extend_from_slice(&tag);
    value
}

/// Reads a record under a MAC.
///
/// # Errors
/// [`Unreadable`] unless it is whole and was written to this very key.
pub fn read_maced<'a, R: Record + Deserialize<'a>>(value: &'a [u8], key: &str, mac: &MacKey) -> Result<R, Unreadable> {
    split::<R>(value)?;
    let (covered, tag) = value.split_last_chunk::<MAC_BYTES>().ok_or(Unreadable::Damaged)?;
    if !mac.verifies(&[key.as_bytes(), covered], tag) {
        return Err(Unreadable::Damaged);
    }
    decode(split::<R>(covered)?.1)
}

/// Writes a record sealed with the active key.
///
/// # Panics
/// Never: the cipher takes 256 GiB, and no record has a millionth of that.
#[must_use]
pub fn sealed<R: Record>(record: &R, expires: UnixSeconds, key: &str, ring: &KeyRing, random: &dyn Random) -> Vec<u8> {
    let keys = ring.active();
    let nonce: [u8; NONCE_BYTES] = crate::random::bytes(random);
    let mut value = head::<R>(expires, 256);
    let associated = associated(&value, key);
    value.extend_from_slice(&keys.id.0);
    value.extend_from_slice(&nonce);
    let mut value = body(value, record);
    let (_, secret) = value.split_at_mut(HEAD_BYTES + 4 + NONCE_BYTES);
    let tag = keys
        .seal
        .encrypt_in_place_detached(XNonce::from_slice(&nonce), &associated, secret)
        .expect("a record is below 256 GiB");
    value.extend_from_slice(&tag);
    value
}

/// Opens a sealed record and reads it with `read`, which sees the only copy in the clear.
///
/// # Errors
/// [`Unreadable`] unless it is whole, was sealed by one of our keys, and was written to this key.
pub fn open<R: Record, T>(
    value: &[u8],
    key: &str,
    ring: &KeyRing,
    read: impl FnOnce(&[u8]) -> Result<T, Unreadable>,
) -> Result<T, Unreadable> {
    let (head, body) = split::<R>(value)?;
    let (key_id, body) = body.split_first_chunk::<4>().ok_or(Unreadable::Damaged)?;
    let (nonce, body) = body.split_first_chunk::<NONCE_BYTES>().ok_or(Unreadable::Damaged)?;
    let (secret, tag) = body.split_last_chunk::<TAG_BYTES>().ok_or(Unreadable::Damaged)?;
    let keys = ring.by_id(KeyId(*key_id)).ok_or(Unreadable::Damaged)?;
    let mut clear = Zeroizing::new(secret.to_vec());
    keys.seal
        .decrypt_in_place_detached(XNonce::from_slice(nonce), &associated(head, key), &mut clear, Tag::from_slice(tag))
        .map_err(|_| Unreadable::Damaged)?;
    read(&clear)
}

/// When a value of ours may be dropped, whatever it holds; `None` for one that never may be, and for
/// one of another form. It is what the head says: only a seal or a MAC would vouch for it.
#[must_use]
pub fn expiry(value: &[u8]) -> Option<UnixSeconds> {
    let (head, _) = value.split_first_chunk::<HEAD_BYTES>()?;
    let expires = head.strip_prefix(&MAGIC)?.last_chunk::<8>()?;
    Some(UnixSeconds(u64::from_be_bytes(*expires))).filter(|expires| expires.0 != 0)
}

/// Reads one whole record.
///
/// # Errors
/// [`Unreadable`] for another shape, or with bytes left over, which postcard alone would ignore.
pub fn decode<'a, R: Deserialize<'a>>(bytes: &'a [u8]) -> Result<R, Unreadable> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Ok(record),
        _ => Err(Unreadable::Damaged),
    }
}

fn head<R: Record>(expires: UnixSeconds, room: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEAD_BYTES + 32 + room);
    value.extend_from_slice(&MAGIC);
    value.push(R::VERSION);
    value.extend_from_slice(&expires.0.to_be_bytes());
    value
}

fn body<R: Record>(value: Vec<u8>, record: &R) -> Vec<u8> {
    postcard::to_extend(record, value).expect("memory takes any record")
}

fn split<R: Record>(value: &[u8]) -> Result<(&[u8], &[u8]), Unreadable> {
    let (head, body) = value.split_at_checked(HEAD_BYTES).ok_or(Unreadable::Foreign)?;
    match head.strip_prefix(&MAGIC) {
        Some([version, ..]) if *version == R::VERSION => Ok((head, body)),
        _ => Err(Unreadable::Foreign),
    }
}

/// The head has one length, so the two cannot run into each other.
fn associated(head: &[u8], key: &str) -> Vec<u8> {
    [head, key.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::tests::two_apps, testing::SeededRandom};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Note(u32, String);

    impl Record for Note {
        const VERSION: u8 = 7;
    }

    const END: UnixSeconds = UnixSeconds(0x0102_0304);

    fn note() -> Note {
        Note(300, "hi".into())
    }

    fn open_note(value: &[u8], key: &str, ring: &KeyRing) -> Result<Note, Unreadable> {
        open::<Note, _>(value, key, ring, |clear| decode(clear))
    }

    #[test]
    fn the_plain_form_is_these_bytes() {
        let value = plain(&note(), END);
        assert_eq!(value, b"edgepass\x07\0\0\0\0\x01\x02\x03\x04\xac\x02\x02hi");
        assert_eq!(read_plain(&value), Ok(note()));
        assert_eq!(read_plain::<Note>(&[&value[..], b"\0"].concat()), Err(Unreadable::Damaged), "a byte left over");
        for end in 0..value.len() {
            assert!(read_plain::<Note>(&value[..end]).is_err());
        }
        assert_eq!((expiry(&value), expiry(&plain(&note(), UnixSeconds(0)))), (Some(END), None));
        assert_eq!((expiry(&value[..16]), expiry(b"Edgepass\x07\0\0\0\0\x01\x02\x03\x04")), (None, None));
    }

    #[test]
    fn whatever_is_changed_under_a_mac_or_a_seal_is_noticed() {
        let (_, ring) = two_apps();
        let mac = MacKey::of_bytes(b"k");
        let maced = maced(&note(), END, "a/key", &mac);
        let sealed = sealed(&note(), END, "a/key", &ring, &SeededRandom::new(1));
        assert_eq!(read_maced(&maced, "a/key", &mac), Ok(note()));
        assert_eq!(open_note(&sealed, "a/key", &ring), Ok(note()));
        assert_eq!(read_maced::<Note>(&maced, "b/key", &mac), Err(Unreadable::Damaged), "moved");
        assert_eq!(open_note(&sealed, "b/key", &ring), Err(Unreadable::Damaged), "moved");
        for bit in 0..maced.len() * 8 {
            let mut changed = maced.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(read_maced::<Note>(&changed, "a/key", &mac).is_err());
        }
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(open_note(&changed, "a/key", &ring).is_err());
        }
        for end in 0..sealed.len() {
            assert!(open_note(&sealed[..end], "a/key", &ring).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let mut value = plain(&note(), END);
        value[8] = 8;
        assert_eq!(read_plain::<Note>(&value), Err(Unreadable::Foreign));
        assert_eq!(read_plain::<Note>(b""), Err(Unreadable::Foreign));
        assert_eq!(read_plain::<Note>(&plain(&note(), END)[..18]), Err(Unreadable::Damaged));
    }

    #[test]
    fn a_sealed_record_shows_nothing_and_says_which_key_opens_it() {
        let (_, ring) = two_apps();
        let value = sealed(&Note(1, "canary".into()), END, "k", &ring, &SeededRandom::new(1));
        assert!(!value.windows(6).any(|window| window == b"canary"));
        assert_eq!(value[HEAD_BYTES..HEAD_BYTES + 4], ring.active().id.0);
    }

    #[test]
    fn xchacha20_poly1305_is_that_of_its_document() {
        use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305};
        // draft-irtf-cfrg-xchacha-03, appendix A.3.1: the tag.
        let key: Vec<u8> = (0x80..=0x9f).collect();
        let nonce: Vec<u8> = (0x40..=0x57).collect();
        let mut text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.".to_vec();
        let tag = XChaCha20Poly1305::new_from_slice(&key)
            .expect("32 bytes")
            .encrypt_in_place_detached(
                XNonce::from_slice(&nonce),
                &[0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7],
                &mut text,
            )
            .expect("short");
        assert_eq!(tag[..4], [0xc0, 0x87, 0x59, 0x24]);
        assert_eq!(text[..4], [0xbd, 0x6d, 0x17, 0x9d]);
    }
}
