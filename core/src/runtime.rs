//! The consumer at work.
//!
//! ```text
//! Source ─► intake ─► worker mailboxes ─► key FIFOs ─► runs ─► settle ─► Source
//!                └──► shared queue for messages without an order key
//! ```
//!
//! A few long-lived worker tasks; no task and no allocation for a ready message.

mod counters;
mod deadlines;
mod gate;
mod guard;
mod intake;
mod keys;
mod late;
mod leaving;
mod mailbox;
mod run;
mod settle;
mod unguarded;
mod worker;

use std::sync::Arc;
use std::time::Duration;

pub use counters::Summary;
pub(crate) use gate::Gate;
pub use guard::Guard;
pub(crate) use late::Late;
pub(crate) use leaving::Leaving;
pub(crate) use run::{Launch, run};
pub(crate) use unguarded::Unguarded;

use crate::consumer::Stage;
use crate::key::NoKey;
use crate::retry::jittered;
use crate::{
    Ack, Capabilities, Delivery, Facts, Key, KeyValue, Message, MissingKey, Ordering, RetryPolicy, Shutdown,
    Trail,
};

/// What all topics of a consumer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) consumer: Arc<str>,
    pub(crate) capabilities: Capabilities,
    pub(crate) shutdown: Shutdown,
    pub(crate) gate: Gate,
    pub(crate) late: Late,
    /// Held by every unit; a suspect that must run alone holds it whole.
    pub(crate) alone: Arc<tokio::sync::RwLock<()>>,
}

/// What the runs of one topic share.
#[doc(hidden)]
#[derive(Debug)]
pub struct TopicEnv {
    pub(crate) shared: Arc<Shared>,
    pub(crate) kind: Arc<str>,
    pub(crate) key: Option<Key>,
    pub(crate) order_by: Option<Key>,
    pub(crate) conflict: Option<Key>,
    pub(crate) missing_key: MissingKey,
    pub(crate) policy: RetryPolicy,
    pub(crate) ordering: Ordering,
    pub(crate) timeout: Duration,
    pub(crate) crash_ceiling: u32,
}

impl TopicEnv {
    /// Identity and history of a message of this topic.
    pub(crate) fn trail(&self, message: &Message, facts: Facts) -> Trail {
        let mut trail =
            Trail::read(message, &self.shared.consumer, &self.kind, self.shared.capabilities.identity());
        trail.attempt = trail.attempt.saturating_add(facts.charged);
        trail
    }

    /// Waits in place for a rung of the ladder. Returns whether to go on: a consumer that
    /// stops and a partition that leaves wait for runs, not for ladders.
    pub(crate) async fn wait_for_rung(&self, delay: Duration, seed: u64, leaving: &Leaving) -> bool {
        tokio::select! {
            biased;
            () = self.shared.shutdown.reached(Stage::Stop) => false,
            () = leaving.said() => false,
            () = tokio::time::sleep(jittered(delay, seed)) => true,
        }
    }

    /// Charged attempts of a message so far, without working out its identity.
    pub(crate) fn attempts(&self, message: &Message, facts: Facts) -> u32 {
        if message.headers().get(crate::header::ID).is_none() {
            return facts.charged;
        }
        self.trail(message, facts).attempt
    }
}

/// A message on its way into a run. The right to settle it stays with the worker.
#[doc(hidden)]
#[derive(Debug)]
pub struct Job {
    pub(crate) message: Message,
    pub(crate) facts: Facts,
    pub(crate) key: Option<Found>,
    pub(crate) leaving: Leaving,
}

/// What the search for a key came to. Boxed: most of the time a message waits in memory it
/// is only carried along.
pub(crate) type Found = Box<Result<Arc<KeyValue>, NoKey>>;

/// What a run came to.
#[doc(hidden)]
#[derive(Debug)]
pub struct Outcome {
    pub(crate) ack: Ack,
    pub(crate) tally: Tally,
}

/// What is counted about a run beside its ack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// The key was done already.
    pub(crate) duplicate: bool,
    /// The key was done already, by another body.
    pub(crate) differs: bool,
    /// The handler panicked.
    pub(crate) panicked: bool,
    /// Runs that were undone and made again without a charge.
    pub(crate) redone: u32,
}

impl Outcome {
    pub(crate) fn new(ack: Ack) -> Self {
        Self { ack, tally: Tally::default() }
    }
}

/// A delivery on its way from the intake to a worker.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) delivery: Delivery,
    pub(crate) key: Option<Found>,
    /// The hash of the order key; `None` if nothing orders the message.
    pub(crate) order: Option<OrderHash>,
}

/// The hash of an order key, never zero so that its absence costs no room.
pub(crate) type OrderHash = std::num::NonZeroU64;
