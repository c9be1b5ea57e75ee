//! What a component may import and must export: the two worlds as lists, and the check.
//!
//! The list is the security boundary of the component. A library that starts to open files or
//! sockets, or a standard library that reads the environment, shows here and not in production.

use std::collections::BTreeSet;

use anyhow::Context as _;
use wit_component::DecodedWasm;

/// One of the two doors: a cargo feature, a file, and the interfaces it may name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct World {
    /// The cargo feature, which is also the world's name.
    pub feature: &'static str,
    /// File name of the component in the target folder.
    pub file: &'static str,
    /// Interfaces it may import; one that needs fewer is welcome.
    imports: &'static [&'static str],
    /// Interfaces it exports, all of them and nothing else.
    exports: &'static [&'static str],
}

/// The interfaces a component names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Surface {
    /// Imported interfaces and functions, sorted.
    pub imports: BTreeSet<String>,
    /// Exported interfaces and functions, sorted.
    pub exports: BTreeSet<String>,
}

/// `wasi:http` for Spin (4.1 and later) and any other WASI 0.3 host.
pub(crate) const SERVICE: World = World {
    feature: "service",
    file: "edgepass.wasm",
    imports: &[
        "spin:key-value/key-value@3.0.0",
        "spin:variables/variables@3.0.0",
        // Nothing is read: the bindings make every future of this type through the first interface
        // that has one.
        "wasi:cli/stdin@0.3.0",
        "wasi:cli/stdout@0.3.0",
        "wasi:cli/types@0.3.0",
        "wasi:clocks/monotonic-clock@0.3.0",
        "wasi:clocks/system-clock@0.3.0",
        "wasi:clocks/types@0.3.0",
        "wasi:http/client@0.3.0",
        "wasi:http/types@0.3.0",
        "wasi:random/random@0.3.0",
    ],
    exports: &["wasi:http/handler@0.3.0"],
};

/// The flat door of the edge node, `wit/node.wit`.
pub(crate) const NODE: World = World {
    feature: "node",
    file: "edgepass-node.wasm",
    imports: &[
        "edgepass:node/outbound@0.1.0",
        "edgepass:node/runtime@0.1.0",
        "edgepass:node/store@0.1.0",
        "edgepass:node/types@0.1.0",
    ],
    exports: &["edgepass:node/service@0.1.0"],
};

/// Both, in the order they are built.
pub(crate) const WORLDS: [&World; 2] = [&SERVICE, &NODE];

/// Lists what a component imports and exports.
///
/// # Errors
/// When `bytes` is not a component.
pub(crate) fn surface(bytes: &[u8]) -> anyhow::Result<Surface> {
    // The decoder also takes a core module, and would find an empty world in it.
    anyhow::ensure!(bytes.starts_with(b"\0asm\x0d\0\x01\0"), "this is not a component in binary form");
    let (resolve, world) = match wit_component::decode(bytes).context("decoding")? {
        DecodedWasm::Component(resolve, world) => (resolve, world),
        DecodedWasm::WitPackage(..) => anyhow::bail!("this is a WIT package, not a component"),
    };
    let world = &resolve.worlds[world];
    Ok(Surface {
        imports: world.imports.keys().map(|key| resolve.name_world_key(key)).collect(),
        exports: world.exports.keys().map(|key| resolve.name_world_key(key)).collect(),
    })
}

impl World {
    /// The world whose exports `surface` has.
    pub(crate) fn of(surface: &Surface) -> Option<&'static Self> {
        WORLDS.into_iter().find(|world| surface.exports.iter().eq(world.exports))
    }

    /// Refuses a surface that imports more than this world allows, or exports anything else.
    ///
    /// # Errors
    /// Names every interface that is too many or missing.
    pub(crate) fn check(&self, surface: &Surface) -> anyhow::Result<()> {
        let foreign = |names: &BTreeSet<String>, allowed: &[&str]| {
            names.iter().filter(|name| !allowed.contains(&name.as_str())).cloned().collect::<Vec<_>>().join(", ")
        };
        let imports = foreign(&surface.imports, self.imports);
        anyhow::ensure!(imports.is_empty(), "world `{}` does not allow these imports: {imports}", self.feature);
        let exports = foreign(&surface.exports, self.exports);
        anyhow::ensure!(exports.is_empty(), "world `{}` does not have these exports: {exports}", self.feature);
        for export in self.exports {
            anyhow::ensure!(surface.exports.contains(*export), "the export {export} is missing");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A component, made from a world written down here, without any code behind it.
    fn component(wit: &str) -> Vec<u8> {
        let mut resolve = wit_parser::Resolve::default();
        let package = resolve.push_str("test.wit", wit).expect("the text is WIT");
        let world = resolve.select_world(&[package], Some("w")).expect("the world is there");
        let mut module = wit_component::dummy_module(&resolve, world, wit_parser::ManglingAndAbi::Standard32);
        wit_component::embed_component_metadata(&mut module, &resolve, world, wit_component::StringEncoding::UTF8)
            .expect("a module takes metadata");
        wit_component::ComponentEncoder::default()
            .module(&module)
            .and_then(|encoder| encoder.validate(true).encode())
            .expect("the module fits its world")
    }

    const NODE_WIT: &str = "
        package edgepass:node@0.1.0;
        interface runtime { now-ms: func() -> u64; }
        interface service { handle: func(); }
        world w { import runtime; export service; }";

    #[test]
    fn a_component_that_keeps_to_its_world_passes() {
        let surface = surface(&component(NODE_WIT)).expect("a component");
        assert_eq!(surface.imports.iter().collect::<Vec<_>>(), ["edgepass:node/runtime@0.1.0"]);
        assert_eq!(World::of(&surface), Some(&NODE));
        NODE.check(&surface).expect("it keeps to its world");
    }

    #[test]
    fn an_import_that_is_not_in_the_world_is_named() {
        let wit = NODE_WIT.replace("world w {", "interface files { open: func(); } world w { import files;");
        let surface = surface(&component(&wit)).expect("a component");
        let error = NODE.check(&surface).expect_err("files are not in the world").to_string();
        assert!(error.contains("edgepass:node/files@0.1.0"), "{error}");
        assert!(!error.contains("runtime"), "{error}");
    }

    #[test]
    fn exports_are_exactly_those_of_the_world() {
        let wit = NODE_WIT.replace("export service;", "export service; export shell: func();");
        let more = surface(&component(&wit)).expect("a component");
        assert_eq!(World::of(&more), None);
        assert!(NODE.check(&more).expect_err("one too many").to_string().contains("shell"));

        let wit = NODE_WIT.replace("export service;", "");
        let fewer = surface(&component(&wit)).expect("a component");
        assert!(NODE.check(&fewer).expect_err("one too few").to_string().contains("service"));
    }

    #[test]
    fn the_worlds_do_not_know_files_sockets_or_the_environment() {
        for world in WORLDS {
            for import in world.imports {
                for forbidden in ["filesystem", "sockets", "environment", "insecure"] {
                    assert!(!import.contains(forbidden), "{import}");
                }
            }
            assert!(world.imports.is_sorted() && world.exports.is_sorted());
        }
    }

    #[test]
    fn a_core_module_is_not_a_component() {
        assert!(surface(b"\0asm\x01\0\0\0").is_err());
    }
}
