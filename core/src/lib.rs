//! Broker-neutral types, traits and the runtime of oncemq.
//!
//! Applications depend on `oncemq`, which brings adapters and stores behind features.
//! This package is what authors of adapters and stores depend on: it knows no broker and no
//! database.
//!
//! - [`Message`], [`Delivery`], [`Ack`]: what a broker hands out and what becomes of it.
//! - [`Broker`], [`Source`], [`Publisher`]: what an adapter implements.
//! - [`Record`] and [`Unit`]: what a store implements.
//! - [`Consumer`]: puts them together and runs a [`Handler`].
//! - [`fate`]: the one table that decides about messages and records.
//! - [`Watermark`] and [`partitions`]: what the sources of log brokers have in common.

mod ack;
mod broker;
#[cfg(feature = "conformance")]
pub mod conformance;
mod consumer;
mod decision;
mod delivery;
mod error;
#[cfg(feature = "failpoints")]
pub mod failpoint;
mod failure;
pub mod fate;
mod handler;
mod health;
mod key;
mod message;
pub mod partitions;
pub mod plan;
mod publisher;
mod record;
mod retry;
mod route;
mod runtime;
#[cfg(feature = "sim")]
pub mod sim;
mod source;
mod timer;
mod trail;
pub mod url;
mod watermark;

pub use ack::{Ack, Reject, Retry};
pub use broker::{Broker, Capabilities, ConsumerSpec, Ordering, Subscription, Topology};
pub use consumer::{Consumer, Shutdown, TopicBuilder};
pub use decision::Decision;
pub use delivery::{Delivery, Facts, Settle, Token};
pub use error::{Error, ErrorKind};
pub use failure::{Class, Classify, Failure};
pub use fate::MissingKey;
pub use handler::{Codec, Context, Handler, Json};
pub use health::Health;
pub use key::{Key, KeyTag, KeyValue};
pub use message::{Headers, Message, Origin, Parts};
pub use plan::Plan;
pub use publisher::Publisher;
pub use record::{Claim, Ending, Entry, Failed, Marks, Note, Record, RecordFacts, Unit, Verdict};
pub use retry::{End, RetryPolicy};
pub use route::Guarded;
#[doc(hidden)]
pub use route::{Route, Runner};
pub use runtime::{Guard, Summary};
#[doc(hidden)]
pub use runtime::{Job, Outcome, TopicEnv};
pub use source::{Event, Scope, Source};
pub use timer::Timer;
pub use trail::{Identity, Trail, TrailId, header};
pub use watermark::Watermark;

/// A named place where a test can kill, stall or crash the process. Nothing without the
/// feature `failpoints` of `oncemq-core`.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::__failpoint!($name)
    };
}

#[cfg(feature = "failpoints")]
#[doc(hidden)]
#[macro_export]
macro_rules! __failpoint {
    ($name:literal) => {
        $crate::failpoint::reach($name).await
    };
}

#[cfg(not(feature = "failpoints"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __failpoint {
    ($name:literal) => {};
}
