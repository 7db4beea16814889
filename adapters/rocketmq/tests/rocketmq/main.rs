//! The suite of every broker, and failures that others reported, against a real broker. One
//! binary: linking the client takes longer than running many of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cases;
#[path = "../common/mod.rs"]
mod common;
mod foreign;
mod group;
mod operator;
mod publisher;
mod start;
#[cfg(feature = "tls")]
mod tls;
mod transactions;

use common::ROCKETMQ;
use common::suite::Suite;

fn main() {
    let mut tests = oncemq_core::conformance::trials(Suite::shared());
    tests.extend(cases::tests());
    tests.extend(foreign::tests());
    tests.extend(group::tests());
    tests.extend(operator::tests());
    tests.extend(publisher::tests());
    #[cfg(feature = "tls")]
    tests.extend(tls::tests());
    tests.extend(start::tests());
    tests.extend(transactions::tests());
    ROCKETMQ.main(tests);
}
