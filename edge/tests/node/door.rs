//! The `node` door: what a misbehaving guest can do to others, which is little.

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use crate::{
    client::{Client, ask, begun, request, start},
    guest::Accomplice,
};

#[tokio::test]
async fn a_request_goes_in_and_its_answer_comes_out() {
    let node = start(Accomplice::new(), |_| {});
    let mut client = Client::connect(node.addr()).await;
    client
        .send("POST /echo?a=b HTTP/1.1\r\nhost: test\r\nX-Echo: a b\r\nx-other: c\r\ncontent-length: 5\r\n\r\nhello")
        .await;
    let answer = client.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"hello"[..]));
    assert_eq!(answer.field("x-echo"), Some("a b"), "a field the guest reads is forwarded");
    assert_eq!(answer.field("x-other"), None, "another is not");
}

#[tokio::test]
async fn what_is_the_connections_is_not_the_guests_to_say() {
    let node = start(Accomplice::new(), |_| {});
    let mut client = Client::connect(node.addr()).await;
    for _ in 0..2 {
        client.send(request("GET", "/other", "")).await;
        let answer = client.answer().await.expect("the connection stays open");
        assert_eq!(answer.field("x-guest"), Some("yes"));
        assert_eq!((answer.field("connection"), answer.field("server-timing")), (None, None));
        assert_eq!(answer.field("content-length"), Some("0"));
    }
}

#[tokio::test]
async fn server_timing_is_kept_where_it_is_wanted() {
    let node = start(Accomplice::new(), |config| config.limits.server_timing = true);
    assert_eq!(ask(node.addr(), "GET", "/other", "").await.field("server-timing"), Some("a;dur=1"));
}

#[tokio::test]
async fn a_trap_is_503_and_the_node_goes_on() {
    let node = start(Accomplice::new(), |_| {});
    for method in ["POST", "GET"] {
        let answer = ask(node.addr(), method, "/trap", "").await;
        assert_eq!((answer.status, answer.code().as_str()), (503, "instance_lost"));
        assert_eq!(answer.field("retry-after"), Some("1"));
        assert_eq!(ask(node.addr(), "GET", "/other", "").await.status, 200);
    }
}

#[tokio::test]
async fn only_a_request_without_effect_is_tried_again() {
    let store = Accomplice::new();
    let node = start(store.clone(), |_| {});
    assert_eq!(ask(node.addr(), "POST", "/once", "").await.status, 503);
    assert_eq!(store.asked(), 1);

    let store = Accomplice::new();
    let node = start(store.clone(), |_| {});
    assert_eq!(ask(node.addr(), "GET", "/once", "").await.status, 200);
    assert_eq!(store.asked(), 2);
}

#[tokio::test]
async fn a_busy_loop_is_ended_and_holds_nobody_up() {
    let node = start(Accomplice::new(), |config| config.surroundings.limits.max_cpu = Duration::from_millis(200));
    let addr = node.addr();
    let looping = tokio::spawn(async move { ask(addr, "POST", "/loop", "").await });
    let mut beside = Vec::new();
    while !looping.is_finished() {
        let asked = Instant::now();
        assert_eq!(ask(addr, "GET", "/other", "").await.status, 200);
        beside.push(asked.elapsed());
    }
    assert!(beside.len() > 5, "{} requests beside a busy guest", beside.len());
    beside.sort_unstable();
    let p99 = beside[beside.len() * 99 / 100];
    assert!(p99 < Duration::from_secs(1), "{p99:?}");
    assert_eq!(looping.await.expect("an answer").code(), "instance_lost");
}

#[tokio::test]
async fn those_beside_a_busy_loop_are_lost_with_it_and_do_not_lengthen_it() {
    let node = start(Accomplice::new(), |config| {
        config.limits.request_time = Duration::from_mins(1);
        let limits = &mut config.surroundings.limits;
        (limits.max_instances, limits.in_flight, limits.max_in_flight) = (1, 1000, 1000);
        limits.max_cpu = Duration::from_millis(200);
    });
    let addr = node.addr();
    let begun = Instant::now();
    let mut looping = Client::connect(addr).await;
    looping.send(request("POST", "/loop", "")).await;
    let looping = tokio::spawn(async move { looping.answer().await.expect("an answer") });
    // Each arrival wakes the store while its guest is in the middle of its work.
    let mut beside = tokio::task::JoinSet::new();
    while !looping.is_finished() && beside.len() < 90 {
        beside.spawn(async move { ask(addr, "POST", "/other", "").await });
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    assert_eq!(looping.await.expect("an answer").code(), "instance_lost");
    assert!(begun.elapsed() < Duration::from_secs(20));
    let mut lost = 0;
    while let Some(answer) = beside.join_next().await {
        let answer = answer.expect("an answer");
        // The last may have come after the end, into a new instance.
        if answer.status != 200 {
            assert_eq!(answer.code(), "instance_lost");
            lost += 1;
        }
    }
    assert!(lost > 0);
    assert_eq!(ask(addr, "POST", "/other", "").await.status, 200);
}

#[tokio::test]
async fn many_requests_leave_no_memory_behind() {
    let node = start(Accomplice::new(), |config| config.surroundings.limits.max_reuse = 50);
    let mut client = Client::connect(node.addr()).await;
    let mut after = Vec::new();
    for _ in 0..4 {
        for _ in 0..500 {
            client.send(request("POST", "/echo", &"x".repeat(4096))).await;
            assert_eq!(client.answer().await.expect("an answer").status, 200);
        }
        after.push(crate::overload::resident_bytes());
    }
    // The first rounds fill pools and arenas; other tests of this program may run beside.
    assert!(after[3].saturating_sub(after[1]) < 16 << 20, "{after:?}");
}

#[tokio::test]
async fn a_deadline_is_504_and_the_instance_goes() {
    let node = start(Accomplice::new(), |config| {
        config.limits.request_time = Duration::from_millis(100);
        config.surroundings.limits.grace = Duration::from_millis(100);
    });
    let begun = Instant::now();
    let answer = ask(node.addr(), "POST", "/never", "").await;
    assert_eq!((answer.status, answer.code().as_str()), (504, "platform_timeout"));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(ask(node.addr(), "GET", "/other", "").await.status, 200);
    // The guest waits for ever; only its end by force lets a drain end.
    assert_eq!(node.drain(Duration::from_secs(20)).await.cut, 0);
}

#[tokio::test]
async fn memory_has_a_limit() {
    let node = start(Accomplice::new(), |_| {});
    assert_eq!(ask(node.addr(), "POST", "/grow", "").await.status, 200, "refused, not trapped");
    // Each keeps 4 MiB: at half of 32 the instance is replaced, so none is ever refused.
    for _ in 0..20 {
        assert_eq!(ask(node.addr(), "POST", "/keep", "").await.status, 200);
    }
}

#[tokio::test]
async fn what_is_no_answer_is_500() {
    let node = start(Accomplice::new(), |_| {});
    let answer = ask(node.addr(), "GET", "/wrong", "").await;
    assert_eq!((answer.status, answer.code().as_str()), (500, "internal"));
}

#[tokio::test]
async fn isolated_requests_have_an_instance_each() {
    let node = start(Accomplice::new(), |config| {
        config.surroundings.limits = config.surroundings.limits.isolated();
    });
    // Twenty times 4 MiB would not fit into one instance of 32.
    for _ in 0..20 {
        assert_eq!(ask(node.addr(), "POST", "/keep", "").await.status, 200);
    }
}

#[tokio::test]
async fn a_full_node_says_so_and_recovers() {
    let store = Accomplice::new();
    let node = start(store.clone(), |config| {
        let limits = &mut config.surroundings.limits;
        (limits.max_instances, limits.in_flight, limits.max_in_flight) = (1, 2, 2);
        limits.queue_wait = Duration::from_millis(100);
    });
    let addr = node.addr();
    let slow: Vec<_> =
        (0..2).map(|_| tokio::spawn(async move { ask(addr, "POST", "/slow", "").await.status })).collect();
    store.waiting.acquire().await.expect("open").forget();

    let mut refused = 0;
    while refused == 0 {
        let answer = ask(addr, "POST", "/other", "").await;
        if answer.status == 503 {
            assert_eq!(answer.code(), "overloaded");
            let after = answer.field("retry-after").expect("when to come back");
            assert!(["1", "2", "3"].contains(&after), "{after}");
            refused += 1;
        }
    }
    store.go.add_permits(2);
    for slow in slow {
        assert_eq!(slow.await.expect("an answer"), 200);
    }
    assert_eq!(ask(addr, "POST", "/other", "").await.status, 200);
}

#[tokio::test]
async fn a_full_core_passes_requests_to_another() {
    let store = Accomplice::new();
    let node = start(store.clone(), |config| {
        config.cores = NonZeroUsize::new(2);
        let limits = &mut config.surroundings.limits;
        (limits.max_instances, limits.in_flight, limits.max_in_flight) = (1, 1, 1);
        limits.queue_wait = Duration::from_mins(1);
    });
    // Connections go to the cores in turn, so the first and the third share one.
    let mut busy = begun(node.addr(), &store, "/slow", "").await;
    let mut other = Client::connect(node.addr()).await;
    other.send(request("GET", "/other", "")).await;
    assert_eq!(other.answer().await.expect("an answer").status, 200);
    let mut beside = Client::connect(node.addr()).await;
    for _ in 0..10 {
        beside.send(request("POST", "/other", "")).await;
        assert_eq!(beside.answer().await.expect("an answer from the other core").status, 200);
    }
    store.go.add_permits(1);
    assert_eq!(busy.answer().await.expect("an answer").status, 200);
    assert_eq!(node.drain(Duration::from_secs(20)).await.cut, 0);
}

#[tokio::test]
async fn a_drain_finishes_what_is_under_way() {
    let store = Accomplice::new();
    let node = start(store.clone(), |_| {});
    let mut idle = Client::connect(node.addr()).await;
    idle.send(request("GET", "/other", "")).await;
    assert_eq!(idle.answer().await.expect("an answer").status, 200);
    let mut busy = begun(node.addr(), &store, "/slow", "").await;

    let addr = node.addr();
    let draining = tokio::spawn(node.drain(Duration::from_secs(20)));
    assert!(idle.ends().await, "an idle connection is closed");
    assert!(tokio::net::TcpStream::connect(addr).await.is_err(), "nothing new is accepted");
    assert!(!draining.is_finished());
    store.go.add_permits(1);
    assert_eq!(busy.answer().await.expect("the answer under way").status, 200);
    assert_eq!(draining.await.expect("drained").cut, 0);
}

#[tokio::test]
async fn a_drain_has_an_end() {
    let store = Accomplice::new();
    let node = start(store.clone(), |_| {});
    let _busy = begun(node.addr(), &store, "/slow", "").await;
    assert_eq!(node.drain(Duration::from_millis(50)).await.cut, 1);
}

#[tokio::test]
async fn a_drain_waits_for_a_request_that_sleeps() {
    let store = Accomplice::new();
    let node = start(store.clone(), |_| {});
    let mut asleep = begun(node.addr(), &store, "/nap", "zzzzz").await;
    let drained = tokio::spawn(node.drain(Duration::from_secs(20)));
    assert_eq!(asleep.answer().await.expect("the answer under way").status, 200);
    assert_eq!(drained.await.expect("drained").cut, 0);
}

#[tokio::test]
async fn a_request_may_not_sleep_past_its_deadline() {
    let store = Accomplice::new();
    let node = start(store.clone(), |config| {
        config.limits.request_time = Duration::from_millis(100);
        config.surroundings.limits.grace = Duration::from_millis(100);
    });
    let minutes = "z".repeat(6000);
    assert_eq!(ask(node.addr(), "POST", "/nap", &minutes).await.code(), "platform_timeout");
    assert_eq!(ask(node.addr(), "POST", "/nap", "").await.status, 200);
    // Nobody waits for the sleep to end.
    assert_eq!(node.drain(Duration::from_secs(20)).await.cut, 0);
}
