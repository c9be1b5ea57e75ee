//! Bad input: a clear 4xx each, and the node serves the next request.

use serde_json::json;

use crate::support::{World, behaviours, http};

behaviours! {
    a_body_that_is_not_a_login_is_refused,
    a_code_that_cannot_be_one_is_refused,
    a_body_above_the_limit_is_refused,
    a_content_type_that_is_no_text_is_refused,
    the_plain_lines_of_curl_and_hey_work,
    an_unknown_route_is_not_found,
    a_wrong_method_names_the_right_ones,
    head_is_get_without_a_body,
    a_trace_id_is_taken_or_made,
    a_request_that_is_not_http_harms_nobody,
    a_credential_sent_twice_is_none,
}

async fn a_body_that_is_not_a_login_is_refused(world: World) {
    let deep = format!(r#"{{"code":"x","a":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let wide = format!(r#"{{"code":"x","a":{}1{}}}"#, r#"{"b":"#.repeat(40), "}".repeat(40));
    let bodies: [&[u8]; 16] = [
        b"",
        b"code",
        b"{",
        b"null",
        b"[]",
        br#""code""#,
        b"{}",
        br#"{"code":1}"#,
        br#"{"code":null}"#,
        br#"{"code":"x","device":"d"}"#,
        br#"{"code":"a","code":"b"}"#,
        br#"{"code":"a","unknown":{"b":1,"b":2}}"#,
        b"{\"code\":\"\xff\xfe\"}",
        br#"{"code":"\ud800"}"#,
        deep.as_bytes(),
        wide.as_bytes(),
    ];
    for body in bodies {
        let answer = world.request("POST", "/api/login", &[], body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!((answer.status, answer.problem().as_str()), (400, "bad_request"), "{shown}");
    }
    assert_eq!(world.upstream_calls(), 0);
    assert_eq!(world.logged_in("alice").await["token_type"], "Bearer");
}

async fn a_code_that_cannot_be_one_is_refused(world: World) {
    for code in ["", "a\u{0}b", "a\nb", "\u{7f}", "a b", "码", &"c".repeat(10_000)] {
        let answer = world.log_in(code).await;
        assert_eq!((answer.status, answer.problem().as_str()), (400, "bad_request"), "{code:.20?}");
        assert!(answer.json()["detail"].as_str().unwrap().contains("code"), "the field is named");
    }
    assert_eq!(world.upstream_calls(), 0);
}

async fn a_body_above_the_limit_is_refused(world: World) {
    for bytes in [16 * 1024 + 1, 1024 * 1024] {
        let body = format!(r#"{{"code":"{}"}}"#, "c".repeat(bytes));
        let answer = world.request("POST", "/api/login", &[], body.as_bytes()).await;
        assert_eq!((answer.status, answer.problem().as_str()), (413, "payload_too_large"), "{bytes}");
    }
    assert_eq!(world.upstream_calls(), 0);
    assert_eq!(world.logged_in("alice").await["token_type"], "Bearer");
}

async fn a_content_type_that_is_no_text_is_refused(world: World) {
    for kind in
        ["multipart/form-data; boundary=x", "application/xml", "text/xml", "application/octet-stream", "image/png"]
    {
        let answer = world.request("POST", "/api/login", &[("content-type", kind)], br#"{"code":"x"}"#).await;
        assert_eq!((answer.status, answer.problem().as_str()), (415, "unsupported_media_type"), "{kind}");
    }
    assert_eq!(world.upstream_calls(), 0);
}

async fn the_plain_lines_of_curl_and_hey_work(world: World) {
    for kind in [
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/problem+json",
        "text/plain",
        "text/html",
        "application/x-www-form-urlencoded",
    ] {
        let body = json!({"code": world.code("alice")}).to_string();
        let answer = world.request("POST", "/api/login", &[("content-type", kind)], body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{kind}");
    }
}

async fn an_unknown_route_is_not_found(world: World) {
    for path in ["/", "/api", "/api/login/", "/api/logins", "/API/LOGIN", "//api/login", "/api/%6cogin", "/api/verify"]
    {
        let answer = world.get(path, &[]).await;
        assert_eq!((answer.status, answer.problem().as_str()), (404, "not_found"), "{path}");
    }
}

async fn a_wrong_method_names_the_right_ones(world: World) {
    for (method, path, allow) in [
        ("GET", "/api/login", "POST"),
        ("PUT", "/api/logout", "POST"),
        ("POST", "/api/session", "GET, HEAD"),
        ("DELETE", "/healthz", "GET, HEAD"),
        ("BREW", "/version", "GET, HEAD"),
    ] {
        let answer = world.request(method, path, &[], b"").await;
        assert_eq!((answer.status, answer.problem().as_str()), (405, "method_not_allowed"), "{method} {path}");
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
}

async fn head_is_get_without_a_body(world: World) {
    let get = world.request("GET", "/version", &[], b"").await;
    let head = world.request("HEAD", "/version", &[], b"").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), get.header("content-length"));
    assert_eq!(world.request("HEAD", "/api/login", &[], b"").await.status, 405);
}

async fn a_trace_id_is_taken_or_made(world: World) {
    let taken = world.get("/healthz", &[("x-trace-id", "t-2026-prod-1")]).await;
    assert_eq!(taken.header("x-trace-id"), Some("t-2026-prod-1"));
    let own = world.get("/healthz", &[]).await;
    let parent = own.header("traceparent").unwrap().to_owned();
    assert_eq!(own.header("x-trace-id"), parent.split('-').nth(1), "one trace has one name");
    for refused in ["", "a b", "<script>", &"x".repeat(65)] {
        let made = world.get("/healthz", &[("x-trace-id", refused)]).await;
        let id = made.header("x-trace-id").expect("one is made").to_owned();
        assert_ne!(id, refused);
        assert!(
            !id.is_empty() && id.len() <= 64 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        );
    }
    // The example of W3C Trace Context, section 3.2.
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = world.get("/healthz", &[("traceparent", parent)]).await;
    assert!(traced.header("traceparent").unwrap().starts_with("00-0af7651916cd43dd8448eb211c80319c-"));
    let problem = world.get("/nowhere", &[("x-trace-id", "t-1")]).await;
    assert_eq!(problem.json()["trace_id"], "t-1");
}

async fn a_request_that_is_not_http_harms_nobody(world: World) {
    let at = world.address();
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a b/\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /api/login HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"POST /api/login HTTP/1.1\r\nHost: a\r\nContent-Length: nine\r\n\r\n{}",
        b"POST /api/login HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /api/login HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ] {
        let answer = http::raw(at, bytes).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{}: {answer:?}", bytes.escape_ascii());
    }
    assert_eq!(world.get("/healthz", &[]).await.status, 200);
}

async fn a_credential_sent_twice_is_none(world: World) {
    let login = world.logged_in("alice").await;
    let bearer = format!("Bearer {}", login["access_token"].as_str().unwrap());
    let twice = world.get("/api/session", &[("authorization", &bearer), ("authorization", "Bearer x")]).await;
    assert!(matches!(twice.status, 400 | 401), "{twice:?}");
}
