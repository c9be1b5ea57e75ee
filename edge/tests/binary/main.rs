//! The program as an operator runs it: what it prints, how it stops, what a kill leaves behind.

#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc)]

mod doctor;
mod durability;
mod front;
mod keygen;
mod operate;
mod proxies;
mod readiness;
mod refusals;
mod replacing;
mod revisions;
mod running;
#[path = "../redis/servers.rs"]
mod servers;
mod status;
mod stopping;
mod stub;
