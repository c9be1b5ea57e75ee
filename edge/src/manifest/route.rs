//! Routes of `[[trigger.http]]`: an exact path, `:name` for one segment, `/...` for any rest.

use std::sync::Arc;

/// One route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    raw: String,
    segments: Vec<Segment>,
    /// Whether it ends in `/...`.
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// `:name`.
    Any(Name),
}

/// The name of a segment that may be anything. Names tell no routes apart.
#[derive(Clone, Debug)]
struct Name(String);

impl PartialEq for Name {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Name {}

/// All routes; the most specific one wins.
#[derive(Clone, Debug, Default)]
pub struct Routes(Vec<Arc<Route>>);

impl Route {
    /// Parses a route as it stands in the manifest. Says what is wrong otherwise.
    pub(super) fn parse(raw: &str) -> Result<Self, String> {
        let (path, open) = raw.strip_suffix("/...").map_or((raw, false), |path| (path, true));
        if !raw.starts_with('/') || path.contains("...") {
            return Err(format!("`{raw}` is not a route: it begins with `/`, and `...` may only end it"));
        }
        let segments = segments(path).map(|segment| match segment.strip_prefix(':') {
            Some("") => Err(format!("`{raw}` has a `:` without a name")),
            Some(name) => Ok(Segment::Any(Name(name.into()))),
            None => Ok(Segment::Literal(segment.into())),
        });
        Ok(Self { raw: raw.into(), segments: segments.collect::<Result<_, _>>()?, open })
    }

    /// As it stands in the manifest.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// What of `path` lies under the `/...` of this route; empty without one. `None` if the route
    /// does not match. A slash at the end of `path` counts for nothing, as with Spin.
    #[must_use]
    pub fn rest<'p>(&self, path: &'p str) -> Option<&'p str> {
        let mut rest = path.strip_suffix('/').unwrap_or(path);
        for expected in &self.segments {
            let segment = rest.strip_prefix('/')?;
            let (segment, tail) = segment.split_at(segment.find('/').unwrap_or(segment.len()));
            match expected {
                Segment::Literal(literal) if literal != segment => return None,
                Segment::Any(_) if segment.is_empty() => return None,
                _ => rest = tail,
            }
        }
        (self.open || rest.is_empty()).then_some(rest)
    }

    /// What Spin calls the path info of a `path` that matches: what lies under the `/...`, with a slash
    /// at the end if there is one; empty without `/...`.
    #[must_use]
    pub fn path_info<'p>(&self, path: &'p str) -> &'p str {
        let Some(rest) = self.rest(path).filter(|_| self.open) else { return "" };
        let whole = path.strip_suffix('/').unwrap_or(path);
        path.get(whole.len() - rest.len()..).unwrap_or_default()
    }

    /// What of `path` each `:name` stands for; nothing where the route does not match.
    pub fn captures<'r>(&'r self, path: &'r str) -> impl Iterator<Item = (&'r str, &'r str)> {
        self.segments.iter().zip(segments(path)).filter_map(|(expected, segment)| match expected {
            Segment::Any(Name(name)) => Some((name.as_str(), segment)),
            Segment::Literal(_) => None,
        })
    }

    /// Literal segments beat `:name`, more segments beat fewer, an exact end beats `/...`.
    fn rank(&self) -> (usize, usize, bool) {
        let literal = self.segments.iter().filter(|segment| matches!(segment, Segment::Literal(_))).count();
        (literal, self.segments.len(), !self.open)
    }
}

impl Routes {
    /// Refuses two routes that match the same paths.
    pub(super) fn new(mut routes: Vec<Route>) -> Result<Self, String> {
        if routes.is_empty() {
            return Err("there is none; one is needed".into());
        }
        for (n, route) in routes.iter().enumerate() {
            let same = |other: &&Route| other.segments == route.segments && other.open == route.open;
            if let Some(other) = routes[..n].iter().find(same) {
                return Err(format!("`{}` and `{}` are the same route", other.raw, route.raw));
            }
        }
        routes.sort_by_key(|route| std::cmp::Reverse(route.rank()));
        Ok(Self(routes.into_iter().map(Arc::new).collect()))
    }

    /// The route for `path` (without query), if there is one.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&Arc<Route>> {
        self.0.iter().find(|route| route.rest(path).is_some())
    }

    /// All routes, the most specific first.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter().map(|route| &**route)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.strip_suffix('/').unwrap_or(path).split('/').skip(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(raw: &[&str]) -> Result<Routes, String> {
        Routes::new(raw.iter().map(|raw| Route::parse(raw)).collect::<Result<_, _>>()?)
    }

    #[test]
    fn the_most_specific_route_wins() {
        let routes = routes(&["/...", "/api/...", "/api/:id", "/api/me", "/api/:id/keys"]).expect("are routes");
        for (path, expected) in [
            ("/", "/..."),
            ("", "/..."),
            ("/other/x", "/..."),
            ("/api", "/api/..."),
            ("/api/", "/api/..."),
            ("/api/me", "/api/me"),
            ("/api/me/", "/api/me"),
            ("/api/you", "/api/:id"),
            ("/api/you/keys", "/api/:id/keys"),
            ("/api/you/else", "/api/..."),
            ("/apix", "/..."),
        ] {
            assert_eq!(routes.find(path).map(|route| route.raw()), Some(expected), "{path}");
        }
    }

    #[test]
    fn the_rest_is_what_lies_under_the_dots() {
        let open = Route::parse("/api/...").expect("is a route");
        assert_eq!(open.rest("/api/a/b"), Some("/a/b"));
        assert_eq!(open.rest("/api"), Some(""));
        assert_eq!(open.rest("/apix"), None);
        let root = Route::parse("/").expect("is a route");
        assert_eq!((root.rest("/"), root.rest("/a")), (Some(""), None));
        let all = Route::parse("/...").expect("is a route");
        for (route, path, info) in [
            (&all, "/", "/"),
            (&all, "/a/b/", "/a/b/"),
            (&open, "/api/a/", "/a/"),
            (&open, "/api", ""),
            (&root, "/", ""),
        ] {
            assert_eq!(route.path_info(path), info, "{path}");
        }
    }

    #[test]
    fn a_name_stands_for_its_segment() {
        let route = Route::parse("/api/:id/keys/:key").expect("is a route");
        let captures: Vec<_> = route.captures("/api/7/keys/a%2Fb").collect();
        assert_eq!(captures, [("id", "7"), ("key", "a%2Fb")]);
    }

    #[test]
    fn what_is_no_route_is_refused() {
        for raw in ["", "api", "/a/.../b", "/a...", "/:"] {
            assert!(Route::parse(raw).is_err(), "{raw}");
        }
        assert!(routes(&["/a/:x", "/a/:y"]).is_err());
        assert!(routes(&[]).is_err());
    }
}
