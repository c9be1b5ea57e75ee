//! A rolling change of `master_key` over two nodes: append, promote, drop.

use serde_json::Value;

use crate::support::{World, behaviours};

behaviours! {
    a_rolling_change_of_the_master_key_logs_nobody_out,
    in_the_middle_of_a_change_there_is_one_successor,
}

const OLD: &str = "Zx2T1cBqk0bqVVnTg0mK9d3pJrI0hYp7cVqGmT5rF0Q";
const NEW: &str = "q3PzL0wBvN7xMcR5tYkU2jHgFdSaE8oI6uZ1yTrWn4A";

async fn a_rolling_change_of_the_master_key_logs_nobody_out(world: World) {
    let [append, promote] = [format!("{OLD},{NEW}"), format!("{NEW},{OLD}")];
    let before = world.logged_in("alice").await;
    let mut held = before["refresh_token"].clone();
    let user = before["user"]["id"].clone();

    // One node after the other, as a rolling change goes; whoever is asked, the session goes on.
    let appended = world.second_node_with(&[("master_key", &append)]);
    let promoted = appended.second_node_with(&[("master_key", &promote)]);
    for node in [&appended, &world, &promoted, &appended, &promoted] {
        let renewed = node.refreshed(&held).await;
        assert_eq!(renewed["user"]["id"], user);
        held = renewed["refresh_token"].clone();
        // What any node of the same stage or the next issues, the others take.
        let next = if std::ptr::eq(node, &raw const world) { &appended } else { node };
        assert_eq!(next.session(text(&renewed["access_token"])).await.status, 200);
    }

    // A session of the new key, on a node that still has the old one first.
    let new = promoted.logged_in("alice").await;
    assert_eq!(new["user"]["id"], user, "users do not depend on the master key");
    assert_eq!(appended.refresh(&new["refresh_token"]).await.status, 200);

    // Dropped too early, the old key takes its sessions along, and only them.
    let dropped = promoted.second_node_with(&[("master_key", NEW)]);
    assert_eq!(dropped.refresh(&held).await.problem(), "refresh_invalid");
    assert_eq!(dropped.session(text(&new["access_token"])).await.status, 200);
}

async fn in_the_middle_of_a_change_there_is_one_successor(world: World) {
    let appended = world.second_node_with(&[("master_key", &format!("{OLD},{NEW}"))]);
    let promoted = world.second_node_with(&[("master_key", &format!("{NEW},{OLD}"))]);
    for first in [&appended, &promoted] {
        let login = first.logged_in("alice").await;
        let token = &login["refresh_token"];
        let (one, two) = tokio::join!(appended.refreshed(token), promoted.refreshed(token));
        assert_eq!(one["refresh_token"], two["refresh_token"]);
        assert_eq!(promoted.refresh(&one["refresh_token"]).await.status, 200);
    }
    // A code spent under one key is spent under the other.
    let code = world.code("bob");
    assert_eq!(appended.log_in(&code).await.status, 200);
    assert_eq!(promoted.log_in(&code).await.problem(), "code_used");
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text, not {value}"))
}
