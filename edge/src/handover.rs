//! Sockets from one process to the next: from systemd, or from the program this one replaces, which
//! both say it in the same way (`LISTEN_FDS`, `sd_listen_fds(3)`).
//!
//! A program makes way by executing the new one in its own process, so that pid, limits, arguments
//! and whoever waits for it stay as they are. Only one process may have the store open, so the old
//! one ends first, and who connects meanwhile waits in the system's queue.

use std::{
    convert::Infallible,
    env,
    ffi::OsString,
    io,
    net::TcpListener,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use command_fds::{CommandFdExt as _, FdMapping};
use listenfd::ListenFd;

use crate::node::Sockets;

/// The program that runs, as it was started. Made early: once a file is replaced the system does not
/// say any more where it was.
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// Why the program there is now does not get its turn.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be run.
    #[error("running {}", path.display())]
    Run {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It says that it would not start.
    #[error("{} would not start: {said}", path.display())]
    Refused {
        /// Where it is.
        path: PathBuf,
        /// Its last line.
        said: String,
    },
    /// Somebody did not want to wait for what it says.
    #[error("the check of {} was broken off", path.display())]
    BrokenOff {
        /// Where it is.
        path: PathBuf,
    },
    /// It says nothing.
    #[error("{} did not say within {} s whether it would start", path.display(), CHECK_TIME.as_secs())]
    Late {
        /// Where it is.
        path: PathBuf,
    },
}

impl Program {
    /// This one.
    ///
    /// # Errors
    /// When the system does not say where it is.
    pub fn current() -> io::Result<Self> {
        Ok(Self { path: env::current_exe()?, arguments: env::args_os().skip(1).collect() })
    }

    /// Asks the program that is there now whether it would start. It compiles the component on the
    /// way, so that its start is short. `wait` lets that time pass, and says whether the check is to be
    /// broken off.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn check(&self, mut wait: impl FnMut(Duration) -> bool) -> Result<(), Error> {
        let run = |source| Error::Run { path: self.path.clone(), source };
        let mut child = Command::new(&self.path)
            .args(&self.arguments)
            .arg("--check")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(run)?;
        let mut stderr = child.stderr.take();
        // Read beside, so that it never waits for room to say why.
        let said = thread::spawn(move || stderr.as_mut().map(io::read_to_string));
        let end = Instant::now() + CHECK_TIME;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(run)? {
                break status;
            }
            let path = self.path.clone();
            let error = match wait(LOOK) {
                true => Error::BrokenOff { path },
                false if Instant::now() >= end => Error::Late { path },
                false => continue,
            };
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        };
        if status.success() {
            return Ok(());
        }
        let said = said.join().ok().flatten().and_then(Result::ok).unwrap_or_default();
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it gave no reason");
        Err(Error::Refused { path: self.path.clone(), said: last.trim().to_owned() })
    }

    /// Runs it in this process, with `sockets`. Returns only when that fails.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn execute(&self, sockets: Sockets) -> io::Result<Infallible> {
        let named = [("public", sockets.public), ("admin", sockets.admin)];
        let named = named.into_iter().filter_map(|(name, socket)| Some((name, OwnedFd::from(socket?))));
        let (names, descriptors): (Vec<&str>, Vec<OwnedFd>) = named.unzip();
        let mut command = Command::new(&self.path);
        command
            .args(&self.arguments)
            .env(LISTEN_FDS, names.len().to_string())
            .env("LISTEN_PID", std::process::id().to_string())
            .env(LISTEN_FDNAMES, names.join(":"));
        let mappings =
            descriptors.into_iter().zip(FIRST..).map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
        command.fd_mappings(mappings.collect()).map_err(io::Error::other)?;
        Err(command.exec())
    }
}

/// What this process was handed, if it was. Call once, before there are threads: what says so is taken
/// out of the environment, for it is not for children.
///
/// # Errors
/// When one of them is no TCP socket that listens.
pub fn inherited() -> io::Result<Sockets> {
    let names = env::var(LISTEN_FDNAMES).unwrap_or_default();
    let mut names = names.split(':');
    let mut handed = ListenFd::from_env();
    let mut sockets = Sockets::default();
    for index in 0..handed.len() {
        let name = names.next().unwrap_or_default();
        let socket: Option<TcpListener> = handed.take_tcp_listener(index)?;
        let place = if name == "admin" { &mut sockets.admin } else { &mut sockets.public };
        if place.is_some() {
            tracing::warn!(name, "a second socket of this kind is left alone");
        } else {
            *place = socket;
        }
    }
    Ok(sockets)
}

const LISTEN_FDS: &str = "LISTEN_FDS";
const LISTEN_FDNAMES: &str = "LISTEN_FDNAMES";
/// `SD_LISTEN_FDS_START`.
const FIRST: i32 = 3;
/// Compiling a component takes seconds, on a busy machine many.
const CHECK_TIME: Duration = Duration::from_mins(3);
const LOOK: Duration = Duration::from_millis(20);
