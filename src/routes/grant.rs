//! The tokens of a session as login and refresh answer them.

use serde::Serialize;

use super::json;
use crate::{login::Grant, message::Response};

#[derive(Serialize)]
struct Granted<'a> {
    access_token: &'a str,
    token_type: &'static str,
    expires_in: u64,
    refresh_token: &'a str,
    refresh_expires_in: u64,
    session: Session,
    user: User<'a>,
}

#[derive(Serialize)]
struct Session {
    id: String,
    created_at: String,
    expires_at: String,
}

#[derive(Serialize)]
struct User<'a> {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_new: Option<bool>,
    app: &'a str,
    platform: &'static str,
}

/// 200 with `grant`; a login also says whether the user was unknown so far.
pub(super) fn answer(grant: &Grant<'_>, is_new: Option<bool>) -> Response {
    let granted = Granted {
        access_token: &grant.access_token,
        token_type: "Bearer",
        expires_in: grant.expires_in,
        refresh_token: &grant.refresh_token,
        refresh_expires_in: grant.refresh_expires_in,
        session: Session {
            id: grant.sid.text(),
            created_at: grant.created.to_string(),
            expires_at: grant.expires.to_string(),
        },
        user: User { id: grant.subject.text(), is_new, app: &grant.app.id, platform: grant.app.platform.name() },
    };
    json(200, &granted)
}
