//! The broker as the library sees it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use async_trait::async_trait;
use oncemq_core::{Broker, Capabilities, ConsumerSpec, Error, ErrorKind, Message, Plan};
use oncemq_core::{Publisher, Source, Subscription, Topology};

use crate::{DEAD, NAME, NOW, failed, files, source::FolderSource};

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
        let dead = self.queue(consumer, &Subscription::new(topic))?.join(DEAD);
        let load = |name| files::load(&dead.join(name));
        files::due(&dead).and_then(|names| names.into_iter().map(load).collect()).map_err(failed)
    }

    fn queue(&self, consumer: &str, subscription: &Subscription) -> Result<PathBuf, Error> {
        let queue = subscription.queue.as_deref().unwrap_or(consumer);
        Ok(self.0.join(file_name(&subscription.topic)?).join(file_name(queue)?))
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
            let dead = queue.join(DEAD);
            if consumer.topology == Topology::Declare && subscription.queue.is_none() {
                fs::create_dir_all(&dead).map_err(failed)?;
            } else if consumer.topology != Topology::Trust && !dead.is_dir() {
                let text = format!("there is no queue in {}; let a consumer declare it", queue.display());
                return Err(Error::new(ErrorKind::Topology, text));
            }
            plan.topology(format!("folder {}, for one process at a time", queue.display()));
            plan.dead_letters(place, format!("folder {}", dead.display()));
        }
        Ok(())
    }

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<Box<dyn Source>, Error> {
        let queue = |subscription| self.queue(&consumer.name, subscription);
        let folders = consumer.subscriptions.iter().map(queue).collect::<Result<_, _>>()?;
        Ok(Box::new(FolderSource::new(folders)))
    }

    async fn publisher(&self) -> Result<Arc<dyn Publisher>, Error> {
        Ok(Arc::new(FolderPublisher { root: self.0.clone(), closed: AtomicBool::new(false) }))
    }
}

struct FolderPublisher {
    root: PathBuf,
    closed: AtomicBool,
}

#[async_trait]
impl Publisher for FolderPublisher {
    async fn publish(&self, topic: &str, message: &Message) -> Result<(), Error> {
        if self.closed.load(SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the publisher is closed; make another one"));
        }
        let folders = fs::read_dir(self.root.join(file_name(topic)?)).into_iter().flatten().flatten();
        let queues: Vec<_> = folders.map(|folder| folder.path()).collect();
        if queues.is_empty() {
            let text = format!("no queue keeps topic {topic}; start a consumer of it first");
            return Err(Error::new(ErrorKind::Unroutable, text));
        }
        let stored = queues.iter().try_for_each(|queue| files::store(queue, NOW, message));
        // Of several queues one may have it already.
        stored.map_err(|e| Error::with_source(ErrorKind::Unconfirmed, "send it again with the same id", e))
    }

    async fn close(&self) -> Result<(), Error> {
        self.closed.store(true, SeqCst);
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
