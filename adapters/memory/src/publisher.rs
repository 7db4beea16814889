//! Sending to topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use async_trait::async_trait;
use oncemq_core::{Error, Message, Publisher};

use crate::error;
use crate::hub::Hub;

/// A publisher. A message is stored when `publish` returns.
#[derive(Debug)]
pub(crate) struct MemoryPublisher {
    hub: Arc<Hub>,
    closed: AtomicBool,
}

impl MemoryPublisher {
    pub(crate) fn new(hub: Arc<Hub>) -> Self {
        Self { hub, closed: AtomicBool::new(false) }
    }
}

#[async_trait]
impl Publisher for MemoryPublisher {
    async fn publish(&self, topic: &str, message: &Message) -> Result<(), Error> {
        if self.closed.load(SeqCst) {
            return Err(error::publisher_closed());
        }
        self.hub.with(|state, wakes| state.publish(topic, message, wakes))
    }

    async fn close(&self) -> Result<(), Error> {
        self.closed.store(true, SeqCst);
        Ok(())
    }
}
