//! The inner cargo: the same pinned toolchain, whatever the outer one was told.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace")
}

/// The folder for everything built: `CARGO_TARGET_DIR`, or `target` of the workspace.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// `program` in the workspace, without what the outer cargo left in the environment: rustup's
/// choice and a compiler named there would override `rust-toolchain.toml`, and flags would make
/// another component.
pub(crate) fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    for (name, _) in env::vars_os() {
        let Some(known) = name.to_str() else { continue };
        let package = known.starts_with("CARGO_PKG_") || known.starts_with("CARGO_BIN_");
        let flags = known.starts_with("CARGO_PROFILE_") || known.starts_with("CARGO_BUILD_");
        if package || flags || INHERITED.contains(&known) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs `command` to its end, with its output going where ours goes.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| anyhow::anyhow!("starting {shown}: {error}"))?;
    anyhow::ensure!(status.success(), "{shown} ended with {status}");
    Ok(())
}

/// What `command` prints, trimmed; `None` when it cannot be started or fails.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

const INHERITED: &[&str] = &[
    "CARGO",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "CARGO_PRIMARY_PACKAGE",
    "CARGO_TARGET_DIR",
    "LD_LIBRARY_PATH",
    "RUSTC",
    "RUSTC_BOOTSTRAP",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOC",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
];
