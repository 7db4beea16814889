//! The broker as the library sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use std::{fs, io};

use async_trait::async_trait;
use oncemq_core::{Broker, Capabilities, ConsumerSpec, Error, ErrorKind, Message, Plan};
use oncemq_core::{Publisher, Source, Subscription, Topology};

use crate::{NAME, failed, files, source};

/// A folder as a broker. Clones and other processes share it.
#[derive(Debug, Clone)]
pub struct FolderBroker(PathBuf);

impl FolderBroker {
    /// The broker in this folder, which the first consumer makes.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The dead letters of a consumer and topic, the oldest first.
    ///
    /// # Errors
    /// [`Connection`](ErrorKind::Connection) if the folder cannot be read.
    pub fn dead_letters(&self, consumer: &str, topic: &str) -> Result<Vec<Message>, Error> {
        let dead = self.queue(consumer, &Subscription::new(topic))?.join("dead");
        let load = |name: &String| files::load(&dead.join(name), consumer);
        let letters = files::names(&dead).and_then(|names| names.iter().map(load).collect());
        letters.map_err(failed)
    }

    fn queue(&self, consumer: &str, subscription: &Subscription) -> Result<PathBuf, Error> {
        let own = format!("{consumer}.{}", file_name(&subscription.topic)?);
        Ok(self.0.join("queues").join(file_name(subscription.queue.as_deref().unwrap_or(&own))?))
    }

    fn declare(&self, queue: &Path, topic: &str) -> io::Result<()> {
        let topic = self.0.join("topics").join(topic);
        [&topic, &queue.join("taken"), &queue.join("dead")].into_iter().try_for_each(fs::create_dir_all)?;
        fs::write(topic.join(queue.file_name().unwrap_or_default()), "")
    }
}

#[async_trait]
impl Broker for FolderBroker {
    fn capabilities(&self) -> Capabilities {
        let can = Capabilities::queue(NAME).redelivered_flag(true).durable_delay(true);
        can.key_order(true).repeated_headers(true).tombstones(true)
    }

    async fn prepare(&self, consumer: &ConsumerSpec, plan: &mut Plan) -> Result<(), Error> {
        for (place, subscription) in consumer.subscriptions.iter().enumerate() {
            let queue = self.queue(&consumer.name, subscription)?;
            if consumer.topology == Topology::Declare && subscription.queue.is_none() {
                self.declare(&queue, &subscription.topic).map_err(failed)?;
            } else if consumer.topology != Topology::Trust && !queue.join("taken").is_dir() {
                let text = format!("there is no queue in {}; let a consumer declare it", queue.display());
                return Err(Error::new(ErrorKind::Topology, text));
            }
            plan.topology(format!("folder {}, for one process at a time", queue.display()));
            if let Some(topic) = plan.topics.get_mut(place) {
                topic.dead_letters = Some(format!("folder {}", queue.join("dead").display()));
            }
        }
        Ok(())
    }

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<Box<dyn Source>, Error> {
        let queue = |subscription| self.queue(&consumer.name, subscription);
        let queues = consumer.subscriptions.iter().map(queue).collect::<Result<_, _>>()?;
        source::start(queues).map_err(failed)
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, Error> {
        Ok(Arc::new(FolderPublisher(self.0.clone(), AtomicBool::new(false))))
    }
}

/// The root, and whether it was closed.
struct FolderPublisher(PathBuf, AtomicBool);

#[async_trait]
impl Publisher for FolderPublisher {
    async fn publish(&self, topic: &str, message: &Message) -> Result<(), Error> {
        if self.1.load(SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the publisher is closed; make another one"));
        }
        let queues = files::names(&self.0.join("topics").join(file_name(topic)?)).unwrap_or_default();
        if queues.is_empty() {
            let text = format!("no queue keeps topic {topic}; start a consumer of it first");
            return Err(Error::new(ErrorKind::Unroutable, text));
        }
        let (folder, message) = (self.0.join("queues"), message.clone());
        let each = move |queue: &String| files::store(&folder.join(queue), Duration::ZERO, &message);
        let stored = tokio::task::spawn_blocking(move || queues.iter().try_for_each(each)).await;
        // Of several queues one may have it already.
        let unsure =
            |error| Error::with_source(ErrorKind::Unconfirmed, "send it again with the same id", error);
        stored.map_err(io::Error::other).flatten().map_err(unsure)
    }

    async fn close(&self) -> Result<(), Error> {
        self.1.store(true, SeqCst);
        Ok(())
    }
}

/// Checks that a name is a file's name everywhere, and no way out of the folder.
fn file_name(name: &str) -> Result<&str, Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(fits) {
        let text = format!("{name:?} is no file name; use up to 200 letters, digits, -, _ and .");
        return Err(Error::new(ErrorKind::Config, text));
    }
    Ok(name)
}
