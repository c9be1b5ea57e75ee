//! Which of a closed list of routes a request was for: a label may not be a client's text.

use http::Method;

/// A route of our component, as its document names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    template: &'static str,
    /// The one method that is served, as it is shown; the others are nobody's.
    method: Option<&'static str>,
    operation: Operation,
}

/// What a request was for, closely enough for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Login,
    Refresh,
    Verify,
    Other,
}

impl Operation {
    pub(crate) const ALL: [Self; 4] = [Self::Login, Self::Refresh, Self::Verify, Self::Other];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Refresh => "refresh",
            Self::Verify => "verify",
            Self::Other => "other",
        }
    }
}

impl Route {
    const fn new(template: &'static str, method: Option<&'static str>, operation: Operation) -> Self {
        Self { template, method, operation }
    }

    /// Its template: a `{name}` is one segment, a `*` at the end any number.
    #[must_use]
    pub const fn template(&self) -> &'static str {
        self.template
    }

    pub(crate) const fn operation(&self) -> Operation {
        self.operation
    }

    fn fits(&self, method: &Method, path: &str) -> bool {
        // HEAD is answered as GET.
        let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
        if self.method.is_some_and(|own| own != method) {
            return false;
        }
        let fixed = self.template.find(['{', '*']).map_or(self.template, |end| &self.template[..end]);
        if fixed.len() == self.template.len() { path == fixed } else { path.starts_with(fixed) }
    }
}

/// The routes of our component's public side; a test holds them against its document. A request
/// that is for none of them, or with another method, is `other`.
pub const ROUTES: &[Route] = &[
    Route::new("/api/login", Some("POST"), Operation::Login),
    Route::new("/api/token/refresh", Some("POST"), Operation::Refresh),
    Route::new("/api/verify/*", None, Operation::Verify),
    Route::new("/api/verify-offline/*", None, Operation::Verify),
    Route::new("/api/session", Some("GET"), Operation::Other),
    Route::new("/api/sessions", Some("GET"), Operation::Other),
    Route::new("/api/sessions/{id}", Some("DELETE"), Operation::Other),
    Route::new("/api/logout", Some("POST"), Operation::Other),
    Route::new("/api/logout-all", Some("POST"), Operation::Other),
    Route::new("/oauth/introspect", Some("POST"), Operation::Other),
    Route::new("/oauth/revoke", Some("POST"), Operation::Other),
    Route::new("/healthz", Some("GET"), Operation::Other),
    Route::new("/readyz", Some("GET"), Operation::Other),
    Route::new("/version", Some("GET"), Operation::Other),
    Route::new("/openapi.json", Some("GET"), Operation::Other),
    Route::new("/.well-known/jwks.json", Some("GET"), Operation::Other),
    Route::new("/.well-known/oauth-authorization-server", Some("GET"), Operation::Other),
];

/// A route and a method as labels: one small number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

impl Slot {
    /// Of the labels there are.
    pub(crate) const COUNT: usize = ROUTES.len() * 2 + OTHER_METHODS.len();

    /// The labels of a request.
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        if let Some(route) = ROUTES.iter().position(|route| route.fits(method, path)) {
            let is_own = ROUTES[route].method.is_some() || matches!(*method, Method::GET | Method::HEAD);
            return Self(route * 2 + usize::from(!is_own));
        }
        let known = OTHER_METHODS.iter().position(|known| *known == method.as_str());
        Self(ROUTES.len() * 2 + known.unwrap_or(OTHER_METHODS.len() - 1))
    }

    /// Number of the labels, below [`Slot::COUNT`].
    pub(crate) fn index(self) -> usize {
        self.0
    }

    /// All there are.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// The route's template.
    pub(crate) fn route(self) -> &'static str {
        ROUTES.get(self.0 / 2).map_or("other", Route::template)
    }

    /// The method, `_OTHER` for one that is not told apart here.
    pub(crate) fn method(self) -> &'static str {
        match ROUTES.get(self.0 / 2) {
            Some(route) if self.0.is_multiple_of(2) => route.method.unwrap_or("GET"),
            Some(_) => "_OTHER",
            None => OTHER_METHODS.get(self.0 - ROUTES.len() * 2).copied().unwrap_or("_OTHER"),
        }
    }

    /// What it was for.
    pub(crate) fn operation(self) -> Operation {
        ROUTES.get(self.0 / 2).map_or(Operation::Other, Route::operation)
    }
}

/// Methods told apart where the route is not known.
const OTHER_METHODS: [&str; 3] = ["GET", "POST", "_OTHER"];

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(method: &str, path: &str) -> (&'static str, &'static str) {
        let slot = Slot::of(&Method::from_bytes(method.as_bytes()).expect("a method"), path);
        (slot.route(), slot.method())
    }

    #[test]
    fn a_request_has_the_labels_of_its_route() {
        for (method, path, expected) in [
            ("POST", "/api/login", ("/api/login", "POST")),
            ("HEAD", "/healthz", ("/healthz", "GET")),
            ("DELETE", "/api/sessions/abc", ("/api/sessions/{id}", "DELETE")),
            ("GET", "/api/verify/orders/7", ("/api/verify/*", "GET")),
            ("PUT", "/api/verify/orders/7", ("/api/verify/*", "_OTHER")),
            ("GET", "/api/verify-offline/", ("/api/verify-offline/*", "GET")),
            ("GET", "/api/login", ("other", "GET")),
            ("POST", "/api/login/", ("other", "POST")),
            ("BREW", "/pot", ("other", "_OTHER")),
        ] {
            assert_eq!(labels(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn every_slot_has_labels_of_its_own() {
        let mut all: Vec<_> = Slot::all().map(|slot| (slot.route(), slot.method())).collect();
        all.retain(|(route, method)| *route == "other" || *method != "_OTHER");
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
