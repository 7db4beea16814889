//! Queues full of messages.

use std::error::Error;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

const BODY: [u8; 200] = [b'x'; 200];
/// Messages published before their confirmations are waited for.
const WINDOW: usize = 1000;
/// How long the broker gets to finish what a fill left behind.
const QUIET: Duration = Duration::from_millis(200);

/// The type of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Classic,
    Quorum,
}

/// Makes queues, one for each round.
#[derive(Debug)]
pub(crate) struct Queues {
    connection: Connection,
    channel: Channel,
    kind: Kind,
}

impl Queues {
    pub(crate) async fn open(url: &str, kind: Kind) -> Result<Self, lapin::Error> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { connection, channel, kind })
    }

    /// A queue with this many messages, all on the disk. Returns its name.
    pub(crate) async fn fill(&self, messages: usize) -> Result<String, Box<dyn Error>> {
        let kind = match self.kind {
            Kind::Classic => "classic",
            Kind::Quorum => "quorum",
        };
        let queue = format!("oncemq-bench.{kind}.{}", std::process::id());
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        let options = QueueDeclareOptions::durable();
        self.channel.queue_declare(queue.as_str().into(), options, arguments).await?;
        let properties = BasicProperties::default().with_delivery_mode(2).with_message_id("bench".into());
        let mut left = messages;
        let mut confirms = Vec::with_capacity(WINDOW);
        while left > 0 {
            let window = left.min(WINDOW);
            for _ in 0..window {
                let options = BasicPublishOptions { mandatory: true, ..Default::default() };
                let (exchange, key) = ("".into(), queue.as_str().into());
                let sent = self.channel.basic_publish(exchange, key, options, &BODY, properties.clone());
                confirms.push(sent.await?);
            }
            for confirm in confirms.drain(..) {
                if confirm.await? != Confirmation::Ack(None) {
                    return Err(format!("the broker did not take a message for queue {queue}").into());
                }
            }
            left -= window;
        }
        tokio::time::sleep(QUIET).await;
        Ok(queue)
    }

    /// # Errors
    /// Something is left in the queue: a figure over messages that were not settled is none.
    pub(crate) async fn remove_empty(&self, queue: &str) -> Result<(), Box<dyn Error>> {
        let left = self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        if left > 0 {
            return Err(format!("{left} messages were left in queue {queue}").into());
        }
        Ok(())
    }

    pub(crate) async fn close(self) -> Result<(), lapin::Error> {
        self.connection.close(200, "done".into()).await
    }
}
