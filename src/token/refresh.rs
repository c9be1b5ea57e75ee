//! Refresh tokens: `epr1_` and base64url of 68 bytes: key id 4, session 16, subject 16, app tag 8,
//! counter 4 (big-endian), MAC 20. The server keeps the counter only; whoever holds the key can
//! tell a token of ours from any other without asking the store.

use base64ct::{Base64UrlUnpadded, Encoding as _};

use crate::{
    config::AppTag,
    session::SessionId,
    token::keys::{KeyId, KeyRing, MasterKeys, Subject},
};

/// How every refresh token begins, and no access token.
pub const PREFIX: &str = "epr1_";
const SIGNED_BYTES: usize = 48;
const MAC_BYTES: usize = 20;

/// The highest counter a token may carry; nobody refreshes that often.
pub const MAX_COUNTER: u32 = 1 << 31;

/// What a refresh token says, once its MAC is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// The key that made it, and makes its successor.
    pub key: KeyId,
    /// The session.
    pub sid: SessionId,
    /// The user.
    pub subject: Subject,
    /// The app it was issued to.
    pub app: AppTag,
    /// How many tokens of this session came before it.
    pub counter: u32,
}

/// The text is not a refresh token of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a refresh token of this service")]
pub struct NotOurs;

impl Refresh {
    /// The token as text, made with `keys`, whose id must be [`Refresh::key`].
    #[must_use]
    pub fn issue(&self, keys: &MasterKeys) -> String {
        debug_assert_eq!(self.key, keys.id);
        let mut bytes = [0; SIGNED_BYTES + MAC_BYTES];
        let fields: [&[u8]; 5] =
            [&self.key.0, self.sid.bytes(), self.subject.bytes(), &self.app.0, &self.counter.to_be_bytes()];
        bytes.iter_mut().zip(fields.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        let (signed, mac) = bytes.split_at_mut(SIGNED_BYTES);
        mac.iter_mut().zip(keys.refresh.sign(signed)).for_each(|(to, from)| *to = from);
        let mut text = String::with_capacity(PREFIX.len() + 91);
        text.push_str(PREFIX);
        text.push_str(&Base64UrlUnpadded::encode_string(&bytes));
        text
    }

    /// Reads a token and verifies its MAC.
    ///
    /// # Errors
    /// [`NotOurs`] for a wrong form, key, counter or MAC; which of them is not told apart.
    pub fn verify(text: &str, ring: &KeyRing) -> Result<Self, NotOurs> {
        let mut bytes = [0; SIGNED_BYTES + MAC_BYTES];
        let encoded = text.strip_prefix(PREFIX).ok_or(NotOurs)?;
        let decoded = Base64UrlUnpadded::decode(encoded, &mut bytes).map_err(|_| NotOurs)?;
        let (signed, mac) = decoded.split_at_checked(SIGNED_BYTES).ok_or(NotOurs)?;
        let mut rest = signed;
        let token = Self {
            key: KeyId(take(&mut rest)?),
            sid: SessionId::from_bytes(take(&mut rest)?),
            subject: Subject::from_bytes(take(&mut rest)?),
            app: AppTag(take(&mut rest)?),
            counter: u32::from_be_bytes(take(&mut rest)?),
        };
        let keys = ring.by_id(token.key).ok_or(NotOurs)?;
        let genuine = mac.len() == MAC_BYTES && keys.refresh.verifies_left(signed, mac);
        (genuine && token.counter <= MAX_COUNTER).then_some(token).ok_or(NotOurs)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], NotOurs> {
    let (field, after) = rest.split_first_chunk().ok_or(NotOurs)?;
    *rest = after;
    Ok(*field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::two_apps;

    fn token(ring: &KeyRing) -> Refresh {
        Refresh {
            key: ring.active().id,
            sid: SessionId::from_bytes([1; 16]),
            subject: Subject::from_bytes([2; 16]),
            app: AppTag([3; 8]),
            counter: 0,
        }
    }

    #[test]
    fn a_token_is_read_back_and_its_text_never_changes() {
        let (_, ring) = two_apps();
        let text = token(&ring).issue(ring.active());
        assert_eq!(text, GOLDEN);
        assert_eq!(Refresh::verify(&text, &ring), Ok(token(&ring)));
        let older = ring.iter().nth(1).expect("two keys");
        let of_older = Refresh { key: older.id, ..token(&ring) };
        assert_eq!(Refresh::verify(&of_older.issue(older), &ring), Ok(of_older));
    }

    // Computed a second time with Python's hmac.
    const GOLDEN: &str =
        "epr1_YlPRNgEBAQEBAQEBAQEBAQEBAQECAgICAgICAgICAgICAgICAwMDAwMDAwMAAAAApgJsRe8X0Jnbiqhg8XQD9JAsxOE";

    #[test]
    fn every_changed_character_is_noticed() {
        let (_, ring) = two_apps();
        let text = token(&ring).issue(ring.active());
        for at in 0..text.len() {
            for with in ["A", "z", "-", "=", " ", "\u{e9}", ""] {
                let mut changed = text.clone();
                changed.replace_range(at..=at, with);
                assert!(changed == text || Refresh::verify(&changed, &ring).is_err(), "{at} {with}");
            }
            assert_eq!(Refresh::verify(&text[..at], &ring), Err(NotOurs));
        }
        assert_eq!(Refresh::verify(&format!("{text}A"), &ring), Err(NotOurs));
        assert_eq!(Refresh::verify(&"A".repeat(100_000), &ring), Err(NotOurs));
    }

    #[test]
    fn a_counter_nobody_reaches_is_refused() {
        let (_, ring) = two_apps();
        let at = |counter| Refresh { counter, ..token(&ring) }.issue(ring.active());
        assert!(Refresh::verify(&at(MAX_COUNTER), &ring).is_ok());
        assert_eq!(Refresh::verify(&at(MAX_COUNTER + 1), &ring), Err(NotOurs));
    }
}
