//! Record stores of oncemq: what is done is remembered in the database that the effect goes
//! to, in the same transaction.
//!
//! [`Inbox`] guards handlers of a consumer with [`Inbox::handler`] and any other code with
//! [`Inbox::once`]. [`Decisions`] remembers how local transactions ended, for brokers that
//! keep a message back until they know. One feature a database: `sqlite`, `postgres`; none is a default.
#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    allow(dead_code, unused_macros, reason = "what the stores share is used by them alone")
)]

mod acquire;
mod builder;
mod decisions;
mod dialect;
mod error;
mod execute;
mod flow;
mod inbox;
mod key_bytes;
mod lane;
mod names;
mod notes;
mod once;
mod purge;
mod savepoint;
mod schema;
mod slot;
mod sql_text;
mod tx;
mod unit;

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use builder::{Builder, Purge};
pub use decisions::{Decisions, DecisionsBuilder, LocalTransaction};
#[doc(hidden)]
pub use dialect::Dialect;
pub use inbox::Inbox;
pub use once::{First, Once};
pub use savepoint::Savepoint;
#[doc(hidden)]
pub use tx::Db;
pub use tx::{Conn, Tx};
#[doc(hidden)]
pub use unit::InboxUnit;
