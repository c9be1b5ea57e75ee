//! The names of our functions, as the backtrace of a trap shows them: demangled and short. As the
//! linker leaves them, names are a sixth of a component, one of them 2,900 characters long; and
//! what is ours tells where a trap was.

use wasm_encoder::{NameMap, NameSection, RawSection};
use wasmparser::{BinaryReader, KnownCustom, Name, Parser, Payload};

/// As much of a name as is kept: its end, where the method is.
const MAX_NAME_CHARS: usize = 32;

/// The same module with short names for our functions, and none for anything else.
///
/// # Errors
/// When `module` is no core module.
pub(crate) fn shorten(module: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut shortened = wasm_encoder::Module::new();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload?;
        match &payload {
            Payload::CustomSection(section) if matches!(section.as_known(), KnownCustom::Name(_)) => {
                shortened.section(&functions(section.data_reader())?);
            }
            payload => {
                if let Some((id, range)) = payload.as_section() {
                    let range = usize::try_from(range.start)?..usize::try_from(range.end)?;
                    shortened.section(&RawSection { id, data: &module[range] });
                }
            }
        }
    }
    Ok(shortened.finish())
}

fn functions(names: BinaryReader<'_>) -> anyhow::Result<NameSection> {
    let mut short = NameMap::new();
    for subsection in wasmparser::NameSectionReader::new(names) {
        if let Name::Function(functions) = subsection? {
            for naming in functions {
                let naming = naming?;
                if let Some(name) = ours(naming.name) {
                    short.append(naming.index, &name);
                }
            }
        }
    }
    let mut section = NameSection::new();
    section.functions(&short);
    Ok(section)
}

fn ours(mangled: &str) -> Option<String> {
    let name = format!("{:#}", rustc_demangle::demangle(mangled));
    if !name.contains("edgepass::") {
        return None;
    }
    Some(match name.char_indices().nth_back(MAX_NAME_CHARS - 1) {
        Some((cut, _)) if cut > 0 => format!("..{}", &name[cut..]),
        _ => name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_ours_is_demangled_and_its_end_is_kept() {
        let mangled = "_ZN8edgepass5login18Login$LT$S$C$P$GT$6log_in28_$u7b$$u7b$closure$u7d$$u7d$17h2b8cc15baec870e7E";
        assert_eq!(ours(mangled).as_deref(), Some("..:Login<S,P>::log_in::{{closure}}"));
        assert_eq!(ours("_ZN8edgepass4json4read17h0123456789abcdefE").as_deref(), Some("edgepass::json::read"));
        assert_eq!(ours("_ZN4core3fmt5write17h0123456789abcdefE"), None);
        assert_eq!(ours("memcpy"), None);
    }

    #[test]
    fn nothing_but_names_changes() {
        // (module (func (export "f"))) with the function named as the linker would.
        let mut module = wasm_encoder::Module::new();
        let mut types = wasm_encoder::TypeSection::new();
        types.ty().function([], []);
        let mut declared = wasm_encoder::FunctionSection::new();
        declared.function(0);
        let mut exports = wasm_encoder::ExportSection::new();
        exports.export("f", wasm_encoder::ExportKind::Func, 0);
        let mut code = wasm_encoder::CodeSection::new();
        let mut body = wasm_encoder::Function::new([]);
        body.instructions().end();
        code.function(&body);
        module.section(&types).section(&declared).section(&exports).section(&code);
        let unnamed = module.clone().finish();
        let mut names = NameMap::new();
        names.append(0, "_ZN8edgepass4json4read17h0123456789abcdefE");
        let mut section = NameSection::new();
        section.functions(&names);
        module.section(&section);
        let shortened = shorten(&module.finish()).expect("a module");
        assert_eq!(shortened[..unnamed.len()], unnamed);
        assert!(shortened.ends_with(b"edgepass::json::read"));
    }
}
