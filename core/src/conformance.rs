//! The suites that adapters and stores must pass.
//!
//! Each case is one named test. A case outside what a broker or store can do is listed as
//! ignored, never as passed.

pub mod source;
pub mod store;

pub use source::{Abilities, Harness, main, trials};
