//! Errors as the outside sees them: RFC 9457 `application/problem+json` with a `code` from one
//! closed table; on `/oauth/*` the form of RFC 6749 §5.2 instead, which OAuth clients read. Nothing
//! in one comes from a platform's text, a stored value or a secret.

use std::borrow::Cow;

use serde::Serialize;

use crate::message::{Head, Response};

/// Defines [`Code`] and its table from one list.
macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $status:literal $name:literal $title:literal $retryable:literal $retry_after:literal;)*) => {
        /// What went wrong. Stable: clients decide on its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// Every code there is.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// What belongs to the code.
            #[must_use]
            pub const fn facts(self) -> Facts {
                match self {
                    $(Self::$variant => Facts {
                        name: $name, status: $status, title: $title, retryable: $retryable, retry_after: $retry_after,
                    },)*
                }
            }
        }
    };
}

/// What belongs to a [`Code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The value of `code`.
    pub name: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// The value of `title`.
    pub title: &'static str,
    /// Whether the same wish may succeed later. For a login: with a new code.
    pub retryable: bool,
    /// The value of `Retry-After` in seconds; 0 is none.
    pub retry_after: u32,
}

codes! {
    /// The request cannot be understood.
    BadRequest = 400 "bad_request" "The request cannot be understood" false 0;
    /// No app is meant, or several are.
    AppUnknown = 400 "app_unknown" "The app is not known" false 0;
    /// Any bearer failure.
    TokenInvalid = 401 "token_invalid" "The access token is not accepted" false 0;
    /// The platform does not know the code.
    CodeInvalid = 401 "code_invalid" "The login code is not accepted" true 0;
    /// The code was used before.
    CodeUsed = 401 "code_used" "The login code was used before" true 0;
    /// The refresh token is not accepted.
    RefreshInvalid = 401 "refresh_invalid" "The refresh token is not accepted" false 0;
    /// Another device than the session's.
    DeviceMismatch = 401 "device_mismatch" "The session belongs to another device" false 0;
    /// This person may not log in.
    UserBlocked = 403 "user_blocked" "The user may not log in" false 0;
    /// The user has as many sessions as they may have.
    SessionLimit = 403 "session_limit" "The user has too many sessions" false 0;
    /// Marked as load, and not allowed to.
    LoadTokenInvalid = 403 "load_token_invalid" "The load token is not accepted" false 0;
    /// No such thing.
    NotFound = 404 "not_found" "There is no such thing" false 0;
    /// Not with this method.
    MethodNotAllowed = 405 "method_not_allowed" "The method is not allowed here" false 0;
    /// The body is too long.
    PayloadTooLarge = 413 "payload_too_large" "The body is too long" false 0;
    /// The body is of a kind nobody reads here.
    UnsupportedMediaType = 415 "unsupported_media_type" "The content type is not read here" false 0;
    /// One idempotency key for two wishes.
    IdempotencyMismatch = 422 "idempotency_mismatch" "The idempotency key was used with another body" false 0;
    /// The platform's quota is used up.
    RateLimited = 429 "rate_limited" "Too many logins" true 60;
    /// The operator has to act.
    Config = 500 "config" "The service is not configured well" false 0;
    /// The platform answered with something else.
    PlatformError = 502 "platform_error" "The platform did not answer as it should" true 0;
    /// The platform is busy.
    PlatformBusy = 503 "platform_busy" "The platform is busy" true 2;
    /// The platform cannot be reached.
    PlatformUnavailable = 503 "platform_unavailable" "The platform cannot be reached" true 5;
    /// The store cannot be relied on.
    StoreUnavailable = 503 "store_unavailable" "The session store is not available" true 1;
    /// Another node's write may not be visible yet.
    StoreLagging = 503 "store_lagging" "The session may not have arrived yet" true 1;
    /// Too much at once.
    Overloaded = 503 "overloaded" "Too many requests at once" true 1;
    /// The platform took too long.
    PlatformTimeout = 504 "platform_timeout" "The platform took too long" true 0;
}

/// An error on its way out.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What went wrong; `None` is a request that should have brought credentials and did not.
    pub code: Option<Code>,
    /// For people.
    pub detail: Cow<'static, str>,
    /// The platform's own number.
    pub platform_code: Option<i64>,
    /// The platform's name for its answer.
    pub platform_request_id: Option<String>,
    /// The value of `Allow`.
    pub allow: Option<&'static str>,
    /// The OAuth error, where that is the form of the answer.
    pub oauth: Option<OAuthError>,
    /// Why, for the log only.
    pub reason: Option<Cow<'static, str>>,
}

/// An error as OAuth clients know it (RFC 6749 §5.2, §4.1.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OAuthError {
    /// The request cannot be understood.
    InvalidRequest,
    /// The client did not prove who it is.
    InvalidClient,
    /// The client may not do this.
    UnauthorizedClient,
    /// The operator has to act.
    ServerError,
    /// Ask again.
    TemporarilyUnavailable,
}

#[derive(Serialize)]
struct OAuthBody<'a> {
    error: &'static str,
    error_description: &'a str,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: Cow<'static, str>,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    trace_id: &'a str,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    platform_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    platform_request_id: Option<&'a str>,
}

impl Problem {
    /// A problem that says no more than this.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code: Some(code), ..Self::bare(detail.into()) }
    }

    /// The answer to a bearer route's caller who brought no credentials.
    #[must_use]
    pub fn no_credentials() -> Self {
        Self::bare("Send an access token: Authorization: Bearer <token>.".into())
    }

    /// The one answer to every bad bearer token; `reason` goes to the log.
    #[must_use]
    pub fn token_invalid(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::TokenInvalid, "The token is malformed, expired or revoked.").because(reason)
    }

    /// With a reason for the log.
    #[must_use]
    pub fn because(self, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    /// HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.code.map_or(401, |code| code.facts().status)
    }

    /// The name of the error, or what stands for it in a log.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let code = || self.code.map_or("no_credentials", |code| code.facts().name);
        self.oauth.map_or_else(code, OAuthError::name)
    }

    /// The answer to a client that did not prove who it is; `reason` goes to the log.
    #[must_use]
    pub fn client_invalid(reason: &'static str) -> Self {
        Self::bare("Authenticate as one of the configured clients, with HTTP Basic.".into()).because(reason)
    }

    /// The same in OAuth's form.
    #[must_use]
    pub fn in_oauth_form(self) -> Self {
        let error = self.oauth.unwrap_or(match self.status() {
            401 => OAuthError::InvalidClient,
            500 => OAuthError::ServerError,
            429 | 503 => OAuthError::TemporarilyUnavailable,
            _ => OAuthError::InvalidRequest,
        });
        Self { oauth: Some(error), ..self }
    }

    /// A session this node may not see yet.
    #[must_use]
    pub fn lagging() -> Self {
        Self::new(Code::StoreLagging, "Nothing was decided; ask again.").because("session.lagging")
    }

    /// As an answer.
    #[must_use]
    pub fn response(&self, trace_id: &str) -> Response {
        let mut head = Head::new();
        let body = if let Some(error) = self.oauth {
            head.push("content-type", "application/json");
            serde_json::to_vec(&OAuthBody { error: error.name(), error_description: &self.detail })
        } else {
            head.push("content-type", "application/problem+json");
            serde_json::to_vec(&self.body(trace_id))
        };
        if self.status() == 401 {
            // RFC 9110 §15.5.2 wants it on every 401; RFC 6750 §3.1 has the error only for a token.
            let challenge = match (self.oauth, self.code) {
                (Some(_), _) => r#"Basic realm="edgepass", charset="UTF-8""#,
                (None, Some(Code::TokenInvalid)) => r#"Bearer error="invalid_token""#,
                _ => "Bearer",
            };
            head.push("www-authenticate", challenge);
        }
        if let Some(allow) = self.allow {
            head.push("allow", allow);
        }
        let retry_after = self.code.map_or(0, |code| code.facts().retry_after);
        if retry_after > 0 {
            head.push("retry-after", &retry_after.to_string());
        }
        Response { status: self.status(), head, body: body.unwrap_or_default() }
    }

    fn body<'a>(&'a self, trace_id: &'a str) -> Body<'a> {
        let facts = self.code.map(Code::facts);
        Body {
            r#type: facts.map_or("about:blank".into(), |facts| format!("urn:edgepass:problem:{}", facts.name).into()),
            title: facts.map_or("Credentials are needed", |facts| facts.title),
            status: self.status(),
            detail: &self.detail,
            code: facts.map(|facts| facts.name),
            trace_id,
            retryable: facts.is_some_and(|facts| facts.retryable),
            platform_code: self.platform_code,
            platform_request_id: self.platform_request_id.as_deref(),
        }
    }

    const fn bare(detail: Cow<'static, str>) -> Self {
        Self {
            code: None,
            detail,
            platform_code: None,
            platform_request_id: None,
            allow: None,
            oauth: None,
            reason: None,
        }
    }
}

impl OAuthError {
    /// Every error there is.
    pub const ALL: [Self; 5] = [
        Self::InvalidRequest,
        Self::InvalidClient,
        Self::UnauthorizedClient,
        Self::ServerError,
        Self::TemporarilyUnavailable,
    ];

    /// The value of `error`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::InvalidClient => "invalid_client",
            Self::UnauthorizedClient => "unauthorized_client",
            Self::ServerError => "server_error",
            Self::TemporarilyUnavailable => "temporarily_unavailable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_every_member_and_the_status_of_its_code() {
        for code in Code::ALL {
            let facts = code.facts();
            let response = Problem::new(*code, "why").response("t-1");
            let body: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
            assert_eq!(response.status, facts.status);
            assert_eq!(body["status"], facts.status);
            assert_eq!(body["code"], facts.name);
            assert_eq!(body["type"], format!("urn:edgepass:problem:{}", facts.name));
            assert_eq!((body["detail"].as_str(), body["trace_id"].as_str()), (Some("why"), Some("t-1")));
            assert_eq!(body["retryable"], facts.retryable);
            assert_eq!(response.head.get("retry-after").is_some(), matches!(facts.status, 429 | 503), "{}", facts.name);
            assert_eq!(response.head.get("www-authenticate").is_some(), facts.status == 401);
        }
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.facts().name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn f5_in_oauth_form_a_problem_has_two_members_and_the_same_status() {
        for code in Code::ALL {
            let facts = code.facts();
            let response = Problem::new(*code, "why").in_oauth_form().response("t-1");
            let body: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
            let error = match facts.status {
                401 => "invalid_client",
                500 => "server_error",
                429 | 503 => "temporarily_unavailable",
                _ => "invalid_request",
            };
            assert_eq!(body, serde_json::json!({"error": error, "error_description": "why"}));
            assert_eq!((response.status, response.head.get("content-type")), (facts.status, Some("application/json")));
            assert_eq!(response.head.get("retry-after").is_some(), matches!(facts.status, 429 | 503));
            assert!(
                response.head.get("www-authenticate").is_none_or(|challenge| challenge.starts_with("Basic realm="))
            );
        }
    }

    #[test]
    fn missing_credentials_are_no_error_code() {
        let response = Problem::no_credentials().response("t");
        let body: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
        assert_eq!((response.status, response.head.get("www-authenticate")), (401, Some("Bearer")));
        assert!(body.get("code").is_none());
        let invalid = Problem::token_invalid("token.exp").response("t");
        assert_eq!(invalid.head.get("www-authenticate"), Some(r#"Bearer error="invalid_token""#));
        assert!(!String::from_utf8_lossy(&invalid.body).contains("token.exp"), "why goes to the log only");
    }
}
