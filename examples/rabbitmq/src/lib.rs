//! What producer, consumer and ledger share: the order, the tables, the addresses.

pub mod database;
pub mod order;
pub mod outbox;
pub mod settings;

/// An error of any part of the example.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
