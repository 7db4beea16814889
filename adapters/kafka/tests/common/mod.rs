//! What the tests against a real cluster share.
#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "shared by several binaries")]

pub mod child;
pub mod copying;
pub mod raw;
pub mod suite;

use oncemq_kafka::KafkaBroker;
use oncemq_test_kit::Server;

pub const KAFKA: Server = Server("kafka");

pub fn broker() -> KafkaBroker {
    with("")
}

/// The cluster, with these options.
pub fn with(options: &str) -> KafkaBroker {
    KafkaBroker::from_url(&format!("{}?{options}", KAFKA.url())).unwrap().partitions(1)
}
