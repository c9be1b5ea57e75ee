//! What makes a node usable on a laptop within a minute, and is refused everywhere else: keys made
//! up on first start, and the check that nothing but loopback is involved.

use std::{
    fs, io,
    io::Write as _,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Why a development switch was refused, or could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A switch on a node that others can reach.
    #[error(
        "{switch} is for development and {address} is not a loopback address; listen on 127.0.0.1 or [::1], or leave it out"
    )]
    NotLoopback {
        /// The switch.
        switch: &'static str,
        /// The address it would have been used with.
        address: String,
    },
    /// The key file cannot be made or read.
    #[error("key file {}", path.display())]
    KeyFile {
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

/// Refuses `switch` unless `address` is loopback.
///
/// # Errors
/// [`Error::NotLoopback`].
pub fn require_loopback(switch: &'static str, address: SocketAddr) -> Result<(), Error> {
    // An IPv4-mapped loopback address is loopback too.
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(Error::NotLoopback { switch, address: address.to_string() })
}

/// Refuses `switch` unless the host of `url` is a loopback address, written as one: what a name
/// means is decided by a resolver, and later.
///
/// # Errors
/// [`Error::NotLoopback`], also for what is not a URL.
pub fn require_loopback_url(switch: &'static str, url: &str) -> Result<(), Error> {
    let host = url.parse::<http::Uri>().ok().and_then(|uri| Some(uri.host()?.to_owned()));
    let address = host.as_deref().and_then(|host| host.trim_matches(['[', ']']).parse::<IpAddr>().ok());
    match address {
        Some(address) => require_loopback(switch, SocketAddr::new(address, 0)),
        None => Err(Error::NotLoopback { switch, address: host.unwrap_or_else(|| "the platform's URL".into()) }),
    }
}

/// The key called `name`, made on first use: 32 random bytes, base64url, in a file of its own that
/// only its owner reads.
///
/// # Errors
/// [`Error::KeyFile`] and [`Error::Random`].
pub fn key(state_dir: &Path, name: &str) -> Result<String, Error> {
    let folder = state_dir.join("keys");
    let path = folder.join(name);
    let fault = |source| Error::KeyFile { path: path.clone(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(fault)?;
    if !path.exists() {
        // Appears whole or not at all, and the first to make it wins.
        let temporary = folder.join(format!("{name}.{}.tmp", std::process::id()));
        let key = random_key()?;
        let written = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        written.and_then(|mut file| file.write_all(key.as_bytes()).and_then(|()| file.sync_all())).map_err(fault)?;
        let linked = fs::hard_link(&temporary, &path);
        fs::remove_file(&temporary).map_err(fault)?;
        if let Err(error) = linked
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(fault(error));
        }
    }
    fs::read_to_string(&path).map(|key| key.trim().to_owned()).map_err(fault)
}

/// 32 random bytes in base64url, as `master_key` and `subject_key` take them.
///
/// # Errors
/// [`Error::Random`].
pub fn random_key() -> Result<String, Error> {
    use base64ct::Encoding as _;
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(base64ct::Base64UrlUnpadded::encode_string(&bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn loopback_is_decided_on_the_parsed_address() {
        for address in ["127.0.0.1:3000", "127.9.8.7:1", "[::1]:3000", "[::ffff:127.0.0.1]:1"] {
            assert!(require_loopback("--sim", address.parse().expect("an address")).is_ok(), "{address}");
        }
        for address in ["0.0.0.0:3000", "[::]:3000", "10.0.0.1:3000", "192.168.1.127:1", "[::ffff:10.0.0.1]:1"] {
            assert!(require_loopback("--sim", address.parse().expect("an address")).is_err(), "{address}");
        }
        for url in ["http://127.0.0.1:3001", "http://[::1]:3001/x", "http://127.0.0.1"] {
            assert!(require_loopback_url("--reusable-codes", url).is_ok(), "{url}");
        }
        for url in [
            "https://api.weixin.qq.com",
            "http://localhost:3001",
            "http://127.0.0.1.evil.example",
            "http://127.0.0.1@evil.example/",
            "http://evil.example/?127.0.0.1",
            "http://0x7f000001/",
            "nonsense",
            "",
        ] {
            assert!(require_loopback_url("--reusable-codes", url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_key_is_made_once_and_is_for_its_owner_only() {
        let state = tempfile::tempdir().expect("a folder");
        let first = key(state.path(), "master_key").expect("a key");
        assert_eq!(first.len(), 43);
        assert_eq!(key(state.path(), "master_key").expect("a key"), first);
        assert_ne!(key(state.path(), "subject_key").expect("a key"), first);
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&state.path().join("keys/master_key")), 0o600);
        assert_eq!(mode(&state.path().join("keys")), 0o700);
    }
}
