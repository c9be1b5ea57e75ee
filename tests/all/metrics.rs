//! The node's closed lists are the component's: what one learns to say, the other counts.

use std::collections::BTreeSet;

use edgepass::{audit::Event, problem::Code};
use edgepass_edge::metrics::{CODES, EVENTS, Fault, ROUTES};
use serde_json::Value;

#[test]
fn every_code_has_somebody_who_acts() {
    for code in Code::ALL {
        let facts = code.facts();
        let fault = CODES.iter().find(|(name, _)| *name == facts.name).map(|(_, fault)| *fault);
        let expected = match facts.status {
            _ if facts.name.starts_with("platform_") => Fault::Platform,
            429 => Fault::Platform,
            400..500 => Fault::Client,
            _ => Fault::Node,
        };
        assert_eq!(fault, Some(expected), "{}", facts.name);
    }
}

#[test]
fn every_event_is_counted() {
    for event in Event::ALL {
        assert!(EVENTS.contains(&event.name()), "{}", event.name());
    }
}

#[test]
fn every_public_route_of_the_document_has_its_label() {
    let document: Value = serde_json::from_str(include_str!("../../docs/openapi.json")).expect("JSON");
    let paths = document["paths"].as_object().expect("paths").keys();
    // The grade of a verification is the label, not the app it is for.
    let documented: BTreeSet<String> = paths
        .filter(|path| !path.starts_with("/internal/"))
        .map(|path| path.replace("/app/{id}/", "/").replace("{rest}", "*"))
        .collect();
    let labels: BTreeSet<String> = ROUTES.iter().map(|route| route.template().to_owned()).collect();
    assert_eq!(labels, documented);
}
