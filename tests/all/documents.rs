//! What the README says there is, there is, and the other way round.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use edgepass::{
    config::SETTINGS,
    problem::{Code, OAuthError},
};

const README: &str = include_str!("../../README.md");
const ERRORS: &str = include_str!("../../docs/errors.md");
const SECURITY: &str = include_str!("../../docs/security.md");

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

/// The properties of the list that `docs/security.md` answers, by letter.
const PROPERTIES: [(char, u8); 8] = [('A', 22), ('B', 6), ('C', 8), ('D', 13), ('E', 7), ('F', 9), ('G', 4), ('H', 5)];

#[test]
fn every_property_is_shown_by_tests_that_there_are_or_said_not_to_be_met() {
    let tests = test_names();
    let names = |text: &str| -> Vec<String> {
        let quoted = text.split('`').skip(1).step_by(2);
        let is_test = |name: &&str| {
            name.matches('_').count() > 1
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        quoted.filter(is_test).map(str::to_owned).collect()
    };
    for (letter, last) in PROPERTIES {
        for number in 1..=last {
            let begin = format!("| {letter}{number} | ");
            let rows: Vec<&str> = SECURITY.lines().filter(|line| line.starts_with(&begin)).collect();
            assert_eq!(rows.len(), 1, "a row for {letter}{number}");
            let shown_by = rows[0].rsplit(" | ").next().expect("the last cell");
            let open = shown_by.contains("not met") || shown_by.contains("does not apply");
            assert!(open || !names(shown_by).is_empty(), "{letter}{number} is shown by something");
        }
    }
    let missing: Vec<String> = names(SECURITY).into_iter().filter(|name| !tests.contains(name)).collect();
    assert_eq!(missing, [""; 0], "tests that are named and do not exist");
}

/// Every function of the workspace's sources: a test that a macro makes is one as well.
fn test_names() -> BTreeSet<String> {
    let mut folders: Vec<PathBuf> = ["src", "edge", "sim", "tests", "fuzz/src", "xtask"]
        .iter()
        .map(|f| Path::new(env!("CARGO_MANIFEST_DIR")).join(f))
        .collect();
    let mut names = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let functions = text.split("fn ").skip(1).filter_map(|rest| rest.split_once('('));
                names.extend(functions.map(|(name, _)| name.to_owned()));
            }
        }
    }
    names
}

fn section(title: &str) -> &'static str {
    let rest = README.split(title).nth(1).expect("the section is there");
    rest.split("\n## ").next().expect("something is in it")
}
