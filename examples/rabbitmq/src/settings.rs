//! Where the servers are.

use crate::Error;

/// The topic: an exchange of this name.
pub const TOPIC: &str = "order-completed";

/// The consumer's permanent name: its queue, and its memory of what is done.
pub const CONSUMER: &str = "points-service";

/// The broker's URL: `ONCEMQ_RABBITMQ_URL`, or else `BROKER_URL`.
///
/// # Errors
/// Neither is set.
pub fn broker_url() -> Result<String, Error> {
    first_of("ONCEMQ_RABBITMQ_URL", "BROKER_URL", "amqp://user:password@localhost:5672/%2f")
}

/// The database's URL: `ONCEMQ_POSTGRES_URL`, or else `DATABASE_URL`.
///
/// # Errors
/// Neither is set.
pub fn database_url() -> Result<String, Error> {
    first_of("ONCEMQ_POSTGRES_URL", "DATABASE_URL", "postgres://user:password@localhost:5432/shop")
}

fn first_of(name: &str, other: &str, example: &str) -> Result<String, Error> {
    std::env::var(name)
        .or_else(|_| std::env::var(other))
        .map_err(|_| format!("set {name} or {other}, for instance to {example}").into())
}
