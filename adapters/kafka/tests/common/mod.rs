//! What the tests against a real cluster share.
#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "shared by several binaries")]

pub mod suite;

use oncemq_kafka::KafkaBroker;

/// Whether the server is left out by name.
pub fn is_left_out() -> bool {
    let left_out = std::env::var("ONCEMQ_WITHOUT").unwrap_or_default();
    left_out.split(',').any(|name| name == "kafka")
}

pub fn url() -> String {
    std::env::var("ONCEMQ_KAFKA_URL")
        .expect("ONCEMQ_KAFKA_URL is not set; run `scripts/test`, or leave out with ONCEMQ_WITHOUT=kafka")
}

pub fn broker() -> KafkaBroker {
    KafkaBroker::from_url(&url()).unwrap().partitions(1)
}
