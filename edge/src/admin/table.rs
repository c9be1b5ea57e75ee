//! What the admin listener answers itself: a table of routes, searched by method and path.
//!
//! A part of the node that operators may ask or order something adds its rows next to its own code:
//! a row names the route, who may use it, what it may take, and holds the function that answers.

use std::{borrow::Cow, time::Duration};

use futures::future::LocalBoxFuture;
use http::Method;
use percent_encoding::percent_decode_str;

use super::{Answer, Asked};

/// A row of the table.
pub struct Route {
    method: Method,
    path: &'static str,
    /// Who may use it.
    pub(super) access: Access,
    /// Longest body, in bytes.
    pub(super) max_body_bytes: usize,
    /// For the body to arrive, and then for the answer.
    pub(super) time: Duration,
    answer: Box<dyn Fn(Asked) -> LocalBoxFuture<'static, Answer> + Send + Sync>,
}

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever reaches the listener.
    Open,
    /// Who brings the token of `admin.token`.
    Token,
}

impl Route {
    /// A route for whoever has the token, with a body of at most [`MAX_BODY_BYTES`] and
    /// [`TIME`] to answer. `path` has a `{name}` for each segment that is a parameter. `GET` answers
    /// `HEAD` too.
    pub fn new<F>(method: Method, path: &'static str, answer: impl Fn(Asked) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Answer> + 'static,
    {
        let answer = Box::new(move |asked| Box::pin(answer(asked)) as LocalBoxFuture<'static, Answer>);
        Self { method, path, access: Access::Token, max_body_bytes: MAX_BODY_BYTES, time: TIME, answer }
    }

    /// The same route for whoever reaches the listener.
    #[must_use]
    pub fn open(self) -> Self {
        Self { access: Access::Open, ..self }
    }

    /// The same route with room for a body of `bytes`. Longer is 413.
    #[must_use]
    pub fn body(self, bytes: usize) -> Self {
        Self { max_body_bytes: bytes, ..self }
    }

    /// The same route with `time` for its body to arrive, and then for its answer.
    #[must_use]
    pub fn time(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    pub(super) fn answer(&self, asked: Asked) -> LocalBoxFuture<'static, Answer> {
        (self.answer)(asked)
    }

    fn takes(&self, method: &Method) -> bool {
        self.method == *method || (self.method == Method::GET && *method == Method::HEAD)
    }
}

/// Longest body of a route that says nothing else.
pub const MAX_BODY_BYTES: usize = 16 << 10;
/// How long a route may take that says nothing else.
pub const TIME: Duration = Duration::from_secs(15);

/// Parameters of a path, by name and in its order.
pub(super) type Parameters = Vec<(&'static str, String)>;

/// What the table says about a request.
pub(super) enum Found<'a> {
    Route(&'a Route, Parameters),
    /// Other methods than this have a route here: the value of `Allow`.
    OtherMethod(String),
    Nothing,
}

/// Routes, none of them twice.
#[derive(Default)]
pub struct Table(Vec<Route>);

impl Table {
    /// Adds rows.
    #[must_use]
    pub fn with(mut self, rows: impl IntoIterator<Item = Route>) -> Self {
        for row in rows {
            debug_assert!(
                !self.0.iter().any(|other| (&other.method, other.path) == (&row.method, row.path)),
                "{} {} is there twice",
                row.method,
                row.path
            );
            self.0.push(row);
        }
        self
    }

    pub(super) fn find(&self, method: &Method, path: &str) -> Found<'_> {
        let mut others = Vec::new();
        for route in &self.0 {
            let Some(parameters) = matched(route.path, path) else { continue };
            if route.takes(method) {
                return Found::Route(route, parameters);
            }
            others.push(route.method.as_str());
            if route.method == Method::GET {
                others.push("HEAD");
            }
        }
        if others.is_empty() { Found::Nothing } else { Found::OtherMethod(others.join(", ")) }
    }
}

/// The parameters of `path` when it has the form of `template`. A parameter is one segment, not
/// empty, percent-decoded.
fn matched(template: &'static str, path: &str) -> Option<Parameters> {
    let mut parameters = Vec::new();
    let mut segments = path.split('/');
    for expected in template.split('/') {
        let segment = segments.next()?;
        match expected.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(_) if segment.is_empty() => return None,
            Some(name) => parameters.push((name, decoded(segment)?.into_owned())),
            None if expected == segment => {}
            None => return None,
        }
    }
    segments.next().is_none().then_some(parameters)
}

/// `None` when the bytes are no text.
pub(super) fn decoded(text: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(text).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |method, path| Route::new(method, path, async |asked: Asked| Ok(asked.json_answer(&())));
        Table::default().with([
            row(Method::GET, "/revisions"),
            row(Method::PUT, "/revisions"),
            row(Method::POST, "/revisions/{digest}/activate"),
            row(Method::GET, "/kv/{store}/{key}"),
        ])
    }

    #[test]
    fn a_route_is_found_by_method_and_path_with_its_parameters() {
        let table = table();
        let found = |method: Method, path| match table.find(&method, path) {
            Found::Route(route, parameters) => Some((route.path, parameters)),
            _ => None,
        };
        assert_eq!(found(Method::PUT, "/revisions"), Some(("/revisions", vec![])));
        assert_eq!(found(Method::HEAD, "/revisions"), Some(("/revisions", vec![])));
        assert_eq!(
            found(Method::GET, "/kv/default/a%2Fb%20c"),
            Some(("/kv/{store}/{key}", vec![("store", "default".into()), ("key", "a/b c".into())]))
        );
        for path in ["/", "/revisions/", "/revisions//activate", "/revisions/a/b/activate", "/kv/default/%ff"] {
            assert!(matches!(table.find(&Method::POST, path), Found::Nothing), "{path}");
        }
    }

    #[test]
    fn another_method_is_told_which_there_are() {
        let table = table();
        let allowed = |path| match table.find(&Method::DELETE, path) {
            Found::OtherMethod(allow) => allow,
            _ => String::new(),
        };
        assert_eq!(allowed("/revisions"), "GET, HEAD, PUT");
        assert_eq!(allowed("/revisions/abc/activate"), "POST");
    }
}
