//! Sending, each message confirmed.

mod pool;

use std::sync::Arc;

use async_trait::async_trait;
use lapin::types::ShortString;
use oncemq_core::{Error, ErrorKind, Message, Publisher};

pub(crate) use pool::{Outgoing, Pool};

use crate::config::Config;
use crate::properties;

/// Publishes to the exchange of the topic's name, with the topic as routing key.
#[derive(Debug)]
pub(crate) struct RabbitPublisher {
    config: Arc<Config>,
    pool: Pool,
}

impl RabbitPublisher {
    /// Connects at once, so that a wrong URL is an error here.
    pub(crate) async fn connect(config: Arc<Config>) -> Result<Self, Error> {
        let pool = Pool::new(config.clone(), "oncemq publisher".to_owned());
        pool.connect().await?;
        Ok(Self { config, pool })
    }
}

#[async_trait]
impl Publisher for RabbitPublisher {
    async fn publish(&self, topic: &str, message: &Message) -> Result<(), Error> {
        let name = ShortString::try_new(topic).map_err(|_| {
            let text = format!("a topic name of {} bytes; RabbitMQ takes at most 255", topic.len());
            Error::new(ErrorKind::Config, text)
        })?;
        let properties = properties::of_new(message)?;
        let outgoing = Outgoing { exchange: &name, routing_key: &name, properties, body: message.body() };
        let limit = self.config.publish_timeout;
        match tokio::time::timeout(limit, self.pool.send_when_connected(&outgoing)).await {
            Ok(result) => result,
            Err(_) => {
                let why = match self.pool.blocked() {
                    true => "it blocks publishing, because memory or disk run short",
                    false => "the message may or may not be stored, send it again with the same id",
                };
                let text = format!("RabbitMQ did not confirm a message to {topic} within {limit:?}: {why}");
                Err(Error::new(ErrorKind::Unconfirmed, text))
            }
        }
    }

    async fn close(&self) -> Result<(), Error> {
        self.pool.close(self.config.publish_timeout).await;
        Ok(())
    }
}
