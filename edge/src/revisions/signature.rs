//! Who may upload: signatures over a component's digest.
//!
//! What is signed is the ASCII text `edgepass upload v1 ` and the 64 lower-case hexadecimal digits
//! of the component's SHA-256, 83 bytes with no line end, with plain Ed25519 (RFC 8032). The prefix
//! keeps a signature that was made for something else from being one for an upload.

use std::fmt;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

use crate::engine::Digest;

/// The field of an upload that carries its signature, in base64url without padding.
pub const FIELD: &str = "x-edgepass-signature";

/// Whose uploads are taken. Empty: anybody's who has the node's admin token.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UploadKeys(Vec<VerifyingKey>);

/// An entry that is no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {number} is no public key: 32 bytes in base64url, as `edgepass keygen upload` prints it")]
pub struct NotAKey {
    /// Which entry, from 1.
    number: usize,
}

/// Why an upload is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is none.
    #[error("this node takes signed components only: give `edgepass swap` the key with --sign-key")]
    Missing,
    /// It is none, or of another key, or for another component.
    #[error("the signature is of none of the keys that this node knows, or for other bytes")]
    Wrong,
}

/// What uploads are signed with. Without a readable `Debug`.
pub struct UploadKey(SigningKey);

/// A text that is no private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a private key: 32 bytes in base64url, as `edgepass keygen upload` makes it")]
pub struct NotAPrivateKey;

impl UploadKeys {
    /// Reads public keys, 32 bytes in base64url each, separated by commas. Empty entries are skipped.
    ///
    /// # Errors
    /// [`NotAKey`] for the first entry that is none, or a point of small order, for which a signature
    /// fits more than one text.
    pub fn parse(text: &str) -> Result<Self, NotAKey> {
        let entries = (1..).zip(text.split(',').map(str::trim)).filter(|(_, entry)| !entry.is_empty());
        let key = |(number, entry)| {
            let key =
                thirty_two(entry).and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok()).filter(|key| !key.is_weak());
            key.ok_or(NotAKey { number })
        };
        entries.map(key).collect::<Result<_, _>>().map(Self)
    }

    /// Whether uploads must be signed.
    #[must_use]
    pub fn required(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether a component may be taken with this signature; without keys, with any and with none.
    ///
    /// # Errors
    /// [`SignatureError`].
    pub fn verify(&self, digest: Digest, signature: Option<&str>) -> Result<(), SignatureError> {
        if !self.required() {
            return Ok(());
        }
        let text = signature.map(str::trim).filter(|text| !text.is_empty()).ok_or(SignatureError::Missing)?;
        let mut bytes = [0; Signature::BYTE_SIZE];
        let read = Base64UrlUnpadded::decode(text, &mut bytes).map_err(|_| SignatureError::Wrong)?;
        let signature = Signature::from_slice(read).map_err(|_| SignatureError::Wrong)?;
        let signed = message(digest);
        // Strictly: no other encoding of a signature that was made, no key of small order.
        let known = self.0.iter().any(|key| key.verify_strict(signed.as_bytes(), &signature).is_ok());
        if known { Ok(()) } else { Err(SignatureError::Wrong) }
    }
}

impl SignatureError {
    /// Its stable name.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing => "signature_missing",
            Self::Wrong => "signature_wrong",
        }
    }
}

impl UploadKey {
    /// Reads a private key: 32 bytes in base64url.
    ///
    /// # Errors
    /// [`NotAPrivateKey`].
    pub fn parse(text: &str) -> Result<Self, NotAPrivateKey> {
        let bytes = thirty_two(text.trim()).ok_or(NotAPrivateKey)?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    /// The public key, as [`UploadKeys::parse`] reads it.
    #[must_use]
    pub fn public(&self) -> String {
        Base64UrlUnpadded::encode_string(self.0.verifying_key().as_bytes())
    }
}

impl fmt::Debug for UploadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UploadKey(_)")
    }
}

impl fmt::Debug for UploadKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UploadKeys({})", self.0.len())
    }
}

/// The signature of a component, as [`FIELD`] carries it.
#[must_use]
pub fn sign(key: &UploadKey, digest: Digest) -> String {
    Base64UrlUnpadded::encode_string(&key.0.sign(message(digest).as_bytes()).to_bytes())
}

fn thirty_two(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let read = Base64UrlUnpadded::decode(text, &mut bytes).ok()?.len();
    (read == bytes.len()).then_some(bytes)
}

fn message(digest: Digest) -> String {
    format!("edgepass upload v1 {digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> UploadKey {
        UploadKey::parse(&Base64UrlUnpadded::encode_string(&[seed; 32])).expect("a key")
    }

    #[test]
    fn a_signature_is_for_one_component_and_of_a_known_key() {
        let digest = Digest::of(b"component");
        let keys = UploadKeys::parse(&format!(" {}, {} ,", key(1).public(), key(2).public())).expect("keys");
        assert!(keys.required());
        for known in [key(1), key(2)] {
            assert_eq!(keys.verify(digest, Some(&sign(&known, digest))), Ok(()));
            assert_eq!(keys.verify(Digest::of(b"other"), Some(&sign(&known, digest))), Err(SignatureError::Wrong));
        }
        assert_eq!(keys.verify(digest, Some(&sign(&key(3), digest))), Err(SignatureError::Wrong));
        for absent in [None, Some(""), Some("  ")] {
            assert_eq!(keys.verify(digest, absent), Err(SignatureError::Missing));
        }
        let signature = sign(&key(1), digest);
        for bad in [
            "x",
            &signature[1..],
            &format!("{signature}="),
            &format!("{signature}AA"),
            &signature.replace(|c| c != 'A', "B"),
        ] {
            assert_eq!(keys.verify(digest, Some(bad)), Err(SignatureError::Wrong), "{bad}");
        }
    }

    #[test]
    fn every_bit_of_a_signature_counts() {
        let digest = Digest::of(b"component");
        let keys = UploadKeys::parse(&key(1).public()).expect("keys");
        let mut bytes = [0; 64];
        Base64UrlUnpadded::decode(sign(&key(1), digest), &mut bytes).expect("base64url");
        for bit in 0..512 {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            let other = Base64UrlUnpadded::encode_string(&other);
            assert_eq!(keys.verify(digest, Some(&other)), Err(SignatureError::Wrong), "bit {bit}");
        }
    }

    #[test]
    fn a_signature_for_something_else_is_none() {
        let digest = Digest::of(b"component");
        let keys = UploadKeys::parse(&key(1).public()).expect("keys");
        for message in [digest.as_bytes().to_vec(), digest.to_string().into_bytes(), b"component".to_vec()] {
            let signature = Base64UrlUnpadded::encode_string(&key(1).0.sign(&message).to_bytes());
            assert_eq!(keys.verify(digest, Some(&signature)), Err(SignatureError::Wrong));
        }
        assert_eq!(message(digest).len(), 83);
    }

    #[test]
    fn keys_are_read_or_named_by_place() {
        assert_eq!(UploadKeys::parse(" , ").expect("none"), UploadKeys::default());
        assert_eq!(UploadKeys::default().verify(Digest::of(b""), None), Ok(()), "nothing is asked of anybody");
        let good = key(1).public();
        // The identity, and the point of order 2: small order (RFC 8032, 5.1.3, y = 1 and y = -1).
        let mut one = [0; 32];
        one[0] = 1;
        let mut minus_one = [0xff; 32];
        (minus_one[0], minus_one[31]) = (0xec, 0x7f);
        let weak = [one, minus_one].map(|bytes| Base64UrlUnpadded::encode_string(&bytes));
        for bad in ["x", &good[1..], &format!("{good}="), &weak[0], &weak[1]] {
            assert_eq!(UploadKeys::parse(&format!("{good},{bad}")), Err(NotAKey { number: 2 }), "{bad}");
        }
    }

    #[test]
    fn a_private_key_is_shown_to_nobody() {
        let text = Base64UrlUnpadded::encode_string(&[7; 32]);
        assert!(!format!("{:?}", UploadKey::parse(&format!("{text}\n")).expect("a key")).contains(&text[..8]));
        for bad in ["", "x", &text[1..]] {
            let error = UploadKey::parse(bad).expect_err(bad);
            assert!(bad.len() < 8 || !error.to_string().contains(bad));
        }
    }
}
