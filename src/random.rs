//! Randomness, as a port: session ids of reusable codes, nonces, token ids.

/// A source of bytes fit for keys. Filling never waits.
pub trait Random: 'static {
    /// Fills `buffer` with bytes nobody can foresee.
    fn fill(&self, buffer: &mut [u8]);
}

/// `N` fresh bytes.
#[must_use]
pub fn bytes<const N: usize>(random: &dyn Random) -> [u8; N] {
    let mut buffer = [0; N];
    random.fill(&mut buffer);
    buffer
}
