//! Pipelines at work, and what readers see of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use oncemq_core::{Context, Error, Failure, Health, Message, Shutdown};
use oncemq_kafka::{Output, Pipeline, PipelineSummary};
use oncemq_test_kit::unique;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message as _};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(10);

/// A pipeline at work.
pub struct Copying {
    pub health: watch::Receiver<Health>,
    pub stop: Shutdown,
    pub task: JoinHandle<Result<PipelineSummary, Error>>,
}

impl Copying {
    /// Starts it and waits until it reads.
    pub async fn start<F, Fut>(pipeline: Pipeline, handler: F) -> Self
    where
        F: Fn(Context, Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Output>, Failure>> + Send + 'static,
    {
        let stop = Shutdown::new();
        let mut health = pipeline.health();
        let task = tokio::spawn(pipeline.shutdown(stop.clone()).run(handler));
        if !matches!(timeout(Duration::from_secs(60), health.wait_for(Health::is_up)).await, Ok(Ok(_))) {
            let now = health.borrow().clone();
            panic!("not up, but {now}");
        }
        Self { health, stop, task }
    }

    pub async fn stop(self) -> PipelineSummary {
        self.stop.stop();
        timeout(Duration::from_secs(60), self.task).await.expect("it stops").unwrap().unwrap()
    }
}

/// What is committed, and what is written at all.
#[derive(Debug, Clone, Copy)]
pub enum Level {
    Committed,
    Written,
}

/// A record as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Partition and offset.
    pub place: (i32, i64),
    pub body: String,
    pub headers: BTreeMap<String, String>,
}

/// The cluster at an address, without the adapter.
#[derive(Clone)]
pub struct Place(String);

impl Place {
    pub fn shared() -> Self {
        Self::at(&super::KAFKA.url())
    }

    pub fn at(url: &str) -> Self {
        Self(url.split_once("://").unwrap().1.to_owned())
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.0);
        config
    }

    pub async fn create(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = self.config().create().unwrap();
        let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        for (name, value) in settings {
            new = new.set(name, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(LIMIT));
        let made = admin.create_topics([&new], &options).await.unwrap();
        made.into_iter().for_each(|one| drop(one.unwrap()));
    }

    /// Writes bodies to the partitions in turn.
    pub async fn fill(&self, topic: &str, partitions: i32, bodies: impl Iterator<Item = String>) {
        let producer: FutureProducer =
            self.config().set("enable.idempotence", "true").set("linger.ms", "5").create().unwrap();
        let (mut sent, mut turn) = (Vec::new(), (0..partitions).cycle().zip(bodies));
        loop {
            // No more at once than the client's queue takes.
            for (partition, body) in turn.by_ref().take(20_000) {
                let record: FutureRecord<'_, [u8], str> = FutureRecord::to(topic).payload(&body);
                let record = record.partition(partition);
                sent.push(producer.send_result(record).unwrap_or_else(|(refused, _)| panic!("{refused}")));
            }
            if sent.is_empty() {
                return;
            }
            for one in sent.drain(..) {
                one.await.unwrap().unwrap();
            }
        }
    }

    /// A reader of the whole topic that follows it.
    pub fn reader(&self, topic: &str, level: Level) -> Reader {
        let level = match level {
            Level::Committed => "read_committed",
            Level::Written => "read_uncommitted",
        };
        let consumer: BaseConsumer = self
            .config()
            .set("group.id", unique("reader"))
            .set("isolation.level", level)
            .set("enable.partition.eof", "true")
            .set("enable.auto.commit", "false")
            .create()
            .unwrap();
        let metadata = consumer.fetch_metadata(Some(topic), LIMIT).unwrap();
        let mut list = TopicPartitionList::new();
        for partition in metadata.topics()[0].partitions() {
            list.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
        }
        consumer.assign(&list).unwrap();
        Reader { consumer, partitions: list.count() }
    }

    /// Everything in a topic.
    pub fn read(&self, topic: &str, level: Level) -> Vec<Seen> {
        self.reader(topic, level).to_the_end()
    }

    /// The committed offsets of a topic's partitions added up.
    pub fn committed(&self, group: &str, topic: &str) -> i64 {
        // Not to wait for open transactions.
        let mut config = self.config();
        config.set("group.id", group).set("isolation.level", "read_uncommitted");
        let consumer: BaseConsumer = config.create().unwrap();
        let metadata = consumer.fetch_metadata(Some(topic), LIMIT).unwrap();
        let mut list = TopicPartitionList::new();
        for partition in metadata.topics()[0].partitions() {
            list.add_partition(topic, partition.id());
        }
        let offsets = consumer.committed_offsets(list, LIMIT).unwrap();
        offsets.elements().iter().map(|one| one.offset().to_raw().unwrap_or(0).max(0)).sum()
    }
}

pub struct Reader {
    consumer: BaseConsumer,
    partitions: usize,
}

impl Reader {
    /// Reads until the end of every partition.
    pub fn to_the_end(&self) -> Vec<Seen> {
        let (mut seen, mut ends, begin) = (Vec::new(), 0, Instant::now());
        while ends < self.partitions {
            assert!(begin.elapsed() < 3 * LIMIT, "no end of the topic after {} records", seen.len());
            match self.consumer.poll(LIMIT / 100) {
                Some(Ok(record)) => seen.push(see(&record)),
                Some(Err(KafkaError::PartitionEOF(_))) => ends += 1,
                _ => {}
            }
        }
        seen
    }

    /// Reads what there is for so long.
    pub fn read_for(&self, time: Duration) -> Vec<Seen> {
        let (mut seen, begin) = (Vec::new(), Instant::now());
        while begin.elapsed() < time {
            if let Some(Ok(record)) = self.consumer.poll(Duration::from_millis(50)) {
                seen.push(see(&record));
            }
        }
        seen
    }
}

fn see(record: &rdkafka::message::BorrowedMessage<'_>) -> Seen {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers = record.headers().into_iter().flat_map(Headers::iter);
    let headers = headers.map(|one| (one.key.to_owned(), text(one.value.unwrap_or_default())));
    let place = (record.partition(), record.offset());
    Seen { place, body: text(record.payload().unwrap_or_default()), headers: headers.collect() }
}

/// The bodies in order of their text.
pub fn sorted(seen: &[Seen]) -> Vec<String> {
    let mut bodies: Vec<_> = seen.iter().map(|one| one.body.clone()).collect();
    bodies.sort_unstable();
    bodies
}

/// Every wanted body, once. A reader that went back sees a record of the topic again: that is
/// the same one, and not another.
pub fn assert_once(seen: &[Seen], wanted: &[String]) {
    let distinct: BTreeMap<_, _> = seen.iter().map(|one| (one.place, &*one.body)).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    distinct.values().for_each(|body| *counts.entry(body).or_default() += 1);
    let missing = wanted.iter().filter(|body| !counts.contains_key(body.as_str())).count();
    counts.retain(|_, count| *count > 1);
    let some: Vec<_> = counts.iter().take(3).collect();
    assert!(
        counts.is_empty() && missing == 0,
        "{} doubled, as {some:?}, and {missing} missing; {} seen again",
        counts.len(),
        seen.len() - distinct.len()
    );
    assert_eq!(distinct.len(), wanted.len(), "something else was seen");
}

/// A handler's answer: the message as it is, for this topic.
pub fn copy_to(
    topic: &str,
) -> impl Fn(Context, Message) -> std::future::Ready<Result<Vec<Output>, Failure>> + use<> {
    let topic: std::sync::Arc<str> = topic.into();
    move |_cx, message| std::future::ready(Ok(vec![Output::new(topic.clone(), message)]))
}
