//! Where the broker is and how it is used.

mod url;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use oncemq_core::url::Host;
use oncemq_core::{Error, ErrorKind};

/// The longest time a broker lets a delivery out, unless its operator changed it.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The type of the work queues and dead-letter queues that are declared. Delay queues are
/// always quorum queues: only those hand a message on without a moment in which it can be
/// lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum QueueType {
    /// Replicated and written to disk.
    #[default]
    Quorum,
    /// One copy, on one node.
    Classic,
}

impl QueueType {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            QueueType::Quorum => "quorum",
            QueueType::Classic => "classic",
        }
    }
}

/// Everything an adapter knows about its broker. `Debug` shows no password.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) tls: bool,
    pub(crate) host: Host,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) vhost: String,
    /// In seconds; two silent ones in a row end the connection.
    pub(crate) heartbeat: u16,
    pub(crate) connect_timeout: Duration,
    pub(crate) publish_timeout: Duration,
    pub(crate) consumer_timeout: Duration,
    pub(crate) queue_type: QueueType,
    /// PEM file of the authorities to trust beside the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// Queues that are not declared here are said to have a single active consumer.
    pub(crate) single_active: bool,
}

impl Config {
    /// Reads an `amqp://` or `amqps://` URL.
    pub(crate) fn from_url(text: &str) -> Result<Self, Error> {
        url::parse(text)
    }

    /// Settings that no broker could work with.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, value) in [
            ("connect_timeout", self.connect_timeout),
            ("publish_timeout", self.publish_timeout),
            ("consumer_timeout", self.consumer_timeout),
        ] {
            if value.is_zero() {
                return Err(config(format!("the RabbitMQ {name} is zero; set for instance 10s")));
            }
        }
        if self.tls && cfg!(not(feature = "tls")) {
            return Err(Error::new(
                ErrorKind::Scheme,
                "amqps:// needs the feature `tls` of oncemq-rabbitmq; switch it on or use amqp://",
            ));
        }
        if self.ca_file.is_some() && !self.tls {
            return Err(config("a cacertfile is only used by amqps://; change the scheme or leave it out"));
        }
        Ok(())
    }

    /// How long a delivery may wait in the process before it is given back.
    pub(crate) fn hold_max(&self) -> Duration {
        self.consumer_timeout / 2
    }

    /// The broker in error texts: no user, no password.
    pub(crate) fn address(&self) -> String {
        self.host.to_string()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tls: false,
            host: Host { name: "localhost".to_owned(), port: 5672 },
            user: "guest".to_owned(),
            password: "guest".to_owned(),
            vhost: "/".to_owned(),
            heartbeat: 10,
            connect_timeout: Duration::from_secs(10),
            publish_timeout: Duration::from_secs(30),
            consumer_timeout: CONSUMER_TIMEOUT,
            queue_type: QueueType::default(),
            ca_file: None,
            single_active: false,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("tls", &self.tls)
            .field("address", &self.address())
            .field("user", &self.user)
            .field("vhost", &self.vhost)
            .field("queue_type", &self.queue_type)
            .field("consumer_timeout", &self.consumer_timeout)
            .finish_non_exhaustive()
    }
}

pub(crate) fn config(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, message)
}
