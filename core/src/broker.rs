//! What an adapter offers to the runtime.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Error, Identity, Plan, Publisher, Source};

/// A broker, as an adapter makes it from a URL.
///
/// ```text
/// prepare ──► subscribe ──► Source ──► Delivery ──► Ack
///    └─► Plan                publisher ──► Publisher
/// ```
#[async_trait]
pub trait Broker: Send + Sync + std::fmt::Debug + 'static {
    /// What it can do. One value for the runtime, the plan and the tests.
    fn capabilities(&self) -> Capabilities;

    /// Checks names and settings, connects, and declares or verifies what the consumer
    /// needs. Adds to the plan what it will do and what it cannot promise. Nothing is
    /// consumed yet.
    ///
    /// # Errors
    /// One error that names the setting, queue or topic, and what to do about it.
    async fn prepare(&self, consumer: &ConsumerSpec, plan: &mut Plan) -> Result<(), Error>;

    /// Starts to consume every subscription of the consumer. Called after `prepare`.
    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<Box<dyn Source>, Error>;

    /// A publisher with a connection of its own.
    async fn publisher(&self) -> Result<Arc<dyn Publisher>, Error>;
}

const _: fn(&dyn Broker) = |_| ();

/// A consumer as its adapter sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConsumerSpec {
    /// The permanent name: consumer group, prefix of queues.
    pub name: Arc<str>,
    /// What it consumes. A delivery names its subscription by the index here.
    pub subscriptions: Vec<Subscription>,
    /// The most deliveries out at once, over all subscriptions. At least 1.
    pub in_flight: usize,
    /// Whether queues and topics are made, checked or assumed.
    pub topology: Topology,
}

/// One topic of a consumer as its adapter sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Subscription {
    /// The topic, under the name it has on this broker.
    pub topic: Arc<str>,
    /// An existing queue to take instead of `<consumer>.<topic>`, on queue brokers.
    pub queue: Option<Arc<str>>,
    /// The delays of the retry ladder.
    pub rungs: Vec<Duration>,
    /// How a failing message stands to later ones of its key.
    pub ordering: Ordering,
    /// The longest a handler may run.
    pub timeout: Duration,
}

impl ConsumerSpec {
    /// A consumer without subscriptions.
    pub fn new(name: impl Into<Arc<str>>, in_flight: usize, topology: Topology) -> Self {
        Self { name: name.into(), subscriptions: Vec::new(), in_flight, topology }
    }

    /// Adds a subscription.
    pub fn with(mut self, subscription: Subscription) -> Self {
        self.subscriptions.push(subscription);
        self
    }
}

impl Subscription {
    /// A subscription without a ladder, free ordering, and a handler time of 30 seconds.
    pub fn new(topic: impl Into<Arc<str>>) -> Self {
        Self {
            topic: topic.into(),
            queue: None,
            rungs: Vec::new(),
            ordering: Ordering::Free,
            timeout: Duration::from_secs(30),
        }
    }

    /// Sets the delays of the ladder.
    pub fn with_rungs(mut self, rungs: impl IntoIterator<Item = Duration>) -> Self {
        self.rungs = rungs.into_iter().collect();
        self
    }

    /// Takes an existing queue.
    pub fn with_queue(mut self, queue: impl Into<Arc<str>>) -> Self {
        self.queue = Some(queue.into());
        self
    }
}

/// Whether queues, topics and tables are made, checked or assumed at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Topology {
    /// Made where missing. An existing one with other properties is an error.
    #[default]
    Declare,
    /// Checked, never made: needs no right to create.
    Verify,
    /// Assumed to be right: nothing is asked.
    Trust,
}

/// How a failing message stands to later messages of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// It goes to its rung, and later ones may overtake it.
    #[default]
    Free,
    /// The ladder waits in place and later ones queue behind it.
    Ordered,
}

/// What a broker can do, as data: it decides at run time and picks the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The broker's name: `rabbitmq`.
    pub broker: &'static str,
    /// Whether messages have positions (log) or only content (queue). Decides how a
    /// message is named.
    pub log: bool,
    /// Whether a delivery that may have been made before is flagged.
    pub redelivered_flag: bool,
    /// Whether an accepted message is forgotten by itself, or only with all before it.
    pub individual_ack: bool,
    /// Whether [`Retry`](crate::Ack::Retry) with a delay works without the process.
    pub durable_delay: bool,
    /// Whether messages of one record key arrive in order.
    pub key_order: bool,
    /// Whether header names may repeat and values be null.
    pub repeated_headers: bool,
    /// Whether a payload can be absent.
    pub tombstones: bool,
}

impl Capabilities {
    /// A queue broker of this name that can do nothing special.
    pub const fn queue(broker: &'static str) -> Self {
        Self {
            broker,
            log: false,
            redelivered_flag: false,
            individual_ack: true,
            durable_delay: false,
            key_order: false,
            repeated_headers: false,
            tombstones: false,
        }
    }

    /// A log broker of this name that can do nothing special.
    pub const fn log(broker: &'static str) -> Self {
        Self { log: true, individual_ack: false, key_order: true, ..Self::queue(broker) }
    }

    /// Sets whether redeliveries are flagged.
    pub const fn redelivered_flag(self, value: bool) -> Self {
        Self { redelivered_flag: value, ..self }
    }

    /// Sets whether delays work without the process.
    pub const fn durable_delay(self, value: bool) -> Self {
        Self { durable_delay: value, ..self }
    }

    /// Sets whether messages of one record key arrive in order.
    pub const fn key_order(self, value: bool) -> Self {
        Self { key_order: value, ..self }
    }

    /// Sets whether header names may repeat and values be null.
    pub const fn repeated_headers(self, value: bool) -> Self {
        Self { repeated_headers: value, ..self }
    }

    /// Sets whether a payload can be absent.
    pub const fn tombstones(self, value: bool) -> Self {
        Self { tombstones: value, ..self }
    }

    /// How this broker's messages are named.
    pub(crate) const fn identity(self) -> Identity {
        if self.log { Identity::Position } else { Identity::Content }
    }
}
