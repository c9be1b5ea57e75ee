//! What a token is worth, for whoever may ask, and whose it is. Asking changes nothing.

use super::{AuthError, Credential, LiveError, Login, Standing, Turn};
use crate::{
    clock::UnixSeconds,
    config::App,
    session::{Session, SessionId},
    store::Store,
    timing::Stages,
    token::{
        access::{self, Expiry},
        refresh::{self, Refresh},
    },
};

/// A token that counts.
pub struct Inspected<'l> {
    /// The app.
    pub app: &'l App,
    /// The session.
    pub sid: SessionId,
    /// The same.
    pub session: Session,
    /// When the token was issued. A refresh token carries no time; of the newest it is known.
    pub issued: Option<UnixSeconds>,
    /// When it ends. For a refresh token, unless it is used before.
    pub expires: UnixSeconds,
    /// The `jti` of an access token.
    pub id: Option<String>,
}

impl<'r> Credential<'r> {
    /// The kind of token that `token` has the form of: they cannot be taken for each other.
    #[must_use]
    pub fn of(token: &'r str) -> Self {
        if token.starts_with(refresh::PREFIX) { Self::Refresh(token) } else { Self::Access(token) }
    }
}

impl<S: Store, P> Login<S, P> {
    /// What a token is worth; a refresh token is not used by this.
    ///
    /// # Errors
    /// [`AuthError`] for a token or a session that does not count.
    pub async fn inspect(&self, token: Credential<'_>, stages: &Stages<'_>) -> Result<Inspected<'_>, AuthError> {
        match token {
            Credential::Access(token) => {
                let (access, session) = self.authenticate(token, None, stages).await?;
                let id = access::token_id(token);
                let issued = Some(access.issued);
                Ok(Inspected { app: access.app, sid: access.sid, session, issued, expires: access.expires, id })
            }
            Credential::Refresh(token) => {
                let token = self.read_refresh(token).map_err(|_| LiveError::Ended("refresh.form"))?;
                let Standing { app, session, turn, used } = self.inspect_refresh(&token, stages).await?;
                let issued = match turn {
                    Turn::Spent => return Err(LiveError::Ended("refresh.spent").into()),
                    Turn::Newest => Some(used),
                    Turn::Ahead | Turn::Replayed => None,
                };
                let expires = used.after(self.config().session_idle_ttl).min(session.expires);
                Ok(Inspected { app, sid: token.sid, session, issued, expires, id: None })
            }
        }
    }

    /// The app a genuine token was issued to, whether it still counts or not.
    #[must_use]
    pub fn issued_to(&self, token: Credential<'_>) -> Option<&App> {
        match token {
            Credential::Access(token) => {
                let access = access::verify(token, self.config(), &self.setup.ring, self.now(), Expiry::Ignored);
                Some(access.ok()?.app)
            }
            Credential::Refresh(token) => {
                let Refresh { app: tag, .. } = self.read_refresh(token).ok()?;
                self.config().apps().find(|app| app.tag == tag)
            }
        }
    }
}
