//! Where the admin listener is and what opens it: two files in the state folder, written by the
//! node, read by the commands that talk to it.
//!
//! The node holds a lock on `admin.addr` for as long as it runs. A command that finds the file
//! unlocked has no node to talk to: the port in it may be anybody's by now, and would be sent the
//! token.

use std::{
    fmt,
    fs::{self, File, TryLockError},
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::secret_file;

/// What the admin listener is opened with, as a bearer token: 43 characters of base64url, made on
/// first start and kept. Without a readable `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// The token of the node with this state folder.
///
/// # Errors
/// As [`secret_file::read_or_make`].
pub fn token(state_dir: &Path) -> Result<Token, secret_file::Error> {
    secret_file::read_or_make(&state_dir.join(TOKEN)).map(Token)
}

impl Token {
    /// A token from elsewhere, as a file has it.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// Whether `text` is this token. How long that takes tells nothing: digests are compared.
    #[must_use]
    pub fn is(&self, text: &str) -> bool {
        Sha256::digest(text) == Sha256::digest(&self.0)
    }

    /// The token itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(_)")
    }
}

/// The admin listener may only be reached from this machine.
#[derive(Debug, thiserror::Error)]
#[error(
    "--admin {0} is not a loopback address; it ends sessions and blocks users, so it listens on 127.0.0.1 or [::1]"
)]
pub struct NotLoopback(SocketAddr);

/// Refuses an address that other machines reach.
///
/// # Errors
/// [`NotLoopback`].
pub fn require_loopback(address: SocketAddr) -> Result<(), NotLoopback> {
    if address.ip().to_canonical().is_loopback() { Ok(()) } else { Err(NotLoopback(address)) }
}

/// Why a state folder does not lead to a node, or a node cannot take it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another node has the folder.
    #[error("another node runs with the state folder {}", .0.display())]
    Taken(PathBuf),
    /// No node has it.
    #[error("no node runs with the state folder {}; start one with `edgepass serve`, or name its folder with --state-dir", .0.display())]
    NotRunning(PathBuf),
    /// A file cannot be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A node's claim to its state folder, given up when dropped.
pub struct Announced(File);

impl Announced {
    /// Claims the folder, which is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Taken`] and [`Error::File`].
    pub fn claim(state_dir: &Path) -> Result<Self, Error> {
        let path = state_dir.join(ADDRESS);
        let fault = |source| Error::File { path: path.clone(), source };
        private(state_dir).map_err(fault)?;
        // Nobody else may lock it: what is locked is where commands send the token.
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(fault)?;
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(fault)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Taken(state_dir.into())),
            Err(TryLockError::Error(source)) => return Err(fault(source)),
        }
        // What a node that was killed left behind.
        file.set_len(0).map_err(fault)?;
        Ok(Self(file))
    }

    /// Writes down where the listener is.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, address: SocketAddr) -> io::Result<()> {
        writeln!(self.0, "{address}")
    }
}

/// Makes a folder that is its owner's alone, also where it is there already.
fn private(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
}

impl Drop for Announced {
    fn drop(&mut self) {
        // The lock that ends with the file is what counts.
        let _ = self.0.set_len(0);
    }
}

/// How to talk to a running node.
#[derive(Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// Where its admin listener is.
    pub address: SocketAddr,
    /// What opens it.
    pub token: Token,
}

impl Whereabouts {
    /// Of the node that runs with this state folder.
    ///
    /// # Errors
    /// [`Error::NotRunning`] and [`Error::File`].
    pub fn of(state_dir: &Path) -> Result<Self, Error> {
        let not_running = || Error::NotRunning(state_dir.into());
        let fault = |name| move |source| Error::File { path: state_dir.join(name), source };
        let mut file = match File::open(state_dir.join(ADDRESS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(not_running()),
            file => file.map_err(fault(ADDRESS))?,
        };
        match file.try_lock_shared() {
            Ok(()) => return Err(not_running()),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(fault(ADDRESS)(source)),
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(fault(ADDRESS))?;
        // Empty between the claim and the start of the listener.
        let address = text.trim().parse().map_err(|_| not_running())?;
        let token = fs::read_to_string(state_dir.join(TOKEN)).map_err(fault(TOKEN))?;
        Ok(Self { address, token: Token::new(&token) })
    }
}

const ADDRESS: &str = "admin.addr";
const TOKEN: &str = "admin.token";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_while_it_runs_and_not_after() {
        let state = tempfile::tempdir().expect("a folder");
        let absent = || matches!(Whereabouts::of(state.path()), Err(Error::NotRunning(_)));
        assert!(absent(), "never started");
        let token = token(state.path()).expect("a token");
        let mut announced = Announced::claim(state.path()).expect("a free folder");
        assert!(absent(), "not listening yet");
        let address = ([127, 0, 0, 1], 4000).into();
        announced.write(address).expect("writes");
        assert_eq!(Whereabouts::of(state.path()).expect("it runs"), Whereabouts { address, token });
        assert!(matches!(Announced::claim(state.path()), Err(Error::Taken(_))));

        drop(announced);
        assert!(absent(), "stopped");
        // As a kill leaves it.
        fs::write(state.path().join(ADDRESS), "127.0.0.1:4000\n").expect("writes");
        assert!(absent(), "an address that nobody holds is nobody's");
        assert!(Announced::claim(state.path()).is_ok());
    }

    #[test]
    fn a_token_is_shown_to_nobody() {
        let state = tempfile::tempdir().expect("a folder");
        let token = token(state.path()).expect("a token");
        assert!(token.expose().len() >= 32);
        assert!(!format!("{token:?}").contains(token.expose()));
        assert_eq!(Token::new(&format!("{}\n", token.expose())), token);
        assert!(token.is(token.expose()) && !token.is("") && !token.is(&token.expose()[1..]));
    }

    #[test]
    fn other_machines_do_not_reach_it() {
        for address in ["127.0.0.1:0", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
            assert!(require_loopback(address.parse().expect("an address")).is_ok(), "{address}");
        }
        for address in ["0.0.0.0:0", "[::]:9", "192.168.0.1:9"] {
            let refused = require_loopback(address.parse().expect("an address")).expect_err(address);
            assert!(refused.to_string().contains(address), "{refused}");
        }
    }
}
