//! `{{ name }}` in manifest values, as Spin reads them: no filters, no defaults, no escapes.

use std::fmt;

/// A parsed template. Its literal parts may be secret, so `Debug` shows the names only.
#[derive(Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Name(String),
}

/// Why a text is not a template, or could not be filled in. Never shows a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Braces that do not pair up.
    #[error("`{{{{` and `}}}}` do not pair up")]
    Braces,
    /// What stands between the braces is not a variable's name.
    #[error(
        "`{0}` between braces is not a variable name (lower case letters, digits and `_`, beginning with a letter)"
    )]
    Name(String),
    /// A name without a value.
    #[error("variable `{0}` is not declared under [variables]")]
    Undeclared(String),
}

impl Template {
    /// Parses `text`.
    ///
    /// # Errors
    /// [`Error::Braces`] and [`Error::Name`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((literal, tail)) = rest.split_once("{{") {
            let (name, tail) = tail.split_once("}}").ok_or(Error::Braces)?;
            let name = name.trim();
            if !is_variable_name(name) {
                return Err(Error::Name(name.into()));
            }
            parts.push(Part::Literal(literal.into()));
            parts.push(Part::Name(name.into()));
            rest = tail;
        }
        parts.push(Part::Literal(rest.into()));
        parts.retain(|part| !matches!(part, Part::Literal(text) if text.is_empty()));
        let stray = |part: &Part| matches!(part, Part::Literal(text) if text.contains("}}"));
        if parts.iter().any(stray) { Err(Error::Braces) } else { Ok(Self(parts)) }
    }

    /// The variables it names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Name(name) => Some(name.as_str()),
            Part::Literal(_) => None,
        })
    }

    /// Fills it in.
    ///
    /// # Errors
    /// [`Error::Undeclared`] for the first name that `value` does not know.
    pub fn render<'v>(&self, value: impl Fn(&str) -> Option<&'v str>) -> Result<String, Error> {
        let mut text = String::new();
        for part in &self.0 {
            text.push_str(match part {
                Part::Literal(literal) => literal,
                Part::Name(name) => value(name).ok_or_else(|| Error::Undeclared(name.clone()))?,
            });
        }
        Ok(text)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.names().collect::<Vec<_>>()).finish()
    }
}

/// Whether Spin takes `name` for a variable: `lower_snake_case`, no `__`, no `_` at the end.
#[must_use]
pub fn is_variable_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !name.contains("__")
        && !name.ends_with('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<String, Error> {
        Template::parse(text)?.render(|name| (name == "host").then_some("id.example"))
    }

    #[test]
    fn names_are_filled_in_and_the_rest_stays() {
        assert_eq!(filled("https://{{ host }}:{{host}}/").as_deref(), Ok("https://id.example:id.example/"));
        assert_eq!(filled("").as_deref(), Ok(""));
        assert_eq!(filled("{ \"a\": {} }").as_deref(), Ok("{ \"a\": {} }"));
    }

    #[test]
    fn what_spin_refuses_is_refused() {
        assert_eq!(filled("{{ host"), Err(Error::Braces));
        assert_eq!(filled("host }}"), Err(Error::Braces));
        assert_eq!(filled("{{ Host }}"), Err(Error::Name("Host".into())));
        assert_eq!(filled("{{}}"), Err(Error::Name(String::new())));
        assert_eq!(filled("{{ other }}"), Err(Error::Undeclared("other".into())));
    }

    #[test]
    fn debug_shows_names_only() {
        let shown = format!("{:?}", Template::parse("canary{{ host }}"));
        assert!(shown.contains("host") && !shown.contains("canary"), "{shown}");
    }
}
