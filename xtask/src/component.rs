//! One component per world: build the module, wrap it, check it, write it down.

use std::{
    env, fs, iter,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};
use wit_component::ComponentEncoder;

use crate::{
    cargo, names, provenance,
    toolchain::{self, TARGET, Toolchain},
    world::{self, WORLDS, World},
};

/// The largest component taken, in bytes: what a host loads, compiles and keeps per revision.
const MAX_COMPONENT_BYTES: usize = 700 * 1024;

/// A component on disk.
pub(crate) struct Artefact {
    /// Where it is.
    pub path: PathBuf,
}

/// One per world, in the order of [`WORLDS`].
pub(crate) type Artefacts = Vec<Artefact>;

/// Builds both components in `target_dir` and writes them to `out_dir`.
///
/// # Errors
/// When the build fails, or a component is too large or not of its world.
pub(crate) fn build(toolchain: &Toolchain, target_dir: &Path, out_dir: &Path) -> anyhow::Result<Artefacts> {
    fs::create_dir_all(out_dir).with_context(|| format!("making {}", out_dir.display()))?;
    WORLDS.into_iter().map(|world| build_one(world, toolchain, target_dir, out_dir)).collect()
}

/// Lints both doors on the wasm target; says so when the target cannot be had.
///
/// # Errors
/// When clippy finds something.
pub(crate) fn lint() -> anyhow::Result<()> {
    // Debian's compiler has no clippy beside it, so the pinned toolchain is the only way here.
    let toolchain = match toolchain::pinned() {
        Ok(toolchain) => toolchain,
        Err(error) => {
            println!("lint-wasm skipped: {TARGET} is not obtainable for the pinned toolchain ({error:#})");
            return Ok(());
        }
    };
    for world in WORLDS {
        println!("clippy: {TARGET}, feature {}", world.feature);
        let mut clippy = toolchain.cargo(&[]);
        clippy.args(["clippy", "--quiet", "--lib", "--target", TARGET, "--features", world.feature]);
        clippy.arg("--target-dir").arg(cargo::target_dir()).args(["--", "-D", "warnings"]);
        cargo::run(&mut clippy)?;
    }
    Ok(())
}

fn build_one(world: &World, toolchain: &Toolchain, target_dir: &Path, out_dir: &Path) -> anyhow::Result<Artefact> {
    let build_dir = toolchain.build_dir(target_dir);
    let provenance = provenance::read();
    let mut rustc = toolchain.cargo(&without_machine_paths());
    rustc
        .args(["rustc", "--lib", "--crate-type", "cdylib", "--profile", PROFILE, "--target", TARGET])
        .args(["--locked", "--features", world.feature])
        .args(toolchain.arguments())
        .arg("--target-dir")
        .arg(&build_dir)
        .env("EDGEPASS_COMMIT", provenance.commit)
        .env("EDGEPASS_COMMIT_TIME", provenance.time);
    cargo::run(&mut rustc).with_context(|| format!("building feature {}", world.feature))?;

    // Both features write this file; it is read before the other build replaces it.
    let module = build_dir.join(TARGET).join(PROFILE).join("edgepass.wasm");
    let module = fs::read(&module).with_context(|| format!("reading {}", module.display()))?;
    let component =
        componentize(&names::shorten(&module)?).with_context(|| format!("making {} a component", world.file))?;
    let surface = world::surface(&component)?;
    world.check(&surface)?;
    anyhow::ensure!(
        component.len() <= MAX_COMPONENT_BYTES,
        "{} has {} bytes; at most {MAX_COMPONENT_BYTES} are taken",
        world.file,
        component.len(),
    );

    let path = out_dir.join(world.file);
    replace(&path, &component)?;
    println!(
        "{} {} bytes sha256:{} toolchain={} imports={}",
        shown(&path),
        component.len(),
        hex(&Sha256::digest(&component)),
        toolchain.name(),
        surface.imports.len(),
    );
    Ok(Artefact { path })
}

fn componentize(module: &[u8]) -> anyhow::Result<Vec<u8>> {
    ComponentEncoder::default().validate(true).module(module)?.encode()
}

/// Compiler flags that keep this machine's folders out of panic messages and names.
fn without_machine_paths() -> Vec<String> {
    let cargo_home =
        env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    let registry = cargo_home.as_ref().and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    // The compiler takes the last that matches, so the narrower come later. A registry's folder is
    // named after its index: a mirror has another name for the same crates.
    iter::once((cargo::root().to_owned(), "/edgepass"))
        .chain(cargo_home.map(|home| (home, "/cargo")))
        .chain(registry.into_iter().flatten().flatten().map(|index| (index.path(), "/cargo")))
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .collect()
}

/// Writes beside and renames, so that a node that watches the file never reads half of it; an
/// equal file is left alone.
fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let beside = path.with_extension("wasm.new");
    fs::write(&beside, bytes).with_context(|| format!("writing {}", beside.display()))?;
    fs::rename(&beside, path).with_context(|| format!("writing {}", path.display()))
}

fn shown(path: &Path) -> String {
    path.strip_prefix(cargo::root()).unwrap_or(path).display().to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// The profile in the root manifest.
const PROFILE: &str = "component";
