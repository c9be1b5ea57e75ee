//! The document says what there is, and there is what the document says.

use super::*;
use crate::{
    problem::{Code, OAuthError},
    routes::{Methods, ROUTES, openapi::DOCUMENT},
};

fn document() -> Value {
    serde_json::from_str(DOCUMENT).expect("JSON")
}

/// Codes the edge node answers with in the component's place.
const OF_THE_NODE: [&str; 2] = ["instance_lost", "internal"];

/// What `$ref`s lead to, once.
fn resolved<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    match value["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).expect("every reference leads somewhere"),
        None => value,
    }
}

fn every_ref(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|member| every_ref(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| every_ref(item, found)),
        _ => {}
    }
}

#[test]
fn the_document_is_served_as_it_is_and_may_be_kept() {
    let world = World::new();
    let response = world.send("GET", "/openapi.json", &[], "");
    assert_eq!((response.status, response.head.get("content-type")), (200, Some("application/json")));
    assert_eq!(body(&response)["openapi"], "3.1.0");
    assert_eq!(body(&response)["info"]["version"], env!("CARGO_PKG_VERSION"));
    let etag = response.head.get("etag").expect("a tag").to_owned();
    let again = world.send("GET", "/openapi.json", &[("if-none-match", &etag)], "");
    assert_eq!((again.status, again.body.len(), again.head.get("etag")), (304, 0, Some(etag.as_str())));
    assert!(DOCUMENT.len() < 45_000, "it is part of every component");
}

#[test]
fn every_route_is_in_the_document_and_every_path_is_a_route() {
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    let path_of = |name: &str| name.replace("/*", "/{rest}");
    let mut documented: Vec<_> = paths.keys().cloned().collect();
    let mut routes: Vec<_> = ROUTES.iter().map(|route| path_of(route.name)).collect();
    documented.sort_unstable();
    routes.sort_unstable();
    assert_eq!(routes, documented);
    for route in ROUTES {
        let item = resolved(&document, &paths[&path_of(route.name)]);
        let methods: Vec<_> = ["get", "put", "post", "delete", "options", "head", "patch", "trace"]
            .into_iter()
            .filter(|method| item.get(method).is_some())
            .collect();
        let expected: &[&str] = match route.methods {
            Methods::Post => &["post"],
            Methods::Delete => &["delete"],
            // What any method gets is there once, and marked.
            Methods::Get | Methods::Any => &["get"],
        };
        assert_eq!(methods, expected, "{}", route.name);
        assert_eq!(item["x-any-method"] == true, matches!(route.methods, Methods::Any), "{}", route.name);
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document();
    let mut references = Vec::new();
    every_ref(&document, &mut references);
    assert!(references.len() > 100);
    for reference in &references {
        assert!(reference.starts_with("#/") && document.pointer(&reference[1..]).is_some(), "{reference}");
    }
    let operations: Vec<_> = document["paths"]
        .as_object()
        .expect("paths")
        .values()
        .flat_map(|item| item.as_object().expect("an item").values())
        .collect();
    let ids: Vec<_> = operations.iter().filter_map(|operation| operation["operationId"].as_str()).collect();
    for operation in &operations {
        for response in operation["responses"].as_object().into_iter().flat_map(|responses| responses.values()) {
            for link in response["links"].as_object().into_iter().flat_map(|links| links.values()) {
                assert!(link["operationId"].as_str().is_some_and(|id| ids.contains(&id)), "{link}");
            }
        }
    }
}

#[test]
fn f5_every_problem_code_is_in_the_document_under_its_status() {
    let document = document();
    let problem = &document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"];
    let all: Vec<_> =
        Code::ALL.iter().map(|code| code.facts().name).chain(OF_THE_NODE).map(|name| json!(name)).collect();
    let sorted = |mut names: Vec<Value>| {
        names.sort_by_key(ToString::to_string);
        names
    };
    assert_eq!(sorted(problem.as_array().expect("names").clone()), sorted(all));
    // Each is in a response of its status, and in none of another.
    let mut listed = Vec::new();
    for response in document["components"]["responses"].as_object().expect("responses").values() {
        let schema = &response["content"]["application/problem+json"]["schema"]["allOf"][1]["properties"];
        for name in schema["code"]["enum"].as_array().into_iter().flatten() {
            listed.push((name.as_str().expect("a name"), schema["status"]["const"].as_u64().expect("a status")));
        }
    }
    for code in Code::ALL {
        let of_it: Vec<_> = listed.iter().filter(|(name, _)| *name == code.facts().name).collect();
        assert!(!of_it.is_empty(), "{}", code.facts().name);
        assert!(of_it.iter().all(|(_, status)| *status == u64::from(code.facts().status)), "{of_it:?}");
    }
    let oauth = &document["components"]["schemas"]["OAuthError"]["properties"]["error"]["enum"];
    assert_eq!(*oauth, json!(OAuthError::ALL.map(OAuthError::name)));
}
