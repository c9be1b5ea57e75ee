//! What each command of the command line does.

pub mod demo;
pub mod doctor;
pub mod keygen;
pub mod logs;
pub mod operate;
pub mod revisions;
pub mod serve;
pub mod sim;
pub mod status;
pub(crate) mod store;
