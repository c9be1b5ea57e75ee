//! Where in the file a key stands.

use toml::de::{DeTable, DeValue};

/// The line, counted from 1, of the key with this dotted path, such as `trigger.http[0].route`; of the
/// last part of the path that is in the file, where the rest is missing.
pub(crate) fn line_of(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut place = None;
    let mut inside = Some(table.get_ref());
    let mut list = None;
    for part in key.split(['.', '[']) {
        let value = if let Some(index) = part.strip_suffix(']') {
            let element: Option<&toml::Spanned<DeValue>> =
                list.take().and_then(|list: &toml::de::DeArray| list.get(index.parse::<usize>().ok()?));
            let Some(element) = element else { break };
            place = Some(element.span().start);
            element.get_ref()
        } else {
            let Some((name, value)) = inside.and_then(|table| table.get_key_value(part)) else { break };
            place = Some(name.span().start);
            value.get_ref()
        };
        (inside, list) = (value.as_table(), value.as_array());
    }
    place.map(|place| line_at(text, place))
}

/// The line of a byte, counted from 1.
pub(crate) fn line_at(text: &str, place: usize) -> usize {
    text.bytes().take(place).filter(|&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_where_it_stands() {
        let text =
            "a = 1\n[b.c]\nd = [\n  \"x\",\n  \"y\",\n]\n\n[[t.http]]\nroute = \"/\"\n[[t.http]]\nroute = \"/a\"\n";
        for (key, line) in [
            ("a", Some(1)),
            ("b.c", Some(2)),
            ("b.c.d", Some(3)),
            ("b.c.d[0]", Some(4)),
            ("b.c.d[1]", Some(5)),
            ("b.c.d[7]", Some(3)),
            ("b.c.missing", Some(2)),
            ("t.http[1].route", Some(11)),
            ("t.http[1].component", Some(10)),
            ("missing", None),
        ] {
            assert_eq!(line_of(text, key), line, "{key}");
        }
        assert_eq!(line_of("no toml", "a"), None);
    }
}
