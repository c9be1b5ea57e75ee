//! Where the standard library of `wasm32-unknown-unknown` comes from.
//!
//! Three ways, in this order: the pinned toolchain already has it; rustup fetches it; Debian's
//! packages have a compiler, the library's source and a linker, and cargo builds the library.
//! The last needs no access to the toolchain server.

use std::{
    fmt,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use anyhow::Context as _;

use crate::cargo;

/// The target of both components: no operating system, so nothing is imported that no world names.
pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

/// What the caller asks for.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(crate) enum Way {
    /// The first that works: installed, rustup, Debian
    #[default]
    Auto,
    /// The pinned toolchain, with `rustup target add` when it lacks the target
    Rustup,
    /// Debian's rustc-web, rust-web-src and lld-22
    Debian,
}

/// A way that works here.
#[derive(Debug)]
pub(crate) enum Toolchain {
    /// The pinned toolchain's own library.
    Pinned {
        /// Whether rustup has just fetched it.
        added: bool,
    },
    /// Debian's compiler, and the library built from source.
    Debian {
        /// Folder of the library's source, for taking it out of the artefact.
        source: PathBuf,
    },
}

/// Finds the way to take, and prepares it.
///
/// # Errors
/// When nothing works; the message says what to run.
pub(crate) fn find(way: Way) -> anyhow::Result<Toolchain> {
    match way {
        Way::Rustup => pinned(),
        Way::Debian => debian(),
        Way::Auto => pinned().or_else(|rustup| {
            eprintln!("the pinned toolchain cannot have {TARGET} ({rustup:#}); trying Debian's packages");
            debian().with_context(|| format!("no way to build for {TARGET}: {rustup:#}"))
        }),
    }
}

/// The pinned toolchain, completed by rustup when it lacks the target.
///
/// # Errors
/// When it lacks the target and rustup cannot fetch it.
pub(crate) fn pinned() -> anyhow::Result<Toolchain> {
    if has_target() {
        return Ok(Toolchain::Pinned { added: false });
    }
    let channel = channel()?;
    println!("fetching {TARGET} for {channel} with rustup, for at most {} s", RUSTUP_LIMIT.as_secs());
    let mut add = cargo::clean("rustup");
    add.args(["target", "add", TARGET, "--toolchain", &channel]);
    run_for(&mut add, RUSTUP_LIMIT)?;
    anyhow::ensure!(has_target(), "rustup added {TARGET}, yet the toolchain in use does not have it");
    Ok(Toolchain::Pinned { added: true })
}

impl Toolchain {
    /// `cargo` as this way needs it, with `flags` for the compiler of the target.
    pub(crate) fn cargo(&self, flags: &[String]) -> Command {
        let mut command = cargo::clean("cargo");
        let mut flags = flags.to_vec();
        if let Self::Debian { source } = self {
            flags.push(format!("--remap-path-prefix={}=/rust", source.display()));
            command
                .env("RUSTC", DEBIAN_RUSTC)
                // The compiler is a stable one; building the library is what needs the permission.
                .env("RUSTC_BOOTSTRAP", "1")
                .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", DEBIAN_LINKER);
        }
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        command
    }

    /// Arguments of `cargo rustc` that this way adds.
    pub(crate) fn arguments(&self) -> &'static [&'static str] {
        match self {
            Self::Pinned { .. } => &[],
            Self::Debian { .. } => &["-Zbuild-std=std,panic_abort"],
        }
    }

    /// One word for it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Pinned { .. } => "rustup",
            Self::Debian { .. } => "debian",
        }
    }

    /// Where cargo builds: compilers do not share a folder.
    pub(crate) fn build_dir(&self, target_dir: &Path) -> PathBuf {
        match self {
            Self::Pinned { .. } => target_dir.to_owned(),
            Self::Debian { .. } => target_dir.join("debian"),
        }
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pinned { added: false } => "rustup (installed)",
            Self::Pinned { added: true } => "rustup (just added)",
            Self::Debian { .. } => "debian (rustc-web, library built from source)",
        })
    }
}

/// Whether the toolchain cargo uses here has the target's library.
fn has_target() -> bool {
    let mut ask = cargo::clean("rustc");
    ask.args(["--print", "target-libdir", "--target", TARGET]).stderr(Stdio::null());
    let Some(folder) = cargo::output(&mut ask) else {
        return false;
    };
    let Ok(files) = std::fs::read_dir(folder) else {
        return false;
    };
    files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
}

/// The channel in `rust-toolchain.toml`.
fn channel() -> anyhow::Result<String> {
    let text =
        std::fs::read_to_string(cargo::root().join("rust-toolchain.toml")).context("reading rust-toolchain.toml")?;
    let quoted = text.lines().find_map(|line| line.strip_prefix("channel = "));
    Ok(quoted.context("rust-toolchain.toml names no channel")?.trim_matches('"').to_owned())
}

/// Runs `command` and kills it after `limit`: rustup without a network retries for minutes.
fn run_for(command: &mut Command, limit: Duration) -> anyhow::Result<()> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let mut child = command.stderr(Stdio::piped()).spawn().with_context(|| format!("starting {shown}"))?;
    let mut stderr = child.stderr.take().expect("stderr is piped");
    let (ended, end) = mpsc::channel();
    // The end of its output is the end of the child, and unlike `wait` it can be waited for with a limit.
    std::thread::spawn(move || {
        let mut said = String::new();
        let _ = stderr.read_to_string(&mut said);
        let _ = ended.send(said);
    });
    let said = end.recv_timeout(limit);
    if said.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().with_context(|| format!("waiting for {shown}"))?;
    match said {
        Ok(_) if status.success() => Ok(()),
        Ok(said) => anyhow::bail!("{shown}: {}", said.lines().last().unwrap_or("failed and said nothing")),
        Err(_) => anyhow::bail!("{shown} did not end within {} s", limit.as_secs()),
    }
}

/// Debian's packages, installed when we may.
fn debian() -> anyhow::Result<Toolchain> {
    if let Some(toolchain) = debian_installed() {
        return Ok(toolchain);
    }
    let install = format!("apt-get install -y --no-install-recommends {}", DEBIAN_PACKAGES.join(" "));
    let user = cargo::output(Command::new("id").arg("-u"));
    anyhow::ensure!(
        user.as_deref() == Some("0"),
        "packages are missing; run this, then try again:\n    sudo {install}"
    );
    println!("installing: {}", DEBIAN_PACKAGES.join(" "));
    let failed = || format!("Debian's packages could not be installed; try it by hand:\n    {install}");
    apt_get(&["update", "-q"]).with_context(failed)?;
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends"];
    arguments.extend(DEBIAN_PACKAGES);
    apt_get(&arguments).with_context(failed)?;
    debian_installed().with_context(failed)
}

fn debian_installed() -> Option<Toolchain> {
    let rustc = Path::new(DEBIAN_RUSTC);
    if !rustc.exists() || !Path::new(DEBIAN_LINKER).exists() {
        return None;
    }
    let sysroot = cargo::output(cargo::clean(rustc).args(["--print", "sysroot"]))?;
    let source = Path::new(&sysroot).join("lib/rustlib/src/rust");
    source.join("library/std/Cargo.toml").exists().then_some(Toolchain::Debian { source })
}

fn apt_get(arguments: &[&str]) -> anyhow::Result<()> {
    cargo::run(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Long enough for 20 MB over a slow line, short enough to go on without it.
const RUSTUP_LIMIT: Duration = Duration::from_mins(2);
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "rust-web-src", "lld-22"];
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_LINKER: &str = "/usr/lib/llvm-22/bin/wasm-ld";
