//! The one seam to the client library: connections, requests, and messages as they are stored.
//!
//! Everything above speaks the broker's protocol in requests of a code, named fields and a body;
//! everything below is in `real.rs` and `member.rs`, the only files that name a type of the
//! library. It compiles for minutes, so nothing here is generic.

mod body;
#[cfg(test)]
pub(crate) mod fake;
mod knock;
mod member;
mod real;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use oncemq_core::{Decision, Error};

use crate::config::Config;

/// A connection to a cluster.
#[async_trait]
pub(crate) trait Client: Send + Sync + fmt::Debug + 'static {
    /// Which brokers keep a topic, as the name server says. `None`: nobody does.
    async fn route(&self, topic: &str) -> Result<Option<Vec<Seat>>, Fault>;

    /// Every broker that takes messages: its name and address.
    async fn masters(&self) -> Result<Vec<(Arc<str>, Arc<str>)>, Fault>;

    /// Sends a request and waits for its answer, whatever its code says. Dropped, the answer is
    /// lost, and the request may have been applied.
    async fn ask(&self, address: &str, request: Request, limit: Duration) -> Result<Answer, Fault>;

    /// The messages in the body of an answer, uncompressed. Fewer than there are, if one is not
    /// of the form that is known: those before it.
    fn stored(&self, body: Bytes) -> Decoded;

    /// A new id for a message, of the form that the broker's tools understand.
    fn new_id(&self) -> String;

    /// Closes the connections. Requests that are under way fail.
    async fn close(&self);
}

/// Connects lazily: an address that nobody answers at fails the first request.
pub(crate) fn connect(config: &Config) -> Result<Arc<dyn Client>, Error> {
    Ok(Arc::new(real::Real::new(config)?))
}

/// Answers a broker that asks what became of a transaction.
pub(crate) trait Judge: Send + Sync + 'static {
    /// Called on a thread of the library's that may wait for some seconds.
    fn decide(&self, half: &Stored) -> Decision;
}

pub(crate) use member::Member as ProducerMember;

/// A broker's part of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) broker: Arc<str>,
    pub(crate) address: Arc<str>,
    /// Queues to read from, and to write to.
    pub(crate) reads: i32,
    pub(crate) writes: i32,
}

/// Codes of requests.
pub(crate) mod verb {
    pub(crate) const PULL: i32 = 11;
    pub(crate) const COMMITTED: i32 = 14;
    pub(crate) const COMMIT: i32 = 15;
    pub(crate) const CREATE_TOPIC: i32 = 17;
    pub(crate) const SETTINGS: i32 = 26;
    pub(crate) const END: i32 = 30;
    pub(crate) const BEGIN: i32 = 31;
    pub(crate) const HEARTBEAT: i32 = 34;
    pub(crate) const LEAVE: i32 = 35;
    pub(crate) const SEND_BACK: i32 = 36;
    pub(crate) const END_TRANSACTION: i32 = 37;
    pub(crate) const MEMBERS: i32 = 38;
    pub(crate) const LOCK: i32 = 41;
    pub(crate) const UNLOCK: i32 = 42;
    pub(crate) const CREATE_GROUP: i32 = 200;
    pub(crate) const CONSUMERS: i32 = 203;
    pub(crate) const PRODUCERS: i32 = 204;
    pub(crate) const SEND: i32 = 310;
    pub(crate) const TOPIC: i32 = 351;
    pub(crate) const GROUP: i32 = 352;
}

/// A request of the broker's protocol.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) code: i32,
    pub(crate) fields: Vec<(&'static str, String)>,
    pub(crate) body: Option<Bytes>,
}

impl Request {
    pub(crate) fn new(code: i32) -> Self {
        Self { code, fields: Vec::new(), body: None }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.fields.push((name, value.to_string()));
        self
    }

    pub(crate) fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }
}

/// What a broker answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    /// Why it refuses, in the broker's words.
    pub(crate) remark: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Option<Bytes>,
}

impl Answer {
    /// A field that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<i64> {
        self.fields.iter().find(|(found, _)| found == name)?.1.parse().ok()
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nobody took the request.
    NotSent(String),
    /// The request may have been applied.
    NoAnswer(String),
}

impl Fault {
    /// The same, with who did not answer.
    pub(crate) fn of(self, broker: &str) -> Self {
        match self {
            Fault::NotSent(why) => Fault::NotSent(format!("{broker}: {why}")),
            Fault::NoAnswer(why) => Fault::NoAnswer(format!("{broker}: {why}")),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Fault::NotSent(why) | Fault::NoAnswer(why)) = self;
        f.write_str(why)
    }
}

/// The messages of an answer.
#[derive(Debug, Default)]
pub(crate) struct Decoded {
    pub(crate) messages: Vec<Stored>,
    /// All that there were.
    pub(crate) whole: bool,
}

/// A message as a broker keeps it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stored {
    pub(crate) offset: i64,
    /// In milliseconds since 1970, by the producer's clock.
    pub(crate) born: i64,
    /// How often it was sent back.
    pub(crate) reconsumed: u32,
    /// Where in the broker's log it stands.
    pub(crate) position: i64,
    /// The name of that place: the broker's address and the position.
    pub(crate) place: String,
    pub(crate) body: Bytes,
    /// The body as it is stored, if its producer compressed it.
    pub(crate) packed: Option<Packed>,
    /// Why it could not be uncompressed; then the body is as it is stored.
    pub(crate) unreadable: Option<String>,
    pub(crate) properties: Vec<(Arc<str>, String)>,
}

/// A compressed body, and what of a message's flag says how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) flag: i32,
    pub(crate) body: Bytes,
}
