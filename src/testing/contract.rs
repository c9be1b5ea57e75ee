//! The document of `/openapi.json` as a judge of answers, for tests: that a status is documented, and that
//! header fields and body are as the document has them.
//!
//! It knows the few words of JSON Schema that the document uses, and is stricter than they are: an
//! answer has no member the document does not name. The whole language is left to schemathesis
//! (`make conformance`): a validator would add forty crates to every build of the tests.

use serde_json::{Map, Value};

/// The document.
pub struct Contract(Value);

/// An answer as the judge sees it.
pub struct Answer<'a> {
    /// HTTP status.
    pub status: u16,
    /// Looks up a header field by its lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<String>,
    /// The whole body.
    pub body: &'a [u8],
}

type Fault = String;

impl Contract {
    /// The document of this build.
    ///
    /// # Panics
    /// When it is not JSON.
    #[must_use]
    pub fn new() -> Self {
        Self(serde_json::from_str(crate::routes::OPENAPI).expect("the document is JSON"))
    }

    /// Whether the document allows this answer. Requests it knows nothing of, for a path or a
    /// method that is none, are not judged.
    ///
    /// # Errors
    /// What is wrong, in words for the one who reads the failed test.
    pub fn judge(&self, method: &str, target: &str, answer: &Answer<'_>) -> Result<(), Fault> {
        let path = target.split('?').next().unwrap_or_default();
        let Some(item) = self.path_item(path) else { return Ok(()) };
        let method = method.to_ascii_lowercase();
        let is_head = method == "head";
        let is_get = is_head || item["x-any-method"] == true;
        let operation = item.get(&method).or_else(|| item.get("get").filter(|_| is_get));
        let Some(operation) = operation else { return Ok(()) };
        let Some(response) = operation["responses"].get(answer.status.to_string()) else {
            return Err(format!("{} is not documented", answer.status));
        };
        let response = self.resolve(response);
        for (name, field) in members(&response["headers"]) {
            let is_there = (answer.header)(&name.to_ascii_lowercase()).is_some();
            if !is_there && self.resolve(field)["required"] == true {
                return Err(format!("{}: {name} is missing", answer.status));
            }
        }
        match (response.get("content"), answer.body) {
            (_, []) if is_head => Ok(()),
            (None, []) => Ok(()),
            (None, _) => Err(format!("{}: a body where none is documented", answer.status)),
            (Some(content), body) => {
                let kind = (answer.header)("content-type").unwrap_or_default();
                let schema = content.get(&kind).ok_or_else(|| format!("{}: content type {kind:?}", answer.status))?;
                let body = serde_json::from_slice(body).map_err(|error| format!("{}: {error}", answer.status))?;
                self.fits(&schema["schema"], &body).map_err(|fault| format!("{}: {fault}", answer.status))
            }
        }
    }

    /// The item of the path that fits with the most text.
    fn path_item(&self, path: &str) -> Option<&Value> {
        let fits = |template: &str| {
            let fixed = template.split('{').next().unwrap_or_default();
            path.strip_prefix(fixed).is_some_and(|rest| rest.is_empty() || fixed.len() < template.len())
        };
        let found = members(&self.0["paths"]).filter(|(template, _)| fits(template));
        let (_, item) = found.max_by_key(|(template, _)| template.split('{').next().map_or(0, str::len))?;
        Some(self.resolve(item))
    }

    fn resolve<'d>(&'d self, value: &'d Value) -> &'d Value {
        let target = value["$ref"].as_str().and_then(|reference| self.0.pointer(reference.strip_prefix('#')?));
        target.unwrap_or(value)
    }

    fn fits(&self, schema: &Value, value: &Value) -> Result<(), Fault> {
        let schema = self.resolve(schema);
        for part in items(&schema["allOf"]) {
            self.fits(part, value)?;
        }
        let choices = items(&schema["oneOf"]);
        if !choices.is_empty() {
            let fitting = choices.iter().filter(|choice| self.fits(choice, value).is_ok()).count();
            return if fitting == 1 { Ok(()) } else { Err(format!("fits {fitting} of oneOf")) };
        }
        let allowed = &schema["type"];
        let kind = kind_of(value);
        if !allowed.is_null() && allowed != kind && !items(allowed).iter().any(|one| one == kind) {
            return Err(format!("{kind} where {allowed} is documented"));
        }
        if schema.get("const").is_some_and(|only| only != value) {
            return Err(format!("{value} is not {}", schema["const"]));
        }
        if schema.get("enum").is_some_and(|all| !items(all).contains(value)) {
            return Err(format!("{value} is none of {}", schema["enum"]));
        }
        items(value).iter().try_for_each(|item| self.fits(&schema["items"], item))?;
        value.as_object().map_or(Ok(()), |object| self.object_fits(schema, object))
    }

    fn object_fits(&self, schema: &Value, object: &Map<String, Value>) -> Result<(), Fault> {
        let missing =
            items(&schema["required"]).iter().filter_map(Value::as_str).find(|name| !object.contains_key(*name));
        if let Some(missing) = missing {
            return Err(format!("{missing} is missing"));
        }
        let Some(known) = schema.get("properties") else { return Ok(()) };
        for (name, member) in object {
            match known.get(name) {
                Some(schema) => self.fits(schema, member).map_err(|fault| format!("{name}: {fault}"))?,
                // Without a type it only adds to another schema.
                None if schema["type"].is_null() => {}
                None => return Err(format!("{name} is not documented")),
            }
        }
        Ok(())
    }
}

impl Default for Contract {
    fn default() -> Self {
        Self::new()
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(method: &str, target: &str, status: u16, fields: &[(&str, &str)], body: &str) -> Result<(), Fault> {
        let header = |name: &str| fields.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Contract::new().judge(method, target, &Answer { status, header: &header, body: body.as_bytes() })
    }

    #[test]
    fn what_is_documented_is_let_through() {
        let json = [("content-type", "application/json")];
        assert_eq!(judge("GET", "/healthz?x", 200, &json, r#"{"status":"ok"}"#), Ok(()));
        assert_eq!(judge("HEAD", "/healthz", 200, &json, ""), Ok(()));
        assert_eq!(judge("POST", "/oauth/introspect", 200, &json, r#"{"active":false}"#), Ok(()));
        assert_eq!(judge("POST", "/oauth/revoke", 200, &[], ""), Ok(()));
        let identity = [("x-edgepass-user", "u"), ("x-edgepass-session", "s"), ("x-edgepass-app", "a")];
        assert_eq!(judge("DELETE", "/api/verify/app/x/y/z", 200, &identity, ""), Ok(()));
        assert_eq!(judge("POST", "/healthz", 405, &[], ""), Ok(()), "of what it does not know it says nothing");
        assert_eq!(judge("GET", "/nowhere", 404, &[], ""), Ok(()));
    }

    #[test]
    fn what_is_not_documented_is_named() {
        let json = [("content-type", "application/json")];
        for (method, target, status, fields, body, fault) in [
            ("GET", "/healthz", 418, &json[..], "", "418 is not documented"),
            ("GET", "/healthz", 200, &[], r#"{"status":"ok"}"#, "200: content type \"\""),
            ("GET", "/healthz", 200, &json, r#"{"status":"no"}"#, "status: \"no\" is not \"ok\""),
            ("GET", "/healthz", 200, &json, r#"{"status":"ok","x":1}"#, "x is not documented"),
            ("GET", "/healthz", 200, &json, "{}", "status is missing"),
            ("GET", "/healthz", 200, &json, "[]", "array where \"object\" is documented"),
            ("POST", "/oauth/introspect", 200, &json, r#"{"active":false,"sub":"x"}"#, "fits 0 of oneOf"),
            ("POST", "/oauth/revoke", 200, &json, "{}", "a body where none is documented"),
            ("GET", "/api/verify/x", 200, &[], "", "X-Edgepass-"),
            (
                "GET",
                "/api/session",
                401,
                &[("content-type", "application/problem+json")],
                "{}",
                "WWW-Authenticate is missing",
            ),
        ] {
            let judged = judge(method, target, status, fields, body).err().unwrap_or_default();
            assert!(judged.contains(fault), "{target} {body}: {judged:?} instead of {fault}");
        }
    }
}
