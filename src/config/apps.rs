//! The apps: the `apps` setting and the short form of each platform, added up.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use serde::Deserialize;

use super::{App, AppTag, BaseUrl, Reader, SETTINGS, value};
use crate::{json, platforms::Platform, secret::Secret};

/// What an app has that does not say otherwise.
pub(super) struct Defaults {
    pub(super) audience: String,
    pub(super) access_ttl: Duration,
    pub(super) session_ttl: Duration,
}

/// One entry of `apps`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    platform: Cow<'a, str>,
    #[serde(borrow)]
    appid: Cow<'a, str>,
    owner: Option<String>,
    audience: Option<String>,
    access_ttl: Option<String>,
    session_ttl: Option<String>,
    secret: Option<String>,
    secret_variable: Option<String>,
}

/// The settings that entries of `apps` name by `secret_variable`. A host that can only ask for
/// settings by name reads these in addition to [`super::SETTINGS`].
#[must_use]
pub fn referenced(settings: &[(String, String)]) -> Vec<String> {
    let apps = settings.iter().find(|(name, _)| name == "apps");
    let entries: Vec<Entry<'_>> = apps.and_then(|(_, text)| json::read(text.as_bytes()).ok()).unwrap_or_default();
    entries.into_iter().filter_map(|entry| entry.secret_variable).collect()
}

pub(super) fn read(reader: &mut Reader<'_>, defaults: &Defaults) -> BTreeMap<String, App> {
    let mut apps = BTreeMap::new();
    let problems_before = reader.problems.len();
    // Hosts fill it into their allow-list, where nothing is not the default.
    if reader.settings.iter().any(|(name, value)| name == "wechat_base_url" && value.is_empty()) {
        reader.problem("wechat_base_url", "empty; leave it out for the default");
    }
    let wechat_base = reader.or("wechat_base_url", Platform::Wechat.base(), BaseUrl::parse);
    if let Some(app) = short_form(reader, &wechat_base, defaults) {
        apps.insert(app.id.clone(), app);
    }
    let text = reader.get("apps").unwrap_or("[]");
    let entries: Vec<Entry<'_>> = match json::read(text.as_bytes()) {
        Ok(entries) => entries,
        Err(error) => {
            // Of serde's own words none are used: they quote what they did not like.
            reader.problem("apps", format!("not a JSON list of apps: {error}"));
            return apps;
        }
    };
    for (at, entry) in (1..).zip(entries) {
        match entry.check(reader, &wechat_base, defaults) {
            Ok(app) if apps.contains_key(&app.id) => reader.problem("apps", format!("entry {at}: an id given twice")),
            Ok(app) => drop(apps.insert(app.id.clone(), app)),
            Err(wrong) => reader.problem("apps", format!("entry {at}: {wrong}")),
        }
    }
    if apps.is_empty() && reader.problems.len() == problems_before {
        reader.problem("wechat_appid", "no app is configured");
    }
    apps
}

/// `wechat_appid`, `wechat_secret`, `wechat_owner`: the app called `wechat`.
fn short_form(reader: &mut Reader<'_>, base: &BaseUrl, defaults: &Defaults) -> Option<App> {
    let set = ["wechat_appid", "wechat_secret"].map(|name| reader.get(name).is_some());
    if set == [false, false] {
        return None;
    }
    let appid = reader.required("wechat_appid", value::label);
    let secret = reader.required("wechat_secret", value::label);
    let owner = reader.optional("wechat_owner", value::label);
    let (appid, secret) = (appid?, secret?);
    let id = Platform::Wechat.name();
    Some(App {
        id: id.to_owned(),
        platform: Platform::Wechat,
        owner: owner.unwrap_or_else(|| appid.clone()),
        appid,
        secret: Secret::new(secret),
        audience: defaults.audience.clone(),
        access_ttl: defaults.access_ttl,
        session_ttl: defaults.session_ttl,
        base: base.clone(),
        tag: AppTag::of(id),
    })
}

impl Entry<'_> {
    fn check(self, reader: &Reader<'_>, wechat_base: &BaseUrl, defaults: &Defaults) -> Result<App, String> {
        let named = |name: &'static str| move |wrong: &'static str| format!("{name}: {wrong}");
        let label = |name, text: Option<&str>| text.map(value::label).transpose().map_err(named(name));
        let duration = |name, text: Option<&str>| text.map(value::duration).transpose().map_err(named(name));
        let platform = Platform::named(&self.platform).ok_or("platform: not a platform")?;
        let secret = match (self.secret, &self.secret_variable) {
            (Some(secret), None) => Secret::new(secret),
            // The key of all tokens is nothing to send to a platform.
            (None, Some(name)) if SETTINGS.contains(&name.as_str()) && !name.ends_with("_secret") => {
                return Err("secret_variable: names a setting that is no app's secret".to_owned());
            }
            (None, Some(name)) => {
                let text = reader.get(name).ok_or("the variable named by secret_variable is not set")?;
                Secret::new(text.to_owned())
            }
            _ => return Err("secret or secret_variable, exactly one of them".to_owned()),
        };
        value::label(secret.expose()).map_err(named("secret"))?;
        let id = value::app_id(&self.id).map_err(named("id"))?;
        let appid = value::label(&self.appid).map_err(named("appid"))?;
        Ok(App {
            tag: AppTag::of(&id),
            id,
            platform,
            owner: label("owner", self.owner.as_deref())?.unwrap_or_else(|| appid.clone()),
            appid,
            secret,
            audience: label("audience", self.audience.as_deref())?.unwrap_or_else(|| defaults.audience.clone()),
            access_ttl: duration("access_ttl", self.access_ttl.as_deref())?.unwrap_or(defaults.access_ttl),
            session_ttl: duration("session_ttl", self.session_ttl.as_deref())?.unwrap_or(defaults.session_ttl),
            base: match platform {
                Platform::Wechat => wechat_base.clone(),
            },
        })
    }
}
