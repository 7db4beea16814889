//! What is checked before anything runs.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncemq_core::url::Time;
use oncemq_core::{ConsumerSpec, Error, Subscription, Topology};
use rdkafka::ClientConfig;

use super::Pipeline;
use crate::config::{Config, config};
use crate::topology::{Names, Topics};

/// The settings of a pipeline at work.
pub(super) struct Settings {
    pub(super) config: Arc<Config>,
    pub(super) name: Arc<str>,
    pub(super) topics: Vec<Names>,
    pub(super) records: usize,
    pub(super) interval: Duration,
    pub(super) transaction_timeout: Duration,
    pub(super) grace: Duration,
}

/// Properties of the client that a pipeline sets itself, and what to use instead.
const REFUSED: [(&str, &str); 2] = [
    ("isolation.level", "a pipeline reads what is committed only"),
    ("transaction.timeout.ms", "use transaction_timeout"),
];

impl Pipeline {
    /// The settings, each checked.
    pub(super) fn settings(&self) -> Result<Settings, Error> {
        self.config.check()?;
        for (name, why) in REFUSED {
            if self.config.options.contains_key(name) {
                return Err(config(format!("the Kafka property {name} cannot be set for a pipeline: {why}")));
            }
        }
        let name = &self.name;
        if self.topics.is_empty() {
            return Err(config(format!("pipeline {name} has no topic to read; add one with .topic(…)")));
        }
        if self.records == 0 {
            return Err(config(format!("pipeline {name} has 0 records in a transaction; set at least 1")));
        }
        for (what, value) in [("timeout", self.timeout), ("transaction_timeout", self.transaction_timeout)] {
            if value.is_zero() {
                return Err(config(format!("the {what} of pipeline {name} is zero; set for instance 10s")));
            }
        }
        if self.interval.saturating_mul(2) > self.transaction_timeout {
            return Err(config(format!(
                "pipeline {name} closes transactions after {}, but the broker aborts them after {}; allow at \
                 least twice the interval",
                Time(self.interval),
                Time(self.transaction_timeout)
            )));
        }
        Ok(Settings {
            config: Arc::new(self.config.clone()),
            name: name.clone(),
            topics: self.names()?,
            records: self.records,
            interval: self.interval,
            transaction_timeout: self.transaction_timeout,
            grace: self.grace,
        })
    }

    fn names(&self) -> Result<Vec<Names>, Error> {
        let spec = ConsumerSpec::new(self.name.clone(), 1, self.topology);
        let mut topics: Vec<Names> = Vec::new();
        for topic in &self.topics {
            if topics.iter().any(|names| names.work == *topic) {
                return Err(config(format!("topic {topic} is added twice to pipeline {}", self.name)));
            }
            topics.push(Names::new(&spec, &Subscription::new(topic.clone()))?);
        }
        Ok(topics)
    }
}

impl Settings {
    /// Declares or verifies the topics.
    pub(super) async fn prepare(&self, topology: Topology, outputs: &[Arc<str>]) -> Result<(), Error> {
        let topics = Topics::connect(self.config.clone())?;
        for names in &self.topics {
            match topology {
                Topology::Declare => drop(topics.declare(names).await?),
                Topology::Verify => drop(topics.verify(names).await?),
                Topology::Trust => {}
            }
        }
        for output in outputs {
            topics.plain(output, topology).await?;
        }
        Ok(())
    }

    pub(super) fn consumer(&self) -> ClientConfig {
        let mut client = self.config.consumer(&self.name);
        client.set("isolation.level", "read_committed");
        let mut unless_set = |name: &str, value: &str| {
            if !self.config.options.contains_key(name) {
                client.set(name, value);
            }
        };
        // The client's buffer of each partition.
        unless_set("queued.max.messages.kbytes", "4096");
        if self.config.options.get("group.protocol").is_none_or(|name| name != "consumer") {
            // A rebalance then waits for the open transaction, instead of making it void.
            unless_set("partition.assignment.strategy", "roundrobin");
        }
        client
    }

    /// An id that no other process has, now or later: it is the group that tells who may
    /// commit, and a producer of this process only ever takes over from its own.
    pub(super) fn transactional_id(&self) -> String {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        // Keyed by the operating system's randomness.
        let random = || {
            let mut hasher = RandomState::new().build_hasher();
            hasher.write_u128(time);
            hasher.finish()
        };
        format!("{}-{:016x}{:016x}", self.name, random(), random())
    }
}
