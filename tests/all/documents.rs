//! What the README says there is, there is, and the other way round.

use edgepass::{
    config::SETTINGS,
    problem::{Code, OAuthError},
};

const README: &str = include_str!("../../README.md");
const ERRORS: &str = include_str!("../../docs/errors.md");

/// Codes the node answers with in the component's place: name, status, retryable.
const OF_THE_NODE: [(&str, u16, bool); 2] = [("internal", 500, false), ("instance_lost", 503, true)];

#[test]
fn every_setting_is_in_the_table() {
    let table = section("## Settings");
    for setting in SETTINGS {
        assert!(table.contains(&format!("`{setting}`")), "{setting}");
    }
}

#[test]
fn every_problem_code_is_in_the_table() {
    let table = section("## Errors");
    for code in Code::ALL {
        let row = format!("| {}", code.facts().status);
        let listed = table.lines().any(|line| {
            line.contains(&format!("`{}`", code.facts().name))
                && (line.starts_with(&row) || line.contains(&format!(", {} |", code.facts().status)))
        });
        assert!(listed, "{} in a row of {}", code.facts().name, code.facts().status);
    }
}

#[test]
fn f5_every_error_code_is_explained_once_and_truthfully() {
    let rows: Vec<Vec<&str>> = ERRORS
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let row = |name: &str| {
        let found: Vec<_> = rows.iter().filter(|row| row[0] == format!("`{name}`")).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0].clone()
    };
    let of_the_core =
        Code::ALL.iter().map(|code| code.facts()).map(|facts| (facts.name, facts.status, facts.retryable));
    for (name, status, retryable) in of_the_core.chain(OF_THE_NODE) {
        let row = row(name);
        assert_eq!(
            (row.len(), row[1], row[4]),
            (6, status.to_string().as_str(), if retryable { "yes" } else { "no" }),
            "{name}"
        );
        assert!(row.iter().all(|cell| !cell.is_empty()), "{name}");
    }
    for error in OAuthError::ALL {
        assert_eq!(row(error.name()).len(), 3, "{}", error.name());
    }
    assert_eq!(rows.len(), Code::ALL.len() + OF_THE_NODE.len() + OAuthError::ALL.len(), "and none that there is not");
}

fn section(title: &str) -> &'static str {
    let rest = README.split(title).nth(1).expect("the section is there");
    rest.split("\n## ").next().expect("something is in it")
}
