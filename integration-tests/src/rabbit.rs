//! RabbitMQ as a client of its own sees it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lapin::options::{
    BasicAckOptions, BasicGetOptions, ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};

use crate::service::Spec;

/// How long a queue may refuse after its node was killed.
const REFUSED_MAX: Duration = Duration::from_secs(60);

/// A connection.
#[derive(Debug)]
pub struct Rabbit {
    url: String,
    connection: Connection,
}

impl Rabbit {
    /// Connects.
    ///
    /// # Panics
    /// The server does not answer.
    pub async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await;
        Self { url: url.to_owned(), connection: connection.expect("RabbitMQ answers") }
    }

    /// Ready messages of a queue; those that are out are not counted.
    ///
    /// # Panics
    /// There is no such queue, or it refuses for too long.
    pub async fn ready(&self, queue: &str) -> u32 {
        let count = async |connection: &Connection| {
            let channel = connection.create_channel().await?;
            let options = QueueDeclareOptions { passive: true, ..Default::default() };
            let found = channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
            let _ = channel.close(200, "done".into()).await;
            Ok(found.message_count())
        };
        self.ask(queue, count).await
    }

    /// Whether no message is ready for the service, or waits for its time.
    ///
    /// # Panics
    /// A queue does not exist, or refuses for too long.
    pub async fn all_empty(&self, spec: &Spec) -> bool {
        for queue in spec.rungs().into_iter().chain([spec.queue()]) {
            if self.ready(&queue).await != 0 {
                return false;
            }
        }
        true
    }

    /// Takes every dead letter. Two copies of one are the same: a crash between a copy and
    /// its ack may make a second.
    ///
    /// # Panics
    /// There is no such queue, or it refuses for too long.
    pub async fn dead_letters(&self, spec: &Spec) -> BTreeSet<Vec<u8>> {
        let (queue, mut letters) = (spec.dead(), BTreeSet::new());
        self.ask(&queue, async |connection: &Connection| drain(connection, &queue, &mut letters).await).await;
        letters
    }

    /// Asks about a queue until there is an answer.
    ///
    /// A quorum queue whose node was killed refuses for a while, and closes the connection
    /// with it: every further attempt has one of its own.
    async fn ask<T>(
        &self,
        queue: &str,
        mut question: impl AsyncFnMut(&Connection) -> Result<T, lapin::Error>,
    ) -> T {
        if let Ok(answer) = question(&self.connection).await {
            return answer;
        }
        let began = Instant::now();
        loop {
            match self.ask_anew(&mut question).await {
                Ok(answer) => return answer,
                Err(error) => assert!(began.elapsed() < REFUSED_MAX, "{queue}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn ask_anew<T>(
        &self,
        question: &mut impl AsyncFnMut(&Connection) -> Result<T, lapin::Error>,
    ) -> Result<T, lapin::Error> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let answer = question(&connection).await?;
        connection.close(200, "done".into()).await?;
        Ok(answer)
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

/// Moves every message of a queue to `into`; acknowledged, so that none is lost on the way.
async fn drain(
    connection: &Connection,
    queue: &str,
    into: &mut BTreeSet<Vec<u8>>,
) -> Result<(), lapin::Error> {
    let channel = connection.create_channel().await?;
    while let Some(got) = channel.basic_get(queue.into(), BasicGetOptions::default()).await? {
        got.delivery.ack(BasicAckOptions::default()).await?;
        into.insert(got.delivery.data);
    }
    channel.close(200, "done".into()).await
}
