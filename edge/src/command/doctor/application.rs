//! The manifest, its variables, and the component.

use std::{collections::BTreeSet, fs, num::NonZeroUsize, sync::Arc};

use super::{Report, Subject};
use crate::{
    cli,
    engine::{Capacity, Compiler},
    kv,
    manifest::Manifest,
    metrics::Metrics,
    node,
    outbound::{Policy, Shared},
    pool::Limits,
    revision::{Revision, Surroundings},
    variables::{Resolved, Sources},
};

/// What the manifest asks for; `None` when it cannot be read, which leaves little to look at.
pub(super) fn check(doctor: &cli::Doctor, report: &mut Report) -> Option<Subject> {
    let manifest = match Manifest::read(&doctor.manifest) {
        Ok(manifest) => manifest,
        Err(error) => {
            report.fail("manifest", chain(&error), "correct the line; every key is known, a slip is refused");
            return None;
        }
    };
    report.ok("manifest", format!("{}: component `{}`", doctor.manifest.display(), manifest.component.id));
    let resolved = variables(doctor, &manifest, report);
    let settings = manifest.component.settings.clone();
    let outbound = resolved.as_ref().and_then(|resolved| way_out(resolved, &manifest, report));
    let digest = component(doctor, &manifest, resolved, outbound.clone(), report);
    Some(Subject { settings, digest, outbound })
}

fn variables(doctor: &cli::Doctor, manifest: &Manifest, report: &mut Report) -> Option<Resolved> {
    let sources = match Sources::of_process(&doctor.variable) {
        Ok(sources) => sources,
        Err(error) => {
            report.fail("variables", chain(&error), "give the file's path as this user reads it");
            return None;
        }
    };
    for (name, meant) in sources.slips(manifest) {
        report.warn("variables", format!("{name} is no variable of the manifest"), format!("rename it to {meant}"));
    }
    match sources.resolve(manifest) {
        Ok(resolved) => {
            let names: Vec<_> = resolved.component.iter().filter(|(_, value)| !value.is_empty()).collect();
            let names: Vec<_> = names.into_iter().map(|(name, _)| name).collect();
            report.ok("variables", format!("the component is given {}", names.join(", ")));
            Some(resolved)
        }
        Err(error) => {
            report.fail("variables", chain(&error), "`edgepass keygen` makes keys and tokens");
            None
        }
    }
}

fn way_out(resolved: &Resolved, manifest: &Manifest, report: &mut Report) -> Option<(Vec<String>, Arc<Shared>)> {
    let entries = &resolved.allowed_outbound_hosts;
    let policy = match Policy::parse(entries) {
        Ok(policy) => policy,
        Err(error) => {
            report.fail("outbound", chain(&error), "write scheme://host[:port], without a path");
            return None;
        }
    };
    match Shared::new(policy, manifest.component.settings.outbound()) {
        Ok(shared) => {
            report.ok("outbound", format!("{} destinations are allowed", entries.len()));
            Some((entries.clone(), shared))
        }
        Err(error) => {
            report.fail("outbound", chain(&error), "`ca_roots` names a file of certificates in PEM");
            None
        }
    }
}

fn component(
    doctor: &cli::Doctor,
    manifest: &Manifest,
    resolved: Option<Resolved>,
    outbound: Option<(Vec<String>, Arc<Shared>)>,
    report: &mut Report,
) -> Option<String> {
    let path = doctor.component.as_deref().unwrap_or_else(|| manifest.component.artefact());
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let found = format!("{} cannot be read: {error}", path.display());
            report.fail("component", found, "`cargo xtask component` makes it; a release has it ready");
            return None;
        }
    };
    let (Some(resolved), Some((_, outbound))) = (resolved, outbound) else {
        match Compiler::new(None).and_then(|compiler| compiler.compile(&bytes)) {
            Ok(artefact) => {
                report.ok("component", format!("{} compiles, {}", path.display(), artefact.digest()));
                return Some(artefact.digest().to_string());
            }
            Err(error) => report.fail("component", chain(&error), NO_COMPONENT),
        }
        return None;
    };
    let limits = Limits { max_instances: 1, ..manifest.component.settings.pool() };
    let around = Surroundings {
        variables: Arc::new(resolved.component),
        store_labels: BTreeSet::from_iter(manifest.component.key_value_stores.clone()),
        store: Arc::new(kv::Memory::new()),
        outbound,
        limits,
        metrics: Metrics::default(),
    };
    let capacity = Capacity::for_instances(limits, NonZeroUsize::MIN);
    match node::load(&bytes, None, capacity, around) {
        Ok((_engine, revision)) => {
            report.ok("component", described(path, &revision));
            Some(revision.digest().to_string())
        }
        Err(error) => {
            report.fail("component", chain(&error), NO_COMPONENT);
            None
        }
    }
}

const NO_COMPONENT: &str =
    "a setting it names is yours to correct; for anything else take a component made for this node";

fn described(path: &std::path::Path, revision: &Revision) -> String {
    let digest = revision.digest();
    match revision.description() {
        Some(description) => {
            format!("{}: version {}, commit {}, {digest}", path.display(), description.version, description.commit)
        }
        None => format!("{}: a wasi:http component, which says nothing about its settings; {digest}", path.display()),
    }
}

/// An error with its causes.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
