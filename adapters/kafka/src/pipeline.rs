//! From topics to topics of one cluster, exactly once.
//!
//! ```text
//! Kafka ─► thread: polls ─► lanes: one task a partition, runs the handler
//!            ▲   │ outputs     │
//!            │   ▼             ▼ finished records
//!         commit ◄─ unit: one transaction of outputs and offsets
//! ```

mod deliveries;
mod driver;
mod group;
mod lane;
mod launch;
mod part;
mod settings;
mod unit;
mod writer;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{Context, Error, Failure, Health, Message, RetryPolicy, Shutdown, Topology};
use tokio::sync::watch;

use crate::config::Config;
use lane::Step;

/// Reads topics, runs a handler for each record, and writes what it returns to topics of the
/// same cluster: exactly once.
///
/// Outputs and consumed offsets are one Kafka transaction, so a reader with
/// `isolation.level=read_committed` (what librdkafka and this library use, but not the Java
/// client's default) sees the outputs of each record once, whatever crashes, restarts, cuts
/// and rebalances there are.
///
/// ```no_run
/// # async fn example() -> Result<(), oncemq_core::Error> {
/// use oncemq_core::{Context, Failure, Message};
/// use oncemq_kafka::{KafkaBroker, Output};
///
/// let broker = KafkaBroker::from_url("kafka://localhost:9092")?;
/// let summary = broker
///     .pipeline("totals")
///     .topic("orders")
///     .output("totals")
///     .retry("1s 10s dead-letter".parse()?)
///     .run(|_cx: Context, order: Message| async move {
///         if order.body().is_empty() {
///             return Err(Failure::business("an empty order"));
///         }
///         Ok(vec![Output::new("totals", order)])
///     })
///     .await?;
/// println!("{} handled", summary.handled);
/// # Ok(())
/// # }
/// ```
///
/// **What is not covered:** everything outside Kafka. A record may be run more than once, and
/// one run counts: a mail, a call or a row of a database that the handler writes happens for
/// every run. For a database use an inbox and a consumer; a pipeline cannot put both into one
/// transaction. Two clusters cannot be, either. The records of producers that resend are
/// different records here. All of it needs Kafka 2.5 or later: older brokers do not check which
/// member commits.
///
/// The name is the consumer group. Records of a partition run one after the other, in order,
/// and partitions run beside each other. A record that fails waits for its ladder in place, and
/// its partition with it; at the ladder's end it goes to `<name>.<topic>.dead` with the facts,
/// in the same transaction as its offset. An output that cannot be stored is a failure of its
/// record. Attempts are counted in the process: after a restart or a rebalance they begin anew.
///
/// A process that is killed leaves its open transaction to the broker, which ends it after
/// [`transaction_timeout`](Self::transaction_timeout); committed readers wait for that.
#[derive(Debug)]
pub struct Pipeline {
    name: Arc<str>,
    config: Config,
    topics: Vec<Arc<str>>,
    outputs: Vec<Arc<str>>,
    policy: RetryPolicy,
    timeout: Duration,
    records: usize,
    interval: Duration,
    transaction_timeout: Duration,
    topology: Topology,
    grace: Duration,
    shutdown: Option<Shutdown>,
    health: watch::Sender<Health>,
}

/// A message to write, and the topic it goes to.
#[derive(Debug, Clone)]
pub struct Output {
    topic: Arc<str>,
    message: Message,
}

impl Output {
    /// A message for this topic. Its record key chooses the partition, as for every producer.
    /// Timestamp and origin of the message are not written.
    pub fn new(topic: impl Into<Arc<str>>, message: Message) -> Self {
        Self { topic: topic.into(), message }
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }
}

/// What a pipeline did, as far as it was committed. A commit whose reply was lost is not
/// counted, though it may have been one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PipelineSummary {
    /// Records whose outputs are committed.
    pub handled: u64,
    /// Outputs that are committed, without dead letters.
    pub outputs: u64,
    /// Records that are dead-lettered.
    pub rejected: u64,
    /// Runs that failed, panics among them.
    pub failures: u64,
    /// Runs that panicked, all contained.
    pub panics: u64,
    /// Transactions that were committed.
    pub transactions: u64,
    /// Transactions that were aborted, their records run again.
    pub aborted: u64,
    /// Times that records were gone from a partition before they were read.
    pub gaps: u64,
}

impl Pipeline {
    pub(crate) fn new(name: Arc<str>, config: Config) -> Self {
        Self {
            name,
            config,
            topics: Vec::new(),
            outputs: Vec::new(),
            policy: RetryPolicy::default(),
            timeout: Duration::from_secs(30),
            records: 1_000,
            interval: Duration::from_millis(100),
            transaction_timeout: Duration::from_secs(10),
            topology: Topology::default(),
            grace: Duration::from_secs(25),
            shutdown: None,
            health: watch::Sender::new(Health::Starting),
        }
    }

    /// Adds a topic to read.
    pub fn topic(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.topics.push(topic.into());
        self
    }

    /// Adds a topic that outputs go to, to be declared or verified at the start. A topic that
    /// is not named here may be written to as well.
    pub fn output(mut self, topic: impl Into<Arc<str>>) -> Self {
        self.outputs.push(topic.into());
        self
    }

    /// When a failed record is run again; `"5s 1m 10m dead-letter"` unless set. Its partition
    /// waits for it.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The longest a handler may run; 30 seconds unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// A transaction is closed after so many records; 1,000 unless set.
    pub fn records(mut self, records: usize) -> Self {
        self.records = records;
        self
    }

    /// A transaction is closed after this time; 100 milliseconds unless set. So long do
    /// committed readers wait for an output.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// The time after which the broker aborts a transaction of a process that is gone; 10
    /// seconds unless set. A broker that does not answer for longer has everything in the
    /// transaction run again.
    pub fn transaction_timeout(mut self, timeout: Duration) -> Self {
        self.transaction_timeout = timeout;
        self
    }

    /// Whether topics are declared, verified or trusted.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// How long running handlers may take to finish after a stop; 25 seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Ends with this instead of SIGINT and SIGTERM.
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = Some(shutdown);
        self
    }

    /// The state of the pipeline, as it changes.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Runs until SIGINT, SIGTERM or the given [`Shutdown`], and returns what was done.
    ///
    /// Stopping starts no handler any more, lets running ones finish within the grace, and
    /// commits what is finished. A second stop, and dropping the future, abort the open
    /// transaction: its records are run again. No case loses a record or doubles an output.
    /// While the broker does not answer a stop may take as long as `transaction_timeout`.
    ///
    /// The handler gets each record with what is known about the run. Its future may be
    /// dropped at any await.
    ///
    /// # Errors
    /// At the start: one error for the first setting, name, right or topic that is not as it
    /// must be. Later only for what no time mends, such as a right that was taken away or a
    /// dead letter that cannot be stored; a broker that does not answer is waited for.
    pub async fn run<F, Fut>(self, handler: F) -> Result<PipelineSummary, Error>
    where
        F: Fn(Context, Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Output>, Failure>> + Send + 'static,
    {
        let health = self.health.clone();
        let step: Arc<Step> = Arc::new(move |cx, message| Box::pin(handler(cx, message)));
        let ran = self.start(step).await;
        let reason = ran.as_ref().err().map_or_else(|| "stopped".to_owned(), ToString::to_string);
        health.send_replace(Health::Down(reason));
        ran
    }
}
