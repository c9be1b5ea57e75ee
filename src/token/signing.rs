//! The keys of access tokens: each bound to one algorithm, by its type.
//!
//! A token's `kid` chooses a key and the key says which algorithm there is; what the token says
//! about it is only compared. Signatures are those of RFC 7518 §3.2 (HS256) and RFC 8037 (Ed25519).
//! ES256 is left out for its size: the `p256` crate adds 33 to 41 kB to a component that is bounded.

use std::borrow::Cow;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use jwt_compact::{AlgorithmExt as _, AlgorithmSignature as _, Claims, Header, alg};
use serde::Serialize;

use crate::token::keys::MacKey;

/// What a signature is made with, by its name in a token (`alg`). Everything else is refused before
/// any key is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// Ed25519 by the name that most libraries know (RFC 8037).
    EdDsa,
    /// Ed25519 by the name that says so (RFC 9864).
    Ed25519,
}

/// A key that signs.
pub struct SigningKey {
    kid: String,
    key: Private,
}

/// A key that verifies.
pub struct VerifyingKey {
    kid: String,
    key: Public,
}

/// The private half, with its algorithm.
pub enum Private {
    /// For [`Algorithm::Hs256`].
    Hs256(MacKey),
    /// For [`Algorithm::EdDsa`].
    EdDsa(ed25519_dalek::SigningKey),
    /// For [`Algorithm::Ed25519`].
    Ed25519(ed25519_dalek::SigningKey),
}

/// The public half, with its algorithm. Of a MAC there is none, so it is the key itself.
#[derive(Clone)]
pub enum Public {
    /// For [`Algorithm::Hs256`].
    Hs256(MacKey),
    /// For [`Algorithm::EdDsa`].
    EdDsa(ed25519_dalek::VerifyingKey),
    /// For [`Algorithm::Ed25519`].
    Ed25519(ed25519_dalek::VerifyingKey),
}

/// The keys of the `signing_keys` setting.
#[derive(Default)]
pub struct SigningKeys {
    /// Signs; without one the key derived from `master_key` does.
    pub current: Option<SigningKey>,
    /// Verify: next, current and previous, as they stand in the setting.
    pub verifying: Vec<VerifyingKey>,
}

/// A public key as the world may see it (RFC 7517, 8037 §2).
#[derive(Serialize)]
pub struct Jwk<'k> {
    kty: &'static str,
    crv: &'static str,
    x: String,
    kid: &'k str,
    r#use: &'static str,
    alg: &'static str,
}

impl Algorithm {
    const ALL: [Self; 3] = [Self::Hs256, Self::EdDsa, Self::Ed25519];

    /// Its name in a token.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::EdDsa => "EdDSA",
            Self::Ed25519 => "Ed25519",
        }
    }

    /// The algorithm of exactly this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

impl SigningKey {
    /// A key called `kid`.
    #[must_use]
    pub const fn new(kid: String, key: Private) -> Self {
        Self { kid, key }
    }

    /// Its name.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// A token of `claims` in the compact form, with `typ` and our `kid` in its header. Equal claims
    /// have equal tokens: no algorithm here needs randomness.
    ///
    /// # Panics
    /// Never, for claims of texts and numbers.
    #[must_use]
    pub fn token(&self, typ: &str, claims: impl Serialize) -> String {
        let header = Header::empty().with_token_type(typ).with_key_id(self.kid.as_str());
        let claims = Claims::new(claims);
        match &self.key {
            Private::Hs256(key) => Hs256.token(&header, &claims, key),
            Private::EdDsa(key) => alg::Ed25519.token(&header, &claims, key),
            Private::Ed25519(key) => alg::Ed25519::with_specific_name().token(&header, &claims, key),
        }
        .expect("text and numbers are JSON")
    }

    /// What verifies its signatures.
    #[must_use]
    pub fn verifying(&self) -> VerifyingKey {
        VerifyingKey { kid: self.kid.clone(), key: self.key.public() }
    }
}

impl Private {
    /// The other half.
    #[must_use]
    pub fn public(&self) -> Public {
        match self {
            Self::Hs256(key) => Public::Hs256(key.clone()),
            Self::EdDsa(key) => Public::EdDsa(key.verifying_key()),
            Self::Ed25519(key) => Public::Ed25519(key.verifying_key()),
        }
    }
}

impl VerifyingKey {
    /// A key called `kid`.
    #[must_use]
    pub const fn new(kid: String, key: Public) -> Self {
        Self { kid, key }
    }

    /// Its name.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Its one algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        match self.key {
            Public::Hs256(_) => Algorithm::Hs256,
            Public::EdDsa(_) => Algorithm::EdDsa,
            Public::Ed25519(_) => Algorithm::Ed25519,
        }
    }

    /// Whether `signature` is its signature of `message`: MACs in constant time; Ed25519 strictly, so
    /// that points of small order and scalars above the group's order are refused.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.key {
            Public::Hs256(key) => key.verifies_message(message, signature),
            Public::EdDsa(key) | Public::Ed25519(key) => ed25519_dalek::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify_strict(message, &signature).is_ok()),
        }
    }

    /// As a verifier elsewhere needs it; `None` for a MAC, whose key is nobody else's.
    #[must_use]
    pub fn jwk(&self) -> Option<Jwk<'_>> {
        let x = match &self.key {
            Public::Hs256(_) => return None,
            Public::EdDsa(key) | Public::Ed25519(key) => Base64UrlUnpadded::encode_string(key.as_bytes()),
        };
        Some(Jwk { kty: "OKP", crv: "Ed25519", x, kid: &self.kid, r#use: "sig", alg: self.algorithm().name() })
    }
}

/// `jwt-compact`'s HS256 with a key scheduled once instead of at each token.
struct Hs256;

impl jwt_compact::Algorithm for Hs256 {
    type SigningKey = MacKey;
    type VerifyingKey = MacKey;
    type Signature = alg::Hs256Signature;

    fn name(&self) -> Cow<'static, str> {
        Algorithm::Hs256.name().into()
    }

    fn sign(&self, key: &MacKey, message: &[u8]) -> alg::Hs256Signature {
        alg::Hs256Signature::try_from_slice(&key.sign(message)).expect("HMAC-SHA256 has 32 bytes")
    }

    fn verify_signature(&self, signature: &alg::Hs256Signature, key: &MacKey, message: &[u8]) -> bool {
        key.verifies_message(message, &signature.as_bytes())
    }
}
