//! A look into the store for operators: which keys there are, and what is known of one. Never a value:
//! sealed or not, it is a user's.

use http::{Method, StatusCode};
use serde_json::json;

use super::{Failure, SharedBackend};
use crate::admin::{Asked, Fault, Route};

/// `GET /kv?prefix=&after=&limit=` and `GET /kv/value?key=` on `store`.
pub(crate) fn routes(store: &SharedBackend) -> Vec<Route> {
    let (listed, looked) = (store.clone(), store.clone());
    vec![
        Route::new(Method::GET, "/kv", move |asked: Asked| {
            let store = listed.clone();
            async move {
                let limit = match asked.query("limit") {
                    Some(text) => text.parse().map_err(|_| Fault::bad_request("limit: a number"))?,
                    None => 100_usize,
                };
                let limit = limit.clamp(1, MAX_KEYS);
                let (prefix, after) = (asked.query("prefix").unwrap_or_default(), asked.query("after"));
                let keys = store.scan(prefix, after, limit).await.map_err(fault)?;
                let after = (keys.len() == limit).then(|| keys.last().cloned()).flatten();
                Ok(asked.json_answer(&json!({"keys": keys, "after": after})))
            }
        }),
        Route::new(Method::GET, "/kv/value", move |asked: Asked| {
            let store = looked.clone();
            async move {
                let key = asked.query("key").ok_or_else(|| Fault::bad_request("key: which one"))?;
                let values = store.get(vec![key.clone()]).await.map_err(fault)?;
                let Some(value) = values.into_iter().next().flatten() else {
                    return Err(Fault::not_found("there is no such key, or it has expired"));
                };
                let head = Head::read(&value);
                Ok(asked.json_answer(&json!({
                    "key": key,
                    "bytes": value.len(),
                    "envelope_version": head.map(|head| head.version),
                    "expires_at": head.filter(|head| head.expires > 0).map(|head| head.expires),
                })))
            }
        }),
    ]
}

/// Most keys of one answer.
const MAX_KEYS: usize = 1000;

fn fault(failure: Failure) -> Fault {
    match failure {
        Failure::TooLarge => Fault::bad_request(failure.to_string()),
        _ => Fault::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", failure.to_string()),
    }
}

/// The clear part of a value of our component: eight bytes by which it is known, a version, and the
/// Unix seconds of its end, 0 for none (`docs/store.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    version: u8,
    expires: u64,
}

impl Head {
    fn read(value: &[u8]) -> Option<Self> {
        let rest = value.strip_prefix(b"edgepass")?;
        let (&version, rest) = rest.split_first()?;
        Some(Self { version, expires: u64::from_be_bytes(*rest.first_chunk()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_clear_part_of_a_value_is_read() {
        let mut value = b"edgepass\x03".to_vec();
        assert_eq!(Head::read(&value), None, "cut off");
        value.extend_from_slice(&77_u64.to_be_bytes());
        value.extend_from_slice(b"sealed");
        assert_eq!(Head::read(&value), Some(Head { version: 3, expires: 77 }));
        assert_eq!(Head::read(b"something else of somebody else"), None);
    }
}
