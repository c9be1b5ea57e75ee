//! JSON from outside, read strictly: UTF-8, no member twice at any depth, nothing nested deeper
//! than [`MAX_DEPTH`]. `serde_json` alone lets the last of two equal members win where a type does
//! not name them, and two readers that choose differently are a hole (RFC 8725 §3.7 for tokens).

use std::{borrow::Cow, collections::BTreeSet, fmt, marker::PhantomData};

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer,
};

/// How deep arrays and objects may nest.
pub const MAX_DEPTH: u8 = 32;

/// Why a text is not acceptable JSON. Says where, never what: the text may hold a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not UTF-8.
    #[error("not UTF-8")]
    Utf8,
    /// Not JSON, a member sent twice, or nested too deep.
    #[error("not JSON, a member sent twice, or nested too deep (line {line}, column {column})")]
    Syntax {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
    /// JSON of another shape than asked for.
    #[error("a member is missing or of the wrong type (line {line}, column {column})")]
    Shape {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
    },
}

/// Reads `bytes` as a `T`.
///
/// # Errors
/// [`JsonError`] for anything but one strict JSON value that is a `T`.
pub fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, JsonError> {
    let text = std::str::from_utf8(bytes).map_err(|_| JsonError::Utf8)?;
    let mut scan = serde_json::Deserializer::from_str(text);
    Strict { depth: MAX_DEPTH }
        .deserialize(&mut scan)
        .and_then(|()| scan.end())
        .map_err(|e| JsonError::Syntax { line: e.line(), column: e.column() })?;
    serde_json::from_str(text).map_err(|e| JsonError::Shape { line: e.line(), column: e.column() })
}

/// Reads `bytes`, which must be one JSON object, as a `T`.
///
/// # Errors
/// [`JsonError`], as for [`read`].
pub fn object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, JsonError> {
    read(bytes).map(|Object(value)| value)
}

/// A `T` from a JSON object and from nothing else: what serde derives for a struct takes an array of
/// its members as well.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Walks one value and keeps nothing of it.
#[derive(Clone, Copy)]
struct Strict {
    depth: u8,
}

impl Strict {
    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        match self.depth.checked_sub(1) {
            Some(depth) => Ok(Self { depth }),
            None => Err(E::custom("nested too deep")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while seq.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut names: BTreeSet<Cow<'de, str>> = BTreeSet::new();
        while let Some(Name(name)) = map.next_key()? {
            if !names.insert(name) {
                return Err(de::Error::custom("a member was sent twice"));
            }
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// A member's name, borrowed where it holds no escape.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;

        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }

        deserializer.deserialize_str(NameVisitor)
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IgnoredAny;

    use super::*;

    fn accepts(text: &str) -> bool {
        read::<IgnoredAny>(text.as_bytes()).is_ok()
    }

    #[test]
    fn a_member_sent_twice_is_refused_at_any_depth() {
        assert!(accepts(r#"{"a":1,"b":{"a":2},"c":[{"a":3},{"a":4}]}"#));
        assert!(!accepts(r#"{"a":1,"a":1}"#));
        assert!(!accepts(r#"{"x":[{"y":{"a":1,"b":0,"a":null}}]}"#));
        assert!(!accepts(r#"{"a":1,"\u0061":2}"#), "an escape does not hide the name");
    }

    #[test]
    fn nesting_ends_at_the_limit() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(accepts(&nested(32)));
        assert!(!accepts(&nested(33)));
        assert!(!accepts(&nested(100_000)));
        assert!(!accepts(&"{\"a\":".repeat(100_000)));
    }

    #[test]
    fn an_object_is_not_read_from_an_array_of_its_members() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Wish<'a> {
            #[serde(borrow)]
            code: Cow<'a, str>,
            app: Option<u8>,
        }
        let wish = Wish { code: "a".into(), app: None };
        assert_eq!(object::<Wish<'_>>(br#"{"code":"a","more":[]}"#), Ok(wish));
        for other in [r#"["a",null]"#, r#"["a"]"#, "null", "\"a\"", "1", "{}"] {
            assert!(object::<Wish<'_>>(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn only_one_whole_value_in_utf_8_is_read() {
        assert_eq!(read::<IgnoredAny>(b"\"\xff\"").err(), Some(JsonError::Utf8));
        for text in ["", "{", "{}x", "{} {}", "{'a':1}", "{\"a\":1,}", "NaN", "\u{feff}{}", "[1,]", "\"\u{1}\""] {
            assert!(!accepts(text), "{text}");
        }
        assert!(matches!(read::<u8>(b"\"1\""), Err(JsonError::Shape { line: 1, .. })));
        assert_eq!(read::<u8>(b" 7\n"), Ok(7));
    }
}
