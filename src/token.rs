//! Tokens and the keys behind them: [`access`] (signed, short-lived), [`refresh`] (opaque,
//! self-authenticating), [`keys`] (what is derived from the configured secrets), [`signing`] (what
//! signs access tokens, and what verifies them), [`jws`] (the form they have).

pub mod access;
pub mod jws;
pub mod keys;
pub mod refresh;
pub mod signing;

/// Defines a 128-bit id with its one text form: 22 characters of unpadded base64url.
macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The id of these bytes.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// Its bytes.
            #[must_use]
            pub const fn bytes(&self) -> &[u8; 16] {
                &self.0
            }

            /// Its text: 22 characters of unpadded base64url.
            #[must_use]
            pub fn text(&self) -> String {
                <base64ct::Base64UrlUnpadded as base64ct::Encoding>::encode_string(&self.0)
            }

            /// Reads the text form; `None` for any other text, non-canonical ones too.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                let mut bytes = [0; 16];
                let read = <base64ct::Base64UrlUnpadded as base64ct::Encoding>::decode(text, &mut bytes).ok()?;
                (read.len() == 16).then_some(Self(bytes))
            }
        }
    };
}
pub(crate) use id128;
