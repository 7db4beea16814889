//! What becomes of a delivered message.

use std::time::Duration;

use crate::{Class, Message, Trail};

/// What becomes of a message. Each adapter maps these words to its broker's.
///
/// There is no default: a delivery that is dropped without one is given back, as
/// [`Ack::Release`] does.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ack {
    /// Done. The broker may forget the message.
    Accept,
    /// Failed, and tried again after a rung of the ladder. A charged attempt.
    Retry(Box<Retry>),
    /// Nobody's fault; delivered again after this time. Never a copy, nothing is charged.
    Defer {
        /// The shortest time until it is delivered again.
        after: Duration,
    },
    /// Failed for good: to the dead letters, with the facts.
    Reject(Box<Reject>),
    /// Dropped for good without a dead letter, by a declared policy. Counted.
    Discard {
        /// Why, for the counters and the log of the application.
        reason: &'static str,
    },
    /// Given back as if it had never been delivered.
    Release,
}

/// The facts of a [`Ack::Retry`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Retry {
    /// The shortest time until the next delivery: the delay of a rung of the ladder.
    pub after: Duration,
    /// What the copy carries, its attempt already counted up.
    pub trail: Trail,
    /// Why it failed.
    pub reason: String,
}

/// The facts of a [`Ack::Reject`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Reject {
    /// Why it failed.
    pub reason: String,
    /// Whose fault it was.
    pub class: Class,
    /// What the dead letter carries.
    pub trail: Trail,
}

impl Ack {
    /// A retry after this time.
    pub fn retry(after: Duration, trail: Trail, reason: impl Into<String>) -> Self {
        Ack::Retry(Box::new(Retry { after, trail, reason: reason.into() }))
    }

    /// A dead letter.
    pub fn reject(class: Class, trail: Trail, reason: impl Into<String>) -> Self {
        Ack::Reject(Box::new(Reject::new(class, trail, reason)))
    }
}

impl Retry {
    /// The copy to publish to the rung: the same body, key, user headers and identity, and
    /// the trail in headers of ours, each exactly once.
    pub fn copy(&self, original: &Message) -> Message {
        self.trail.copy(original)
    }
}

impl Reject {
    /// A final failure of this class.
    pub fn new(class: Class, trail: Trail, reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), class, trail }
    }

    /// The dead letter to publish: the same body, key, user headers and identity, and the
    /// facts in headers of ours, each exactly once. `limit` bounds the diagnostic text in
    /// bytes; the payload is never touched.
    pub fn copy(&self, original: &Message, limit: usize) -> Message {
        self.trail.dead_letter(original, self.class, &self.reason, limit)
    }
}
