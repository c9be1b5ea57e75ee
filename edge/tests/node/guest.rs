//! The hostile guest, and a store that plays along with it.

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use edgepass_edge::kv::{Backend, Change, Failure};
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

const TEXT: &str = include_str!("guest.wat");

/// The guest as a component.
pub(crate) fn component() -> Vec<u8> {
    encode(&TEXT.replace("$PROBLEMS", "0"))
}

/// The guest under another version, and so another revision.
pub(crate) fn version(version: [char; 5]) -> Vec<u8> {
    encode(&TEXT.replace("$PROBLEMS", "0").replace("1.2.3", &String::from_iter(version)))
}

/// A guest that does this first at every call.
pub(crate) fn that(does: Does) -> Vec<u8> {
    let first = match does {
        Does::Trap => "(unreachable)",
        Does::TrapNowAndThen => "(if (i32.eqz (i32.rem_u (global.get $calls) (i32.const 100))) (then (unreachable)))",
        Does::Spin => "(loop $spin (br $spin))",
        Does::EatMemory => {
            "(loop $eat (br_if $eat (i32.ne (i32.const -1) (memory.grow (i32.const 16))))) (unreachable)"
        }
    };
    encode(&TEXT.replace("$PROBLEMS", "0").replace(";;$FIRST", first))
}

/// What a guest does that should not be served.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Does {
    Trap,
    /// In every hundredth call of an instance.
    TrapNowAndThen,
    Spin,
    EatMemory,
}

/// A guest that finds fault with its settings.
pub(crate) fn with_a_problem() -> Vec<u8> {
    encode(&TEXT.replace("$PROBLEMS", "1").replace("$SETTING", "no_value"))
}

/// A guest that imports what no host has.
pub(crate) fn with_an_import() -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = "package a:b; interface i { f: func(); } interface j { f: func(); }
        world w { import i; import j; export f: func(); }";
    let package = resolve.push_str("world.wit", package).expect("valid WIT");
    let module = r#"(module (import "a:b/i" "f" (func)) (import "a:b/j" "f" (func)) (func (export "f")))"#;
    finish(module, &resolve, package)
}

/// The hostile guest of the other door.
pub(crate) fn http_component() -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("http_guest.wit", include_str!("http_guest.wit")).expect("valid WIT");
    finish(include_str!("http_guest.wat"), &resolve, package)
}

fn encode(text: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path("../wit").expect("the world is readable");
    finish(text, &resolve, package)
}

fn finish(text: &str, resolve: &Resolve, package: wit_parser::PackageId) -> Vec<u8> {
    let mut module = wat::parse_str(text).expect("valid text");
    let world = resolve.select_world(&[package], None).expect("one world");
    embed_component_metadata(&mut module, resolve, world, StringEncoding::UTF8).expect("metadata");
    let mut encoder = ComponentEncoder::default();
    encoder.validate(true).module(&module).expect("a module");
    encoder.encode().expect("a component")
}

/// Answers by key; see `guest.wat`.
pub(crate) struct Accomplice {
    asked: AtomicUsize,
    /// `/slow` waits for a permit.
    pub(crate) go: Semaphore,
    /// One permit for each `/slow` that waits and each `/nap` that begins.
    pub(crate) waiting: Semaphore,
}

impl Accomplice {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { asked: AtomicUsize::new(0), go: Semaphore::new(0), waiting: Semaphore::new(0) })
    }

    /// How often `/once` was asked for.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(SeqCst)
    }
}

impl Backend for Accomplice {
    fn get(&self, keys: Vec<String>) -> BoxFuture<'_, Result<Vec<Option<bytes::Bytes>>, Failure>> {
        Box::pin(async move {
            match keys.first().map(String::as_str) {
                Some("/never") => pending().await,
                Some("/slow") => {
                    self.waiting.add_permits(1);
                    self.go.acquire().await.map_err(|_| Failure::Unavailable)?.forget();
                    Ok(vec![None])
                }
                Some("/nap") => {
                    self.waiting.add_permits(1);
                    Ok(vec![None])
                }
                Some("/once") => {
                    let first = self.asked.fetch_add(1, SeqCst) == 0;
                    Ok(vec![(!first).then(bytes::Bytes::new)])
                }
                _ => Err(Failure::Unavailable),
            }
        })
    }

    fn apply(&self, _: Vec<Change>) -> BoxFuture<'_, Result<Vec<bool>, Failure>> {
        Box::pin(async { Err(Failure::Unavailable) })
    }

    fn scan(&self, _: String, _: Option<String>, _: usize) -> BoxFuture<'_, Result<Vec<String>, Failure>> {
        Box::pin(async { Err(Failure::Unavailable) })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }
}

/// The label of the one store.
pub(crate) fn labels() -> BTreeSet<String> {
    BTreeSet::from(["default".to_owned()])
}
