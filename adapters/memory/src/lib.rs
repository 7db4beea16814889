//! An in-process broker for oncemq.
//!
//! Handlers, keys, ladders and stores can be tried and tested without a server: the messages
//! live in this process and end with it, while a database stays real.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), oncemq_core::Error> {
//! use oncemq_core::{Broker, Consumer, Context, Failure, Message, Shutdown};
//! use oncemq_memory::MemoryBroker;
//!
//! let broker = MemoryBroker::queue();
//! let stop = Shutdown::new();
//! let consumer = Consumer::new("points", broker.clone()).topic("orders").unguarded({
//!     let stop = stop.clone();
//!     move |_cx: Context, _order: Message| {
//!         stop.stop();
//!         async { Ok::<(), Failure>(()) }
//!     }
//! });
//! consumer.plan().await?; // declares the queue `points.orders`
//! broker.publisher().await?.publish("orders", &Message::new("one order")).await?;
//!
//! let summary = consumer.shutdown(stop).run().await?;
//! assert_eq!((summary.handled, broker.left("points")), (1, 0));
//! # Ok(())
//! # }
//! ```
//!
//! The broker behaves like a server where it matters: what a consumer had out when it
//! [crashed](MemoryBroker::crash) comes back flagged, an answer for a lost connection is
//! void, copies and dead letters are made by the rules of the library. It uses no thread, no
//! random number and tokio's clock, so a test with a paused clock is repeatable.

mod attached;
mod broker;
mod chaos;
mod config;
mod desk;
mod error;
mod groups;
mod hub;
mod inspect;
mod lane;
mod logs;
mod part;
mod publisher;
mod queues;
mod settle;
mod source;
mod state;
mod url;

pub use broker::MemoryBroker;
pub use config::Mode;
