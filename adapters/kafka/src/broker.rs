//! The broker as the runtime sees it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::{
    Broker, Capabilities, ConsumerSpec, Error, Ordering, Plan, Publisher, Source, Subscription, Topology,
};

use crate::config::{Config, Start, config};
use crate::pipeline::Pipeline;
use crate::publisher::KafkaPublisher;
use crate::source::{self, Lane};
use crate::topology::{Names, Topics};

/// A Kafka cluster, version 2.4 or later.
///
/// `Debug` shows addresses, the user and the names of options, never a password or a value.
#[derive(Debug, Clone)]
pub struct KafkaBroker {
    config: Config,
}

impl KafkaBroker {
    /// A cluster from a URL, `kafka://host:9092` or `kafka://user:password@host1,host2:9093`.
    /// Special characters are percent-encoded. A user means SASL, with PLAIN unless
    /// `sasl.mechanisms` names another one. `kafkas://` needs the feature `tls`.
    ///
    /// Options follow a `?`, joined by `&`:
    ///
    /// | option | meaning |
    /// |---|---|
    /// | `partitions`, `replication` | see [`partitions`](Self::partitions), [`replication`](Self::replication) |
    /// | `start` | `earliest` or `latest`, see [`start`](Self::start) |
    /// | `publish_timeout` | see [`publish_timeout`](Self::publish_timeout) |
    /// | `connect_timeout` | how long the cluster may take to answer at the start, as `10s` |
    /// | `revoke_timeout` | see [`revoke_timeout`](Self::revoke_timeout) |
    /// | `commit_interval`, `commit_each` | see [`commit_interval`](Self::commit_interval) |
    /// | anything with a dot | a property of librdkafka, as `session.timeout.ms=6000` |
    ///
    /// Properties that would break the promise, such as `enable.auto.commit`, are refused.
    ///
    /// # Errors
    /// [`Config`](oncemq_core::ErrorKind::Config) for a malformed URL or an unknown or refused
    /// option, [`Scheme`](oncemq_core::ErrorKind::Scheme) for another scheme, or `kafkas`
    /// without its feature. The error never contains the password.
    pub fn from_url(url: &str) -> Result<Self, Error> {
        Ok(Self { config: Config::from_url(url)? })
    }

    /// Partitions of a topic that a consumer or its [`Topology::Declare`] finds missing.
    /// Without it a missing topic is an error: its number of partitions is hard to change
    /// afterwards, so nobody should get it by accident. Retry and dead-letter topics have as
    /// many partitions as their topic.
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.config.partitions = Some(partitions.into());
        self
    }

    /// Replicas of topics that are made; the cluster's default unless set.
    pub fn replication(mut self, replicas: u16) -> Self {
        self.config.replication = Some(replicas.into());
        self
    }

    /// Where a consumer begins that has never committed anything; the oldest message unless
    /// set.
    pub fn start(mut self, start: Start) -> Self {
        self.config.start = start;
        self
    }

    /// How long a published message may wait for its confirmation; 30 seconds unless set.
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.config.publish_timeout = timeout;
        self
    }

    /// How long handlers may finish when their partition goes to another member; 10 seconds
    /// unless set. What is not done then is done again by that member. The group waits for it,
    /// at most `max.poll.interval.ms`.
    pub fn revoke_timeout(mut self, timeout: Duration) -> Self {
        self.config.revoke_timeout = timeout;
        self
    }

    /// The time between two commits of offsets; half a second unless set. They are also
    /// committed after many messages, when a partition leaves, and at the end. A crash repeats
    /// what was not committed, which the record answers.
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.config.commit_interval = interval;
        self
    }

    /// Commits after every message that moves the lowest unfinished offset: one request each,
    /// and little to repeat after a crash.
    pub fn commit_each(mut self) -> Self {
        self.config.commit_each = true;
        self
    }

    /// A pipeline from topics to topics of this cluster, exactly once. The name is the consumer
    /// group, and begins the names of its dead-letter topics.
    pub fn pipeline(&self, name: impl Into<Arc<str>>) -> Pipeline {
        Pipeline::new(name.into(), self.config.clone())
    }

    fn lanes(&self, spec: &ConsumerSpec) -> Result<Vec<Lane>, Error> {
        if spec.in_flight == 0 {
            return Err(config("in_flight is 0; allow at least 1"));
        }
        let lane = |subscription: &Subscription| Ok(Lane { names: Names::new(spec, subscription)? });
        let lanes: Vec<Lane> = spec.subscriptions.iter().map(lane).collect::<Result<_, Error>>()?;
        let mut works: Vec<_> = lanes.iter().map(|lane| &lane.names.work).collect();
        works.sort_unstable();
        match works.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(config(format!("topic {} is consumed twice by one consumer", pair[0]))),
            None => Ok(lanes),
        }
    }
}

#[async_trait]
impl Broker for KafkaBroker {
    fn capabilities(&self) -> Capabilities {
        Capabilities::log("kafka")
            .redelivered_flag(true)
            .durable_delay(true)
            .key_order(true)
            .repeated_headers(true)
            .tombstones(true)
    }

    async fn prepare(&self, spec: &ConsumerSpec, plan: &mut Plan) -> Result<(), Error> {
        self.config.check()?;
        let lanes = self.lanes(spec)?;
        let topics = Topics::connect(Arc::new(self.config.clone()))?;
        for (place, lane) in lanes.iter().enumerate() {
            let names = &lane.names;
            let partitions = match spec.topology {
                Topology::Declare => Some(topics.declare(names).await?),
                Topology::Verify => Some(topics.verify(names).await?),
                Topology::Trust => None,
            };
            plan.topology(describe(spec.topology, names, partitions));
            if let Some(topic) = plan.topics.get_mut(place) {
                topic.dead_letters = Some(format!("topic {}", names.dead));
            }
        }
        plan.topology(
            "partitions that are added later are consumed within half a minute; keys move to other partitions then, \
             and are out of order until the old ones are empty",
        );
        if spec.subscriptions.iter().any(|one| one.ordering == Ordering::Ordered && one.rungs.is_empty()) {
            plan.topology("ordered without a ladder: a failing message is given up at once");
        }
        Ok(())
    }

    async fn subscribe(&self, spec: &ConsumerSpec) -> Result<Box<dyn Source>, Error> {
        let lanes = self.lanes(spec)?;
        Ok(Box::new(source::start(Arc::new(self.config.clone()), spec, lanes).await?))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, Error> {
        self.config.check()?;
        Ok(Arc::new(KafkaPublisher::connect(Arc::new(self.config.clone())).await?))
    }
}

fn describe(topology: Topology, names: &Names, partitions: Option<i32>) -> String {
    let word = match topology {
        Topology::Declare => "declared",
        Topology::Verify => "verified",
        Topology::Trust => "trusted, not looked at",
    };
    let mut line = format!("{word}: topic {}", names.work);
    if let Some(partitions) = partitions {
        line.push_str(&format!(" with {partitions} partitions"));
    }
    for (_, rung) in &names.rungs {
        line.push_str(&format!(", retry topic {rung}"));
    }
    line.push_str(&format!(", dead letters in topic {}", names.dead));
    line
}
