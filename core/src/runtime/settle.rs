//! The one place where deliveries are settled.

use super::counters::Counters;
use super::{Outcome, Tally, TopicEnv};
use crate::fate::{Findings, MessageFate, Run, fate};
use crate::{Ack, Class, Delivery, Message, Trail};

/// Settles a delivery by the outcome of its run, and counts it.
pub(crate) fn settle(delivery: Delivery, outcome: Outcome, counters: &Counters) {
    counters.count(&outcome, delivery.message().size());
    delivery.ack(outcome.ack);
}

/// The ack of a fate that ends a delivery.
pub(crate) fn ack_of(fate: MessageFate, trail: Trail, class: Class, reason: &str) -> Ack {
    match fate {
        MessageFate::Accept => Ack::Accept,
        MessageFate::Retry(after) => Ack::retry(after, trail, reason),
        MessageFate::Reject => Ack::reject(class, trail, reason),
        MessageFate::Discard => Ack::Discard { reason: "no key" },
        MessageFate::Defer => Ack::Defer { after: std::time::Duration::from_millis(100) },
        // Not an end: given back, so that nothing can be lost by a mistake here.
        MessageFate::Hold | MessageFate::Proceed => Ack::Release,
    }
}

/// The outcome of a run that panicked outside every handler's own containment, for instance
/// in the destructor of its future.
pub(crate) fn after_panic(topic: &TopicEnv, message: &Message, facts: crate::Facts) -> Outcome {
    let mut trail = topic.trail(message, facts);
    trail.attempt = trail.attempt.saturating_add(1);
    let found = Findings { run: Some(Run::Panicked), attempt: trail.attempt, ..Findings::default() };
    let end = fate(&found, &topic.policy);
    let ack = ack_of(end.message, trail, Class::System, "the handler panicked while it was dropped");
    Outcome { ack, tally: Tally { panicked: true, ..Tally::default() } }
}
