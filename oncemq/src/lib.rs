#![cfg_attr(all(feature = "rabbitmq", feature = "postgres"), doc = include_str!("../../README.md"))]
#![cfg_attr(
    not(all(feature = "rabbitmq", feature = "postgres")),
    doc = "One handler, one idempotency rule, one retry policy; the broker is a URL."
)]

mod connect;

pub use connect::{Connect, broker};
/// What authors of adapters and stores build on.
pub use oncemq_core as core;
pub use oncemq_core::{
    Ack, Broker, Class, Classify, Codec, Consumer, Context, Delivery, End, Error, ErrorKind, Failure,
    Handler, Health, Json, Key, KeyValue, Message, MissingKey, Ordering, Plan, Publisher, RetryPolicy,
    Shutdown, Source, Summary, Topology,
};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use oncemq_idempotency as idempotency;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use oncemq_idempotency::{Inbox, Tx};
#[cfg(feature = "kafka")]
pub use oncemq_kafka as kafka;
#[cfg(feature = "memory")]
pub use oncemq_memory as memory;
#[cfg(feature = "rabbitmq")]
pub use oncemq_rabbitmq as rabbitmq;
#[cfg(feature = "rocketmq")]
pub use oncemq_rocketmq as rocketmq;

/// What the first hour needs.
///
/// ```
/// use oncemq::prelude::*;
///
/// # fn points(consumer: Consumer) -> impl Sized {
/// // A message that fails holds the later ones of its key, instead of being overtaken.
/// consumer.topic("order-completed").key(Key::json("/order_id")).ordering(Ordering::Ordered)
/// # }
/// ```
pub mod prelude {
    pub use crate::Connect as _;
    pub use crate::{Consumer, Failure, Key, Ordering, RetryPolicy};
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub use crate::{Inbox, Tx};
}
