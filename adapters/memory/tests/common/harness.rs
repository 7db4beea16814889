//! The memory broker for the conformance suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::conformance::{Abilities, Harness};
use oncemq_core::{Broker, Capabilities, Error, Message};
use oncemq_memory::MemoryBroker;

pub(crate) struct Memory(pub(crate) MemoryBroker);

#[async_trait]
impl Harness for Memory {
    async fn broker(&self) -> Result<Arc<dyn Broker>, Error> {
        Ok(Arc::new(self.0.clone()))
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn redelivery(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn shortest_delay(&self) -> Duration {
        Duration::from_millis(200)
    }

    async fn dead_letters(&self, consumer: &str, topic: &str) -> Result<Vec<Message>, Error> {
        Ok(self.0.dead_letters(consumer, topic))
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().disconnect(true)
    }

    async fn disconnect(&self) -> Result<(), Error> {
        self.0.disconnect();
        Ok(())
    }

    async fn reconnect(&self) -> Result<(), Error> {
        self.0.reconnect();
        Ok(())
    }
}
