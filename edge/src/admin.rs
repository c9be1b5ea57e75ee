//! Two listeners: the public one, and one for operators on loopback.
//!
//! `/internal/*` is for operators: the public listener has no such route, whatever credentials a
//! request shows. The component answers it on the admin listener, and still asks for its own operator
//! token. Everything else there is the node's own: a [`Table`] of [`Route`]s, behind the token of
//! `admin.token` but for those that are [`Access::Open`]. Without the token no body is kept. Paths are
//! compared as they were sent, as the component compares them.

mod asked;
mod gate;
mod state;
mod table;

use std::net::SocketAddr;

use crate::front;

pub use self::{
    asked::{Answer, Asked, Fault, json, with_type},
    gate::{Admin, AdminCore, Public, PublicCore},
    state::{Announced, Error, NotLoopback, Token, Whereabouts, require_loopback, token},
    table::{Access, MAX_BODY_BYTES, Route, TIME, Table},
};

/// How the admin listener is set up.
pub struct Config {
    /// Address to listen on, of this machine; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What opens it.
    pub token: Token,
    /// Routes beside the node's own.
    pub routes: Vec<Route>,
}

/// Connections at once: a few operators and their scripts.
pub const MAX_CONNECTIONS: usize = 16;

/// The limits of the admin listener: those of the public one, with bodies as small as those of
/// `/internal/*`.
#[must_use]
pub fn limits(public: front::Limits) -> front::Limits {
    front::Limits { max_body_bytes: public.max_body_bytes.min(MAX_BODY_BYTES), ..public }
}
