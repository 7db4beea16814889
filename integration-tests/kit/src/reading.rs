//! What a topic has, as a consumer sees it.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use oncemq_core::{Broker, ConsumerSpec, Event, Message, Plan, Subscription, Topology};
use tokio::time::timeout;

/// After the source is up some of its partitions may still begin.
const SILENCE: Duration = Duration::from_millis(1_500);

/// Every message of a topic, read from its beginning by a group of its own. The end is where
/// nothing comes any more after the source has said that it is up.
pub async fn read_all(broker: &dyn Broker, topic: &str, topology: Topology) -> Vec<Message> {
    let spec = ConsumerSpec::new(crate::unique("reader"), 1_000, topology).with(Subscription::new(topic));
    broker.prepare(&spec, &mut Plan::default()).await.unwrap();
    let mut source = broker.subscribe(&spec).await.unwrap();
    let (mut messages, mut events, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    let (begin, mut up) = (Instant::now(), false);
    while begin.elapsed() < Duration::from_secs(20) {
        let polled = poll_fn(|cx| source.poll_events(cx, 1_000, &mut events));
        match timeout(SILENCE, polled).await {
            Ok(polled) => polled.unwrap(),
            Err(_) if up => break,
            Err(_) => {}
        }
        for event in events.drain(..) {
            match event {
                Event::Delivery(delivery) => {
                    messages.push(delivery.message().clone());
                    kept.push(delivery);
                }
                Event::Health(health) => up |= health.is_up(),
                _ => {}
            }
        }
    }
    source.close(Duration::from_secs(5)).await.unwrap();
    messages
}
