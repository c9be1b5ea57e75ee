//! What the README says there is, there is, and the other way round.

use edgepass::{config::SETTINGS, problem::Code};

const README: &str = include_str!("../../README.md");

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

fn section(title: &str) -> &'static str {
    let rest = README.split(title).nth(1).expect("the section is there");
    rest.split("\n## ").next().expect("something is in it")
}
