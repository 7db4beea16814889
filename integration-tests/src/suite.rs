//! Which brokers and stores services are tested on, and tests that need them.
//!
//! A required server that is missing fails the test; one that is left out by name ignores
//! it.

use std::future::Future;
use std::time::Duration;

use libtest_mimic::Trial;
use oncemq_test_kit::{Server, test_within};
pub use oncemq_test_kit::{is_long, main, unique, until};

use crate::{kafka, rocketmq};

/// The brokers that services are tested on. A new one is added here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerKind {
    /// In the process of the service, and gone with it.
    Memory,
    /// A server with queues.
    RabbitMq,
    /// A server with logs.
    Kafka,
    /// A server with logs, whose client is built with the feature `rocketmq` only.
    RocketMq,
}

/// The stores that services are tested on. A new one is added here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// A file.
    Sqlite,
    /// A server.
    Postgres,
}

impl BrokerKind {
    /// Those that are servers, as far as the service knows them.
    pub const SERVERS: &[Self] = &[
        Self::RabbitMq,
        Self::Kafka,
        #[cfg(feature = "rocketmq")]
        Self::RocketMq,
    ];

    /// Its name in names of tests.
    pub fn name(self) -> &'static str {
        match self {
            BrokerKind::Memory => "memory",
            BrokerKind::RabbitMq => "rabbitmq",
            BrokerKind::Kafka => "kafka",
            BrokerKind::RocketMq => "rocketmq",
        }
    }

    /// What a service is given to reach this server, with three partitions a topic.
    pub fn service_url(self, server: &str) -> String {
        self.service_url_with(server, 3)
    }

    /// The same with so many partitions, where topics have any.
    pub fn service_url_with(self, server: &str, partitions: u32) -> String {
        match self {
            BrokerKind::Memory | BrokerKind::RabbitMq => server.to_owned(),
            BrokerKind::Kafka => kafka::url(server, partitions),
            BrokerKind::RocketMq => rocketmq::url(server, partitions),
        }
    }
}

impl StoreKind {
    /// Every store.
    pub const ALL: [Self; 2] = [Self::Sqlite, Self::Postgres];

    /// Its name in names of tests.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Sqlite => "sqlite",
            StoreKind::Postgres => "postgres",
        }
    }
}

/// The address of a server.
///
/// # Panics
/// It is not known. The text says what to do.
pub fn url_of(server: &'static str) -> String {
    Server(server).url()
}

/// A test on a runtime of its own that needs these servers.
pub fn test<F, Fut>(name: impl AsRef<str>, servers: &[&'static str], body: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let left_out = servers.iter().any(|server| Server(server).is_left_out());
    test_within(name.as_ref(), Duration::from_secs(240), body).with_ignored_flag(left_out)
}

/// The servers behind a broker and a store.
pub fn servers(broker: BrokerKind, store: StoreKind) -> Vec<&'static str> {
    let mut servers = match broker {
        BrokerKind::Memory => Vec::new(),
        BrokerKind::RabbitMq | BrokerKind::Kafka | BrokerKind::RocketMq => vec![broker.name()],
    };
    if store == StoreKind::Postgres {
        servers.push("postgres");
    }
    servers
}
