//! `edgepass swap`, `rollback`, `revisions` and `canary` against a service that is told what to say.

use std::fs;

use edgepass_edge::{engine::Digest, revisions::UploadKeys};
use serde_json::{Value, json};

use crate::stub::{Stub, edgepass, said};

const BEFORE: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// A folder with a file `component.wasm`; its path, and its content's digest.
fn component() -> (tempfile::TempDir, String, Digest) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("component.wasm");
    fs::write(&path, b"\0asm, more or less").unwrap();
    let name = path.to_str().unwrap().to_owned();
    (folder, name, Digest::of(b"\0asm, more or less"))
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

#[test]
fn a_swap_sends_the_component_and_tells_each_step() {
    let (_folder, file, digest) = component();
    for (options, target, state, rule) in [
        (&[][..], "/revisions?activate=true", "active", None),
        (&["--no-activate"], "/revisions", "ready", None),
        (&["--canary", "0.5%"], "/revisions?canary=0%2E5%25", "canary", Some("0.5%")),
        (
            &["--canary", "header:x-beta=1&2"],
            "/revisions?canary=header%3Ax%2Dbeta%3D1%262",
            "canary",
            Some("header:x-beta=1&2"),
        ),
    ] {
        let previous = (state == "active").then_some(BEFORE);
        let seconds = json!({"compile": 1.25, "check": 0.02, "probe": 0.001});
        let stub = Stub::start(vec![(
            200,
            json!({"digest": digest, "state": state, "previous": previous, "seconds": seconds}),
        )]);
        let output = stub.ask(&[&["swap", &file, "--expect", BEFORE], options].concat());
        assert!(output.status.success(), "{}", said(&output));
        let (head, body) = stub.asked().pop().unwrap();
        assert!(head.starts_with(&format!("PUT {target} HTTP/1.1\r\n")), "{head}");
        assert_eq!(body, b"\0asm, more or less");
        assert_eq!(field(&head, "authorization"), Some("Bearer file-token"));
        assert_eq!(field(&head, "content-type"), Some("application/wasm"));
        assert_eq!(field(&head, "x-edgepass-expect"), Some(BEFORE));
        assert!(field(&head, "x-edgepass-actor").unwrap().starts_with("unknown@"), "{head}");
        assert_eq!(field(&head, "x-edgepass-signature"), None);

        let takes = rule.map(|rule| format!(" takes {rule}")).unwrap_or_default();
        let before = previous.map(|_| ", before: ba7816bf8f01").unwrap_or_default();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!(
                "compiled  in 1.250 s\nchecked   in 0.020 s\nanswers   in 0.001 s\n{state:9} {}{takes}{before}\n",
                digest.short()
            )
        );
        assert!(said(&output).contains(&format!("sending {}", digest.short())), "{}", said(&output));
    }
}

#[test]
fn a_signed_swap_is_taken_by_who_has_the_public_key() {
    let (folder, file, digest) = component();
    let key = folder.path().join("key");
    let made = edgepass(&["keygen", "-q", "upload"]).arg(&key).output().unwrap();
    let keys = UploadKeys::parse(&String::from_utf8(made.stdout).unwrap()).unwrap();
    let stub = Stub::start(vec![(200, json!({"digest": digest, "state": "active"}))]);
    let output = stub.ask(&["swap", &file, "--sign-key", key.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let (head, _) = stub.asked().pop().unwrap();
    assert_eq!(keys.verify(digest, field(&head, "x-edgepass-signature")), Ok(()));
    assert!(keys.required());
    let printed = edgepass(&["sign", &file, "--key"]).arg(&key).output().unwrap();
    assert_eq!(keys.verify(digest, Some(&String::from_utf8(printed.stdout).unwrap())), Ok(()));
    let text = fs::read_to_string(&key).unwrap();
    assert!(!head.contains(text.trim()) && !said(&output).contains(text.trim()));
}

#[test]
fn what_is_refused_is_said_with_its_code() {
    let (_folder, file, _) = component();
    for (status, code, expected) in [
        (422, "imports_missing", "refused: imports_missing why; what was served is served"),
        (403, "signature_missing", "refused: signature_missing why"),
        (409, "conflict", "refused: conflict why"),
        (404, "unknown_revision", "refused: unknown_revision why; what"),
        (404, "not_found", "is this the admin listener"),
        (401, "token_invalid", "is the token that of this node?"),
        (413, "payload_too_large", "no component that long"),
    ] {
        for line in [&["swap", &file][..], &["rollback"], &["canary", "promote"], &["canary", "stop"]] {
            let output = Stub::start(vec![(status, json!({"code": code, "detail": "why"}))]).ask(line);
            assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]), "{line:?}");
            assert!(said(&output).contains(expected) && !said(&output).contains("file-token"), "{}", said(&output));
        }
    }
    let output = Stub::start(vec![(200, json!({"hello": "world", "state": "active"}))]).ask(&["swap", &file]);
    assert!(!output.status.success() && said(&output).contains("not the answer of a node"), "{}", said(&output));
    let hostile = json!({"code": "x\u{1b}[2J", "detail": "y\u{7}\nz"});
    let output = Stub::start(vec![(500, hostile)]).ask(&["rollback"]);
    assert!(said(&output).contains("refused: x[2J yz"), "{:?}", said(&output));
}

#[test]
fn nothing_is_sent_that_cannot_be_taken() {
    let (folder, file, _) = component();
    let long = folder.path().join("long.wasm");
    fs::File::create(&long).unwrap().set_len((32 << 20) + 1).unwrap();
    let bad_key = folder.path().join("key");
    fs::write(&bad_key, "not-a-key-but-secret").unwrap();
    let (long, bad_key) = (long.to_str().unwrap(), bad_key.to_str().unwrap());
    for (line, status, expected) in [
        (&["swap", "no-such-file"][..], 1, "reading no-such-file"),
        (&["swap", long], 1, "too_large: longer than the 32.0 MiB a node takes"),
        (&["swap", &file, "--sign-key", bad_key], 1, "not a private key"),
        (&["swap", &file, "--canary", "0%"], 2, "not a canary rule"),
        (&["swap", &file, "--canary", "1%", "--no-activate"], 2, "cannot be used with"),
        (&["swap", &file, "--expect", "abc"], 2, "not a digest"),
        (&["canary", "begin"], 2, "possible values: promote, stop"),
    ] {
        let output = edgepass(line).arg("--state-dir").arg(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{line:?}: {}", said(&output));
        assert!(
            said(&output).contains(expected) && !said(&output).contains("but-secret"),
            "{line:?}: {}",
            said(&output)
        );
    }
}

#[test]
fn an_order_goes_where_it_is_carried_out() {
    for (line, target, done, printed) in [
        (
            "rollback",
            "POST /rollback",
            json!({"digest": BEFORE, "state": "active", "previous": "cd".repeat(32), "cut": 2}),
            "active    ba7816bf8f01, before: cdcdcdcdcdcd, requests cut off: 2\n",
        ),
        (
            "canary promote",
            "POST /canary/promote",
            json!({"digest": BEFORE, "state": "active"}),
            "active    ba7816bf8f01\n",
        ),
        ("canary stop", "DELETE /canary", json!({"digest": BEFORE, "state": "stopped"}), "stopped   ba7816bf8f01\n"),
    ] {
        let stub = Stub::start(vec![(200, done)]);
        let output = stub.ask(&line.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{line}: {}", said(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), printed, "{line}");
        let (head, body) = stub.asked().pop().unwrap();
        assert!(head.starts_with(&format!("{target} HTTP/1.1\r\n")) && body.is_empty(), "{head}");
        assert!(field(&head, "x-edgepass-actor").is_some() && field(&head, "x-edgepass-expect").is_none(), "{head}");
    }
}

#[test]
fn revisions_are_listed_with_what_was_done() {
    let active = json!({"digest": BEFORE, "state": "active", "version": "0.1.0", "at": "2026-01-01T00:00:00.000Z", "by": "eve@host"});
    let kept = json!({"digest": "cd".repeat(32), "state": "previous"});
    let standing =
        json!({"active": active, "canary": null, "revisions": [active, kept], "draining": 1, "can_roll_back": true});
    let entry = json!({"at": "2026-01-01T00:00:00.000Z", "who": "eve@host", "action": "activate", "digest": BEFORE, "result": "done"});
    let listed = "active    ba7816bf8f01  0.1.0  2026-01-01T00:00:00.000Z  eve@host\n\
                  previous  cdcdcdcdcdcd\n1 more only finish what they have\n";
    let output = Stub::start(vec![(200, standing.clone())]).ask(&["revisions"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), listed, "{}", said(&output));

    let stub = Stub::start(vec![(200, standing.clone()), (200, json!({"entries": [entry]}))]);
    let output = stub.ask(&["revisions", "--journal"]);
    let journal = "2026-01-01T00:00:00.000Z activate  done     ba7816bf8f01 eve@host\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{listed}{journal}"), "{}", said(&output));
    let asked: Vec<String> =
        stub.asked().into_iter().map(|(head, _)| head.lines().next().unwrap().to_owned()).collect();
    assert_eq!(asked, ["GET /revisions HTTP/1.1", "GET /journal HTTP/1.1"]);

    let output = Stub::start(vec![(200, standing.clone())]).ask(&["revisions", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), standing);
}
