//! What a node refuses to start with, and what it says about what it starts.

use edgepass_edge::node::{Node, StartError};
use edgepass_edge::revision::Error;

use crate::{
    client::{config, start},
    guest::{self, Accomplice},
};

fn refusal(component: Vec<u8>) -> Error {
    let refused = Node::start(config(component, Accomplice::new())).err().expect("it does not start");
    let StartError::Revision(error) = refused else { unreachable!("refused otherwise: {refused}") };
    error
}

#[test]
fn a_wrong_setting_is_named() {
    assert_eq!(refusal(guest::with_a_problem()).to_string(), "settings: no_value");
}

#[test]
fn a_component_of_neither_kind_is_refused_with_its_exports() {
    assert!(matches!(refusal(guest::with_an_import()), Error::Kind(exports) if exports == ["f"]));
}

#[test]
fn what_is_no_component_is_refused() {
    assert!(matches!(Node::start(config(b"<html>".to_vec(), Accomplice::new())), Err(StartError::Engine(_))));
}

#[test]
fn the_component_describes_itself() {
    let node = start(Accomplice::new(), |_| {});
    let revision = node.revision();
    let said = revision.description().expect("a node component");
    assert_eq!((said.version.as_str(), said.commit.as_str()), ("1.2.3", "abc"));
    assert_eq!(said.built, "2026-01-01T00:00:00Z");
    assert_ne!(node.addr().port(), 0);
}
