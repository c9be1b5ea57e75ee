//! The platform's answers, good and bad, as the mini-program sees them. Error numbers and their
//! meaning: WeChat, "code2Session" and "common codes" pages.

use serde_json::{Value, json};

use crate::support::{World, WorldBuilder, behaviours};

behaviours! {
    every_class_of_error_has_its_answer,
    an_error_number_may_be_a_text,
    an_answer_without_openid_or_key_is_no_success,
    a_success_may_carry_what_nobody_knows,
    a_config_fault_is_not_explained_to_the_client,
    a_platform_that_stalls_is_given_up,
    a_platform_that_breaks_off_is_an_error,
    a_platform_that_answers_nonsense_is_an_error,
    a_platform_status_is_classified,
    a_failed_exchange_is_not_repeated,
    a_platform_that_is_not_there_is_unavailable,
}

async fn every_class_of_error_has_its_answer(world: World) {
    let table: [(i64, u16, &str); 16] = [
        (40029, 401, "code_invalid"),
        (41008, 401, "code_invalid"),
        (40163, 401, "code_used"),
        (40226, 403, "user_blocked"),
        (45011, 429, "rate_limited"),
        (45009, 429, "rate_limited"),
        (-1, 503, "platform_busy"),
        (40013, 500, "config"),
        (40125, 500, "config"),
        (41002, 500, "config"),
        (41004, 500, "config"),
        (40164, 500, "config"),
        (40243, 500, "config"),
        (50002, 500, "config"),
        (48001, 500, "config"),
        (99999, 502, "platform_error"),
    ];
    for (errcode, status, code) in table {
        world.fault(json!({"platform": "wechat", "kind": "errcode", "errcode": errcode, "times": 1}));
        let answer = world.log_in(&world.code("alice")).await;
        assert_eq!((answer.status, answer.problem().as_str()), (status, code), "{errcode}");
        let problem = answer.json();
        assert_eq!(problem["platform_code"], errcode, "{problem}");
        assert!(problem["platform_request_id"].as_str().is_some_and(|rid| !rid.is_empty()), "{problem}");
        assert_eq!(answer.header("retry-after").is_some(), matches!(status, 429 | 503), "{errcode}");
    }
    assert_eq!(world.stored("").await, 0);
}

async fn an_error_number_may_be_a_text(world: World) {
    world.fault(json!({"platform": "wechat", "kind": "string_errcode", "errcode": 40029, "times": 1}));
    assert_eq!(world.log_in(&world.code("alice")).await.problem(), "code_invalid");
    world.fault(json!({"platform": "wechat", "kind": "patch", "set": {"errcode": "0"}, "times": 1}));
    assert_eq!(world.log_in(&world.code("alice")).await.status, 200);
}

async fn an_answer_without_openid_or_key_is_no_success(world: World) {
    for body in [
        json!({}),
        json!({"openid": "o-1"}),
        json!({"session_key": "a2V5"}),
        json!({"openid": "", "session_key": "a2V5"}),
        json!({"openid": "o-1", "session_key": ""}),
        json!({"openid": 1, "session_key": "a2V5"}),
        json!([]),
        json!("ok"),
    ] {
        world.reply(&body);
        let answer = world.log_in(&world.code("alice")).await;
        assert_eq!((answer.status, answer.problem().as_str()), (502, "platform_error"), "{body}");
    }
    assert_eq!(world.stored("").await, 0);
}

async fn a_success_may_carry_what_nobody_knows(world: World) {
    for extra in [
        json!({"errcode": 0}),
        json!({"errcode": "0"}),
        json!({"unionid": ""}),
        json!({"new": {"x": [1]}, "expires_in": 7200}),
    ] {
        let mut body = json!({"openid": "o6_bmjrPTlm6_2sgVt7hMZOPfL2M", "session_key": "tiihtNczf5v6AKRyjwEUhQ=="});
        for (name, value) in extra.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        world.reply(&body);
        assert_eq!(world.log_in(&world.code("alice")).await.status, 200, "{body}");
    }
}

async fn a_config_fault_is_not_explained_to_the_client(world: World) {
    world.fault(json!({"platform": "wechat", "kind": "errcode", "errcode": 40125, "times": 1}));
    let answer = world.log_in(&world.code("alice")).await;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    for hidden in ["secret", "appid", "jscode2session", "http://"] {
        assert!(!text.contains(hidden), "{hidden} in {text}");
    }
}

async fn a_platform_that_stalls_is_given_up(world: World) {
    for kind in ["stall", "stall_body"] {
        world.fault(json!({"platform": "wechat", "kind": kind, "times": 1}));
        let answer = world.log_in(&world.code("alice")).await;
        assert_eq!((answer.status, answer.problem().as_str()), (504, "platform_timeout"), "{kind}");
    }
    assert_eq!(world.stored("").await, 0);
    assert_eq!(world.logged_in("alice").await["token_type"], "Bearer");
}

async fn a_platform_that_breaks_off_is_an_error(world: World) {
    for kind in ["reset", "reset_body", "truncate", "close", "garbage"] {
        world.fault(json!({"platform": "wechat", "kind": kind, "times": 1}));
        let answer = world.log_in(&world.code("alice")).await;
        assert_eq!((answer.status, answer.problem().as_str()), (502, "platform_error"), "{kind}");
    }
    assert_eq!(world.stored("").await, 0);
}

async fn a_platform_that_answers_nonsense_is_an_error(world: World) {
    for kind in ["non_utf8", "html", "huge", "empty"] {
        world.fault(json!({"platform": "wechat", "kind": kind, "times": 1}));
        let answer = world.log_in(&world.code("alice")).await;
        assert_eq!((answer.status, answer.problem().as_str()), (502, "platform_error"), "{kind}");
        assert!(answer.body.len() < 2048, "nothing of it is passed on");
    }
    assert_eq!(world.stored("").await, 0);
}

async fn a_platform_status_is_classified(world: World) {
    for (status, code) in [
        (500, "platform_busy"),
        (503, "platform_busy"),
        (429, "rate_limited"),
        (302, "platform_error"),
        (404, "platform_error"),
    ] {
        world.fault(json!({"platform": "wechat", "kind": "http_status", "status": status, "times": 1}));
        assert_eq!(world.log_in(&world.code("alice")).await.problem(), code, "{status}");
    }
}

async fn a_failed_exchange_is_not_repeated(world: World) {
    let faults: [Value; 3] = [
        json!({"platform": "wechat", "kind": "reset", "times": 1}),
        json!({"platform": "wechat", "kind": "http_status", "status": 500, "times": 1}),
        json!({"platform": "wechat", "kind": "errcode", "errcode": -1, "times": 1}),
    ];
    for (calls, fault) in faults.into_iter().enumerate() {
        world.fault(fault.clone());
        let answer = world.log_in(&world.code("alice")).await;
        assert!(answer.status >= 500, "{fault}");
        assert_eq!(world.upstream_calls(), calls + 1, "{fault}");
    }
}

async fn a_platform_that_is_not_there_is_unavailable(world: World) {
    // Port 1 (tcpmux) is nobody's.
    let world = WorldBuilder::new(world.door()).setting("wechat_base_url", "http://127.0.0.1:1").start();
    let answer = world.log_in("some-code").await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "platform_unavailable"));
    assert!(answer.header("retry-after").is_some());
    assert_eq!(world.stored("").await, 0);
}
