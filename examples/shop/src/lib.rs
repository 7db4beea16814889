//! The shop and its points service, whatever the broker is: the order, the tables, the handler,
//! and what producer and ledger do. `examples/rabbitmq` and `examples/kafka` make programs of it.

pub mod database;
pub mod ledger;
pub mod order;
pub mod outbox;
pub mod points;
pub mod producer;
pub mod settings;

/// An error of any part of the examples.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
