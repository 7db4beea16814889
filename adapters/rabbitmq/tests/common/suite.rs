//! RabbitMQ for the suite of every broker.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use oncemq_core::conformance::{Abilities, Harness};
use oncemq_core::{Broker, Capabilities, ConsumerSpec, Error, Event, Message, Plan, Subscription, Topology};
use oncemq_rabbitmq::{Properties, QueueType, RabbitBroker};
use tokio::time::timeout;

use super::Instance;
use super::proxy::Proxy;
use super::raw::{Raw, text};

/// The server that all tests share behind a proxy, or one of its own that is restarted.
pub struct Suite {
    broker: Option<RabbitBroker>,
    proxy: Option<Proxy>,
    instance: Option<Instance>,
}

impl Suite {
    /// Nowhere: every case is ignored.
    pub fn none() -> Self {
        Self { broker: None, proxy: None, instance: None }
    }

    /// On the shared server.
    pub fn shared(queue_type: QueueType) -> Self {
        if super::is_left_out() {
            return Self::none();
        }
        let url = super::url();
        let (_, place) = url.split_once('@').unwrap();
        let proxy = Proxy::to(place.split('/').next().unwrap());
        let broker =
            RabbitBroker::from_url(&proxy.url(&url)).unwrap().publish_timeout(Duration::from_secs(3));
        Self { broker: Some(broker.queue_type(queue_type)), proxy: Some(proxy), instance: None }
    }

    /// On a server of its own.
    pub fn own(queue_type: QueueType, name: &str) -> Self {
        let instance = super::instance(name);
        let broker = RabbitBroker::from_url(&instance.url()).unwrap();
        Self { broker: Some(broker.queue_type(queue_type)), proxy: None, instance: Some(instance) }
    }

    fn broker(&self) -> RabbitBroker {
        self.broker.clone().unwrap()
    }
}

#[async_trait]
impl Harness for Suite {
    fn left_out(&self) -> Option<String> {
        self.broker.is_none().then(|| "rabbitmq is left out, or ONCEMQ_LONG=1 is not set".to_owned())
    }

    async fn broker(&self) -> Result<Arc<dyn Broker>, Error> {
        Ok(Arc::new(self.broker()))
    }

    fn capabilities(&self) -> Capabilities {
        let broker = self.broker.clone().map(|broker| broker.capabilities());
        broker.unwrap_or(Capabilities::queue("rabbitmq"))
    }

    fn redelivery(&self) -> Duration {
        Duration::from_millis(700)
    }

    fn shortest_delay(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Read by a source that gives everything back.
    async fn dead_letters(&self, consumer: &str, topic: &str) -> Result<Vec<Message>, Error> {
        let subscription = Subscription::new("letters").with_queue(format!("{consumer}.{topic}.dead"));
        let spec = ConsumerSpec::new("reader", 1000, Topology::Trust).with(subscription);
        let broker = self.broker();
        broker.prepare(&spec, &mut Plan::default()).await?;
        let mut source = broker.subscribe(&spec).await?;
        let (mut letters, mut events) = (Vec::new(), Vec::new());
        let quiet = Duration::from_millis(300);
        // Dropped at once they would come again at once.
        let mut kept = Vec::new();
        while let Ok(polled) =
            timeout(quiet, std::future::poll_fn(|cx| source.poll_events(cx, 1000, &mut events))).await
        {
            polled?;
            for event in events.drain(..) {
                if let Event::Delivery(delivery) = event {
                    letters.push(delivery.message().clone());
                    kept.push(delivery);
                }
            }
        }
        source.close(Duration::from_secs(5)).await?;
        Ok(letters)
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
            .publish_loaded(true)
            .disconnect(self.proxy.is_some())
            .restart(self.instance.is_some())
    }

    async fn restart(&self) -> Result<(), Error> {
        let instance = self.instance.as_ref().unwrap();
        tokio::task::block_in_place(|| {
            instance.stop();
            instance.again();
        });
        Ok(())
    }

    async fn disconnect(&self) -> Result<(), Error> {
        self.proxy.as_ref().unwrap().cut();
        Ok(())
    }

    async fn reconnect(&self) -> Result<(), Error> {
        self.proxy.as_ref().unwrap().mend();
        Ok(())
    }

    async fn publish_loaded(&self, topic: &str, message: &Message) -> Result<(), Error> {
        let url = self.instance.as_ref().map_or_else(super::url, Instance::url);
        let mut table = FieldTable::default();
        let list = || AMQPValue::FieldArray(vec![text("elsewhere")].into());
        for (name, value) in [
            ("CC", list()),
            ("BCC", list()),
            ("x-death", list()),
            ("x-first-death-queue", text("q")),
            ("x-last-death-queue", text("q")),
            ("x-delivery-count", AMQPValue::LongLongInt(19)),
        ] {
            table.insert(name.into(), value);
        }
        let properties = BasicProperties::default()
            .with_headers(table)
            .with_expiration("60000".into())
            .with_user_id("oncemq".into())
            .with_delivery_mode(1)
            .with_timestamp(1_000_000)
            .with_message_id(message.id().unwrap_or_default().into());
        Raw::to(&url).await.publish(topic, topic, message.body(), properties).await;
        Ok(())
    }

    /// The headers of the server's own are looked at on the wire, by another test.
    fn copied_wrongly(&self, copy: &Message) -> Vec<String> {
        let properties = Properties::of(copy).unwrap();
        let mut wrong = Vec::new();
        let mut see = |name: &str, is: bool| wrong.extend(is.then(|| name.to_owned()));
        see("expiration", properties.expiration().is_some());
        see("user_id", properties.user_id().is_some());
        see("delivery_mode", !properties.is_persistent());
        let stamp = copy.timestamp().unwrap();
        see("timestamp", stamp.elapsed().is_ok_and(|age| age > Duration::from_secs(600)));
        wrong
    }
}
