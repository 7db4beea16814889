//! RabbitMQ adapter of oncemq, on lapin.
//!
//! ```no_run
//! # async fn example() -> Result<(), oncemq_core::Error> {
//! use oncemq_core::{Broker, Consumer, Context, Failure, Message};
//! use oncemq_rabbitmq::RabbitBroker;
//!
//! let broker = RabbitBroker::from_url("amqp://user:password@localhost:5672/%2f")?;
//! broker.publisher().await?.publish("orders", &Message::new("{}").with_id("1")).await?;
//!
//! let handler = |_cx: Context, _order: Message| async { Ok::<(), Failure>(()) };
//! Consumer::new("points", broker).topic("orders").unguarded(handler).run().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A topic is a durable fanout exchange of its name. Each consumer has a queue
//! `<consumer>.<topic>` bound to it, a delay queue for each rung of its ladder, and a
//! dead-letter queue:
//!
//! ```text
//! exchange orders ─► points.orders ─ack─► gone
//!                      │  ▲
//!                      ▼  │ when its time is over
//!                    points.orders.retry.5000ms
//!                    points.orders.dead
//! ```
//!
//! Retries and dead letters are copies: published with confirms on a connection of their own
//! and acknowledged only when the broker has them. A copy keeps body, headers with their
//! types, content type and encoding, message id, correlation id, reply-to, type, app id and
//! priority. It never carries expiration, user id, CC, BCC or the broker's own counters; what
//! the original had of them is in headers `oncemq-original-…`.

mod broker;
mod config;
mod connection;
mod error;
mod properties;
mod publisher;
mod settle;
mod source;
mod topology;

pub use broker::RabbitBroker;
pub use config::QueueType;
pub use properties::Properties;
