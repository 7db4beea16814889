//! A topic full of messages.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use oncemq_core::{Broker, Message};
use oncemq_kafka::KafkaBroker;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;

const BODY: [u8; 200] = [b'x'; 200];
const KEYS: usize = 2_000;
/// Messages sent before the first is confirmed.
const WINDOW: usize = 2_000;
const LIMIT: Duration = Duration::from_secs(10);

/// One partition, the same messages for every loop.
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) url: String,
    admin: AdminClient<DefaultClientContext>,
}

impl Topic {
    /// With this many messages, which have keys and ids where those are what is measured.
    pub(crate) async fn filled(messages: usize, named: bool) -> Result<Self, Box<dyn Error>> {
        let url = std::env::var("ONCEMQ_KAFKA_URL")
            .map_err(|_| "ONCEMQ_KAFKA_URL names no broker; scripts/bench starts one and sets it")?;
        let place = url.trim_start_matches("kafka://");
        let admin = ClientConfig::new().set("bootstrap.servers", place).create()?;
        let topic = Self { name: format!("oncemq-bench-{}", std::process::id()), url, admin };
        let new = NewTopic::new(&topic.name, 1, TopicReplication::Fixed(1));
        for made in topic.admin.create_topics([&new], &options()).await? {
            made.map_err(|(name, code)| format!("topic {name}: {code}"))?;
        }
        let publisher = Arc::new(KafkaBroker::from_url(&topic.url)?.publisher().await?);
        let sends = (0..messages).map(|n| {
            let (publisher, name) = (publisher.clone(), topic.name.clone());
            let plain = Message::new(&BODY[..]);
            let message = match named {
                true => plain.with_key((n % KEYS).to_string()).with_id(n.to_string()),
                false => plain,
            };
            async move { publisher.publish(&name, &message).await }
        });
        stream::iter(sends).buffer_unordered(WINDOW).try_collect::<()>().await?;
        Ok(topic)
    }

    pub(crate) async fn remove(&self) -> Result<(), Box<dyn Error>> {
        self.admin.delete_topics(&[&self.name], &options()).await?;
        Ok(())
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(LIMIT))
}
