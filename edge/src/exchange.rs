//! One exchange in JSON, as the commands make it: with a node, with the simulator.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use crate::outbound::{Call, Client, Failure, Limits, Options, Policy, Shared};

/// What is asked. Without `Debug`: it holds a token.
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) url: String,
    pub(crate) bearer: Option<String>,
    pub(crate) body: Option<Value>,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Lines of `name: value`.
    pub(crate) head: String,
    /// `null` when it was no JSON.
    pub(crate) body: Value,
}

/// A client for these URLs and no other.
///
/// # Errors
/// When one of them is none.
pub(crate) fn client(urls: &[&str]) -> anyhow::Result<Client> {
    let shared: Arc<Shared> = Shared::new(Policy::parse(urls)?, Options::default())?;
    Ok(Client::new(shared))
}

impl Ask {
    pub(crate) fn new(method: &'static str, url: String) -> Self {
        Self { method, url, bearer: None, body: None }
    }

    /// The fields that go with it: lines of `name: value`.
    pub(crate) fn head(&self) -> String {
        let bearer = self.bearer.iter().map(|token| format!("authorization: Bearer {token}\n"));
        let kind = self.body.iter().map(|_| "content-type: application/json\n".to_owned());
        bearer.chain(kind).collect()
    }

    /// The body as it is sent; empty where there is none.
    pub(crate) fn text(&self) -> String {
        self.body.as_ref().map(Value::to_string).unwrap_or_default()
    }

    pub(crate) async fn send(&self, client: &Client) -> Result<Answer, Failure> {
        let call = Call {
            method: self.method.into(),
            url: self.url.clone(),
            head: self.head().into_bytes(),
            body: self.text().into_bytes(),
            limits: LIMITS,
            exclusive: None,
        };
        let reply = client.send(call).await?;
        Ok(Answer {
            status: reply.status,
            head: String::from_utf8_lossy(&reply.head).into_owned(),
            body: serde_json::from_slice(&reply.body).unwrap_or(Value::Null),
        })
    }
}

/// Longer than a node takes for any request unless it is told otherwise.
const LIMITS: Limits = Limits {
    connect: Duration::from_secs(5),
    first_byte: Duration::from_secs(30),
    total: Duration::from_secs(30),
    max_body_bytes: 1 << 20,
};
