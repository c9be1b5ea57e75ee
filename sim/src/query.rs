//! Reading a query string as a form.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// Decoded name and value of each parameter, in the order sent. `+` is a space, `%2B` a plus; a
/// `%` that starts no escape stays; an empty part (`a=1&&b=2`) is no parameter. Bytes, because
/// what was escaped need not be UTF-8.
pub(crate) fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    parts(query).map(|(name, value)| (decode(name), decode(value)))
}

/// `query` as sent, but for the values of parameters named `name`.
pub(crate) fn mask(query: &str, name: &str, mask: &str) -> String {
    let parts = query.split('&').map(|part| match part.split_once('=') {
        Some((key, _)) if *decode(key) == *name.as_bytes() => Cow::Owned(format!("{key}={mask}")),
        _ => Cow::Borrowed(part),
    });
    parts.collect::<Vec<_>>().join("&")
}

fn parts(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "")))
}

fn decode(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return Cow::Owned(percent_decode(spaced.as_bytes()).collect());
    }
    percent_decode(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_as_a_form_and_keeps_order_and_repeats() {
        for (query, expected) in [
            ("a=1&b=2&a=3", vec![("a", "1"), ("b", "2"), ("a", "3")]),
            ("a=%2B+%20", vec![("a", "+  ")]),
            ("%61=x%3D1%26y", vec![("a", "x=1&y")]),
            ("a=b=c", vec![("a", "b=c")]),
            ("a=%zz%4", vec![("a", "%zz%4")]),
            ("&a&&=b&", vec![("a", ""), ("", "b")]),
            ("", vec![]),
        ] {
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(name, value)| (Cow::from(name.as_bytes()), Cow::from(value.as_bytes())))
                .collect();
            assert_eq!(parameters(query).collect::<Vec<_>>(), expected, "{query}");
        }
    }

    #[test]
    fn escaped_bytes_need_not_be_utf8() {
        let (_, value) = parameters("a=%ff%FE").next().expect("one parameter");
        assert_eq!(*value, [0xff, 0xfe]);
    }

    #[test]
    fn masks_every_spelling_and_leaves_the_rest_byte_for_byte() {
        assert_eq!(
            mask("a=%2b+&secret=one&%73ecret=two&secret&b", "secret", "***"),
            "a=%2b+&secret=***&%73ecret=***&secret&b"
        );
    }
}
