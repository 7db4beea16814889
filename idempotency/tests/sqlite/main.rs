//! The inbox on SQLite files.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::large_futures,
    reason = "a test program: what goes wrong ends the test"
)]

#[path = "../common/mod.rs"]
mod common;
mod support;

mod basics;
mod broken;
mod decisions;
mod files;
mod handlers;
mod load;
