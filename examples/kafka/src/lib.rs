//! Where the broker of both programs is, and what a consumer shows of its partitions.

pub mod progress;

use shop_example::{Error, settings};

/// The broker's URL: `ONCEMQ_KAFKA_URL`, or else `BROKER_URL`.
///
/// # Errors
/// Neither is set.
pub fn broker_url() -> Result<String, Error> {
    settings::broker_url("ONCEMQ_KAFKA_URL", "kafka://localhost:9092")
}
