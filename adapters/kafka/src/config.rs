//! Where the broker is and how it is used.

mod url;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use oncemq_core::{Error, ErrorKind};
use rdkafka::ClientConfig;

/// Where a consumer group begins that has committed nothing yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Start {
    /// At the oldest message that is there: nothing is left out.
    #[default]
    Earliest,
    /// At what comes after the group's first start: everything older is left out.
    Latest,
}

/// Everything an adapter knows about its broker. `Debug` shows no password and no option's
/// value.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) tls: bool,
    /// `host:port`, joined by commas.
    pub(crate) brokers: String,
    pub(crate) login: Option<(String, String)>,
    /// Properties of librdkafka, passed through.
    pub(crate) options: BTreeMap<String, String>,
    pub(crate) publish_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// How long running handlers may finish when their partition leaves.
    pub(crate) revoke_timeout: Duration,
    pub(crate) commit_interval: Duration,
    pub(crate) commit_each: bool,
    pub(crate) start: Start,
    /// Partitions of a topic that is made; without it a missing topic is an error.
    pub(crate) partitions: Option<i32>,
    /// Replicas of topics that are made; the broker's own default unless set.
    pub(crate) replication: Option<i32>,
}

impl Config {
    /// Reads a `kafka://` or `kafkas://` URL.
    pub(crate) fn from_url(text: &str) -> Result<Self, Error> {
        url::parse(text)
    }

    /// Settings that no broker could work with.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, value) in [
            ("publish_timeout", self.publish_timeout),
            ("connect_timeout", self.connect_timeout),
            ("commit_interval", self.commit_interval),
        ] {
            if value.is_zero() {
                return Err(config(format!("the Kafka {name} is zero; set for instance 10s")));
            }
        }
        for (name, value) in [("partitions", self.partitions), ("replication", self.replication)] {
            if value.is_some_and(|value| value < 1) {
                return Err(config(format!("the Kafka setting {name} must be above 0; set for instance 3")));
            }
        }
        self.options.keys().try_for_each(|name| refuse(name))?;
        if self.tls && cfg!(not(feature = "tls")) {
            return Err(Error::new(
                ErrorKind::Scheme,
                "kafkas:// needs the feature `kafka-tls` of oncemq (`tls` of oncemq-kafka); switch it on or use \
                 kafka://",
            ));
        }
        let scram = self.options.get("sasl.mechanisms").or_else(|| self.options.get("sasl.mechanism"));
        if scram.is_some_and(|name| name.starts_with("SCRAM"))
            && cfg!(not(any(feature = "tls", feature = "sasl")))
        {
            return Err(config(
                "SASL SCRAM needs the feature `kafka-sasl` or `kafka-tls` of oncemq (`sasl` or `tls` of \
                 oncemq-kafka); switch one on or use PLAIN",
            ));
        }
        Ok(())
    }

    /// What consumers, producers and administrators have in common.
    pub(crate) fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("client.id", "oncemq").set("bootstrap.servers", &self.brokers);
        let (tls, login) = (self.tls, self.login.is_some());
        let protocol = match (tls, login) {
            (false, false) => "plaintext",
            (false, true) => "sasl_plaintext",
            (true, false) => "ssl",
            (true, true) => "sasl_ssl",
        };
        client.set("security.protocol", protocol);
        if let Some((user, password)) = &self.login {
            client.set("sasl.mechanisms", "PLAIN").set("sasl.username", user).set("sasl.password", password);
        }
        // A broker that comes back is found within a second.
        client.set("reconnect.backoff.max.ms", "1000");
        // New partitions are found within half a minute.
        client.set("topic.metadata.refresh.interval.ms", "30000");
        for (name, value) in &self.options {
            client.set(name, value);
        }
        client
    }

    /// Confirmed by all replicas in sync, without doubles of its own resends.
    pub(crate) fn producer(&self) -> ClientConfig {
        let mut client = self.client();
        let timeout = self.publish_timeout.as_millis().max(1).to_string();
        client
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("message.timeout.ms", timeout)
            // The broker's own limit is the one that counts.
            .set("message.max.bytes", "1000000000");
        // A key finds the partition that the Java client finds.
        if !self.options.contains_key("partitioner") {
            client.set("partitioner", "murmur2_random");
        }
        for (name, value) in [
            ("linger.ms", "1"),
            // A question after a topic must not make it, with as many partitions as the broker likes.
            ("allow.auto.create.topics", "false"),
            // How long a topic that nobody knows may still appear.
            ("topic.metadata.propagation.max.ms", "5000"),
        ] {
            if !self.options.contains_key(name) {
                client.set(name, value);
            }
        }
        client
    }

    /// A member of the group that commits nothing by itself.
    pub(crate) fn consumer(&self, group: &str) -> ClientConfig {
        let mut client = self.client();
        client
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // An offset that is gone is told, not jumped over.
            .set("auto.offset.reset", "error");
        let mut unless_set = |name: &str, value: &str| {
            if !self.options.contains_key(name) {
                client.set(name, value);
            }
        };
        // The client's own buffer beside ours.
        unless_set("queued.max.messages.kbytes", "16384");
        // When that buffer is full, the client waits so long before it looks again; a second of
        // its own accord.
        unless_set("fetch.queue.backoff.ms", "10");
        if self.options.get("group.protocol").is_none_or(|name| name != "consumer") {
            // Partitions that stay are not interrupted by those that move.
            unless_set("partition.assignment.strategy", "cooperative-sticky");
        }
        client
    }

    /// How error texts call the broker.
    pub(crate) fn address(&self) -> &str {
        &self.brokers
    }
}

/// Properties of the client that would break the promise, and what to use instead.
const REFUSED: [(&str, &str); 17] = [
    ("enable.auto.commit", "offsets are committed after the business commit only"),
    ("auto.commit.enable", "offsets are committed after the business commit only"),
    ("auto.commit.interval.ms", "use commit_interval"),
    ("enable.auto.offset.store", "only finished messages are stored"),
    ("offset.store.method", "offsets are kept by the broker"),
    ("auto.offset.reset", "use start=earliest or start=latest; an offset that is gone is an event"),
    ("group.id", "it is the consumer's name"),
    ("bootstrap.servers", "name the brokers as the host of the URL"),
    ("metadata.broker.list", "name the brokers as the host of the URL"),
    ("security.protocol", "use kafka:// or kafkas://, with a user for SASL"),
    ("enable.idempotence", "a producer's resend must not store twice"),
    ("acks", "a message counts as sent when all replicas in sync have it"),
    ("request.required.acks", "a message counts as sent when all replicas in sync have it"),
    ("message.timeout.ms", "use publish_timeout"),
    ("delivery.timeout.ms", "use publish_timeout"),
    ("transactional.id", "it belongs to the exactly-once pipeline"),
    ("enable.partition.eof", "the end of a partition is not an event here"),
];

fn refuse(name: &str) -> Result<(), Error> {
    match REFUSED.iter().find(|(refused, _)| *refused == name) {
        Some((_, why)) => Err(config(format!("the Kafka property {name} cannot be set: {why}"))),
        None => Ok(()),
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tls: false,
            brokers: "localhost:9092".to_owned(),
            login: None,
            options: BTreeMap::new(),
            publish_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            revoke_timeout: Duration::from_secs(10),
            commit_interval: Duration::from_millis(500),
            commit_each: false,
            start: Start::Earliest,
            partitions: None,
            replication: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("tls", &self.tls)
            .field("brokers", &self.brokers)
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .field("options", &self.options.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

pub(crate) fn config(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, message)
}
