//! A source without the runtime around it.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{
    Broker, ConsumerSpec, Delivery, Error, Event, Health, Message, Plan, Source, Subscription, Topology,
};
use tokio::time::timeout;

/// A source of one topic, and what it said.
pub struct Bare {
    pub source: Box<dyn Source>,
    pub broker: Arc<dyn Broker>,
    pub consumer: String,
    pub topic: String,
    pub in_flight: usize,
    pub reconnected: usize,
    pub health: Health,
    /// What else came: gaps, and partitions that left.
    pub others: Vec<Event>,
    waiting: std::collections::VecDeque<Delivery>,
}

impl Bare {
    pub async fn open(broker: impl Broker, in_flight: usize) -> Self {
        let topic = crate::unique("topic");
        Self::of(
            broker,
            Subscription::new(topic.as_str()).with_rungs([Duration::from_millis(300)]),
            in_flight,
        )
        .await
    }

    pub async fn of(broker: impl Broker, subscription: Subscription, in_flight: usize) -> Self {
        let consumer = crate::unique("bare");
        let spec = ConsumerSpec::new(consumer.as_str(), in_flight, Topology::Declare).with(subscription);
        Self::with(broker, &spec).await
    }

    /// A source of a consumer of one topic.
    pub async fn with(broker: impl Broker, spec: &ConsumerSpec) -> Self {
        let broker: Arc<dyn Broker> = Arc::new(broker);
        broker.prepare(spec, &mut Plan::default()).await.unwrap();
        let source = broker.subscribe(spec).await.unwrap();
        Self {
            source,
            broker,
            consumer: spec.name.to_string(),
            topic: spec.subscriptions[0].topic.to_string(),
            in_flight: spec.in_flight,
            reconnected: 0,
            health: Health::Starting,
            others: Vec::new(),
            waiting: Default::default(),
        }
    }

    /// Its queue, on brokers that have them.
    pub fn queue(&self) -> String {
        format!("{}.{}", self.consumer, self.topic)
    }

    pub async fn send(&self, bodies: impl IntoIterator<Item = u32>) {
        let publisher = self.broker.publisher().await.unwrap();
        for body in bodies {
            publisher.publish(&self.topic, &Message::new(body.to_string())).await.unwrap();
        }
        publisher.close().await.unwrap();
    }

    /// Takes what comes until there is a delivery.
    pub async fn next(&mut self) -> Delivery {
        match timeout(Duration::from_secs(20), self.take()).await {
            Ok(delivery) => delivery,
            Err(_) => panic!("no delivery; {}", self.health),
        }
    }

    async fn take(&mut self) -> Delivery {
        while self.waiting.is_empty() {
            self.poll().await;
        }
        self.waiting.pop_front().unwrap()
    }

    /// Polls once, as the runtime does: for no more than there are places.
    pub async fn poll(&mut self) {
        let mut events = Vec::new();
        let (source, in_flight) = (&mut self.source, self.in_flight);
        let polled = poll_fn(|cx| {
            let max = in_flight.saturating_sub(source.outstanding());
            source.poll_events(cx, max, &mut events)
        });
        polled.await.unwrap();
        for event in events {
            match event {
                Event::Delivery(delivery) => self.waiting.push_back(delivery),
                Event::Reconnected { .. } => self.reconnected += 1,
                Event::Health(health) => self.health = health,
                other => self.others.push(other),
            }
        }
        assert!(self.source.outstanding() <= in_flight, "more out than asked for");
    }

    /// Whether nothing comes for a while.
    pub async fn is_silent(&mut self, time: Duration) -> bool {
        self.waiting.is_empty() && timeout(time, self.take()).await.is_err()
    }

    pub fn body(delivery: &Delivery) -> u32 {
        std::str::from_utf8(delivery.message().body()).unwrap().parse().unwrap()
    }

    /// What has come already.
    pub fn drain(&mut self, take: impl FnMut(Delivery)) {
        self.waiting.drain(..).for_each(take);
    }

    /// Polls for a while.
    pub async fn poll_for(&mut self, time: Duration) {
        let polling = async {
            loop {
                self.poll().await;
            }
        };
        let _ = timeout(time, polling).await;
    }

    /// Polls until the source ends, and returns why.
    pub async fn until_error(&mut self, limit: Duration) -> Error {
        let mut events = Vec::new();
        let source = &mut self.source;
        let ended = async {
            loop {
                if let Err(error) = poll_fn(|cx| source.poll_events(cx, 0, &mut events)).await {
                    return error;
                }
            }
        };
        timeout(limit, ended).await.expect("the source goes on")
    }
}
