//! Where the broker is and how it is used.

mod url;

use std::fmt;
use std::time::Duration;

use oncemq_core::{Error, ErrorKind};

pub(crate) use url::levels;

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

/// Everything an adapter knows about its broker. `Debug` shows no secret.
#[derive(Clone)]
pub(crate) struct Config {
    /// `host:port` of each name server.
    pub(crate) name_servers: Vec<String>,
    pub(crate) tls: bool,
    /// A file of certificates to trust instead of the system's.
    pub(crate) tls_ca: Option<String>,
    /// Access key and secret key.
    pub(crate) login: Option<(String, String)>,
    pub(crate) publish_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// How long running handlers may finish when an ordered queue leaves.
    pub(crate) revoke_timeout: Duration,
    pub(crate) commit_interval: Duration,
    pub(crate) commit_each: bool,
    pub(crate) start: Start,
    /// Queues of a topic that is made, on each broker; without it a missing topic is an error.
    pub(crate) queues: Option<i32>,
    /// The broker's delay levels, if it does not tell them.
    pub(crate) delay_levels: Option<Vec<Duration>>,
}

/// A topic with more queues is rather a slip, and cannot be made smaller again.
const QUEUES_MAX: i32 = 1_024;

impl Config {
    /// Reads a `rocketmq://` or `rocketmqs://` URL.
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
                return Err(config(format!("the RocketMQ {name} is zero; set for instance 10s")));
            }
        }
        if self.queues.is_some_and(|queues| !(1..=QUEUES_MAX).contains(&queues)) {
            return Err(config(format!(
                "the RocketMQ setting queues must be from 1 to {QUEUES_MAX}; set for instance 4"
            )));
        }
        if self.delay_levels.iter().flatten().any(Duration::is_zero) {
            return Err(config("a delay level of RocketMQ is zero; write what messageDelayLevel has"));
        }
        if self.tls_ca.is_some() && !self.tls {
            return Err(config("tls_ca in the RocketMQ URL needs TLS; write rocketmqs://, or leave it out"));
        }
        if self.tls && cfg!(not(feature = "tls")) {
            return Err(Error::new(
                ErrorKind::Scheme,
                "rocketmqs:// needs the feature `rocketmq-tls` of oncemq (`tls` of oncemq-rocketmq); switch it on or \
                 use rocketmq://",
            ));
        }
        if self.login.is_some() && cfg!(not(feature = "acl")) {
            return Err(config(
                "an access key needs the feature `rocketmq-acl` of oncemq (`acl` of oncemq-rocketmq); switch it on or \
                 leave the key out of the URL",
            ));
        }
        Ok(())
    }

    /// How error texts call the cluster.
    pub(crate) fn address(&self) -> String {
        self.name_servers.join(",")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name_servers: vec!["localhost:9876".to_owned()],
            tls: false,
            tls_ca: None,
            login: None,
            publish_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            revoke_timeout: Duration::from_secs(10),
            commit_interval: Duration::from_millis(500),
            commit_each: false,
            start: Start::Earliest,
            queues: None,
            delay_levels: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("name_servers", &self.name_servers)
            .field("tls", &self.tls)
            .field("access_key", &self.login.as_ref().map(|(key, _)| key))
            .finish_non_exhaustive()
    }
}

pub(crate) fn config(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, message)
}
