//! The cluster without the adapter.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const LIMIT: Duration = Duration::from_secs(10);

pub struct Raw {
    config: ClientConfig,
    admin: AdminClient<DefaultClientContext>,
    producer: FutureProducer,
}

impl Raw {
    pub fn new() -> Self {
        let url = super::KAFKA.url();
        let place = url.split_once("://").unwrap().1;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", place);
        Self { admin: config.create().unwrap(), producer: config.create().unwrap(), config }
    }

    pub async fn create(&self, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
        let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        for (name, value) in settings {
            new = new.set(name, value);
        }
        let made =
            self.admin.create_topics([&new], &AdminOptions::new().operation_timeout(Some(LIMIT))).await;
        made.unwrap().into_iter().for_each(|one| drop(one.unwrap()));
    }

    pub async fn delete(&self, topic: &str) {
        let gone =
            self.admin.delete_topics(&[topic], &AdminOptions::new().operation_timeout(Some(LIMIT))).await;
        gone.unwrap().into_iter().for_each(|one| drop(one.unwrap()));
    }

    pub async fn grow(&self, topic: &str, partitions: usize) {
        let new = NewPartitions::new(topic, partitions);
        let grown =
            self.admin.create_partitions([&new], &AdminOptions::new().operation_timeout(Some(LIMIT))).await;
        grown.unwrap().into_iter().for_each(|one| drop(one.unwrap()));
    }

    /// Drops what is before this offset, as retention does.
    pub async fn truncate(&self, topic: &str, partition: i32, before: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(before)).unwrap();
        self.admin.delete_records(&list, &AdminOptions::new().operation_timeout(Some(LIMIT))).await.unwrap();
    }

    pub async fn send(&self, topic: &str, partition: i32, body: &[u8]) {
        self.send_with(topic, partition, body, None).await;
    }

    pub async fn send_with(&self, topic: &str, partition: i32, body: &[u8], headers: Option<OwnedHeaders>) {
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(topic).payload(body).partition(partition);
        record.headers = headers;
        self.producer.send(record, LIMIT).await.unwrap();
    }

    /// The committed offset and its text.
    pub fn committed(&self, group: &str, topic: &str, partition: i32) -> Option<(i64, String)> {
        let consumer: BaseConsumer = self.config.clone().set("group.id", group).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, partition);
        let found = consumer.committed_offsets(list, LIMIT).unwrap();
        let element = &found.elements()[0];
        match element.offset() {
            Offset::Offset(offset) => Some((offset, element.metadata().to_owned())),
            _ => None,
        }
    }

    /// Commits for a group without members, as operators' tools do.
    pub fn commit(&self, group: &str, topic: &str, partition: i32, offset: i64, text: &str) {
        let consumer: BaseConsumer = self.config.clone().set("group.id", group).create().unwrap();
        let mut list = TopicPartitionList::new();
        let mut element = list.add_partition(topic, partition);
        element.set_offset(Offset::Offset(offset)).unwrap();
        element.set_metadata(text);
        consumer.commit(&list, rdkafka::consumer::CommitMode::Sync).unwrap();
    }
}
