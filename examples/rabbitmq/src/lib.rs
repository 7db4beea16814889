//! Where the broker of both programs is.

use shop_example::{Error, settings};

/// The broker's URL: `ONCEMQ_RABBITMQ_URL`, or else `BROKER_URL`.
///
/// # Errors
/// Neither is set.
pub fn broker_url() -> Result<String, Error> {
    settings::broker_url("ONCEMQ_RABBITMQ_URL", "amqp://user:password@localhost:5672/%2f")
}
