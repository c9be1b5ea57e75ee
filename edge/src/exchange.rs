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
    /// A component, sent as the body.
    pub(crate) component: Option<Vec<u8>>,
    /// Fields beside those that follow from the rest.
    pub(crate) fields: Vec<(&'static str, String)>,
    /// For the whole exchange.
    pub(crate) time: Duration,
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
        Self { method, url, bearer: None, body: None, component: None, fields: Vec::new(), time: TIME }
    }

    /// The fields that go with it: lines of `name: value`.
    pub(crate) fn head(&self) -> String {
        let bearer = self.bearer.iter().map(|token| format!("authorization: Bearer {token}\n"));
        let json = self.body.iter().map(|_| "content-type: application/json\n".to_owned());
        let wasm = self.component.iter().map(|_| "content-type: application/wasm\n".to_owned());
        let more = self.fields.iter().map(|(name, value)| format!("{name}: {value}\n"));
        bearer.chain(json).chain(wasm).chain(more).collect()
    }

    /// The body as it is sent, where it is text; empty where there is none.
    pub(crate) fn text(&self) -> String {
        self.body.as_ref().map(Value::to_string).unwrap_or_default()
    }

    pub(crate) async fn send(&self, client: &Client) -> Result<Answer, Failure> {
        let call = Call {
            method: self.method.into(),
            head: self.head().into_bytes(),
            limits: Limits { connect: CONNECT_TIME, first_byte: self.time, total: self.time, max_body_bytes: 1 << 20 },
            body: self.component.clone().unwrap_or_else(|| self.text().into_bytes()),
            url: self.url.clone(),
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
const TIME: Duration = Duration::from_secs(30);
const CONNECT_TIME: Duration = Duration::from_secs(5);
