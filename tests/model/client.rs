//! Requests as a client makes them, and what it reads in the answers.

use edgepass::message::{Head, Request, Response};
use serde_json::{Value, json};

pub(crate) const OPERATOR: &str = "operator-token-of-the-model-tests-0123456789";

const MASTER_KEYS: [&str; 4] = [
    "5Hh1YBd9n0vQmXcT3rWl8sKfZ2uJpA7gEoNiR6tVyDk",
    "q3PzL0wBvN7xMcR5tYkU2jHgFdSaE8oI6uZ1yTrWn4A",
    "Zx2T1cBqk0bqVVnTg0mK9d3pJrI0hYp7cVqGmT5rF0Q",
    "p8LkW3dYQm6nR0tVbX2zA5cE7gI9jK1oM4qS6uW8yB0",
];

/// How far a rolling change of the master key has come on a node. Three stages per key: alone;
/// with the next one behind it; with the next one before it.
pub(crate) type Stage = usize;

/// Stages until the last key stands alone.
pub(crate) const LAST_STAGE: Stage = 3 * (MASTER_KEYS.len() - 1);

/// The settings of a node at `stage`, with two apps, `one` and `two`, of one platform.
pub(crate) fn settings(stage: Stage, more: &[(&str, &str)]) -> Vec<(String, String)> {
    let (old, new) = (MASTER_KEYS[stage / 3], MASTER_KEYS.get(stage / 3 + 1).copied().unwrap_or_default());
    let keys = match stage % 3 {
        0 => old.to_owned(),
        1 => format!("{old},{new}"),
        _ => format!("{new},{old}"),
    };
    let apps = json!([
        {"id": "one", "platform": "wechat", "appid": "wx1", "secret": "s1"},
        {"id": "two", "platform": "wechat", "appid": "wx2", "secret": "s2"},
    ]);
    let mut all = vec![
        ("master_key".to_owned(), keys),
        ("subject_key".to_owned(), "Zk4mQ9sXv1TbL6yN0cRjW3hPfUaG7dEoI2uKtS5rHwY".to_owned()),
        ("apps".to_owned(), apps.to_string()),
        ("wechat_base_url".to_owned(), "http://127.0.0.1:9".to_owned()),
        ("operator_tokens".to_owned(), OPERATOR.to_owned()),
        ("log_sample".to_owned(), "0".to_owned()),
    ];
    all.extend(more.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())));
    all
}

/// A request with a JSON body, or none.
pub(crate) fn request(method: &str, target: &str, head: &[(&str, &str)], body: &Value) -> Request {
    let mut fields = Head::new();
    for (name, value) in head {
        fields.push(name, value);
    }
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    Request { method: method.to_owned(), target: target.to_owned(), head: fields, body }
}

pub(crate) fn log_in(app: &str, code: &str, device: Option<&str>, key: Option<&str>) -> Request {
    let mut body = json!({"code": code, "app": app});
    if let Some(device) = device {
        body["device"] = json!({"id": device});
    }
    let head: Vec<(&str, &str)> = key.map(|key| ("idempotency-key", key)).into_iter().collect();
    request("POST", "/api/login", &head, &body)
}

pub(crate) fn refresh(token: &str, device: Option<&str>, app: Option<&str>) -> Request {
    let mut body = json!({"refresh_token": token});
    if let Some(device) = device {
        body["device_id"] = json!(device);
    }
    if let Some(app) = app {
        body["app"] = json!(app);
    }
    request("POST", "/api/token/refresh", &[], &body)
}

pub(crate) fn with_access(method: &str, target: &str, token: &str) -> Request {
    request(method, target, &[("authorization", &format!("Bearer {token}"))], &Value::Null)
}

pub(crate) fn with_refresh(target: &str, token: &str) -> Request {
    request("POST", target, &[], &json!({"refresh_token": token}))
}

pub(crate) fn operator(target: &str, body: &Value) -> Request {
    request("POST", target, &[("authorization", &format!("Bearer {OPERATOR}"))], body)
}

/// Status and problem code (empty for success).
pub(crate) fn verdict(response: &Response) -> (u16, String) {
    if response.status < 300 {
        return (response.status, String::new());
    }
    (response.status, body(response)["code"].as_str().unwrap_or_default().to_owned())
}

pub(crate) fn body(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_default()
}

/// What a login or a refresh grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) sid: String,
    pub(crate) user: String,
    pub(crate) app: String,
    pub(crate) access: String,
    pub(crate) refresh: String,
    pub(crate) created_at: String,
    pub(crate) expires_at: String,
    /// `iat` and `exp` of the access token.
    pub(crate) valid: (u64, u64),
}

impl Granted {
    /// Reads an answer, and what its access token says of the same things.
    pub(crate) fn read(response: &Response) -> Self {
        let body = body(response);
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("a text in {body}")).to_owned();
        let access = text(&body["access_token"]);
        let claims = claims(&access);
        let granted = Self {
            sid: text(&body["session"]["id"]),
            user: text(&body["user"]["id"]),
            app: text(&body["user"]["app"]),
            refresh: text(&body["refresh_token"]),
            created_at: text(&body["session"]["created_at"]),
            expires_at: text(&body["session"]["expires_at"]),
            valid: (claims["iat"].as_u64().expect("iat"), claims["exp"].as_u64().expect("exp")),
            access,
        };
        assert_eq!(claims["sid"], granted.sid, "sid of the access token");
        assert_eq!(claims["sub"], granted.user, "sub of the access token");
        assert_eq!(claims["client_id"], granted.app, "client_id of the access token");
        assert_eq!(claims["aud"], "edgepass", "the audience never grows");
        granted
    }
}

fn claims(token: &str) -> Value {
    use base64ct::{Base64UrlUnpadded, Encoding as _};
    let claims = token.split('.').nth(1).expect("three parts");
    serde_json::from_slice(&Base64UrlUnpadded::decode_vec(claims).expect("base64url")).expect("JSON")
}
