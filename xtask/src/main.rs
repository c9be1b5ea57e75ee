//! Makes the component: finds a toolchain for the wasm target, builds both doors, turns them into
//! components, and refuses one that imports or exports anything else than its world.
//!
//! `cargo xtask component` is the build command of `spin.toml` and of the Makefile.

// A build tool speaks on its standard streams.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod cargo;
mod component;
#[cfg(test)]
mod manifest;
mod names;
mod provenance;
mod toolchain;
mod world;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::{component::Artefacts, toolchain::Way, world::World};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Builds and checks the component", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build target/edgepass.wasm (world `service`) and target/edgepass-node.wasm (world `node`)
    Component {
        /// Where the standard library of wasm32-unknown-unknown comes from
        #[arg(long, value_enum, default_value_t)]
        toolchain: Way,
        /// Folder for the two components instead of the target folder
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Build everything a second time from nothing and compare the bytes
        #[arg(long)]
        check_reproducible: bool,
    },
    /// List what a component imports and exports, and check it against its world
    Imports {
        /// A component in binary form
        file: PathBuf,
    },
    /// Run clippy on the wasm target, once per door, with warnings denied
    LintWasm,
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        // Not returned from here: with RUST_BACKTRACE set, `Debug` would bury it under a backtrace.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Component { toolchain, out, check_reproducible } => {
            let toolchain = toolchain::find(toolchain)?;
            println!("wasm target: {toolchain}");
            let target_dir = cargo::target_dir();
            let out = out.map_or_else(|| target_dir.clone(), |out| cargo::root().join(out));
            let artefacts = component::build(&toolchain, &target_dir, &out)?;
            if check_reproducible {
                check_reproducible_from(&artefacts, &toolchain, &target_dir)?;
            }
            Ok(())
        }
        Task::Imports { file } => list_imports(&file),
        Task::LintWasm => component::lint(),
    }
}

fn check_reproducible_from(
    first: &Artefacts,
    toolchain: &toolchain::Toolchain,
    target_dir: &Path,
) -> anyhow::Result<()> {
    println!("building once more in another folder");
    // Another target folder and not a second run in the same one, which cargo would skip.
    let again = target_dir.join("reproduce");
    if again.exists() {
        std::fs::remove_dir_all(&again).with_context(|| format!("removing {}", again.display()))?;
    }
    let second = component::build(toolchain, &again, &again)?;
    for (first, second) in first.iter().zip(&second) {
        anyhow::ensure!(
            std::fs::read(&first.path)? == std::fs::read(&second.path)?,
            "two builds differ: {} and {} (kept for comparison)",
            first.path.display(),
            second.path.display(),
        );
    }
    std::fs::remove_dir_all(&again).with_context(|| format!("removing {}", again.display()))?;
    println!("reproducible: both builds gave the same bytes");
    Ok(())
}

fn list_imports(file: &Path) -> anyhow::Result<()> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let surface = world::surface(&bytes).with_context(|| format!("reading {} as a component", file.display()))?;
    for import in &surface.imports {
        println!("import {import}");
    }
    for export in &surface.exports {
        println!("export {export}");
    }
    let world = World::of(&surface).context("the exports are those of neither world")?;
    world.check(&surface)?;
    println!("ok: world `{}`, {} imports", world.feature, surface.imports.len());
    Ok(())
}
