//! What the tests of every adapter share: how they are run, named and left out, a consumer at
//! work, a source without the runtime, what a topic has, a stop in an outage, and servers of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(missing_docs, missing_debug_implementations, reason = "read where it is used, and by tests only")]

mod bare;
mod instance;
mod reading;
mod running;
mod stopping;
mod tests;

pub use bare::Bare;
pub use instance::Instance;
pub use reading::read_all;
pub use running::{Log, Running, logging, until};
pub use stopping::stop_while_paused;
pub use tests::{Server, is_long, main, millis, secs, test, test_within, unique};
