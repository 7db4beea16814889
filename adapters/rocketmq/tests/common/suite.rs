//! RocketMQ for the suite of every broker.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::conformance::Harness;
use oncemq_core::{Broker, Capabilities, Error, Message, Topology};
use oncemq_rocketmq::RocketmqBroker;

/// The broker that all tests share.
pub struct Suite(Option<RocketmqBroker>);

impl Suite {
    pub fn shared() -> Self {
        Self((!super::ROCKETMQ.is_left_out()).then(super::broker))
    }

    fn broker(&self) -> RocketmqBroker {
        self.0.clone().unwrap()
    }
}

#[async_trait]
impl Harness for Suite {
    fn left_out(&self) -> Option<String> {
        self.0.is_none().then(|| "rocketmq is left out".to_owned())
    }

    async fn broker(&self) -> Result<Arc<dyn Broker>, Error> {
        Ok(Arc::new(self.broker()))
    }

    fn capabilities(&self) -> Capabilities {
        RocketmqBroker::from_url("rocketmq://localhost").unwrap().capabilities()
    }

    /// A member that is dropped without a word is seen by the others until its connection is
    /// closed.
    fn redelivery(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    /// Delay levels are whole seconds.
    fn shortest_delay(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn dead_letters(&self, consumer: &str, _topic: &str) -> Result<Vec<Message>, Error> {
        Ok(read_all(&self.broker(), &format!("%DLQ%{consumer}")).await)
    }
}

/// Every message of a topic.
pub async fn read_all(broker: &RocketmqBroker, topic: &str) -> Vec<Message> {
    oncemq_test_kit::read_all(broker, topic, Topology::Declare).await
}
