//! Log mode: topics in partitions, and groups that remember offsets.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use oncemq_core::{ConsumerSpec, Delivery, Error, Event, Facts, Message, Origin, Settle, Token, Topology};
use tokio::time::Instant;

use crate::attached::Attached;
use crate::desk::Rest;
use crate::error;
use crate::groups::Group;
use crate::hub::{Clock, Wakes};
use crate::lane::Holder;
use crate::part::Part;
use crate::source::SourceId;

/// How many deliveries of one partition come before the next one of a source has its turn.
const TURN_MAX: usize = 16;

/// All topics and groups.
#[derive(Debug)]
pub(crate) struct Logs {
    partitions: u32,
    by_name: BTreeMap<Arc<str>, u32>,
    topics: Vec<Topic>,
    /// By consumer and topic.
    pub(crate) groups: BTreeMap<(Arc<str>, Arc<str>), Group>,
    pub(crate) parts: Vec<Part>,
    /// Partitions that are on their way to another owner.
    pub(crate) leaving: Vec<u32>,
    /// How many of the last offsets that are done an owner has not committed when it dies.
    pub(crate) uncommitted: u64,
}

#[derive(Debug)]
struct Topic {
    name: Arc<str>,
    logs: Vec<Log>,
    /// Where the next message without a key goes.
    turn: usize,
}

#[derive(Debug)]
struct Log {
    origin: Origin,
    /// The first offset that is still there.
    begin: u64,
    messages: VecDeque<Message>,
    /// What each group knows of it.
    parts: Vec<u32>,
}

impl Log {
    fn end(&self) -> u64 {
        self.begin + self.messages.len() as u64
    }

    fn get(&self, offset: u64) -> Option<&Message> {
        self.messages.get(usize::try_from(offset.checked_sub(self.begin)?).ok()?)
    }
}

impl Logs {
    pub(crate) fn new(partitions: u32) -> Self {
        Self {
            partitions,
            by_name: BTreeMap::new(),
            topics: Vec::new(),
            groups: BTreeMap::new(),
            parts: Vec::new(),
            leaving: Vec::new(),
            uncommitted: 0,
        }
    }

    /// Makes a topic if it is missing.
    pub(crate) fn create_topic(&mut self, name: &str) -> u32 {
        if let Some(index) = self.by_name.get(name) {
            return *index;
        }
        let index = u32::try_from(self.topics.len()).unwrap_or(u32::MAX);
        let name: Arc<str> = name.into();
        let log = || Log {
            origin: Origin::new(crate::broker::NAME, name.clone()),
            begin: 0,
            messages: VecDeque::new(),
            parts: Vec::new(),
        };
        self.by_name.insert(name.clone(), index);
        let logs = (0..self.partitions).map(|_| log()).collect();
        self.topics.push(Topic { name, logs, turn: 0 });
        index
    }

    pub(crate) fn prepare(&mut self, spec: &ConsumerSpec) -> Result<(), Error> {
        for subscription in &spec.subscriptions {
            match spec.topology {
                Topology::Declare => {
                    self.create_topic(&subscription.topic);
                }
                Topology::Verify => {
                    self.topic(&subscription.topic)?;
                }
                Topology::Trust => continue,
            }
            self.group(&spec.name, &subscription.topic)?;
        }
        Ok(())
    }

    /// The group of a consumer on a topic. A new one begins at the oldest message.
    pub(crate) fn group(&mut self, consumer: &Arc<str>, topic: &Arc<str>) -> Result<&mut Group, Error> {
        let index = self.topic(topic)?;
        let entry = self.groups.entry((consumer.clone(), topic.clone()));
        let parts = &mut self.parts;
        let logs = &mut self.topics[index as usize].logs;
        Ok(entry.or_insert_with(|| {
            let origin = Origin::new(crate::broker::NAME, format!("{consumer}.{topic}.retry"));
            let mut group = Group::default();
            for (number, log) in (0..).zip(logs) {
                let place = u32::try_from(parts.len()).unwrap_or(u32::MAX);
                parts.push(Part::new(index, number, log.begin, origin.clone()));
                log.parts.push(place);
                group.parts.push(place);
            }
            group
        }))
    }

    pub(crate) fn publish(&mut self, topic: &str, message: &Message, wakes: &mut Wakes) -> Result<(), Error> {
        let index = self.by_name.get(topic).ok_or_else(|| {
            error::unroutable(
                topic,
                "it does not exist; declare it by a consumer or make it with create_topic",
            )
        })?;
        let topic = &mut self.topics[*index as usize];
        let number = match message.key() {
            Some(key) => partition(key, topic.logs.len()),
            None => {
                topic.turn = (topic.turn + 1) % topic.logs.len();
                topic.turn
            }
        };
        let log = &mut topic.logs[number];
        let offset = i64::try_from(log.end()).unwrap_or(i64::MAX);
        let origin = log.origin.clone().at(i32::try_from(number).unwrap_or(i32::MAX), offset);
        log.messages.push_back(crate::queues::stamped(message, &origin));
        for part in &log.parts {
            wakes.ids.extend(self.parts[*part as usize].owner);
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
        let turn_max = if source.places.len() == 1 { max } else { TURN_MAX };
        let (mut given, mut idle) = (0, 0);
        while given < max && idle < source.places.len() {
            source.cursor = (source.cursor + 1) % source.places.len();
            let place = source.places[source.cursor];
            idle += 1;
            let part = &mut self.parts[place.index as usize];
            let topic = &self.topics[part.topic as usize];
            let log = &topic.logs[part.number as usize];
            if part.leaving.is_some() {
                continue;
            }
            if part.next_due().is_some() {
                part.promote(clock.now());
            }
            if let Some((from, to)) = part.skip_to(log.begin) {
                events.push(gap(&topic.name, part.number, from, to));
            }
            let holder = Holder { source: id, epoch: part.epoch };
            for _ in 0..turn_max.min(max - given) {
                let (scope, id, message, redelivered) = match part.next_in_lane(holder) {
                    Some((id, message, redelivered)) => (1, u64::from(id), message, redelivered),
                    None => {
                        let Some((offset, redelivered)) = part.next(log.end()) else { break };
                        let Some(message) = log.get(offset) else { break };
                        (0, offset, message.clone(), redelivered)
                    }
                };
                let token = Token { epoch: part.epoch, scope: place.index << 1 | scope, id };
                let facts = Facts::new(place.subscription, redelivered);
                events.push(Event::Delivery(Delivery::new(message, facts, token, settle.clone())));
                given += 1;
                idle = 0;
            }
        }
        given
    }

    /// When time alone brings something to a source: a message, or a partition that its
    /// owner has not let go.
    pub(crate) fn next_due(&self, source: &Attached, with_messages: bool) -> Option<Instant> {
        let places = if with_messages { &source.places[..] } else { &[] };
        let messages = places
            .iter()
            .map(|place| &self.parts[place.index as usize])
            .filter(|part| part.leaving.is_none())
            .filter_map(Part::next_due);
        messages.chain(self.next_deadline()).min()
    }

    /// Applies an answer, if this assignment still has the delivery out. Returns the
    /// partition it belonged to.
    pub(crate) fn settle(&mut self, token: Token, id: SourceId, rest: impl FnOnce() -> Rest) -> Option<u32> {
        let index = token.scope >> 1;
        let part = self.parts.get_mut(index as usize)?;
        if part.owner != Some(id) || part.epoch != token.epoch {
            return None;
        }
        let settled = match token.scope & 1 {
            0 => part.settle(token.id, rest),
            _ => part.settle_in_lane(token.id, Holder { source: id, epoch: token.epoch }, rest),
        };
        settled.then_some(index)
    }

    /// Appends dead letters to the copies and replays of the partitions they came from.
    pub(crate) fn replay(&mut self, consumer: &str, topic: &str, messages: &[Message], wakes: &mut Wakes) {
        let Some(group) = self.groups.get(&(consumer.into(), topic.into())) else { return };
        for message in messages {
            let number = message.origin().partition.and_then(|number| usize::try_from(number).ok());
            let number = number.unwrap_or_default() % group.parts.len();
            let part = &mut self.parts[group.parts[number] as usize];
            part.push(message);
            wakes.ids.extend(part.owner);
        }
    }

    pub(crate) fn left(&self, consumer: &str, topic: Option<&str>) -> usize {
        let fits = |name: &str| topic.is_none_or(|topic| topic == name);
        self.groups
            .iter()
            .filter(|((name, of), _)| **name == *consumer && fits(of))
            .flat_map(|(_, group)| &group.parts)
            .map(|index| &self.parts[*index as usize])
            .map(|part| part.left(self.topics[part.topic as usize].logs[part.number as usize].end()))
            .sum()
    }

    pub(crate) fn committed(&self, consumer: &str, topic: &str, number: u32) -> Option<u64> {
        let group = self.groups.get(&(consumer.into(), topic.into()))?;
        let index = group.parts.get(usize::try_from(number).ok()?)?;
        Some(self.parts[*index as usize].committed)
    }

    /// Drops the messages of a partition before an offset.
    pub(crate) fn expire(&mut self, topic: &str, number: u32, before: u64, wakes: &mut Wakes) {
        let Some(index) = self.by_name.get(topic) else { return };
        let Some(log) = self.topics[*index as usize].logs.get_mut(number as usize) else { return };
        while log.begin < before && log.messages.pop_front().is_some() {
            log.begin += 1;
        }
        for part in &log.parts {
            wakes.ids.extend(self.parts[*part as usize].owner);
        }
    }

    /// Whether a partition can move now.
    pub(crate) fn is_let_go(&self, part: u32) -> bool {
        let part = &self.parts[part as usize];
        part.leaving.is_some() && part.out() == 0
    }

    pub(crate) fn topic_name(&self, part: &Part) -> &Arc<str> {
        &self.topics[part.topic as usize].name
    }

    fn topic(&self, name: &str) -> Result<u32, Error> {
        self.by_name.get(name).copied().ok_or_else(|| error::no_topic(name))
    }
}

fn gap(topic: &str, number: u32, from: u64, to: u64) -> Event {
    Event::Gap {
        server: None,
        topic: topic.to_owned(),
        partition: i32::try_from(number).unwrap_or(i32::MAX),
        from: i64::try_from(from).unwrap_or(i64::MAX),
        to: i64::try_from(to).unwrap_or(i64::MAX),
    }
}

/// The partition of a key; the same in every run.
fn partition(key: &[u8], partitions: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::try_from(hasher.finish() >> 32).unwrap_or(0) % partitions
}
