//! The simulator over real loopback HTTP, each behaviour a module.

mod controls;
mod faults;
mod journal;
mod lifecycle;
mod support;
mod wechat;
