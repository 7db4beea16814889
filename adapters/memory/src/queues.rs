//! Queue mode: a queue for each consumer and topic.

use std::collections::BTreeMap;
use std::sync::Arc;

use oncemq_core::{
    ConsumerSpec, Delivery, Error, Event, Facts, Message, Ordering, Origin, Settle, Token, Topology,
};
use tokio::time::Instant;

use crate::attached::{Attached, Place};
use crate::desk::Rest;
use crate::error;
use crate::hub::{Clock, Wakes};
use crate::lane::{Holder, Lane};
use crate::source::SourceId;

/// How many deliveries of one queue come before the next queue of a source has its turn.
const TURN_MAX: usize = 16;

/// All queues, and which topics they keep.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_name: BTreeMap<Arc<str>, u32>,
    bindings: BTreeMap<Arc<str>, Vec<u32>>,
    /// The queue of each consumer and topic.
    consumed: BTreeMap<(Arc<str>, Arc<str>), u32>,
    list: Vec<Queue>,
}

#[derive(Debug)]
pub(crate) struct Queue {
    origin: Origin,
    pub(crate) lane: Lane,
    /// The open sources, the oldest first.
    sources: Vec<SourceId>,
    /// Only the oldest source is served, so that the order of the queue holds.
    single_active: bool,
}

impl Queue {
    fn is_served(&self, source: SourceId) -> bool {
        !self.single_active || self.sources.first() == Some(&source)
    }
}

impl Queues {
    /// Makes a queue if it is missing, and lets it keep a topic.
    pub(crate) fn bind(&mut self, queue: &str, topic: &str) {
        let index = match self.by_name.get(queue) {
            Some(index) => *index,
            None => {
                let index = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
                self.by_name.insert(queue.into(), index);
                self.list.push(Queue {
                    origin: Origin::new(crate::broker::NAME, queue),
                    lane: Lane::default(),
                    sources: Vec::new(),
                    single_active: false,
                });
                index
            }
        };
        let bound = self.bindings.entry(topic.into()).or_default();
        if !bound.contains(&index) {
            bound.push(index);
        }
    }

    pub(crate) fn prepare(&mut self, spec: &ConsumerSpec) -> Result<(), Error> {
        for subscription in &spec.subscriptions {
            let queue = queue_name(&spec.name, &subscription.topic, subscription.queue.as_ref());
            let own = subscription.queue.is_none();
            match spec.topology {
                Topology::Declare if own => self.bind(&queue, &subscription.topic),
                Topology::Declare | Topology::Verify => {
                    self.index(&queue)?;
                }
                Topology::Trust => {}
            }
            if let Ok(index) = self.index(&queue) {
                self.consumed.insert((spec.name.clone(), subscription.topic.clone()), index);
            }
        }
        Ok(())
    }

    /// Registers a source at its queues and returns them in the order of its
    /// subscriptions.
    pub(crate) fn attach(&mut self, spec: &ConsumerSpec, id: SourceId) -> Result<Vec<Place>, Error> {
        let mut indexes = Vec::new();
        for subscription in &spec.subscriptions {
            let queue = queue_name(&spec.name, &subscription.topic, subscription.queue.as_ref());
            indexes.push(self.index(&queue)?);
        }
        for (subscription, index) in spec.subscriptions.iter().zip(&indexes) {
            let queue = self.get(*index);
            queue.sources.push(id);
            queue.single_active |= subscription.ordering == Ordering::Ordered;
        }
        let places = (0..).zip(indexes).map(|(subscription, index)| Place { index, subscription });
        Ok(places.collect())
    }

    pub(crate) fn publish(&mut self, topic: &str, message: &Message, wakes: &mut Wakes) -> Result<(), Error> {
        let bound = self.bindings.get(topic).ok_or_else(|| {
            error::unroutable(topic, "no queue is bound to it; start or plan a consumer of it first")
        })?;
        for index in bound {
            let queue = &mut self.list[*index as usize];
            queue.lane.push(stamped(message, &queue.origin));
            wakes.ids.extend(&queue.sources);
        }
        Ok(())
    }

    pub(crate) fn fill(
        &mut self,
        id: SourceId,
        source: &mut Attached,
        max: usize,
        clock: &mut Clock,
        events: &mut Vec<Event>,
        settle: &Arc<dyn Settle>,
    ) -> usize {
        let holder = Holder { source: id, epoch: source.epoch };
        let turn_max = if source.places.len() == 1 { max } else { TURN_MAX };
        let (mut given, mut idle) = (0, 0);
        while given < max && idle < source.places.len() {
            source.cursor = (source.cursor + 1) % source.places.len();
            let place = source.places[source.cursor];
            let queue = &mut self.list[place.index as usize];
            idle += 1;
            if !queue.is_served(id) {
                continue;
            }
            if queue.lane.next_due().is_some() {
                queue.lane.promote(clock.now());
            }
            for _ in 0..turn_max.min(max - given) {
                let Some((id, message, redelivered)) = queue.lane.deliver(holder) else { break };
                let token = Token { epoch: holder.epoch, scope: place.index, id: id.into() };
                let facts = Facts::new(place.subscription, redelivered);
                events.push(Event::Delivery(Delivery::new(message, facts, token, settle.clone())));
                given += 1;
                idle = 0;
            }
        }
        given
    }

    /// When time alone brings something to a source.
    pub(crate) fn next_due(&self, id: SourceId, source: &Attached) -> Option<Instant> {
        source
            .places
            .iter()
            .map(|place| &self.list[place.index as usize])
            .filter(|queue| queue.is_served(id))
            .filter_map(|queue| queue.lane.next_due())
            .min()
    }

    /// Applies an answer, if this incarnation of the source still has the delivery out.
    /// Returns whether others may have something to do now.
    pub(crate) fn settle(
        &mut self,
        token: Token,
        holder: Holder,
        rest: impl FnOnce() -> Rest,
    ) -> Option<bool> {
        let queue = self.list.get_mut(token.scope as usize)?;
        let stored = queue.lane.take(token.id, holder)?;
        match rest() {
            Rest::Done => return Some(false),
            Rest::Back => queue.lane.give_back(stored),
            Rest::Hold(due) => queue.lane.hold(stored, due, holder.source),
            Rest::Copy(copy, due) => queue.lane.push_later(stamped(&copy, &queue.origin), due),
        }
        Some(true)
    }

    /// A source is gone or lost its connection: everything it had comes back. With `leave`
    /// it is no longer served.
    pub(crate) fn void(&mut self, id: SourceId, source: &Attached, leave: bool, wakes: &mut Wakes) {
        for place in &source.places {
            let queue = &mut self.list[place.index as usize];
            queue.lane.void(id, true);
            if leave {
                queue.sources.retain(|other| *other != id);
            }
            wakes.ids.extend(&queue.sources);
        }
    }

    pub(crate) fn get(&mut self, index: u32) -> &mut Queue {
        &mut self.list[index as usize]
    }

    pub(crate) fn sources(&self, index: u32) -> &[SourceId] {
        self.list.get(index as usize).map_or(&[], |queue| &queue.sources)
    }

    pub(crate) fn left(&self, consumer: &str, topic: Option<&str>) -> usize {
        self.consumed
            .iter()
            .filter(|((name, of), _)| **name == *consumer && topic.is_none_or(|topic| topic == &**of))
            .map(|(_, index)| self.list[*index as usize].lane.left())
            .sum()
    }

    /// Appends messages to the queue of a consumer and topic, and returns whom to wake.
    pub(crate) fn replay(&mut self, consumer: &str, topic: &str, messages: &[Message]) -> &[SourceId] {
        let Some(index) = self.consumed.get(&(consumer.into(), topic.into())) else { return &[] };
        let queue = &mut self.list[*index as usize];
        for message in messages {
            queue.lane.push(stamped(message, &queue.origin));
        }
        &queue.sources
    }

    fn index(&self, queue: &str) -> Result<u32, Error> {
        self.by_name.get(queue).copied().ok_or_else(|| error::no_queue(queue))
    }
}

/// The queue a subscription consumes.
fn queue_name(consumer: &str, topic: &str, existing: Option<&Arc<str>>) -> Arc<str> {
    existing.cloned().unwrap_or_else(|| format!("{consumer}.{topic}").into())
}

/// The message as it lies in this place.
pub(crate) fn stamped(message: &Message, origin: &Origin) -> Message {
    let mut stored = message.clone();
    stored.parts_mut().origin = origin.clone();
    stored
}
