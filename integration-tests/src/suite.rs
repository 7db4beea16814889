//! How tests are made, named and left out.
//!
//! A required server that is missing fails the test; one that is left out by name ignores
//! it. Long tests are ignored unless asked for.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libtest_mimic::{Arguments, Failed, Trial};

use tokio::time::{Instant, sleep, timeout};

use crate::kafka;

/// The brokers that services are tested on. A new one is added here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerKind {
    /// In the process of the service, and gone with it.
    Memory,
    /// A server with queues.
    RabbitMq,
    /// A server with logs.
    Kafka,
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
    /// Its name in names of tests.
    pub fn name(self) -> &'static str {
        match self {
            BrokerKind::Memory => "memory",
            BrokerKind::RabbitMq => "rabbitmq",
            BrokerKind::Kafka => "kafka",
        }
    }

    /// What a service is given to reach this server.
    pub fn service_url(self, server: &str) -> String {
        match self {
            BrokerKind::Memory | BrokerKind::RabbitMq => server.to_owned(),
            BrokerKind::Kafka => kafka::url(server, 3),
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

/// Whether somebody left a server out by its name.
pub fn left_out(server: &str) -> bool {
    let without = std::env::var("ONCEMQ_WITHOUT").unwrap_or_default();
    without.split(',').any(|name| name.trim() == server)
}

/// Whether the long tests were asked for.
pub fn is_long() -> bool {
    std::env::var_os("ONCEMQ_LONG").is_some_and(|value| value == "1")
}

/// The address of a server.
///
/// # Panics
/// It is not known. The text says what to do.
pub fn url_of(server: &str) -> String {
    let variable = format!("ONCEMQ_{}_URL", server.to_uppercase());
    std::env::var(&variable).unwrap_or_else(|_| {
        panic!("{variable} is not set; run `scripts/test`, or leave it out with ONCEMQ_WITHOUT={server}")
    })
}

/// A test on a runtime of its own that needs these servers.
pub fn test<F, Fut>(name: impl Into<String>, servers: &[&str], body: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let ignored = servers.iter().any(|server| left_out(server));
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let limit = Duration::from_secs(240);
        let run = || runtime.block_on(async { timeout(limit, body()).await.expect("the test hangs") });
        let result = catch_unwind(AssertUnwindSafe(run));
        runtime.shutdown_timeout(Duration::from_secs(1));
        result.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Failed::from(text.unwrap_or_default())
        })
    };
    Trial::test(name, run).with_ignored_flag(ignored)
}

/// The servers behind a broker and a store.
pub fn servers(broker: BrokerKind, store: StoreKind) -> Vec<&'static str> {
    let mut servers = match broker {
        BrokerKind::Memory => Vec::new(),
        BrokerKind::RabbitMq | BrokerKind::Kafka => vec![broker.name()],
    };
    if store == StoreKind::Postgres {
        servers.push("postgres");
    }
    servers
}

/// Runs the tests, so many at once.
pub fn main(tests: Vec<Trial>, threads: usize) -> ! {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    libtest_mimic::run(&arguments, tests).exit()
}

/// A name that nothing else has, in this run or another.
pub fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    format!("{what}_{micros:x}_{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Waits until something is so.
///
/// # Panics
/// It is not so within the limit.
pub async fn until(what: &str, limit: Duration, mut so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + limit;
    while !so().await {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(30)).await;
    }
}
