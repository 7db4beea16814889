//! RocketMQ for the suite of every broker.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use oncemq_core::conformance::Harness;
use oncemq_core::{Broker, Capabilities, ConsumerSpec, Error, Event, Message, Plan, Subscription, Topology};
use oncemq_rocketmq::RocketmqBroker;
use oncemq_test_kit::unique;
use tokio::time::timeout;

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

/// Every message of a topic, read by a group of its own.
pub async fn read_all(broker: &RocketmqBroker, topic: &str) -> Vec<Message> {
    let spec = ConsumerSpec::new(unique("reader"), 1_000, Topology::Declare).with(Subscription::new(topic));
    broker.prepare(&spec, &mut Plan::default()).await.unwrap();
    let mut source = broker.subscribe(&spec).await.unwrap();
    let (mut letters, mut events, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    let (begin, mut up) = (Instant::now(), false);
    while begin.elapsed() < Duration::from_secs(20) {
        let polled =
            timeout(Duration::from_millis(400), poll_fn(|cx| source.poll_events(cx, 1_000, &mut events)));
        match polled.await {
            Ok(polled) => polled.unwrap(),
            Err(_) if up => break,
            Err(_) => {}
        }
        for event in events.drain(..) {
            match event {
                Event::Delivery(delivery) => {
                    letters.push(delivery.message().clone());
                    kept.push(delivery);
                }
                Event::Health(health) => up |= health.is_up(),
                _ => {}
            }
        }
    }
    source.close(Duration::from_secs(5)).await.unwrap();
    letters
}
