//! What must never be seen: the app secret, `session_key`, openid, codes and tokens, in answers,
//! logs and stored bytes.

use edgepass_sim::SAMPLE_SECRET;
use serde_json::json;

use crate::support::{World, behaviours};

behaviours! {
    nothing_secret_is_answered_logged_or_stored_in_clear,
}

async fn nothing_secret_is_answered_logged_or_stored_in_clear(world: World) {
    let openid = "oCANARYopenid00000000000000a";
    let session_key = "Q0FOQVJZc2Vzc2lvbmtleQ==";
    let mut seen = Vec::new();

    world.reply(&json!({"openid": openid, "session_key": session_key, "unionid": "CANARYunionid"}));
    let code = world.code("alice");
    let login = world.log_in(&code).await;
    let body = login.json();
    let token = body["access_token"].as_str().unwrap().to_owned();
    let refresh = body["refresh_token"].as_str().unwrap().to_owned();
    seen.push(login);
    seen.push(world.session(&token).await);
    seen.push(world.verify(&token).await);
    seen.push(world.log_in(&code).await);
    for errcode in [40029, 40125, -1] {
        world.fault(json!({"platform": "wechat", "kind": "errcode", "errcode": errcode, "times": 1}));
        seen.push(world.log_in(&world.code("alice")).await);
    }
    for kind in ["html", "reset", "truncate"] {
        world.fault(json!({"platform": "wechat", "kind": kind, "times": 1}));
        seen.push(world.log_in(&world.code("alice")).await);
    }
    seen.push(world.log_out(&token).await);
    seen.push(world.get("/readyz", &[]).await);
    seen.push(world.get("/version", &[]).await);

    let claims = crate::support::claims_of(&token).to_string();
    let hidden = [openid, session_key, "CANARYsessionkey", "CANARYunionid", SAMPLE_SECRET];
    for answer in &seen {
        let text = format!("{:?} {}", answer.headers, String::from_utf8_lossy(&answer.body));
        for canary in hidden {
            assert!(!text.contains(canary), "{canary} in an answer");
        }
    }
    for canary in hidden {
        assert!(!claims.contains(canary), "{canary} in the token");
    }

    // What is written after an answer is written once the node has ended.
    let trace_id = seen[0].header("x-trace-id").unwrap().to_owned();
    let world = world.restarted().await;
    let logs = world.logs();
    assert!(logs.lines().any(|line| line.contains("login.ok") && line.contains(&trace_id)), "the log is looked at");
    for canary in hidden.into_iter().chain([code.as_str(), token.as_str(), refresh.as_str()]) {
        let line = logs.lines().find(|line| line.contains(canary));
        assert!(line.is_none(), "{canary} in the log: {line:?}");
    }

    let stored = world.stored_bytes().await;
    assert!(!stored.is_empty());
    for canary in hidden.into_iter().chain([code.as_str()]) {
        let found = stored.windows(canary.len()).any(|window| window == canary.as_bytes());
        assert!(!found, "{canary} in the store");
    }
}
