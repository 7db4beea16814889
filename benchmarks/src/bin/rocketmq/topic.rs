//! A topic full of messages.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use oncemq_core::{Broker, Consumer, Context, Failure, Message};
use oncemq_rocketmq::RocketmqBroker;

const BODY: [u8; 200] = [b'x'; 200];
/// Messages sent before the first is confirmed.
const WINDOW: usize = 64;

/// Four queues, the same messages for every loop.
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) broker: RocketmqBroker,
    /// `host:port` of the name server.
    pub(crate) address: String,
    groups: AtomicU32,
}

impl Topic {
    pub(crate) async fn filled(messages: usize) -> Result<Self, Box<dyn Error>> {
        let url = std::env::var("ONCEMQ_ROCKETMQ_URL")
            .map_err(|_| "ONCEMQ_ROCKETMQ_URL names no cluster; scripts/bench starts one and sets it")?;
        let topic = Self {
            name: format!("oncemq-bench-{}-{messages}", std::process::id()),
            broker: RocketmqBroker::from_url(&url)?.queues(4),
            address: url.trim_start_matches("rocketmq://").to_owned(),
            groups: AtomicU32::new(0),
        };
        topic.group().await?;
        let publisher = Arc::new(topic.broker.publisher().await?);
        let sends = (0..messages).map(|n| {
            let (publisher, name) = (publisher.clone(), topic.name.clone());
            async move { publisher.publish(&name, &Message::new(&BODY[..]).with_key(n.to_string())).await }
        });
        stream::iter(sends).buffer_unordered(WINDOW).try_collect::<()>().await?;
        Ok(topic)
    }

    /// A new group, which the broker knows already.
    pub(crate) async fn group(&self) -> Result<String, Box<dyn Error>> {
        let group = format!("{}-{}", self.name, self.groups.fetch_add(1, Relaxed));
        let handler = |_: Context, _: Message| async { Ok::<(), Failure>(()) };
        let consumer = Consumer::new(group.as_str(), self.broker.clone()).topic(self.name.as_str());
        consumer.retry("dead-letter".parse()?).unguarded(handler).plan().await?;
        Ok(group)
    }
}
