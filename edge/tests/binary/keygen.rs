//! `edgepass keygen` as a shell uses it: the value on one stream, the words on the other.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

fn keygen(arguments: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_edgepass")).arg("keygen").args(arguments).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{arguments:?}: {err}");
    (out, err)
}

#[test]
fn the_value_is_all_there_is_on_standard_output() {
    for (what, setting) in [
        (&["master"][..], "SPIN_VARIABLE_MASTER_KEY"),
        (&["subject"], "SPIN_VARIABLE_SUBJECT_KEY"),
        (&["operator"], "SPIN_VARIABLE_OPERATOR_TOKENS"),
        (&["load"], "SPIN_VARIABLE_LOAD_TOKEN"),
        (&["client", "back-end", "--app", "wechat"], "SPIN_VARIABLE_CLIENTS"),
        (&["signing"], "SPIN_VARIABLE_SIGNING_KEYS"),
    ] {
        let (out, err) = keygen(what);
        let value = out.trim_end();
        assert!(out.ends_with('\n') && value.len() >= 43 && !value.contains(char::is_whitespace), "{what:?}");
        assert!(err.contains(setting), "{what:?}: {err}");
        for secret in value.split('"').filter(|part| part.len() >= 43) {
            assert!(!err.contains(secret), "{what:?}: said on standard error");
        }
        let (_, quiet) = keygen(&[what, &["--quiet"]].concat());
        assert_eq!(quiet, "");
    }
}

#[test]
fn a_set_is_rotated_in_its_file_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    fs::write(&file, keygen(&["signing", "-q"]).0).unwrap();
    let rotate = |path: &Path| keygen(&["rotate", path.to_str().unwrap()]);

    let (out, err) = rotate(&file);
    assert_eq!(out, "");
    assert!(err.contains("is next"), "{err}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"next\"") && text.contains("\"current\""));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(rotate(&file).1.contains("is current"));
    assert!(rotate(&file).1.contains("is over"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");

    fs::write(&file, "canary").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_edgepass")).args(["keygen", "rotate"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("keys.json") && !said.contains("canary"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "canary", "and the file is as it was");
}

#[test]
fn a_pair_is_kept_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("upload.key");
    let name = file.to_str().unwrap();
    let (public, err) = keygen(&["upload", name]);
    let private = fs::read_to_string(&file).unwrap();
    assert_eq!((public.trim_end().len(), private.trim_end().len()), (43, 43));
    assert!(public != private && err.contains("upload_keys") && !err.contains(private.trim_end()), "{err}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let again = Command::new(env!("CARGO_BIN_EXE_edgepass")).args(["keygen", "upload", name]).output().unwrap();
    assert_eq!((again.status.code(), again.stdout), (Some(1), Vec::new()), "a key is not written over");
    assert_eq!(fs::read_to_string(&file).unwrap(), private);

    let (private, err) = keygen(&["upload"]);
    let public = err.split('"').nth(1).unwrap();
    assert!(public.len() == 43 && public != private.trim_end() && !err.contains(private.trim_end()), "{err}");
}
