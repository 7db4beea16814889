//! Kafka adapter of oncemq, on rdkafka.
//!
//! ```no_run
//! # async fn example() -> Result<(), oncemq_core::Error> {
//! use oncemq_core::{Broker, Consumer, Context, Failure, Message};
//! use oncemq_kafka::KafkaBroker;
//!
//! let broker = KafkaBroker::from_url("kafka://localhost:9092")?.partitions(4);
//! let handler = |_cx: Context, _order: Message| async { Ok::<(), Failure>(()) };
//! Consumer::new("points", broker).topic("orders").unguarded(handler).run().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The consumer's name is the group; the topics of rungs have the group `<name>.retry`.
//! Messages of one record key are handled in order, different keys beside each other, also
//! within a partition. What is committed is the lowest unfinished offset; what is finished
//! beyond it stands in the commit's metadata, so that a restart does not run it again.
//!
//! ```text
//! topic orders ─► group points ─► committed offset
//!                    │
//!                    ├─► points.orders.retry.5000ms ─► group points.retry, when its time is over
//!                    └─► points.orders.dead
//! ```
//!
//! Retries and dead letters are copies: they count once all replicas in sync have them, and
//! only then the original is done. A copy keeps body, key and headers with their order, repeats
//! and nulls. A header whose name is not UTF-8 cannot be read by the client and is left out.
//!
//! [`KafkaBroker::pipeline`] reads and writes topics of one cluster in Kafka's transactions.

mod broker;
mod client;
mod config;
mod error;
mod pipeline;
mod publisher;
mod records;
mod settle;
mod source;
mod topology;

pub use broker::KafkaBroker;
pub use config::Start;
pub use pipeline::{Output, Pipeline, PipelineSummary};
