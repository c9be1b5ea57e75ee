//! Lower-case hex, for ids in headers and logs.

/// `bytes` as hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::hex;

    #[test]
    fn every_byte_is_two_digits() {
        assert_eq!(hex(&[0x00, 0x09, 0xaf, 0xff]), "0009afff");
    }
}
