//! RabbitMQ as a client of its own sees it.

use std::collections::BTreeSet;

use lapin::options::{BasicGetOptions, ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};

use crate::service::Spec;

/// A connection.
#[derive(Debug)]
pub struct Rabbit {
    connection: Connection,
}

impl Rabbit {
    /// Connects.
    ///
    /// # Panics
    /// The server does not answer.
    pub async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await;
        Self { connection: connection.expect("RabbitMQ answers") }
    }

    /// Ready messages of a queue; those that are out are not counted.
    ///
    /// # Panics
    /// The queue does not exist.
    pub async fn ready(&self, queue: &str) -> u32 {
        let channel = self.connection.create_channel().await.unwrap();
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await;
        let count = found.unwrap().message_count();
        let _ = channel.close(200, "done".into()).await;
        count
    }

    /// Whether no message is ready in any of these.
    ///
    /// # Panics
    /// One of them does not exist.
    pub async fn all_empty(&self, queues: &BTreeSet<String>) -> bool {
        for queue in queues {
            if self.ready(queue).await != 0 {
                return false;
            }
        }
        true
    }

    /// Takes every message of a queue.
    ///
    /// # Panics
    /// The queue does not exist.
    pub async fn drain(&self, queue: &str) -> Vec<Vec<u8>> {
        let channel = self.connection.create_channel().await.unwrap();
        let mut bodies = Vec::new();
        while let Some(got) = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()
        {
            bodies.push(got.delivery.data);
        }
        let _ = channel.close(200, "done".into()).await;
        bodies
    }

    /// Takes every dead letter. Two copies of one are the same: a crash between a copy and
    /// its ack may make a second.
    ///
    /// # Panics
    /// There is no such queue.
    pub async fn dead_letters(&self, spec: &Spec) -> BTreeSet<Vec<u8>> {
        self.drain(&spec.dead()).await.into_iter().collect()
    }

    /// Removes everything of a service.
    pub async fn remove(&self, spec: &Spec) {
        let Ok(channel) = self.connection.create_channel().await else { return };
        let queues = [spec.queue(), spec.dead()];
        for queue in queues.into_iter().chain(spec.rungs()) {
            let _ = channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await;
        }
        let topic = spec.topic.as_str();
        let _ = channel.exchange_delete(topic.into(), ExchangeDeleteOptions::default()).await;
    }
}
