//! A value that must not be seen: redacted when printed, wiped when dropped, read by one name.

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroize;

/// A secret. There is no `Display`, no `Serialize` and no `Deref`: every place that reads one says
/// [`Secret::expose`].
#[derive(Clone, Default)]
pub struct Secret<T: Zeroize>(T);

impl<T: Zeroize> Secret<T> {
    /// Hides `value`.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself. Never for a log line, an error or an answer.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl Secret<String> {
    /// Whether `given` is this text. By digest, so that the time taken tells neither length nor prefix.
    #[must_use]
    pub fn is(&self, given: &str) -> bool {
        Sha256::digest(&self.0).ct_eq(&Sha256::digest(given)).into()
    }
}

impl<T: Zeroize> Drop for Secret<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(_)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing() {
        let secret = Secret::new("canary".to_owned());
        assert_eq!(format!("{secret:?}"), "Secret(_)");
        assert_eq!(secret.expose(), "canary");
        assert!(secret.is("canary") && !secret.is("canar") && !secret.is(""));
    }
}
