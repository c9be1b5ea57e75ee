//! What a login remembers of its `Idempotency-Key`, so that the same wish gets the same session.

use super::code::Attempt;
use crate::token::keys::MasterKeys;

/// How long a login is repeated, in seconds since it was made.
pub(super) const REPEATED_SECONDS: u64 = 60;

/// Who asked for what, as two MACs of 128 bits: neither the key nor the body can be read from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    /// The key.
    who: [u8; 16],
    /// The key with everything else the body said; the code is in the session's name.
    what: [u8; 16],
}

impl Wish {
    /// What `attempt` asks for, under the key that makes or made its session.
    pub(super) fn of(attempt: &Attempt<'_>, keys: &MasterKeys) -> Option<Self> {
        let key = attempt.idempotency?;
        let device = attempt.device.as_ref();
        let said = [
            attempt.app,
            attempt.platform,
            device.and_then(|device| device.id.as_deref()),
            device.and_then(|device| device.label.as_deref()),
        ];
        // Absent is not the same as empty.
        let said: Vec<&[u8]> = said.into_iter().map(|text| text.map_or(&[0][..], str::as_bytes)).collect();
        let what = [&[key.as_bytes()][..], &said].concat();
        Some(Self { who: keys.idempotency(&[key.as_bytes()]), what: keys.idempotency(&what) })
    }

    /// As the session keeps it.
    pub(super) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(self.who.into_iter().chain(self.what)).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Whether `kept` is of the same key, and then whether it is of the same body.
    pub(super) fn matches(self, kept: &[u8; 32]) -> Option<bool> {
        let (who, what) = kept.split_at(16);
        (who == self.who).then_some(what == self.what)
    }
}
