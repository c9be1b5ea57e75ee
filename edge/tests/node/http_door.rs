//! The `wasi:http` door: the same guest, the same limits. Its every answer is an error, which is 500.

use std::time::Duration;

use edgepass_edge::node::{Config, Node};

use crate::{
    client::{ask, config},
    guest::{self, Accomplice},
};

fn start(change: impl FnOnce(&mut Config)) -> Node {
    let mut config = config(guest::http_component(), Accomplice::new());
    change(&mut config);
    Node::start(config).expect("the node starts")
}

#[tokio::test]
async fn a_trap_is_503_and_the_node_goes_on() {
    let node = start(|_| {});
    for _ in 0..3 {
        assert_eq!(ask(node.addr(), "POST", "/trap", "").await.code(), "instance_lost");
        assert_eq!(ask(node.addr(), "POST", "/other", "").await.code(), "internal");
    }
}

#[tokio::test]
async fn a_busy_loop_is_ended_and_holds_nobody_up() {
    let node = start(|config| config.surroundings.limits.max_cpu = Duration::from_millis(200));
    let addr = node.addr();
    let looping = tokio::spawn(async move { ask(addr, "POST", "/loop", "").await });
    let mut beside = 0;
    while !looping.is_finished() {
        assert_eq!(ask(addr, "POST", "/other", "").await.code(), "internal");
        beside += 1;
    }
    assert!(beside > 5, "{beside} requests beside a busy guest");
    assert_eq!(looping.await.expect("an answer").code(), "instance_lost");
}

#[tokio::test]
async fn memory_has_a_limit() {
    let node = start(|_| {});
    assert_eq!(ask(node.addr(), "POST", "/grow", "").await.code(), "internal", "refused, not trapped");
    // Each keeps 4 MiB: at half of 32 the instance is replaced, so none is ever refused.
    for _ in 0..20 {
        assert_eq!(ask(node.addr(), "POST", "/keep", "").await.code(), "internal");
    }
}
