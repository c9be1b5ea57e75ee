//! A head as one buffer: lines of `name: value\n`, as `wit/node.wit` carries it both ways.

use http::{HeaderName, HeaderValue};

/// The fields in `lines`. A line that is no header field is left out.
pub(crate) fn read(lines: &[u8]) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    lines.split(|&byte| byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        Some((name, value))
    })
}

/// Appends a field to `lines`.
pub(crate) fn write(lines: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    lines.extend_from_slice(name.as_str().as_bytes());
    lines.extend_from_slice(b": ");
    lines.extend_from_slice(value.as_bytes());
    lines.push(b'\n');
}
