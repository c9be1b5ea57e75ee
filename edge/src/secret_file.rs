//! Secrets the node makes up itself, each in a file that only its owner reads.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be made or read.
    #[error("{} cannot be made or read", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No random bytes.
    #[error("the system gave no random bytes: {0}")]
    Random(getrandom::Error),
}

/// The secret in `path`, made on first use: 32 random bytes, base64url. Missing folders are made
/// for their owner only.
///
/// # Errors
/// [`Error`].
pub fn read_or_make(path: &Path) -> Result<String, Error> {
    let fault = |source| Error::File { path: path.into(), source };
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(fault)?;
    }
    if !path.exists() {
        // Appears whole or not at all, and the first to make it wins.
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let secret = random()?;
        let written = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        written.and_then(|mut file| file.write_all(secret.as_bytes()).and_then(|()| file.sync_all())).map_err(fault)?;
        let linked = fs::hard_link(&temporary, path);
        fs::remove_file(&temporary).map_err(fault)?;
        if let Err(error) = linked
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(fault(error));
        }
    }
    fs::read_to_string(path).map(|secret| secret.trim().to_owned()).map_err(fault)
}

/// 32 random bytes in base64url, as `master_key`, `subject_key` and `operator_tokens` take them.
///
/// # Errors
/// [`Error::Random`].
pub fn random() -> Result<String, Error> {
    use base64ct::Encoding as _;
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(base64ct::Base64UrlUnpadded::encode_string(&bytes))
}

/// Puts a line of `text` into a new file, for its owner only.
///
/// # Errors
/// [`Error::File`], also when there is such a file already.
pub fn create(path: &Path, text: &str) -> Result<(), Error> {
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| writeln!(file, "{text}").and_then(|()| file.sync_all()));
    written.map_err(|source| Error::File { path: path.into(), source })
}

/// Puts a line of `text` in the place of `path`, whole or not at all, for its owner only.
///
/// # Errors
/// [`Error::File`].
pub fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    let replaced = opened.and_then(|mut file| {
        let written = writeln!(file, "{text}").and_then(|()| file.sync_all());
        let renamed = written.and_then(|()| fs::rename(&temporary, path));
        if renamed.is_err() {
            fs::remove_file(&temporary)?;
        }
        renamed
    });
    replaced.map_err(|source| Error::File { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_is_for_its_owner_only() {
        let state = tempfile::tempdir().expect("a folder");
        let path = state.path().join("keys/master_key");
        let first = read_or_make(&path).expect("a secret");
        assert_eq!(first.len(), 43);
        assert_eq!(read_or_make(&path).expect("a secret"), first);
        assert_ne!(read_or_make(&state.path().join("keys/subject_key")).expect("a secret"), first);
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(&state.path().join("keys")), 0o700);
        assert_eq!(fs::read_dir(state.path().join("keys")).expect("a folder").count(), 2, "nothing temporary is left");
    }
}
