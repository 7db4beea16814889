//! The server as a client of its own sees it.

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

/// A plain connection with a channel.
pub struct Raw {
    pub connection: Connection,
    pub channel: Channel,
}

impl Raw {
    pub async fn connect() -> Self {
        Self::to(&super::url()).await
    }

    pub async fn to(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self { connection, channel }
    }

    pub async fn publish(&self, exchange: &str, key: &str, body: &[u8], properties: BasicProperties) {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let confirm =
            self.channel.basic_publish(exchange.into(), key.into(), options, body, properties).await;
        assert_eq!(confirm.unwrap().await.unwrap(), Confirmation::Ack(None));
    }

    pub async fn send(&self, queue: &str, body: &str) {
        self.publish("", queue, body.as_bytes(), BasicProperties::default().with_delivery_mode(2)).await;
    }

    /// Ready messages of a queue, `None` if it does not exist.
    pub async fn ready(&self, queue: &str) -> Option<u32> {
        let channel = self.connection.create_channel().await.unwrap();
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await.ok()?;
        Some(found.message_count())
    }

    pub async fn get(&self, queue: &str) -> Option<Delivery> {
        let got = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap();
        got.map(|got| got.delivery)
    }

    pub async fn declare(&self, queue: &str, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        self.channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), table).await.unwrap();
    }

    pub async fn delete(&self, queue: &str) {
        let options = QueueDeleteOptions::default();
        self.channel.queue_delete(queue.into(), options).await.unwrap();
    }

    /// Consumes messages until there are `n`, acknowledging each.
    pub async fn take(&self, queue: &str, n: usize) -> Vec<Delivery> {
        let channel = self.connection.create_channel().await.unwrap();
        channel.basic_qos(100, BasicQosOptions::default()).await.unwrap();
        let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
        let mut consumer = channel.basic_consume(queue.into(), "".into(), options, table).await.unwrap();
        let mut taken = Vec::new();
        while taken.len() < n {
            let delivery = consumer.next().await.unwrap().unwrap();
            delivery.ack(BasicAckOptions::default()).await.unwrap();
            taken.push(delivery);
        }
        taken
    }
}

pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// A header of a message, if it has it.
pub fn header<'a>(properties: &'a BasicProperties, name: &str) -> Option<&'a AMQPValue> {
    properties.headers().as_ref()?.inner().get(name)
}
