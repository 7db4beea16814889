//! What the tests of the memory broker share.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use oncemq_core::{
    Ack, Broker, Class, ConsumerSpec, Delivery, Event, Identity, Message, Publisher, Source, Subscription,
    Topology, Trail,
};
use oncemq_memory::MemoryBroker;

/// A consumer of these topics, prepared and subscribed.
pub(crate) async fn open(broker: &MemoryBroker, name: &str, topics: &[&str]) -> Box<dyn Source> {
    let spec = spec(name, topics);
    broker.prepare(&spec, &mut oncemq_core::Plan::default()).await.unwrap();
    broker.subscribe(&spec).await.unwrap()
}

pub(crate) fn spec(name: &str, topics: &[&str]) -> ConsumerSpec {
    topics.iter().fold(ConsumerSpec::new(name, 16, Topology::Declare), |spec, topic| {
        spec.with(Subscription::new(*topic))
    })
}

pub(crate) async fn publish(broker: &MemoryBroker, topic: &str, bodies: &[&str]) {
    let publisher = broker.publisher().await.unwrap();
    for body in bodies {
        publisher.publish(topic, &Message::new((*body).to_owned()).with_id(*body)).await.unwrap();
    }
}

pub(crate) async fn publisher(broker: &MemoryBroker) -> Arc<dyn Publisher> {
    broker.publisher().await.unwrap()
}

/// What one poll gives, at most `max` deliveries among it.
pub(crate) async fn events(source: &mut Box<dyn Source>, max: usize) -> Vec<Event> {
    let mut events = Vec::new();
    poll_fn(|cx| source.poll_events(cx, max, &mut events)).await.unwrap();
    events
}

/// Exactly `n` deliveries, within a minute of the test's clock.
pub(crate) async fn take(source: &mut Box<dyn Source>, n: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    let all = async {
        while taken.len() < n {
            for event in events(source, n - taken.len()).await {
                if let Event::Delivery(delivery) = event {
                    taken.push(delivery);
                }
            }
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), all).await.is_ok();
    assert!(in_time, "{} of {n} deliveries came: {:?}", taken.len(), bodies(&taken));
    taken
}

pub(crate) async fn one(source: &mut Box<dyn Source>) -> Delivery {
    take(source, 1).await.pop().unwrap()
}

/// Nothing is delivered for a while.
pub(crate) async fn nothing(source: &mut Box<dyn Source>, wait: Duration) {
    let wait = tokio::time::timeout(wait, async {
        loop {
            for event in events(source, 16).await {
                assert!(!matches!(event, Event::Delivery(_)), "unexpected {event:?}");
            }
        }
    });
    assert!(wait.await.is_err());
}

pub(crate) fn body(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message().body().to_vec()).unwrap()
}

pub(crate) fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(body).collect()
}

pub(crate) fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8(message.body().to_vec()).unwrap()).collect()
}

/// The trail of a delivery after one more charged attempt.
pub(crate) fn charged(delivery: &Delivery, consumer: &str, kind: &str, identity: Identity) -> Trail {
    let mut trail = Trail::read(delivery.message(), &consumer.into(), &kind.into(), identity);
    trail.attempt += 1;
    trail
}

pub(crate) fn reject(delivery: &Delivery, consumer: &str, kind: &str, identity: Identity) -> Ack {
    Ack::reject(Class::Business, charged(delivery, consumer, kind, identity), "no such product")
}

/// Polls a source that has nothing, and sees whether it is woken afterwards.
pub(crate) fn sleeping(source: &mut Box<dyn Source>) -> Arc<Woken> {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut events = Vec::new();
    let polled = source.poll_events(&mut Context::from_waker(&waker), 16, &mut events);
    assert!(polled.is_pending(), "{events:?}");
    woken
}

/// Whether a task was woken.
#[derive(Debug, Default)]
pub(crate) struct Woken(AtomicBool);

impl Woken {
    pub(crate) fn is_woken(&self) -> bool {
        self.0.load(SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}
