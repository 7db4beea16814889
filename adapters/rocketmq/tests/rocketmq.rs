//! The suite of every broker, and failures that others reported, against a real broker. One
//! binary: linking the client takes longer than running many of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::suite::Suite;
use common::ROCKETMQ;

fn main() {
    let tests = oncemq_core::conformance::trials(Suite::shared());
    ROCKETMQ.main(tests);
}
