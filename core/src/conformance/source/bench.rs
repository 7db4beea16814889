//! What every case works with.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Failed;
use tokio::time::Instant;

use super::{Harness, Outcome, ensure};
use crate::{
    Ack, Broker, Class, ConsumerSpec, Delivery, Event, Message, Plan, Publisher, Source, Subscription,
    Topology, Trail,
};

/// The longest wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A consumer and a topic that no other case has.
pub(super) struct Bench {
    pub(super) harness: Arc<dyn Harness>,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) publisher: Arc<dyn Publisher>,
    pub(super) spec: ConsumerSpec,
    pub(super) topic: String,
}

impl Bench {
    pub(super) async fn open(harness: Arc<dyn Harness>, place: &str) -> Result<Self, Failed> {
        let broker = harness.broker().await?;
        let (said, can) = (harness.capabilities(), broker.capabilities());
        ensure(said == can, || format!("the harness says {said:?}, but the broker can {can:?}"))?;
        let publisher = broker.publisher().await?;
        let topic = format!("topic-{place}");
        let spec = spec(&format!("consumer-{place}"), &topic, &*harness);
        Ok(Self { harness, broker, publisher, spec, topic })
    }

    /// Another consumer of the same topic.
    pub(super) fn spec_of(&self, consumer: &str) -> ConsumerSpec {
        spec(&format!("{}-{consumer}", self.spec.name), &self.topic, &*self.harness)
    }

    /// Declares the consumer and subscribes.
    pub(super) async fn subscribe(&self) -> Result<Tap, Failed> {
        self.subscribe_as(&self.spec).await
    }

    pub(super) async fn subscribe_as(&self, spec: &ConsumerSpec) -> Result<Tap, Failed> {
        self.broker.prepare(spec, &mut Plan::default()).await?;
        let source = self.broker.subscribe(spec).await?;
        Ok(Tap { source, quiet: self.harness.redelivery(), others: Vec::new() })
    }

    pub(super) async fn publish(&self, message: &Message) -> Outcome {
        Ok(self.publisher.publish(&self.topic, message).await?)
    }

    /// Publishes messages of these bodies, each its own id.
    pub(super) async fn publish_all(&self, bodies: impl IntoIterator<Item = String>) -> Outcome {
        for body in bodies {
            self.publish(&Message::new(body.clone()).with_id(body)).await?;
        }
        Ok(())
    }

    /// Declares, publishes one message and takes it.
    pub(super) async fn one(&self, message: &Message) -> Result<(Tap, Delivery), Failed> {
        let mut tap = self.subscribe().await?;
        self.publish(message).await?;
        let delivery = tap.one().await?;
        Ok((tap, delivery))
    }

    /// The trail of a message after one more charged attempt.
    pub(super) fn charged(&self, message: &Message) -> Trail {
        let mut trail = self.trail(message);
        trail.attempt += 1;
        trail
    }

    pub(super) fn trail(&self, message: &Message) -> Trail {
        let identity = self.harness.capabilities().identity();
        Trail::read(message, &self.spec.name, &self.spec.subscriptions[0].topic, identity)
    }

    pub(super) fn reject(&self, message: &Message) -> Ack {
        Ack::reject(Class::Business, self.charged(message), "unknown product")
    }

    /// The dead letters, once there are as many as expected or none is to come any more.
    pub(super) async fn dead_letters(&self, expected: usize) -> Result<Vec<Message>, Failed> {
        let end = Instant::now() + PATIENCE;
        loop {
            let letters = self.harness.dead_letters(&self.spec.name, &self.topic).await?;
            if letters.len() >= expected || Instant::now() >= end {
                tokio::time::sleep(self.harness.redelivery()).await;
                return Ok(self.harness.dead_letters(&self.spec.name, &self.topic).await?);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Nothing is left for the consumer, also for a new source.
    pub(super) async fn ensure_empty(&self, mut tap: Tap) -> Outcome {
        tap.nothing().await?;
        tap.close().await?;
        let mut again = self.subscribe().await?;
        again.nothing().await?;
        again.close().await
    }
}

fn spec(consumer: &str, topic: &str, harness: &dyn Harness) -> ConsumerSpec {
    let delay = harness.shortest_delay();
    ConsumerSpec::new(consumer, 64, Topology::Declare)
        .with(Subscription::new(topic).with_rungs([delay, delay * 2]))
}

/// A source under test.
pub(super) struct Tap {
    pub(super) source: Box<dyn Source>,
    quiet: Duration,
    /// What came beside deliveries.
    pub(super) others: Vec<Event>,
}

impl Tap {
    /// What one poll gives.
    pub(super) async fn poll(&mut self, max: usize) -> Result<Vec<Delivery>, Failed> {
        let mut events = Vec::new();
        poll_fn(|cx| self.source.poll_events(cx, max, &mut events)).await?;
        let mut deliveries = Vec::new();
        for event in events {
            match event {
                Event::Delivery(delivery) => deliveries.push(delivery),
                other => self.others.push(other),
            }
        }
        ensure(deliveries.len() <= max, || format!("{} deliveries for a max of {max}", deliveries.len()))?;
        Ok(deliveries)
    }

    /// So many deliveries, in order.
    pub(super) async fn take(&mut self, n: usize) -> Result<Vec<Delivery>, Failed> {
        let mut taken = Vec::new();
        let end = Instant::now() + PATIENCE;
        while taken.len() < n {
            match tokio::time::timeout_at(end, self.poll(n - taken.len())).await {
                // What is found only at the last moment was found by the timer's wake.
                Ok(polled) if Instant::now() < end => taken.extend(polled?),
                _ => {
                    return Err(format!("{} of {n} deliveries after {PATIENCE:?}", taken.len()).into());
                }
            }
        }
        Ok(taken)
    }

    pub(super) async fn one(&mut self) -> Result<Delivery, Failed> {
        self.take(1).await?.pop().ok_or_else(|| "no delivery".into())
    }

    /// Nothing is delivered for a while.
    pub(super) async fn nothing(&mut self) -> Outcome {
        let end = Instant::now() + self.quiet;
        while let Ok(polled) = tokio::time::timeout_at(end, self.poll(1)).await {
            if let Some(delivery) = polled?.first() {
                return Err(format!("an unexpected delivery: {:?}", delivery.message()).into());
            }
        }
        Ok(())
    }

    /// Accepts, and waits until the broker has confirmed it.
    pub(super) async fn accept(&mut self, deliveries: impl IntoIterator<Item = Delivery>) -> Outcome {
        deliveries.into_iter().for_each(|delivery| delivery.ack(Ack::Accept));
        self.flush().await
    }

    pub(super) async fn flush(&mut self) -> Outcome {
        ensure(self.source.flush(PATIENCE).await, || format!("not flushed after {PATIENCE:?}"))
    }

    pub(super) async fn close(&mut self) -> Outcome {
        Ok(self.source.close(PATIENCE).await?)
    }

    /// Waits until so many deliveries are out, while the source goes on.
    pub(super) async fn outstanding(&mut self, expected: usize) -> Outcome {
        let end = Instant::now() + PATIENCE;
        while self.source.outstanding() != expected {
            if Instant::now() >= end {
                return Err(format!("{} outstanding, not {expected}", self.source.outstanding()).into());
            }
            let turn = Instant::now() + Duration::from_millis(10);
            if let Ok(polled) = tokio::time::timeout_at(turn, self.poll(0)).await {
                polled?;
            }
        }
        Ok(())
    }
}

pub(super) fn bodies(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|d| String::from_utf8_lossy(d.message().body()).into_owned()).collect()
}

pub(super) fn numbers(n: usize) -> Vec<String> {
    (0..n).map(|n| n.to_string()).collect()
}
