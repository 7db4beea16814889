//! A broker that is gone for a while, as the client's own imitation of a cluster plays it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use oncemq_core::{
    Ack, Broker, ConsumerSpec, ErrorKind, Event, Health, Identity, Message, Subscription, Topology, Trail,
};
use oncemq_kafka::KafkaBroker;
use oncemq_test_kit::{Bare, millis, secs, test, unique};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, TopicPartitionList};
use tokio::time::{Instant, timeout};

fn main() {
    let tests = vec![
        test("an_end_without_a_broker_comes_at_once_and_loses_nothing", end),
        test("a_broker_that_is_down_at_the_start_is_waited_for", start),
        test("an_outage_is_told_once_in_the_same_words_and_so_is_its_end", told_once),
        test("a_partition_whose_position_is_there_again_goes_on_without_a_gap", position),
        test("a_question_after_a_topic_does_not_make_it", question),
    ];
    // They wait most of the time.
    oncemq_test_kit::main(tests, 8)
}

/// A cluster of one broker with a topic of one partition.
struct Mock {
    cluster: MockCluster<'static, DefaultProducerContext>,
    topic: String,
}

impl Mock {
    fn new() -> Self {
        let (cluster, topic) = (MockCluster::new(1).unwrap(), unique("mock"));
        cluster.create_topic(&topic, 1, 1).unwrap();
        Self { cluster, topic }
    }

    fn broker(&self, options: &str) -> KafkaBroker {
        KafkaBroker::from_url(&format!("kafka://{}?{options}", self.cluster.bootstrap_servers())).unwrap()
    }

    async fn committed(&self, group: &str) -> Option<i64> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.cluster.bootstrap_servers()).set("group.id", group);
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.topic, 0);
        let ask = move || {
            let consumer: BaseConsumer = config.create().unwrap();
            consumer.committed_offsets(list, secs(10)).unwrap()
        };
        let found = tokio::task::spawn_blocking(ask).await.unwrap();
        found.elements()[0].offset().to_raw().filter(|offset| *offset >= 0)
    }

    async fn source(&self, consumer: &str) -> Bare {
        // It makes no topics.
        let spec = ConsumerSpec::new(consumer, 100, Topology::Trust);
        Bare::with(self.broker(""), &spec.with(Subscription::new(self.topic.as_str()))).await
    }
}

async fn end() {
    let mock = Mock::new();
    let mut bare = mock.source("points").await;
    bare.send(0..10).await;
    let mut out = Vec::new();
    for _ in 0..10 {
        out.push(bare.next().await);
    }
    // The others are given back, as what no worker has begun.
    out.drain(..5).for_each(|delivery| delivery.ack(Ack::Accept));
    drop(out);
    mock.cluster.broker_down(1).unwrap();
    let begin = Instant::now();
    bare.source.close(secs(30)).await.unwrap();
    assert!(begin.elapsed() < secs(5), "{:?}", begin.elapsed());
    drop(bare);

    // Nobody commits what was given back, also not the threads that still wait for the broker.
    mock.cluster.broker_up(1).unwrap();
    tokio::time::sleep(secs(1)).await;
    let committed = mock.committed("points").await;
    assert!(committed <= Some(5), "{committed:?}");
}

async fn start() {
    let mock = Mock::new();
    mock.cluster.broker_down(1).unwrap();
    let broker = mock.broker("");
    let connecting = tokio::spawn(async move { broker.publisher().await.map(drop) });
    tokio::time::sleep(secs(1)).await;
    assert!(!connecting.is_finished());
    mock.cluster.broker_up(1).unwrap();
    connecting.await.unwrap().unwrap();
}

/// The client reports it in many ways: connections refused and broken, brokers that are all
/// down, offsets that nobody tells.
async fn told_once() {
    let mock = Mock::new();
    let spec = ConsumerSpec::new("points", 100, Topology::Trust);
    let subscription = Subscription::new(mock.topic.as_str()).with_rungs([secs(1)]);
    mock.cluster.create_topic(&format!("points.{}.retry.1000ms", mock.topic), 1, 1).unwrap();
    // A second for a copy, and as long as it takes for what is to be there before the outage.
    let mut bare = Bare::with(mock.broker("publish_timeout=1s"), &spec.with(subscription)).await;
    let publisher = mock.broker("").publisher().await.unwrap();
    for body in ["0", "1"] {
        publisher.publish(&mock.topic, &Message::new(body)).await.unwrap();
    }
    publisher.close().await.unwrap();
    let (first, second) = (bare.next().await, bare.next().await);
    while !bare.health.is_up() {
        bare.poll().await;
    }
    mock.cluster.broker_down(1).unwrap();
    // Its copy cannot be stored either.
    let trail = Trail::read(first.message(), &"points".into(), &"kind".into(), Identity::Position);
    first.ack(Ack::retry(secs(1), trail, "busy"));
    let told = watch(&mut bare, secs(3)).await;
    assert!(told.len() == 1 && told[0].to_string().contains("does not answer"), "{told:?}");
    mock.cluster.broker_up(1).unwrap();
    second.ack(Ack::Accept);
    let told = watch(&mut bare, secs(3)).await;
    assert_eq!(told.last(), Some(&Health::Up), "{told:?}");
    assert!(told.len() <= 2, "{told:?}");
}

/// The health's changes for a while.
async fn watch(bare: &mut Bare, time: Duration) -> Vec<Health> {
    let (mut told, mut last, end) = (Vec::new(), bare.health.clone(), Instant::now() + time);
    while Instant::now() < end {
        let _ = timeout(millis(50), bare.poll()).await;
        if bare.health != last {
            last = bare.health.clone();
            told.push(last.clone());
        }
    }
    told
}

async fn position() {
    let mock = Mock::new();
    let mut bare = mock.source("points").await;
    bare.send(0..3).await;
    for body in 0..3 {
        let delivery = bare.next().await;
        assert_eq!(Bare::body(&delivery), body);
        delivery.ack(Ack::Accept);
    }
    // The client gives a partition up for that.
    mock.cluster
        .request_errors(RDKafkaApiKey::Fetch, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE]);
    bare.poll_for(secs(2)).await;
    bare.send(3..6).await;
    for body in 3..6 {
        let delivery = bare.next().await;
        assert_eq!(Bare::body(&delivery), body);
        delivery.ack(Ack::Accept);
    }
    let gap = bare.others.iter().find(|event| matches!(event, Event::Gap { .. }));
    assert!(gap.is_none(), "{gap:?}");
}

async fn question() {
    let mock = Mock::new();
    let broker = mock.broker("topic.metadata.propagation.max.ms=500");
    let spec = ConsumerSpec::new("points", 1, Topology::Verify).with(Subscription::new("nobody-made-it"));
    let error = broker.prepare(&spec, &mut oncemq_core::Plan::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Topology, "{error}");
    let publisher = broker.publisher().await.unwrap();
    let error = publisher.publish("nobody-made-it", &Message::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unroutable, "{error}");
}
