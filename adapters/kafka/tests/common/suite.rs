//! Kafka for the suite of every broker.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::conformance::Harness;
use oncemq_core::{Broker, Capabilities, Error, Message, Topology};
use oncemq_kafka::KafkaBroker;

/// The server that all tests share.
pub struct Suite(Option<KafkaBroker>);

impl Suite {
    pub fn shared() -> Self {
        Self((!super::KAFKA.is_left_out()).then(super::broker))
    }

    fn broker(&self) -> KafkaBroker {
        self.0.clone().unwrap()
    }
}

#[async_trait]
impl Harness for Suite {
    fn left_out(&self) -> Option<String> {
        self.0.is_none().then(|| "kafka is left out".to_owned())
    }

    async fn broker(&self) -> Result<Arc<dyn Broker>, Error> {
        Ok(Arc::new(self.broker()))
    }

    fn capabilities(&self) -> Capabilities {
        KafkaBroker::from_url("kafka://localhost").unwrap().capabilities()
    }

    /// A member that left without a word is missed after its session only; one that closes
    /// or is dropped leaves at once.
    fn redelivery(&self) -> Duration {
        Duration::from_millis(700)
    }

    fn shortest_delay(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// The limit of a topic is a mebibyte for whole batches, with what stands around them.
    fn large_payload(&self) -> u32 {
        1_000_000
    }

    async fn dead_letters(&self, consumer: &str, topic: &str) -> Result<Vec<Message>, Error> {
        Ok(read_all(&self.broker(), &format!("{consumer}.{topic}.dead")).await)
    }
}

/// Every message of a topic.
pub async fn read_all(broker: &KafkaBroker, topic: &str) -> Vec<Message> {
    oncemq_test_kit::read_all(broker, topic, Topology::Trust).await
}
