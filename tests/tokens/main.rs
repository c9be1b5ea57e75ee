//! Access tokens against the outside: published test vectors, and the known attacks on JWTs.

// A test says what is wrong by panicking, and names what it is about in its own name.
// One says that it was skipped.
#![allow(clippy::unwrap_used, clippy::panic, clippy::missing_panics_doc, clippy::print_stderr)]

mod support;

mod attacks;
mod jose;
mod published;
mod rotation;
mod wycheproof;
