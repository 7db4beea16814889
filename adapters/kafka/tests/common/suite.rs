//! Kafka for the suite of every broker.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use oncemq_core::conformance::Harness;
use oncemq_core::{Broker, Capabilities, ConsumerSpec, Error, Event, Message, Subscription, Topology};
use oncemq_kafka::KafkaBroker;
use tokio::time::timeout;

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

/// Every message of a topic, read by a group of its own.
pub async fn read_all(broker: &KafkaBroker, topic: &str) -> Vec<Message> {
    static READERS: AtomicU32 = AtomicU32::new(0);
    let reader = format!("reader-{}-{}", std::process::id(), READERS.fetch_add(1, Ordering::Relaxed));
    let spec = ConsumerSpec::new(reader, 1_000, Topology::Trust).with(Subscription::new(topic));
    let mut source = broker.subscribe(&spec).await.unwrap();
    let (mut letters, mut events, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    let (begin, mut up) = (Instant::now(), false);
    while begin.elapsed() < Duration::from_secs(20) {
        let polled =
            timeout(Duration::from_millis(500), poll_fn(|cx| source.poll_events(cx, 1_000, &mut events)));
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
