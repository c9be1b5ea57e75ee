//! Which revisions of a component there are, which of them serves, and how one takes another's place.

pub mod counts;
pub mod journal;
pub mod rule;
pub mod shelf;
pub mod signature;
pub mod verdict;
pub mod watch;

pub use self::{
    counts::{Counts, Outcome, Recent, Tally},
    journal::Journal,
    rule::{Rule, Share},
    shelf::{Shelf, State},
    signature::UploadKeys,
    verdict::{Thresholds, Trial, Verdict},
    watch::Watch,
};

/// The longest component that is taken, in bytes.
pub const MAX_COMPONENT_BYTES: usize = 32 << 20;
