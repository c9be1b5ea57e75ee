//! The compact form of a signed token (RFC 7515 §7.1), taken apart and nothing more.

use base64ct::{Base64UrlUnpadded, Encoding as _};

/// Longest token looked at, in bytes; ours have about 500.
pub const MAX_TOKEN_BYTES: usize = 4096;

/// Three parts of canonical base64url. Whose they are is not said here.
pub struct Jws<'t> {
    /// What the signature is over: the first two parts as they stand.
    pub signed: &'t str,
    /// The header's bytes.
    pub header: Vec<u8>,
    /// The payload's bytes.
    pub payload: Vec<u8>,
    /// The signature's bytes.
    pub signature: Vec<u8>,
}

impl<'t> Jws<'t> {
    /// Takes `token` apart; `None` for what is too long, has not exactly three parts, or has another
    /// character, padding or stray bits in one of them.
    #[must_use]
    pub fn read(token: &'t str) -> Option<Self> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let bytes = |part| Base64UrlUnpadded::decode_vec(part).ok();
        Some(Self { signed, header: bytes(header)?, payload: bytes(payload)?, signature: bytes(signature)? })
    }
}
