//! Names, and where the servers are.

use crate::Error;

/// The topic: an exchange or a topic of this name.
pub const TOPIC: &str = "order-completed";

/// The consumer's permanent name: its queue or group, and its memory of what is done.
pub const CONSUMER: &str = "points-service";

/// The URL of a broker: of this variable, or else `BROKER_URL`.
///
/// # Errors
/// Neither is set; names both, and the example.
pub fn broker_url(name: &str, example: &str) -> Result<String, Error> {
    first_of(name, "BROKER_URL", example)
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
