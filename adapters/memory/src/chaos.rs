//! Faults on demand, for tests of handlers and of this library.

use oncemq_core::{Event, Health};

use crate::broker::MemoryBroker;
use crate::state::Model;

impl MemoryBroker {
    /// Ends every open source of a consumer as a killed process would: what it had out comes
    /// back flagged as redelivered, answers that are still to come are void, and the next
    /// poll of a dead source fails with [`Closed`](oncemq_core::ErrorKind::Closed).
    pub fn crash(&self, consumer: &str) {
        self.hub.with(|state, wakes| {
            for id in state.open_sources(Some(consumer)) {
                state.detach(id, false, wakes);
            }
        });
    }

    /// Loses the next `n` accepts, as if the connection had broken between the hand-off and
    /// the broker: their messages come back flagged as redelivered.
    pub fn lose_acks(&self, n: u64) {
        self.hub.with(|state, _| state.desk.acks_to_lose = n);
    }

    /// Cuts every connection. What is out comes back at once, answers are void, publishing
    /// fails and nothing is delivered until [`reconnect`](Self::reconnect).
    pub fn disconnect(&self) {
        self.hub.with(|state, wakes| {
            if std::mem::replace(&mut state.disconnected, true) {
                return;
            }
            for id in state.open_sources(None) {
                state.cut(id, wakes);
                state.notify(id, Event::Health(Health::Degraded("disconnected".to_owned())), wakes);
            }
        });
    }

    /// Ends [`disconnect`](Self::disconnect). Sources go on under a new epoch.
    pub fn reconnect(&self) {
        self.hub.with(|state, wakes| {
            if !std::mem::replace(&mut state.disconnected, false) {
                return;
            }
            for id in state.open_sources(None) {
                let Some(epoch) = state.epoch_of(id) else { continue };
                state.notify(id, Event::Reconnected { epoch }, wakes);
                state.notify(id, Event::Health(Health::Up), wakes);
            }
        });
    }

    /// Has every consumer of a log commit late: a crash, a cut and a revoke that ends with work
    /// under way forget this many of the last offsets that were done, and their messages come
    /// back flagged as redelivered. Nothing on a queue.
    pub fn commit_late(&self, offsets: u64) {
        self.hub.with(|state, _| {
            if let Model::Log(logs) = &mut state.model {
                logs.uncommitted = offsets;
            }
        });
    }

    /// Drops the messages of a partition before an offset, as a log's retention does. What
    /// a group had not reached comes to it as a gap. Nothing on a queue.
    pub fn expire(&self, topic: &str, partition: u32, before: u64) {
        self.hub.with(|state, wakes| {
            if let Model::Log(logs) = &mut state.model {
                logs.expire(topic, partition, before, wakes);
            }
        });
    }
}
