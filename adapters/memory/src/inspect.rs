//! What the broker keeps, for tests and for people.

use oncemq_core::Message;

use crate::broker::MemoryBroker;

impl MemoryBroker {
    /// The dead letters of a consumer and topic, the oldest first.
    pub fn dead_letters(&self, consumer: &str, topic: &str) -> Vec<Message> {
        self.hub
            .with(|state, _| state.dead.get(&(consumer.into(), topic.into())).cloned().unwrap_or_default())
    }

    /// Moves the dead letters of a consumer and topic back to it with all their headers, as
    /// an operator would, and returns how many there were.
    pub fn replay(&self, consumer: &str, topic: &str) -> usize {
        self.hub.with(|state, wakes| {
            let letters = state.dead.remove(&(consumer.into(), topic.into())).unwrap_or_default();
            let count = letters.len();
            state.replay(consumer, topic, letters, wakes);
            count
        })
    }

    /// Messages that a consumer still owes an answer for, waiting ones and those that are
    /// out included, dead letters not.
    pub fn left(&self, consumer: &str) -> usize {
        self.hub.with(|state, _| state.left(consumer, None))
    }

    /// As [`left`](Self::left) for one topic.
    pub fn depth(&self, consumer: &str, topic: &str) -> usize {
        self.hub.with(|state, _| state.left(consumer, Some(topic)))
    }

    /// Messages discarded so far, over all consumers.
    pub fn discarded(&self) -> u64 {
        self.hub.with(|state, _| state.discarded)
    }
}
