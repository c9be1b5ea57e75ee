//! Two listeners in front of one component, told apart by the path.
//!
//! `/internal/*` is for operators: the public listener has no such route, whatever credentials a
//! request shows, and the admin listener has no other. The component still asks for its own
//! operator token on it. The path is compared as it was sent, as the component compares it.

mod state;

use std::sync::Arc;

use crate::{
    front,
    handler::{CoreHandler, Handler, Request, Response},
    problem::Problem,
};

pub use self::state::{Announced, Error, NotLoopback, Token, Whereabouts, require_loopback, token};

/// What a listener passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Public,
    Admin,
}

/// A handler as one of the two listeners shows it.
pub struct Gate<H> {
    side: Side,
    handler: H,
}

impl<H> Gate<H> {
    /// Everything but `/internal/*`.
    pub fn public(handler: H) -> Arc<Self> {
        Arc::new(Self { side: Side::Public, handler })
    }

    /// `/internal/*` and nothing else.
    pub fn admin(handler: H) -> Arc<Self> {
        Arc::new(Self { side: Side::Admin, handler })
    }
}

impl<H: Handler> Handler for Gate<H> {
    type Core = CoreGate<H::Core>;

    fn core(&self, core: usize) -> Self::Core {
        CoreGate { side: self.side, core: self.handler.core(core) }
    }
}

/// A [`Gate`] on one core.
pub struct CoreGate<C> {
    side: Side,
    core: C,
}

impl<C: CoreHandler> CoreHandler for CoreGate<C> {
    fn handle(&self, request: Request) -> impl Future<Output = Response> + 'static {
        let passes = is_internal(request.target.path()) == (self.side == Side::Admin);
        let answer = if passes { Ok(self.core.handle(request)) } else { Err(request.trace_id) };
        async move {
            match answer {
                Ok(answer) => answer.await,
                Err(trace_id) => Problem::NotFound.answer(&trace_id),
            }
        }
    }

    fn drained(&self) -> impl Future<Output = ()> + 'static {
        self.core.drained()
    }
}

fn is_internal(path: &str) -> bool {
    path.strip_prefix("/internal").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Connections at once: a few operators and their scripts.
pub const MAX_CONNECTIONS: usize = 16;

/// The limits of the admin listener: those of the public one, with bodies as small as its routes'.
#[must_use]
pub fn limits(public: front::Limits) -> front::Limits {
    front::Limits { max_body_bytes: public.max_body_bytes.min(MAX_BODY_BYTES), ..public }
}

const MAX_BODY_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_as_sent_is_internal() {
        for path in ["/internal", "/internal/", "/internal/sweep", "/internal//sweep", "/internal/../api/login"] {
            assert!(is_internal(path), "{path}");
        }
        for path in ["/", "/internally", "//internal/sweep", "/internal%2fsweep", "/INTERNAL/sweep", "/api/internal/"] {
            assert!(!is_internal(path), "{path}");
        }
    }
}
