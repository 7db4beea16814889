//! Building and running a consumer.

mod check;
mod shutdown;
mod together;
mod topic;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

pub use shutdown::Shutdown;
pub(crate) use shutdown::Stage;
pub use topic::TopicBuilder;

use crate::runtime::{Gate, Late, Launch, Shared, Summary, run};
use crate::{Broker, ConsumerSpec, Error, ErrorKind, Health, Plan, Source, Topology};

/// For ever, but a time that clocks can add to now.
const GRACE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Consumes topics of one broker and runs a handler for each message.
///
/// ```no_run
/// # async fn example(broker: impl oncemq_core::Broker) -> Result<(), oncemq_core::Error> {
/// use oncemq_core::{Consumer, Context, Failure, Message};
///
/// async fn print(_cx: Context, message: Message) -> Result<(), Failure> {
///     println!("{} bytes", message.body().len());
///     Ok(())
/// }
///
/// let summary = Consumer::new("printer", broker)
///     .topic("orders")
///     .retry("1s 10s dead-letter".parse()?)
///     .unguarded(print)
///     .run()
///     .await?;
/// println!("{} handled", summary.handled);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Consumer {
    name: Arc<str>,
    broker: Arc<dyn Broker>,
    topics: Vec<topic::Topic>,
    in_flight: usize,
    bytes_max: usize,
    workers: Option<usize>,
    grace: Duration,
    topology: Topology,
    strict: bool,
    shutdown: Option<Shutdown>,
    health: watch::Sender<Health>,
}

impl Consumer {
    /// A consumer of this broker. The name is its permanent identity: consumer group, queue
    /// prefix and scope of the records. Changing it starts without any memory.
    pub fn new(name: impl Into<Arc<str>>, broker: impl Broker) -> Self {
        Self::with_broker(name, Arc::new(broker))
    }

    /// As [`new`](Self::new), for a broker chosen at run time.
    pub fn with_broker(name: impl Into<Arc<str>>, broker: Arc<dyn Broker>) -> Self {
        Self {
            name: name.into(),
            broker,
            topics: Vec::new(),
            in_flight: 256,
            bytes_max: 64 * 1024 * 1024,
            workers: None,
            grace: Duration::from_secs(25),
            topology: Topology::default(),
            strict: false,
            shutdown: None,
            health: watch::Sender::new(Health::Starting),
        }
    }

    /// Adds a topic. Its settings end with a handler, which gives the consumer back.
    pub fn topic(self, topic: impl Into<Arc<str>>) -> TopicBuilder {
        TopicBuilder::new(self, topic.into())
    }

    /// The most messages out at once: the prefetch. 256 unless set; 0 is refused, since
    /// brokers take it for "no limit".
    pub fn in_flight(mut self, messages: usize) -> Self {
        self.in_flight = messages;
        self
    }

    /// The most payload, key and header bytes out at once, in bytes; 64 MiB unless set. One
    /// message is always let in.
    pub fn in_flight_bytes(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// Worker tasks; one per core unless set.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// How long running handlers may take to finish after a stop; 25 seconds unless set. With
    /// `Duration::MAX` they are waited for until a second stop.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace.min(GRACE_MAX);
        self
    }

    /// Whether queues and topics are declared, verified or trusted.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// Refuses to start with any warning in the plan.
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Ends with this instead of SIGINT and SIGTERM.
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = Some(shutdown);
        self
    }

    /// The state of the consumer, as it changes.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Connects, checks and declares everything, and returns what the consumer would do.
    ///
    /// # Errors
    /// As [`run`](Self::run) at its start.
    pub async fn plan(&self) -> Result<Plan, Error> {
        let spec = self.spec()?;
        self.prepare(&spec).await
    }

    /// Runs until SIGINT, SIGTERM or the given [`Shutdown`], and returns what was done.
    ///
    /// Stopping starts no handler any more, lets running ones finish within the grace,
    /// settles, and gives the rest back. Dropping the future abandons running handlers:
    /// their messages are delivered again.
    ///
    /// # Errors
    /// At the start: one error for the first setting, name, right, queue or table that is
    /// not as it must be. Later only if the source ends for good; a broker or store that
    /// does not answer is waited for.
    pub async fn run(mut self) -> Result<Summary, Error> {
        let result = self.start().await;
        match result {
            Ok(launch) => as_task(run(launch)).await,
            Err(error) => {
                self.health.send_replace(Health::Down(error.to_string()));
                Err(error)
            }
        }
    }

    async fn start(&mut self) -> Result<Launch, Error> {
        let spec = self.spec()?;
        self.prepare(&spec).await?;
        let shutdown = match self.shutdown.take() {
            Some(shutdown) => shutdown,
            None => Shutdown::on_signals()?,
        };
        let source: Box<dyn Source> = self.broker.subscribe(&spec).await?;
        let shared = Arc::new(Shared {
            consumer: self.name.clone(),
            capabilities: self.broker.capabilities(),
            shutdown,
            gate: Gate::default(),
            late: Late::default(),
            alone: Arc::default(),
        });
        let topics =
            std::mem::take(&mut self.topics).into_iter().map(|topic| topic.into_env(&shared)).collect();
        Ok(Launch {
            source,
            topics,
            in_flight: self.in_flight,
            bytes_max: self.bytes_max,
            workers: self.workers.unwrap_or_else(cores).min(self.in_flight),
            grace: self.grace,
            shared,
            health: self.health.clone(),
        })
    }

    /// The consumer as its adapter sees it, every setting checked.
    fn spec(&self) -> Result<ConsumerSpec, Error> {
        check::consumer(self)?;
        let broker = self.broker.capabilities().broker;
        let mut spec = ConsumerSpec::new(self.name.clone(), self.in_flight, self.topology);
        for topic in &self.topics {
            spec = spec.with(topic.subscription(broker));
        }
        check::subscriptions(&spec)?;
        Ok(spec)
    }

    async fn prepare(&self, spec: &ConsumerSpec) -> Result<Plan, Error> {
        let mut plan = Plan {
            consumer: self.name.to_string(),
            broker: self.broker.capabilities().broker.to_owned(),
            ..Plan::default()
        };
        for topic in &self.topics {
            plan.topics.push(topic.plan(&plan.broker));
            check::retention(topic, &mut plan)?;
        }
        self.broker.prepare(spec, &mut plan).await?;
        for topic in &self.topics {
            topic.check_store().await?;
        }
        match plan.warnings.first() {
            Some(warning) if self.strict => {
                Err(Error::new(ErrorKind::Config, format!("refused by strict(): {warning}")))
            }
            _ => Ok(plan),
        }
    }
}

/// Runs it as a task, which ends when this future is dropped: what wakes it then is a place
/// in a worker thread's queue, not a thread that sleeps wherever the caller polls.
async fn as_task(
    run: impl Future<Output = Result<Summary, Error>> + Send + 'static,
) -> Result<Summary, Error> {
    let mut task = JoinSet::new();
    task.spawn(run);
    match task.join_next().await {
        Some(ended) => joined(ended).and_then(|ended| ended),
        None => Err(Error::new(ErrorKind::Internal, "the consumer's task is gone")),
    }
}

/// What a task returned. Its panic is ours.
fn joined<T>(ended: Result<T, JoinError>) -> Result<T, Error> {
    ended.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => Error::new(ErrorKind::Internal, format!("the consumer's task ended: {error}")),
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
