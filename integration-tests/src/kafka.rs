//! Kafka as a client of its own sees it.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};

use crate::service::Spec;

/// A member that was killed is missed after its session, so it is short. Commits come often,
/// so that a test that dies at one of them has not long to wait.
const SHORT: &str = "session.timeout.ms=2000&heartbeat.interval.ms=300&commit_interval=50ms";
/// One question to the broker.
const ASK: Duration = Duration::from_secs(10);
/// How long a broker may refuse after it was killed.
const REFUSED_MAX: Duration = Duration::from_secs(60);

/// The address of a service: a broker's, with so many partitions for a topic that is made.
pub fn url(broker: &str, partitions: u32) -> String {
    url_with(broker, partitions, SHORT)
}

/// The same with these options instead of a short session.
pub fn url_with(broker: &str, partitions: u32, options: &str) -> String {
    let joint = if broker.contains('?') { '&' } else { '?' };
    format!("{broker}{joint}partitions={partitions}&{options}")
}

/// A connection, beside the groups of a service.
pub struct Kafka {
    admin: AdminClient<DefaultClientContext>,
    /// In the name of the group of the topic, and of the one of the rungs.
    work: BaseConsumer,
    rungs: BaseConsumer,
}

impl Kafka {
    /// Connects.
    ///
    /// # Panics
    /// The service's broker is not one that this client can be told.
    pub fn connect(spec: &Spec) -> Self {
        let place = spec.broker.strip_prefix("kafka://").expect("a kafka:// URL");
        let place = place.split(['?', '/']).next().unwrap_or(place);
        assert!(!place.contains('@'), "the tests use a broker that asks for no login");
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", place)
            .set("enable.auto.commit", "false")
            .set("reconnect.backoff.max.ms", "1000");
        let admin = config.create().unwrap();
        let [work, rungs] = groups(spec).map(|group| config.set("group.id", group).create().unwrap());
        Self { admin, work, rungs }
    }

    /// Messages of a topic.
    ///
    /// # Panics
    /// The topic does not exist, or the broker does not answer for long.
    pub async fn count(&self, topic: &str) -> u32 {
        let ends = patiently(|| self.ends(topic)).await;
        u32::try_from(ends.iter().map(|(_, low, high)| high - low).sum::<i64>()).unwrap()
    }

    /// Whether the groups have committed the end of every partition of the service's topics,
    /// and nothing beyond.
    ///
    /// # Panics
    /// As [`count`](Self::count).
    pub async fn all_done(&self, spec: &Spec) -> bool {
        let rungs = spec.rungs();
        let topics = rungs.iter().map(|topic| (topic, &self.rungs)).chain([(&spec.topic, &self.work)]);
        for (topic, group) in topics {
            let ask = || {
                let ends = self.ends(topic)?;
                let committed = committed(group, topic, &ends)?;
                Ok((ends, committed))
            };
            let (ends, committed) = patiently(ask).await;
            let is_done = |(number, low, high): &Ends| match committed.get(number) {
                Some(offset) => offset == high,
                None => low == high,
            };
            if !ends.iter().all(is_done) {
                return false;
            }
        }
        true
    }

    /// The bodies of a topic.
    ///
    /// # Panics
    /// As [`count`](Self::count).
    pub async fn bodies(&self, topic: &str) -> BTreeSet<Vec<u8>> {
        patiently(|| self.read(topic)).await
    }

    /// Removes everything of a service.
    pub async fn remove(&self, spec: &Spec) {
        let options = AdminOptions::new().request_timeout(Some(ASK));
        let (dead, rungs) = (spec.dead(), spec.rungs());
        let topics: Vec<_> =
            rungs.iter().map(String::as_str).chain([spec.topic.as_str(), dead.as_str()]).collect();
        // What stays disturbs nobody: its names are nobody else's.
        let _ = self.admin.delete_topics(&topics, &options).await;
        let groups = groups(spec);
        let _ = self.admin.delete_groups(&groups.each_ref().map(String::as_str), &options).await;
    }

    fn ends(&self, topic: &str) -> KafkaResult<Vec<Ends>> {
        let metadata = self.work.fetch_metadata(Some(topic), ASK)?;
        let found = metadata.topics().first().filter(|found| found.error().is_none());
        let found = found.unwrap_or_else(|| panic!("there is no topic {topic}"));
        let numbers = found.partitions().iter().map(|partition| partition.id());
        numbers
            .map(|number| {
                let (low, high) = self.work.fetch_watermarks(topic, number, ASK)?;
                Ok((number, low, high))
            })
            .collect()
    }

    fn read(&self, topic: &str) -> KafkaResult<BTreeSet<Vec<u8>>> {
        let ends = self.ends(topic)?;
        let mut list = TopicPartitionList::new();
        for (number, low, _) in &ends {
            list.add_partition_offset(topic, *number, Offset::Offset(*low))?;
        }
        self.work.assign(&list)?;
        let mut left: i64 = ends.iter().map(|(_, low, high)| high - low).sum();
        let (mut bodies, began) = (BTreeSet::new(), Instant::now());
        while left > 0 {
            assert!(began.elapsed() < REFUSED_MAX, "{left} messages of {topic} do not come");
            let Some(record) = self.work.poll(Duration::from_millis(100)) else { continue };
            bodies.insert(record?.payload().unwrap_or_default().to_vec());
            left -= 1;
        }
        self.work.unassign()?;
        Ok(bodies)
    }
}

impl std::fmt::Debug for Kafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka").finish_non_exhaustive()
    }
}

/// A partition: its number, its first offset, and the one after the last.
type Ends = (i32, i64, i64);

/// What a group has committed, by partition.
fn committed(group: &BaseConsumer, topic: &str, partitions: &[Ends]) -> KafkaResult<HashMap<i32, i64>> {
    let mut list = TopicPartitionList::new();
    for (number, _, _) in partitions {
        list.add_partition(topic, *number);
    }
    let answer = group.committed_offsets(list, ASK)?;
    let offsets = answer.elements().into_iter().filter_map(|one| match one.offset() {
        Offset::Offset(offset) => Some((one.partition(), offset)),
        _ => None,
    });
    Ok(offsets.collect())
}

/// The group of a service's topic, and the one of its rungs.
fn groups(spec: &Spec) -> [String; 2] {
    [spec.name.clone(), format!("{}.retry", spec.name)]
}

/// Asks again while a broker that was killed finds itself again.
async fn patiently<T>(mut ask: impl FnMut() -> KafkaResult<T>) -> T {
    let began = Instant::now();
    loop {
        match tokio::task::block_in_place(&mut ask) {
            Ok(answer) => return answer,
            Err(error) => assert!(began.elapsed() < REFUSED_MAX, "Kafka does not answer: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
