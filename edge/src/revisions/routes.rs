//! What operators may ask and order, as rows of the admin listener's table.

use std::{str::FromStr, time::Duration};

use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::{By, Change, Done, MAX_COMPONENT_BYTES, Office, Rule, Then, signature};
use crate::{
    admin::{Answer, Asked, Fault, Route},
    engine::Digest,
};

/// Rows that ask `office`.
pub(crate) fn routes(office: &Office) -> Vec<Route> {
    let row = |method, path, change: fn(&Asked) -> Result<Change, Fault>| {
        let office = office.clone();
        Route::new(method, path, move |asked| order(office.clone(), asked, change)).time(TIME)
    };
    let (list, journal) = (office.clone(), office.clone());
    vec![
        Route::new(Method::GET, "/revisions", move |asked: Asked| {
            let standing = list.standing();
            async move { Ok(asked.json_answer(&*standing)) }
        }),
        Route::new(Method::GET, "/journal", move |asked: Asked| {
            let standing = journal.standing();
            async move { Ok(asked.json_answer(&json!({"entries": standing.journal}))) }
        }),
        row(Method::PUT, "/revisions", upload).body(MAX_COMPONENT_BYTES),
        row(Method::POST, "/revisions/{digest}/activate", |asked| {
            Ok(Change::Activate(digest(asked.parameter("digest"))?))
        }),
        row(Method::POST, "/canary", canary),
        row(Method::POST, "/canary/promote", |_| Ok(Change::Promote)),
        row(Method::DELETE, "/canary", |_| Ok(Change::Stop)),
        row(Method::POST, "/rollback", |_| Ok(Change::RollBack)),
    ]
}

async fn order(office: Office, asked: Asked, change: fn(&Asked) -> Result<Change, Fault>) -> Answer {
    let expect =
        asked.request.headers.get(EXPECT).map(|value| digest(value.to_str().unwrap_or_default())).transpose()?;
    let by = By { expect, ..By::named(&asked.actor()) };
    let done: Done = office.change(change(&asked)?, by).await?;
    Ok(asked.json_answer(&done))
}

fn upload(asked: &Asked) -> Result<Change, Fault> {
    let then = match (asked.query("canary"), asked.is_set("activate")) {
        (Some(_), true) => return Err(Fault::bad_request("`activate` and `canary` exclude each other")),
        (Some(rule), false) => Then::Canary(parsed("canary", &rule)?),
        (None, true) => Then::Activate,
        (None, false) => Then::Nothing,
    };
    let signature =
        asked.request.headers.get(signature::FIELD).map(|value| String::from_utf8_lossy(value.as_bytes()).into());
    Ok(Change::Upload { wasm: asked.request.body.clone(), signature, then })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Canary {
    digest: String,
    rule: String,
}

fn canary(asked: &Asked) -> Result<Change, Fault> {
    let Canary { digest: named, rule } = asked.json()?;
    Ok(Change::Canary(digest(&named)?, parsed::<Rule>("rule", &rule)?))
}

fn digest(text: &str) -> Result<Digest, Fault> {
    parsed("digest", text)
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> Result<T, Fault> {
    text.parse().map_err(|error| Fault::bad_request(format!("{name}: {error}")))
}

/// The digest that has to be active for a change to be made.
const EXPECT: &str = "x-edgepass-expect";

/// A component of that size compiles for as long, on one thread.
const TIME: Duration = Duration::from_mins(2);
