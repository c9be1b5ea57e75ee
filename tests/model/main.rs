//! Sessions and tokens against reference models: several nodes, each a whole [`edgepass::Service`]
//! with its own clock and keys, over one store, with every operation of the store and the platform a
//! point where the test decides what happens next.
//!
//! | module | owns |
//! |---|---|
//! | [`world`] | nodes, store, platform; which waiting operation goes on, and what becomes of it |
//! | [`store`] | a store that remembers every version, and the ways it may fail |
//! | [`client`] | requests as a client makes them, answers as it reads them |
//! | [`exact`] | one request at a time: a reference model that foretells every answer |
//! | [`interleaved`] | requests at once, over faulty stores: a ledger of what was promised |
//!
//! The cases are the same ones each time, so that a change that fails has failed by itself. To look
//! further, `PROPTEST_RNG_SEED` chooses others and `PROPTEST_CASES` how many.

// A test says what is wrong by panicking, and names what it is about in its own name.
#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

mod client;
mod exact;
mod interleaved;
mod store;
mod world;

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

/// A test of `cases` cases, unless the environment says otherwise. What fails is kept beside the
/// source and played first from then on.
fn cases(cases: u32) -> Config {
    let given = Config::default();
    let is_set = |name| std::env::var_os(name).is_some();
    Config {
        cases: if is_set("PROPTEST_CASES") { given.cases } else { cases },
        rng_seed: if is_set("PROPTEST_RNG_SEED") { given.rng_seed } else { RngSeed::Fixed(20_261_130) },
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        max_shrink_iters: 20_000,
        ..given
    }
}
