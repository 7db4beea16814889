//! The broker as the library sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use oncemq_core::{Broker, Capabilities, ConsumerSpec, Error, Plan, Publisher, Settle, Source};

use crate::config::Mode;
use crate::error;
use crate::hub::Hub;
use crate::publisher::MemoryPublisher;
use crate::settle::Link;
use crate::source::MemorySource;
use crate::state::Model;

/// The broker's name in origins, plans and settings.
pub(crate) const NAME: &str = "memory";

/// An in-process broker. Clones are the same broker, so any number of consumers and
/// publishers of a process can share it.
#[derive(Debug, Clone)]
pub struct MemoryBroker {
    pub(crate) hub: Arc<Hub>,
}

impl MemoryBroker {
    /// A new broker of this kind.
    ///
    /// # Errors
    /// [`Config`](oncemq_core::ErrorKind::Config) for a log without partitions.
    pub fn new(mode: Mode) -> Result<Self, Error> {
        mode.check()?;
        Ok(Self { hub: Arc::new(Hub::new(mode)) })
    }

    /// A new broker with a queue for each consumer and topic.
    pub fn queue() -> Self {
        Self { hub: Arc::new(Hub::new(Mode::Queue)) }
    }

    /// A new broker with a log in this many partitions for each topic, at least one.
    pub fn log(partitions: u16) -> Self {
        Self { hub: Arc::new(Hub::new(Mode::Log { partitions: u32::from(partitions.max(1)) })) }
    }

    /// The broker of this name, the same one for the whole process. It lives as long as the
    /// process does.
    ///
    /// # Errors
    /// [`Config`](oncemq_core::ErrorKind::Config) if it exists in another mode.
    pub fn named(name: &str, mode: Mode) -> Result<Self, Error> {
        static NAMED: OnceLock<Mutex<BTreeMap<String, MemoryBroker>>> = OnceLock::new();
        let mut named = NAMED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = named.get(name) {
            if known.hub.mode != mode {
                return Err(error::other_mode(name, known.hub.mode, mode));
            }
            return Ok(known.clone());
        }
        let broker = Self::new(mode)?;
        named.insert(name.to_owned(), broker.clone());
        Ok(broker)
    }

    /// How it keeps messages.
    pub fn mode(&self) -> Mode {
        self.hub.mode
    }

    /// Makes a queue if it is missing, and lets it keep a topic. A consumer declares its own
    /// queues; this is for queues that exist before it. On a log it only makes the topic.
    pub fn bind(&self, queue: &str, topic: &str) {
        self.hub.with(|state, _| state.bind(queue, topic));
    }

    /// Makes a topic if it is missing, so that it keeps messages before any consumer comes.
    /// Nothing on a queue broker, where queues keep messages: see [`bind`](Self::bind).
    pub fn create_topic(&self, topic: &str) {
        self.hub.with(|state, _| {
            if let Model::Log(logs) = &mut state.model {
                logs.create_topic(topic);
            }
        });
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    fn capabilities(&self) -> Capabilities {
        let base = match self.hub.mode {
            Mode::Queue => Capabilities::queue(NAME),
            Mode::Log { .. } => Capabilities::log(NAME),
        };
        base.redelivered_flag(true).durable_delay(true).repeated_headers(true).tombstones(true)
    }

    async fn prepare(&self, consumer: &ConsumerSpec, plan: &mut Plan) -> Result<(), Error> {
        self.hub.with(|state, _| state.prepare(consumer))?;
        for topic in &mut plan.topics {
            topic.dead_letters = Some(format!("the list of consumer {}", consumer.name));
        }
        plan.topology("everything is kept in this process and ends with it");
        Ok(())
    }

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<Box<dyn Source>, Error> {
        let (id, outstanding) = self.hub.with(|state, wakes| state.attach(consumer, wakes))?;
        let settle: Arc<dyn Settle> = Arc::new(Link::new(self.hub.clone(), id));
        Ok(Box::new(MemorySource::new(self.hub.clone(), id, consumer.name.clone(), settle, outstanding)))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, Error> {
        self.hub.with(|state, _| state.check_connected())?;
        Ok(Arc::new(MemoryPublisher::new(self.hub.clone())))
    }
}
