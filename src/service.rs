//! The whole service behind one value: settings in, requests answered.

use crate::{
    host::Host,
    message::{Request, Response},
};

/// The login service on one host. One per instance; requests may be under way at once.
pub struct Service<H: Host> {
    host: H,
}

/// What a host may know before it sends the first request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Version of this package.
    pub version: String,
    /// Commit the component was built from.
    pub commit: String,
    /// Time of that commit, RFC 3339.
    pub built: String,
    /// Lower-case names of the header fields the core reads.
    pub reads: Vec<String>,
    /// Names of the settings it knows.
    pub settings: Vec<String>,
    /// What is wrong with the settings; each names its setting and never a value.
    pub problems: Vec<String>,
}

impl<H: Host> Service<H> {
    /// Reads the settings once and derives the keys. A wrong setting is remembered, not refused:
    /// `/readyz` and [`Service::describe`] name it.
    #[must_use]
    pub fn new(host: H, settings: &[(String, String)]) -> Self {
        let _ = settings;
        Self { host }
    }

    /// What this build reads, and what is wrong with the settings it was given.
    #[must_use]
    pub fn describe(&self) -> Description {
        Description::default()
    }

    /// Answers one request. Never panics, whatever the request holds.
    pub async fn handle(&self, request: Request) -> Response {
        let _ = (&self.host, request);
        Response { status: 501, ..Response::default() }
    }
}
