//! The two listeners in front of one component, told apart by the path.

use std::sync::Arc;

use http::{HeaderValue, StatusCode, header};
use tokio::time::timeout;

use super::{
    Access, Asked, Fault, Route, Table, Token,
    table::{Found, Parameters},
};
use crate::{
    handler::{Admission, CoreHandler, Handler, Head, Request, Response},
    observer::Observer,
    problem::Problem,
};

/// The public listener's side: everything but `/internal/*`.
pub struct Public<H>(H);

impl<H> Public<H> {
    /// Keeps `/internal/*` from `handler`.
    pub fn new(handler: H) -> Arc<Self> {
        Arc::new(Self(handler))
    }
}

impl<H: Handler> Handler for Public<H> {
    type Core = PublicCore<H::Core>;

    fn core(&self, core: usize) -> Self::Core {
        PublicCore(self.0.core(core))
    }
}

/// A [`Public`] on one core.
pub struct PublicCore<C>(C);

impl<C: CoreHandler> CoreHandler for PublicCore<C> {
    fn admit(&self, head: &Head<'_>) -> Result<Admission, Box<Response>> {
        self.0.admit(head)
    }

    fn handle(&self, request: Request) -> impl Future<Output = Response> + 'static {
        let answer =
            if is_internal(request.target.path()) { Err(request.trace_id) } else { Ok(self.0.handle(request)) };
        async move {
            match answer {
                Ok(answer) => answer.await,
                Err(trace_id) => Problem::NotFound.answer(&trace_id),
            }
        }
    }

    fn drained(&self) -> impl Future<Output = ()> + 'static {
        self.0.drained()
    }

    fn observer(&self) -> Option<Observer> {
        self.0.observer()
    }
}

/// The admin listener's side: `/internal/*` is the component's, the rest is the table's.
pub struct Admin<H> {
    handler: H,
    desk: Arc<Desk>,
}

/// The table and what opens it.
struct Desk {
    table: Table,
    token: Token,
}

impl<H> Admin<H> {
    /// Answers by `table`, and leaves `/internal/*` to `handler`.
    pub fn new(handler: H, table: Table, token: Token) -> Arc<Self> {
        Arc::new(Self { handler, desk: Arc::new(Desk { table, token }) })
    }
}

impl<H: Handler> Handler for Admin<H> {
    type Core = AdminCore<H::Core>;

    fn core(&self, core: usize) -> Self::Core {
        AdminCore { core: self.handler.core(core), desk: self.desk.clone() }
    }
}

/// An [`Admin`] on one core.
pub struct AdminCore<C> {
    core: C,
    desk: Arc<Desk>,
}

impl<C: CoreHandler> CoreHandler for AdminCore<C> {
    fn admit(&self, head: &Head<'_>) -> Result<Admission, Box<Response>> {
        if is_internal(head.target.path()) {
            return self.core.admit(head);
        }
        let (route, _) = self.desk.find(head)?;
        Ok(Admission {
            max_body_bytes: Some(route.max_body_bytes),
            body_time: Some(route.time),
            // The route's own limit ends it, with an answer that says so.
            request_time: Some(route.time.saturating_mul(2)),
        })
    }

    fn handle(&self, request: Request) -> impl Future<Output = Response> + 'static {
        let desk = self.desk.clone();
        let answer = if is_internal(request.target.path()) { Ok(self.core.handle(request)) } else { Err(request) };
        async move {
            match answer {
                Ok(answer) => answer.await,
                Err(request) => desk.answer(request).await,
            }
        }
    }

    fn drained(&self) -> impl Future<Output = ()> + 'static {
        self.core.drained()
    }
}

impl Desk {
    /// The route of a request, or why it has none here. Without the token nobody learns which there
    /// are.
    fn find(&self, head: &Head<'_>) -> Result<(&Route, Parameters), Box<Response>> {
        let found = self.table.find(head.method, head.target.path());
        let open = matches!(&found, Found::Route(route, _) if route.access == Access::Open);
        if !open && !self.is_known(head) {
            let mut answer = Fault::new(StatusCode::UNAUTHORIZED, "token_invalid", WANTED).answer(head.trace_id);
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return Err(answer.into());
        }
        match found {
            Found::Route(route, parameters) => Ok((route, parameters)),
            Found::OtherMethod(allow) => {
                let fault = Fault::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", format!("it has {allow}"));
                let mut answer = fault.answer(head.trace_id);
                answer.headers_mut().extend(HeaderValue::try_from(allow).ok().map(|allow| (header::ALLOW, allow)));
                Err(answer.into())
            }
            Found::Nothing => Err(Problem::NotFound.answer(head.trace_id).into()),
        }
    }

    fn is_known(&self, head: &Head<'_>) -> bool {
        let mut credentials = head.headers.get_all(header::AUTHORIZATION).iter();
        let (Some(only), None) = (credentials.next(), credentials.next()) else { return false };
        let token = only.to_str().ok().and_then(|value| value.split_once(' '));
        token.is_some_and(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && self.token.is(token.trim()))
    }

    async fn answer(&self, request: Request) -> Response {
        let Request { method, target, headers, client, trace_id, .. } = &request;
        let found = self.find(&Head { method, target, headers, client: *client, trace_id });
        let (route, parameters) = match found {
            Ok(found) => found,
            Err(answer) => return *answer,
        };
        let trace_id = request.trace_id.clone();
        match timeout(route.time, route.answer(Asked::new(request, parameters))).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(fault)) => fault.answer(&trace_id),
            Err(_) => Fault::new(StatusCode::GATEWAY_TIMEOUT, "deadline", LATE).answer(&trace_id),
        }
    }
}

const WANTED: &str = "this route wants the token of admin.token as `Authorization: Bearer`";
const LATE: &str = "not done within the route's time limit; what has begun may go on";

fn is_internal(path: &str) -> bool {
    path.strip_prefix("/internal").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

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
