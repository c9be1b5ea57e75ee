//! `jscode2session`: the wire form and the rules of codes.

use std::{collections::BTreeSet, num::NonZeroUsize, sync::Barrier, thread, time::Duration};

use serde_json::json;

use crate::support::{APPID, LONER, SECRET_ESCAPED, SISTER, Sim, query};

#[test]
fn success_is_json_labelled_text_without_an_errcode() {
    let sim = Sim::start();
    let reply = sim.exchange(&sim.code());
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/plain"));
    let alice = sim.identity("alice", APPID).expect("the app exists");
    assert_eq!(
        reply.json(),
        json!({
            "openid": alice.openid, "unionid": alice.unionid, "session_key": alice.session_key
        })
    );
    assert_eq!(alice.openid.len(), 28);
    assert_eq!(alice.session_key.len(), 24);
}

#[test]
fn unionid_is_shared_by_the_owners_apps_and_absent_elsewhere() {
    let sim = Sim::start();
    let login = |appid: &str| {
        let code = sim.log_in("alice", Some(appid)).expect("a code");
        sim.exchange_for(appid, &code).json()
    };
    let (here, sister, loner) = (login(APPID), login(SISTER), login(LONER));
    assert_eq!(here["unionid"], sister["unionid"]);
    assert_ne!(here["openid"], sister["openid"]);
    assert!(loner.get("unionid").is_none(), "{loner}");

    assert_eq!(sim.post("/sim/wechat/users", r#"{"user":"alice","unionid":false}"#).status, 200);
    assert!(login(APPID).get("unionid").is_none());
    assert_eq!(login(APPID)["openid"], here["openid"]);
}

#[test]
fn a_code_is_32_letters_and_digits_and_new_each_time() {
    let sim = Sim::start();
    let codes: BTreeSet<String> = (0..200).map(|_| sim.code()).collect();
    assert_eq!(codes.len(), 200);
    for code in &codes {
        assert_eq!(code.len(), 32);
        assert!(code.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{code}");
    }
}

#[test]
fn a_code_is_good_once() {
    let sim = Sim::start();
    let code = sim.code();
    sim.exchange(&code).openid();
    for _ in 0..2 {
        assert_eq!(sim.exchange(&code).errcode(), 40163);
    }
}

#[test]
fn a_code_is_good_for_five_minutes() {
    let sim = Sim::start();
    let (in_time, late) = (sim.code(), sim.code());
    sim.clock().advance(Duration::from_millis(299_999));
    sim.exchange(&in_time).openid();
    let reply = sim.post("/sim/clock", r#"{"advance_ms":1}"#);
    assert_eq!(reply.json(), json!({ "unix_ms": 1_700_000_300_000_u64 }));
    assert_eq!(sim.exchange(&late).errcode(), 40029);
}

#[test]
fn of_parallel_exchanges_exactly_one_succeeds() {
    let sim = Sim::with(|config| config.threads = NonZeroUsize::new(2).expect("two"));
    for _ in 0..30 {
        let (code, barrier) = (sim.code(), Barrier::new(4));
        let errcodes = thread::scope(|scope| {
            let exchange = || {
                barrier.wait();
                sim.exchange(&code).json()["errcode"].as_i64()
            };
            let callers: Vec<_> = (0..4).map(|_| scope.spawn(exchange)).collect();
            let answers = callers.into_iter().map(|caller| caller.join().expect("an answer"));
            answers.collect::<Vec<_>>()
        });
        let count = |wanted| errcodes.iter().filter(|errcode| **errcode == wanted).count();
        assert_eq!((count(None), count(Some(40163))), (1, 3), "{errcodes:?}");
    }
}

#[test]
fn each_mistake_has_its_number() {
    let sim = Sim::start();
    let secret = SECRET_ESCAPED;
    let rest = format!("js_code={}&grant_type=authorization_code", sim.code());
    for (query, errcode) in [
        (String::new(), 41002),
        (format!("secret={secret}&{rest}"), 41002),
        (format!("appid=&secret={secret}&{rest}"), 41002),
        (format!("appid=wxunknown&secret={secret}&{rest}"), 40013),
        (format!("appid=wxunknown&{rest}"), 40013),
        (format!("appid={APPID}&{rest}"), 41004),
        (format!("appid={APPID}&appsecret={secret}&{rest}"), 41004),
        (format!("appid={APPID}&secret=wrong&{rest}"), 40125),
        (format!("appid={APPID}&secret=%20{secret}&{rest}"), 40125),
        (format!("appid={APPID}&secret={secret}&grant_type=authorization_code"), 41008),
        (format!("appid={APPID}&secret={secret}&js_code=&grant_type=authorization_code"), 41008),
        (format!("appid={APPID}&secret={secret}&js_code=x"), 40002),
        (format!("appid={APPID}&secret={secret}&js_code=x&grant_type=client_credential"), 40002),
        (format!("appid={APPID}&secret={secret}&js_code=x&grant_type=authorization_code"), 40029),
        (format!("appid={APPID}&secret={secret}&js_code=%ff&grant_type=authorization_code"), 40029),
        (format!("appid={SISTER}&secret={secret}&{rest}"), 40029),
    ] {
        let reply = sim.get(&format!("/sns/jscode2session?{query}"));
        assert_eq!(reply.errcode(), errcode, "{query}");
    }
    // None of it has used the code up.
    sim.get(&format!("/sns/jscode2session?appid={APPID}&secret={secret}&{rest}")).openid();
}

#[test]
fn anything_but_get_finds_no_parameters() {
    let sim = Sim::start();
    let code = sim.code();
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let reply = sim.send(method, &query(APPID, &code), "");
        assert_eq!(reply.errcode(), 41002, "{method}");
    }
    let form = query(APPID, &code).split_once('?').expect("a query").1.to_owned();
    assert_eq!(sim.post("/sns/jscode2session", &form).errcode(), 41002);
    sim.exchange(&code).openid();
}

#[test]
fn codes_of_other_kinds_do_not_log_in() {
    let sim = Sim::start();
    for kind in ["phone", "web"] {
        let body = json!({ "user": "alice", "kind": kind }).to_string();
        let code = sim.post("/sim/wechat/login", &body).json()["code"].clone();
        assert_eq!(sim.exchange(code.as_str().expect("a code")).errcode(), 40029, "{kind}");
    }
}

#[test]
fn a_blocked_user_is_refused_until_unblocked() {
    let sim = Sim::start();
    for (told, errcode) in [
        (r#"{"user":"alice","blocked":true}"#, Some(40226)),
        (r#"{"user":"alice","blocked":false}"#, None),
        (r#"{"user":"alice","errcode":50002}"#, Some(50002)),
        (r#"{"user":"alice","unionid":true}"#, Some(50002)),
        (r#"{"user":"alice","blocked":false}"#, None),
    ] {
        assert_eq!(sim.post("/sim/wechat/users", told).status, 200);
        let code = sim.code();
        assert_eq!(sim.exchange(&code).json()["errcode"].as_i64(), errcode, "{told}");
        assert_eq!(sim.exchange(&code).errcode(), 40163, "the code is used up either way");
        let bob = sim.log_in("bob", None).expect("a code");
        sim.exchange(&bob).openid();
    }
}

#[test]
fn errmsg_ends_in_a_request_id_that_differs_each_time() {
    let sim = Sim::start();
    let errmsgs: BTreeSet<String> =
        (0..50).map(|_| sim.exchange("x").json()["errmsg"].as_str().expect("a text").to_owned()).collect();
    assert_eq!(errmsgs.len(), 50);
    for errmsg in &errmsgs {
        let rid = errmsg.strip_prefix("invalid code, rid: ").expect("the platform's words");
        let groups: Vec<&str> = rid.split('-').collect();
        assert_eq!(groups.len(), 3, "{rid}");
        let hex = |group: &&str| group.len() == 8 && group.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
        assert!(groups.iter().all(hex), "{rid}");
    }
}

#[test]
fn parameters_are_decoded_as_a_form_and_the_first_of_two_counts() {
    let sim = Sim::with(|config| config.reusable_codes = true);
    let openid = |code: &str| sim.exchange(code).openid();
    let derived = |code: &str| sim.identity(&format!("code:{code}"), APPID).expect("the app exists").openid;
    assert_eq!(openid("a%2Bb"), derived("a+b"));
    assert_eq!(openid("a+b"), derived("a b"));
    assert_eq!(openid("a%20b"), derived("a b"));
    assert_eq!(openid("x%26appid%3Dother"), derived("x&appid=other"));
    assert_eq!(openid("a%zz"), derived("a%zz"));
    assert_eq!(openid("a&js_code=b"), derived("a"));
    // Unescaped, the rest of the code is a parameter of its own; it comes second and loses.
    assert_eq!(openid("x&appid=other"), derived("x"));
}

#[test]
fn reusable_codes_log_in_any_number_of_times_as_the_same_user() {
    let sim = Sim::with(|config| config.reusable_codes = true);
    let first = sim.exchange("0a1b2c3d").json();
    for _ in 0..3 {
        assert_eq!(sim.exchange("0a1b2c3d").json(), first);
    }
    assert_ne!(sim.exchange("0a1b2c3e").json()["openid"], first["openid"]);
    assert_eq!(sim.get(&query("wxunknown", "0a1b2c3d")).errcode(), 40013);

    let code = sim.code();
    sim.clock().advance(Duration::from_hours(1));
    let alice = sim.identity("alice", APPID).expect("the app exists").openid;
    for _ in 0..3 {
        assert_eq!(sim.exchange(&code).openid(), alice);
    }
}

#[test]
fn a_login_ends_the_old_session_key_when_told_or_when_it_is_old() {
    let sim = Sim::start();
    let login = |rotate: &str| {
        let reply = sim.post("/sim/wechat/login", &format!(r#"{{"user":"alice"{rotate}}}"#));
        let code = reply.json()["code"].as_str().expect("a code").to_owned();
        sim.exchange(&code).json()["session_key"].clone()
    };
    let first = login("");
    assert_eq!(login(""), first, "younger than a minute");
    let second = login(r#","rotate":true"#);
    assert_ne!(second, first);
    sim.clock().advance(Duration::from_mins(1));
    assert_eq!(login(r#","rotate":false"#), second);
    assert_ne!(login(""), second);
}
