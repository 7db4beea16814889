//! A service's broker, as somebody outside the service sees it.

use std::collections::BTreeSet;

use crate::kafka::Kafka;
use crate::rabbit::Rabbit;
use crate::rocketmq::Rocketmq;
use crate::service::Spec;

/// What the broker still owes a service, and what the service gave up.
#[derive(Debug)]
pub struct Outside {
    spec: Spec,
    broker: Broker,
}

#[derive(Debug)]
enum Broker {
    Rabbit(Rabbit),
    Kafka(Kafka),
    Rocketmq(Rocketmq),
}

impl Outside {
    /// Connects to the service's broker.
    ///
    /// # Panics
    /// The server does not answer.
    pub async fn of(spec: &Spec) -> Self {
        let broker = match spec.broker.split("://").next() {
            Some("kafka") => Broker::Kafka(Kafka::connect(spec)),
            Some("rocketmq") => Broker::Rocketmq(Rocketmq::of(spec)),
            _ => Broker::Rabbit(Rabbit::connect(&spec.broker).await),
        };
        Self { spec: spec.clone(), broker }
    }

    /// Whether nothing is left to do. RabbitMQ does not count what is out at a consumer.
    ///
    /// # Panics
    /// A queue or topic does not exist.
    pub async fn owes_nothing(&self) -> bool {
        match &self.broker {
            Broker::Rabbit(rabbit) => rabbit.all_empty(&self.spec).await,
            Broker::Kafka(kafka) => kafka.all_done(&self.spec).await,
            Broker::Rocketmq(rocketmq) => rocketmq.all_done(&self.spec).await,
        }
    }

    /// How many dead letters there are.
    ///
    /// # Panics
    /// Nobody declared them.
    pub async fn dead(&self) -> u32 {
        match &self.broker {
            Broker::Rabbit(rabbit) => rabbit.ready(&self.spec.dead()).await,
            Broker::Kafka(kafka) => kafka.count(&self.spec.dead()).await,
            Broker::Rocketmq(rocketmq) => rocketmq.dead(&self.spec).await,
        }
    }

    /// The bodies of all dead letters. Two copies of one are the same: a crash between a copy
    /// and its settlement may make a second. RabbitMQ forgets those that are read.
    ///
    /// # Panics
    /// Nobody declared them.
    pub async fn dead_letters(&self) -> BTreeSet<Vec<u8>> {
        match &self.broker {
            Broker::Rabbit(rabbit) => rabbit.dead_letters(&self.spec).await,
            Broker::Kafka(kafka) => kafka.bodies(&self.spec.dead()).await,
            Broker::Rocketmq(rocketmq) => rocketmq.dead_letters(&self.spec).await,
        }
    }

    /// Removes everything of the service.
    pub async fn remove(&self) {
        match &self.broker {
            Broker::Rabbit(rabbit) => rabbit.remove(&self.spec).await,
            Broker::Kafka(kafka) => kafka.remove(&self.spec).await,
            Broker::Rocketmq(rocketmq) => rocketmq.remove(&self.spec).await,
        }
    }
}
