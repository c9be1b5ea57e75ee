//! The simulator over real loopback HTTP, each behaviour a module.
#![expect(clippy::panic, reason = "the way a test fails")]

mod controls;
mod faults;
mod journal;
mod lifecycle;
mod support;
mod wechat;
