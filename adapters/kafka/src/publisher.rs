//! Sending, each message confirmed.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::poll_immediate;
use oncemq_core::{Error, ErrorKind, Message, Publisher, failpoint};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};

use crate::client::{self, Quiet};
use crate::config::Config;
use crate::{error, records};

/// A producer that waits for every message until all replicas in sync have it.
#[derive(Clone)]
pub(crate) struct Producer {
    /// Another one after an error that the client cannot go on after.
    current: Arc<Mutex<FutureProducer<Quiet>>>,
    /// Sends each message in a batch of its own; made when one is needed.
    lone: Arc<Mutex<Option<FutureProducer<Quiet>>>>,
    quiet: Quiet,
    config: Arc<Config>,
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Producer {
    pub(crate) fn new(config: Arc<Config>) -> Result<Self, Error> {
        let quiet = Quiet::default();
        let producer = client::create(&config.producer(), quiet.clone())?;
        Ok(Self { current: Arc::new(Mutex::new(producer)), lone: Arc::default(), quiet, config })
    }

    fn current(&self) -> FutureProducer<Quiet> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What made this client stop for ever, if it has; the next message goes through a new one.
    fn replace(&self, stopped: &FutureProducer<Quiet>) -> Option<KafkaError> {
        let (code, _) = stopped.client().fatal_error()?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // Of those who fail together only the first one replaces it.
        if current.client().fatal_error().is_some()
            && let Ok(next) = client::create(&self.config.producer(), self.quiet.clone())
        {
            *current = next;
        }
        Some(KafkaError::MessageProduction(code))
    }

    /// Sends a message and returns when it is stored. A future that is dropped leaves that
    /// unknown.
    pub(crate) async fn send(&self, topic: &str, message: &Message) -> Result<(), Error> {
        if let Some(name) = records::unusable_header(message.headers()) {
            let text = format!("a header name with a zero byte ({name:?}) cannot be sent to Kafka");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let producer = self.current();
        let mut sent = self.send_through(&producer, topic, message).await;
        if sent.as_ref().is_err_and(is_too_large) {
            // The broker refuses a batch as a whole: it may be a neighbour that is too large.
            sent = self.send_through(&self.lone()?, topic, message).await;
        }
        sent.map_err(|refused| {
            let why = self.replace(&producer).unwrap_or(refused);
            self.explain(topic, message, &why)
        })
    }

    async fn send_through(
        &self,
        producer: &FutureProducer<Quiet>,
        topic: &str,
        message: &Message,
    ) -> Result<(), KafkaError> {
        let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic);
        record.payload = message.payload().map(|bytes| &**bytes);
        record.key = message.key().map(|bytes| &**bytes);
        record.headers = records::headers_of(message);
        let mut sending = pin!(producer.send(record, self.config.publish_timeout));
        // The client has it after the first poll.
        let sent = poll_immediate(&mut sending).await;
        failpoint!("kafka.published");
        let sent = match sent {
            Some(sent) => sent,
            None => sending.await,
        };
        sent.map(drop).map_err(|(refused, _)| refused)
    }

    fn lone(&self) -> Result<FutureProducer<Quiet>, Error> {
        let mut lone = self.lone.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(producer) = lone.as_ref().filter(|producer| producer.client().fatal_error().is_none()) {
            return Ok(producer.clone());
        }
        let mut settings = self.config.producer();
        settings.set("batch.num.messages", "1");
        let producer: FutureProducer<Quiet> = client::create(&settings, self.quiet.clone())?;
        *lone = Some(producer.clone());
        Ok(producer)
    }

    fn explain(&self, topic: &str, message: &Message, refused: &KafkaError) -> Error {
        let (limit, size) = (self.config.publish_timeout, message.size());
        match refused.rdkafka_error_code() {
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition) => Error::new(
                ErrorKind::Unroutable,
                format!(
                    "there is no topic {topic} in Kafka; create it first, or start a consumer that declares it"
                ),
            ),
            Some(_) if is_too_large(refused) => Error::new(
                ErrorKind::TooLarge,
                format!(
                    "a message of {size} bytes is over the limit of topic {topic}; raise its max.message.bytes"
                ),
            ),
            Some(Code::QueueFull) => Error::new(
                ErrorKind::Connection,
                format!(
                    "the queue of messages to send is full for {limit:?}; the message was not sent, send it again"
                ),
            ),
            Some(Code::MessageTimedOut | Code::RequestTimedOut) => {
                let why = self.quiet.said.take().map(|(_, why)| format!(": {why}")).unwrap_or_default();
                let text = format!(
                    "Kafka did not confirm a message to {topic} within {limit:?}; it may or may not be stored, send it \
                     again with the same id{why}"
                );
                Error::new(ErrorKind::Unconfirmed, text)
            }
            _ => error::from_client(&format!("publishing to topic {topic}"), refused),
        }
    }

    /// Waits until everything is confirmed or given up, at most so long.
    pub(crate) async fn flush(&self, limit: Duration) {
        let producer = self.current();
        let flushed = client::blocking(move || {
            producer.flush(limit).map_err(|refused| error::from_client("flushing", &refused))
        });
        // What was not confirmed has been told to whoever sent it.
        let _ = flushed.await;
    }

    /// Connects, so that a wrong address or login is an error here.
    pub(crate) async fn connect(&self) -> Result<(), Error> {
        self.metadata(None, |_| Ok(())).await
    }

    /// Asks for a topic, or for all of them, and reads the first one of the answer.
    pub(crate) async fn metadata<T: Send + 'static>(
        &self,
        topic: Option<&str>,
        read: impl FnOnce(Option<&MetadataTopic>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (producer, topic) = (self.current(), topic.map(str::to_owned));
        let limit = self.config.connect_timeout;
        let call = move || {
            let found = producer.client().fetch_metadata(topic.as_deref(), limit).ok()?;
            Some(read(found.topics().first()))
        };
        client::ask(&self.quiet.said, &self.config, limit, call).await?
    }

    /// Whether any broker answers within so long.
    pub(crate) async fn is_heard(&self, topic: &str, limit: Duration) -> bool {
        let (producer, topic) = (self.current(), topic.to_owned());
        let call = move || Ok(producer.client().fetch_metadata(Some(&topic), limit).is_ok());
        client::blocking(call).await.unwrap_or(false)
    }
}

fn is_too_large(refused: &KafkaError) -> bool {
    let code = refused.rdkafka_error_code();
    matches!(code, Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::MessageBatchTooLarge))
}

/// Publishes to the topic of the name.
#[derive(Debug)]
pub(crate) struct KafkaPublisher {
    producer: Producer,
    closed: AtomicBool,
}

impl KafkaPublisher {
    pub(crate) async fn connect(config: Arc<Config>) -> Result<Self, Error> {
        let producer = Producer::new(config)?;
        producer.connect().await?;
        Ok(Self { producer, closed: AtomicBool::new(false) })
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, topic: &str, message: &Message) -> Result<(), Error> {
        if self.closed.load(SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the publisher is closed; make another one"));
        }
        self.producer.send(topic, message).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.closed.store(true, SeqCst);
        self.producer.flush(self.producer.config.publish_timeout).await;
        Ok(())
    }
}
