//! RocketMQ adapter of oncemq, on rocketmq-client-rust.
//!
//! ```no_run
//! # async fn example() -> Result<(), oncemq_core::Error> {
//! use oncemq_core::{Broker, Consumer, Context, Failure, Message};
//! use oncemq_rocketmq::RocketmqBroker;
//!
//! let broker = RocketmqBroker::from_url("rocketmq://localhost:9876")?.queues(4);
//! let handler = |_cx: Context, _order: Message| async { Ok::<(), Failure>(()) };
//! Consumer::new("points", broker).topic("orders").unguarded(handler).run().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The consumer's name is the group. Messages of one message group are handled in order,
//! different groups beside each other, also within a queue. What is committed is the lowest
//! unfinished offset.
//!
//! ```text
//! topic orders ─► group points ─► committed offset
//!                    │
//!                    ├─► %RETRY%points, at the delay level of the rung ─► group points
//!                    └─► %DLQ%points
//! ```
//!
//! A retry is the broker's own: a message is sent back with the delay level that is at least as
//! long as the rung, and keeps its `UNIQ_KEY` and everything else; the broker counts. Dead letters
//! are copies with the facts of the failure, confirmed before the original is done, and found by
//! the broker's tools by key and `UNIQ_KEY`.
//!
//! A message is sent as RocketMQ's tools and other clients know it:
//!
//! | here | there |
//! |---|---|
//! | key | the message group (`__SHARDINGKEY`); one group is in one queue |
//! | id | `UNIQ_KEY`; made if there is none |
//! | headers `KEYS` and `TAGS` | keys, separated by spaces, and the tag |
//! | headers `DELAY` (a level), `TIMER_DELAY_SEC`, `TIMER_DELAY_MS`, `TIMER_DELIVER_MS` | a delay, or a time; a level beyond the last is the last, a time beyond the broker's `timerMaxDelaySec` (3 days) is refused as too large |
//! | other headers | properties |
//!
//! Properties are text: a value that is empty, is no text or has a character that the protocol
//! uses itself is sent as `=b64=` and base64, and read back. The broker's own properties cannot be
//! set and are not shown. A header of one name is there once; there are no tombstones. Bodies that
//! another producer compressed with zlib, Zstandard or LZ4 are read.
//!
//! The client says much through `tracing`, in targets that begin with `rocketmq`: an application
//! that collects events filters them.

#![recursion_limit = "256"]

mod broker;
mod client;
mod cluster;
mod config;
mod error;
mod publisher;
mod records;
mod settle;
mod source;
mod topology;
mod transactions;

pub use broker::RocketmqBroker;
pub use config::Start;
pub use transactions::{Half, TransactionError, TransactionId, TransactionalPublisher};
