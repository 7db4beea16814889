//! Sending messages, each confirmed by the broker.

use async_trait::async_trait;

use crate::{Error, Message};

/// Sends messages to a broker.
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Sends a message to a topic and returns when the broker has confirmed it: stored, and
    /// routed to at least one place that keeps it.
    ///
    /// Not cancel safe: a dropped future leaves it unknown whether the message was stored.
    /// Send it again with the same id and let the consumer's record absorb the second.
    ///
    /// What the broker cannot carry is refused before anything is sent, never left out: a
    /// tombstone or a repeated header, say, where its [`Capabilities`](crate::Capabilities)
    /// deny them.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the broker cannot carry the message,
    /// [`Unroutable`](crate::ErrorKind::Unroutable) if no queue or topic takes it,
    /// [`TooLarge`](crate::ErrorKind::TooLarge) over the broker's limit,
    /// [`Unconfirmed`](crate::ErrorKind::Unconfirmed) if the answer did not come.
    async fn publish(&self, topic: &str, message: &Message) -> Result<(), Error>;

    /// Closes the connection after what is under way was confirmed. May be called twice.
    async fn close(&self) -> Result<(), Error>;
}

const _: fn(&dyn Publisher) = |_| ();
