//! What an answer means to the broker.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncemq_core::{Ack, Message};
use tokio::time::Instant;

use crate::attached::Attached;
use crate::hub::Clock;

/// The longest diagnostic text on a dead letter, in bytes.
const REASON_MAX: usize = 16 * 1024;

/// Dead letters by consumer and topic, and what is counted about answers.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) dead: BTreeMap<(Arc<str>, Arc<str>), Vec<Message>>,
    pub(crate) acks_to_lose: u64,
    pub(crate) discarded: u64,
}

/// What is left to do about a message after an answer.
#[derive(Debug)]
pub(crate) enum Rest {
    /// Nothing: it is done.
    Done,
    /// It comes back at once, flagged.
    Back,
    /// It comes back at this time, as it was.
    Hold(Instant),
    /// This copy of it comes at this time, and the message is done.
    Copy(Message, Instant),
}

impl Desk {
    /// Applies an answer to a message that a source had from this place.
    pub(crate) fn apply(&mut self, ack: Ack, message: &Message, source: &Attached, place: u32) -> Rest {
        match ack {
            Ack::Accept if self.acks_to_lose > 0 => {
                self.acks_to_lose -= 1;
                Rest::Back
            }
            Ack::Accept => Rest::Done,
            Ack::Retry(retry) => Rest::Copy(retry.copy(message), Clock::default().after(retry.after)),
            Ack::Defer { after } => Rest::Hold(Clock::default().after(after)),
            Ack::Reject(reject) => {
                let Some(topic) = source.topic_at(place) else { return Rest::Back };
                let letters = self.dead.entry((source.consumer.clone(), topic.clone())).or_default();
                letters.push(reject.copy(message, REASON_MAX));
                Rest::Done
            }
            Ack::Discard { .. } => {
                self.discarded += 1;
                Rest::Done
            }
            // Also a word that this version does not know: nothing may be lost by it.
            _ => Rest::Back,
        }
    }
}
