//! The transactional producer, and what its errors mean.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oncemq_core::{Error, ErrorKind, Message};
use rdkafka::TopicPartitionList;
use rdkafka::consumer::ConsumerGroupMetadata;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseRecord, Producer as _, ThreadedProducer};

use super::deliveries::Deliveries;
use super::launch::End;
use crate::config::Config;
use crate::{client, error, records};

/// The longest that one call of the client blocks.
const SLICE: Duration = Duration::from_millis(500);
/// Between two calls that the client asked to repeat.
const PAUSE: Duration = Duration::from_millis(20);
/// How long an abort waits for what was sent: more would only be thrown away.
const BEFORE_ABORT: Duration = Duration::from_secs(1);
/// An output to a topic that is not there is refused after this time, unless set.
const UNKNOWN_TOPIC: Duration = Duration::from_secs(5);

/// Outputs that are sent and not confirmed, unless set: more waits.
const QUEUE_KBYTES: usize = 64 * 1024;

type Producer = ThreadedProducer<Deliveries>;

/// Why a unit does not come about.
#[derive(Debug)]
pub(super) enum Trouble {
    /// An output cannot be stored as it is.
    Refused(String),
    /// Nothing of the unit counts.
    Redo(String),
    /// Time alone does not mend it.
    End(Error),
}

/// One producer at a time, under one transactional id: a new one ends what the last one left
/// open.
pub(super) struct Writer {
    config: Arc<Config>,
    id: String,
    timeout: Duration,
    end: End,
    state: State,
}

enum State {
    None,
    Starting(Producer),
    Ready(Producer),
}

impl Writer {
    /// Connects to nothing yet, but refuses settings that the client refuses.
    pub(super) fn new(config: Arc<Config>, id: String, timeout: Duration, end: End) -> Result<Self, Error> {
        let mut writer = Self { config, id, timeout, end, state: State::None };
        writer.state = State::Starting(writer.make()?);
        Ok(writer)
    }

    fn make(&self) -> Result<Producer, Error> {
        let mut client = self.config.producer();
        let millis = |time: Duration| time.as_millis().max(1).to_string();
        client
            .set("transactional.id", &self.id)
            .set("transaction.timeout.ms", millis(self.timeout))
            // What is not stored by then is of no use.
            .set("message.timeout.ms", millis(self.timeout.min(self.config.publish_timeout)));
        let mut unless_set = |name: &str, value: String| {
            if !self.config.options.contains_key(name) {
                client.set(name, value);
            }
        };
        unless_set("topic.metadata.propagation.max.ms", millis(UNKNOWN_TOPIC.min(self.timeout / 2)));
        unless_set("queue.buffering.max.kbytes", QUEUE_KBYTES.to_string());
        client::create(&client, Deliveries::default())
    }

    /// Has a producer at hand, if the broker answers within a moment. Otherwise says why not.
    pub(super) fn prepare(&mut self) -> Result<(), Trouble> {
        if let State::None = self.state {
            self.state = State::Starting(self.make().map_err(Trouble::End)?);
        }
        let State::Starting(producer) = &self.state else { return Ok(()) };
        match producer.init_transactions(SLICE) {
            Ok(()) => {
                if let State::Starting(producer) = std::mem::replace(&mut self.state, State::None) {
                    self.state = State::Ready(producer);
                }
                Ok(())
            }
            Err(KafkaError::Transaction(failed)) if failed.is_retriable() => {
                let said = producer.client().context().said.take().map(|(_, why)| why);
                Err(Trouble::Redo(said.unwrap_or_else(|| failed.string())))
            }
            Err(failed) => Err(self.judge("starting to write", &failed)),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    fn producer(&self) -> Result<&Producer, Trouble> {
        match &self.state {
            State::Ready(producer) => Ok(producer),
            _ => Err(Trouble::Redo("the producer has ended".to_owned())),
        }
    }

    pub(super) fn begin(&mut self) -> Result<(), Trouble> {
        let producer = self.producer()?;
        producer.client().context().forget();
        let begun = producer.begin_transaction();
        begun.map_err(|failed| self.judge("beginning a transaction", &failed))
    }

    pub(super) fn send(&mut self, topic: &str, message: &Message) -> Result<(), Trouble> {
        let producer = self.producer()?;
        let deliveries = producer.client().context();
        let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(topic);
        record.payload = message.payload().map(|bytes| &**bytes);
        record.key = message.key().map(|bytes| &**bytes);
        record.headers = records::headers_of(message);
        deliveries.expect();
        let end = Instant::now() + self.timeout;
        loop {
            let (failed, back) = match producer.send(record) {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            let full = matches!(failed, KafkaError::MessageProduction(Code::QueueFull));
            if full && Instant::now() < end && !self.end.is_here() {
                record = back;
                std::thread::sleep(PAUSE);
                continue;
            }
            deliveries.unexpect();
            return Err(match failed {
                // The transaction has failed already, by an output or as a whole.
                KafkaError::MessageProduction(Code::State | Code::Fatal | Code::Fenced) => self.why(),
                KafkaError::MessageProduction(Code::QueueFull) => {
                    Trouble::Redo("the queue of outputs stays full".to_owned())
                }
                other => Trouble::Refused(refusal(topic, &other)),
            });
        }
    }

    /// Waits until every output is stored.
    fn stored(&mut self) -> Result<(), Trouble> {
        let producer = self.producer()?;
        // Each output has an answer by the producer's own time limit.
        let end = Instant::now() + self.timeout * 2;
        let deliveries = producer.client().context();
        while !deliveries.wait(SLICE / 10) {
            if Instant::now() >= end || self.end.is_here() {
                self.state = State::None;
                return Err(Trouble::Redo("outputs were not confirmed in time".to_owned()));
            }
        }
        if deliveries.has_failed() {
            return Err(self.why());
        }
        // Until the client has let go of the reports, a commit would take a tenth of a second.
        let end = Instant::now() + SLICE / 10;
        while producer.in_flight_count() > 0 && Instant::now() < end {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Why the transaction failed: by an output that cannot be stored, or as a whole.
    fn why(&mut self) -> Trouble {
        let Ok(producer) = self.producer() else { return Trouble::Redo("the producer has ended".to_owned()) };
        match producer.client().context().failure() {
            Some(failed) if failed.is_refusal => {
                let refused = KafkaError::MessageProduction(failed.code);
                return Trouble::Refused(refusal(&failed.topic, &refused));
            }
            Some(failed) if !matches!(failed.code, Code::PurgeQueue | Code::PurgeInflight) => {
                let failure = KafkaError::MessageProduction(failed.code);
                let what = format!("writing to topic {}", failed.topic);
                return Trouble::Redo(error::from_client(&what, &failure).to_string());
            }
            _ => {}
        }
        // The client throws away what is left when a transaction fails. Asked for another one
        // it tells why.
        match producer.begin_transaction() {
            Err(failed) => self.judge("writing", &failed),
            Ok(()) => Trouble::Redo("the transaction has ended".to_owned()),
        }
    }

    /// Puts the offsets into the transaction, once every output is stored. The broker refuses
    /// them if the group has gone on since the metadata was taken.
    pub(super) fn add_offsets(
        &mut self,
        offsets: &TopicPartitionList,
        metadata: &ConsumerGroupMetadata,
    ) -> Result<(), Trouble> {
        self.stored()?;
        let added = self.producer()?.send_offsets_to_transaction(offsets, metadata, self.timeout);
        added.map_err(|failed| self.judge("committing offsets", &failed))
    }

    pub(super) fn commit(&mut self) -> Result<(), Trouble> {
        let producer = self.producer()?;
        let committed = self.persist(self.timeout * 2, || producer.commit_transaction(SLICE));
        committed.map_err(|failed| self.judge("committing a transaction", &failed))
    }

    /// Ends an open transaction without effect. If that fails within the limit the next
    /// producer does it, or the broker.
    ///
    /// An output without an answer may still be on its way. Arriving after the abort it would
    /// belong to the next transaction of this producer, and count with it. A new producer has
    /// another epoch, and the broker refuses what comes from the one before.
    pub(super) fn abort(&mut self, limit: Duration) {
        let State::Ready(producer) = &self.state else { return };
        let deliveries = producer.client().context();
        let end = Instant::now() + BEFORE_ABORT.min(limit);
        while !deliveries.wait(SLICE / 10) && Instant::now() < end {}
        let answered = deliveries.wait(Duration::ZERO) && !deliveries.has_failed();
        if self.persist(limit, || producer.abort_transaction(SLICE)).is_err() || !answered {
            self.state = State::None;
        }
    }

    /// Calls again what the client wants to be called again.
    fn persist(&self, limit: Duration, call: impl Fn() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
        let end = Instant::now() + limit;
        loop {
            let called = call();
            let again = match &called {
                Err(KafkaError::Transaction(failed)) => failed.is_retriable(),
                Err(KafkaError::Flush(_)) => true,
                _ => false,
            };
            if !again || Instant::now() >= end || self.end.is_here() {
                return called;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// What follows from an error. A producer that cannot go on is given up.
    fn judge(&mut self, what: &str, failed: &KafkaError) -> Trouble {
        let abortable = matches!(failed, KafkaError::Transaction(failed) if failed.txn_requires_abort());
        if !abortable {
            self.state = State::None;
        }
        let told = error::from_client(what, failed);
        match told.kind() {
            ErrorKind::Access => Trouble::End(told),
            _ => Trouble::Redo(told.to_string()),
        }
    }
}

fn refusal(topic: &str, failed: &KafkaError) -> String {
    format!("an output to topic {topic} was refused: {}", error::text_of(failed))
}
