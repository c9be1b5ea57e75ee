//! Which pages may call, and what they are told.

use super::*;

const PAGE: &str = "https://shop.example";

fn open() -> World {
    World::with(&[("cors_origins", "https://shop.example,http://localhost:8080")])
}

fn preflight(world: &World, target: &str, origin: &str) -> Response {
    world.send("OPTIONS", target, &[("origin", origin), ("access-control-request-method", "POST")], "")
}

/// The fields a browser decides on.
fn cors_fields(response: &Response) -> Vec<(String, String)> {
    let fields = response.head.iter().filter(|(name, _)| name.starts_with("access-control-") || *name == "vary");
    fields.map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into_owned())).collect()
}

#[test]
fn f8_cors_is_off_unless_origins_are_configured() {
    let world = World::new();
    for target in ["/api/login", "/api/session", "/oauth/revoke", "/healthz"] {
        let response = preflight(&world, target, PAGE);
        assert_eq!(response.status, 405, "{target}");
        assert!(response.head.get("allow").is_some() && cors_fields(&response).is_empty(), "{target}");
    }
    let response = world.send("POST", "/api/login", &[("origin", PAGE)], r#"{"code":"alice-1"}"#);
    assert_eq!((response.status, cors_fields(&response)), (200, Vec::new()));
}

#[test]
fn a_page_of_a_configured_origin_is_let_through() {
    let world = open();
    for (target, methods) in [("/api/login", "POST"), ("/api/session", "GET, HEAD")] {
        for origin in [PAGE, "http://localhost:8080"] {
            let response = preflight(&world, target, origin);
            assert_eq!((response.status, response.body.len()), (204, 0), "{target} {origin}");
            assert_eq!(response.head.get("access-control-allow-origin"), Some(origin));
            assert_eq!(response.head.get("access-control-allow-methods"), Some(methods));
            let may_send = response.head.get("access-control-allow-headers").unwrap_or_default().to_owned();
            for name in ["authorization", "content-type", "idempotency-key", "x-trace-id", "traceparent"] {
                assert!(may_send.split(", ").any(|one| one == name), "{name} in {may_send}");
            }
            assert_eq!(
                (response.head.get("vary"), response.head.get("access-control-allow-credentials")),
                (Some("origin"), None)
            );
        }
    }
    let granted = world.send("POST", "/api/login", &[("origin", PAGE)], r#"{"code":"alice-1"}"#);
    let refused = world.send("GET", "/api/session", &[("origin", PAGE)], "");
    for (response, status) in [(granted, 200), (refused, 401)] {
        assert_eq!(response.status, status, "an error is readable too");
        assert_eq!(response.head.get("access-control-allow-origin"), Some(PAGE));
        assert_eq!(response.head.get("vary"), Some("origin"));
    }
}

#[test]
fn a_page_of_any_other_origin_is_not() {
    let world = open();
    for origin in [
        "https://shop.example.evil.example",
        "http://shop.example",
        "https://SHOP.example",
        "null",
        "*",
        "",
        "https://shop.example/",
    ] {
        let response = preflight(&world, "/api/login", origin);
        assert_eq!(
            (response.status, cors_fields(&response)),
            (405, vec![("vary".to_owned(), "origin".to_owned())]),
            "{origin}"
        );
        let response = world.send("GET", "/api/session", &[("origin", origin)], "");
        assert_eq!(response.head.get("access-control-allow-origin"), None, "{origin}");
    }
    let twice = world.send("GET", "/api/session", &[("origin", PAGE), ("origin", PAGE)], "");
    assert_eq!(twice.head.get("access-control-allow-origin"), None);
    let plain = world.send("OPTIONS", "/api/login", &[("origin", PAGE)], "");
    assert_eq!(
        (plain.status, plain.head.get("allow")),
        (405, Some("POST")),
        "OPTIONS that is no preflight is not a method here"
    );
}

#[test]
fn pages_never_call_what_is_for_operators_back_ends_and_gateways() {
    let world = open();
    let token = world.logged_in("alice-1")["access_token"].clone();
    let bearer = format!("Bearer {}", token.as_str().expect("a token"));
    for target in [
        "/oauth/introspect",
        "/oauth/revoke",
        "/internal/sweep",
        "/internal/block",
        "/api/verify/x",
        "/api/verify-offline/x",
        "/healthz",
    ] {
        for response in [
            preflight(&world, target, PAGE),
            world.send("POST", target, &[("origin", PAGE), ("authorization", &bearer)], ""),
        ] {
            assert!(cors_fields(&response).is_empty(), "{target}");
            assert_ne!(response.status, 204, "{target}");
        }
    }
}
