//! What the broker keeps, for tests and for people.

use oncemq_core::Message;

use crate::attached::Attached;
use crate::broker::MemoryBroker;
use crate::state::Model;

impl MemoryBroker {
    /// The dead letters of a consumer and topic, the oldest first.
    pub fn dead_letters(&self, consumer: &str, topic: &str) -> Vec<Message> {
        self.hub.with(|state, _| {
            state.desk.dead.get(&(consumer.into(), topic.into())).cloned().unwrap_or_default()
        })
    }

    /// Moves the dead letters of a consumer and topic back to it with all their headers, as
    /// an operator would, and returns how many there were.
    pub fn replay(&self, consumer: &str, topic: &str) -> usize {
        self.hub.with(|state, wakes| {
            let letters = state.desk.dead.remove(&(consumer.into(), topic.into())).unwrap_or_default();
            let count = letters.len();
            state.replay(consumer, topic, &letters, wakes);
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

    /// Deliveries of a consumer that are out, over all its open sources.
    pub fn outstanding(&self, consumer: &str) -> usize {
        self.hub.with(|state, _| {
            let sources = state.open_sources(Some(consumer));
            sources.iter().filter_map(|id| state.sources.get(*id as usize)).map(Attached::out).sum()
        })
    }

    /// Messages discarded so far, over all consumers.
    pub fn discarded(&self) -> u64 {
        self.hub.with(|state, _| state.desk.discarded)
    }

    /// The lowest unfinished offset of a consumer in a partition; `None` on a queue, and
    /// where there is no such group or partition.
    pub fn committed(&self, consumer: &str, topic: &str, partition: u32) -> Option<u64> {
        self.hub.with(|state, _| match &state.model {
            Model::Log(logs) => logs.committed(consumer, topic, partition),
            Model::Queue(_) => None,
        })
    }
}
