//! The state of the broker, behind one lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use oncemq_core::{Ack, ConsumerSpec, Error, Event, Health, Message, Settle, Token};
use tokio::time::Instant;

use crate::config::Mode;
use crate::error;
use crate::lane::Holder;
use crate::queues::Queues;
use crate::source::SourceId;

/// The longest diagnostic text on a dead letter, in bytes.
const REASON_MAX: usize = 16 * 1024;

/// The broker. Everything happens under its lock; tasks are woken after it is free.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) mode: Mode,
    state: Mutex<State>,
}

impl Hub {
    pub(crate) fn new(mode: Mode) -> Self {
        let state = State {
            sources: Vec::new(),
            model: Model::Queue(Queues::default()),
            dead: BTreeMap::new(),
            acks_to_lose: 0,
            discarded: 0,
            disconnected: false,
            last_epoch: 0,
        };
        Self { mode, state: Mutex::new(state) }
    }

    /// Does something under the lock, then wakes whom it concerns.
    pub(crate) fn with<T>(&self, step: impl FnOnce(&mut State, &mut Wakes) -> T) -> T {
        let mut wakes = Wakes::default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = step(&mut state, &mut wakes);
        let mut more = Vec::new();
        for id in std::mem::take(&mut wakes.ids) {
            more.extend(state.sources.get_mut(id as usize).and_then(|source| source.waker.take()));
        }
        drop(state);
        if let Some(waker) = wakes.one {
            waker.wake();
        }
        more.into_iter().for_each(Waker::wake);
        result
    }
}

/// Whom to wake after the lock is free. The common single one needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    one: Option<Waker>,
    pub(crate) ids: Vec<SourceId>,
}

/// The clock, read at most once in a step and only if somebody needs it.
#[derive(Debug, Default)]
pub(crate) struct Clock(Option<Instant>);

impl Clock {
    pub(crate) fn now(&mut self) -> Instant {
        *self.0.get_or_insert_with(Instant::now)
    }

    /// Now and a while, however long it is.
    pub(crate) fn after(&mut self, wait: Duration) -> Instant {
        const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
        let now = self.now();
        now.checked_add(wait).unwrap_or_else(|| now + FAR)
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) sources: Vec<Attached>,
    pub(crate) model: Model,
    pub(crate) dead: BTreeMap<(Arc<str>, Arc<str>), Vec<Message>>,
    pub(crate) acks_to_lose: u64,
    pub(crate) discarded: u64,
    pub(crate) disconnected: bool,
    last_epoch: u64,
}

#[derive(Debug)]
pub(crate) enum Model {
    Queue(Queues),
}

/// A source as the broker sees it.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) consumer: Arc<str>,
    /// The topics of its subscriptions, in their order.
    pub(crate) topics: Vec<Arc<str>>,
    /// The queues of its subscriptions, in the same order.
    pub(crate) places: Vec<u32>,
    /// Where the next turn begins.
    pub(crate) cursor: usize,
    /// Answers to older incarnations are void. Unique over all sources of the broker.
    pub(crate) epoch: u64,
    pub(crate) open: bool,
    /// Events beside deliveries, in order.
    pub(crate) notices: VecDeque<Event>,
    pub(crate) outstanding: Arc<AtomicUsize>,
    waker: Option<Waker>,
}

/// What a poll of a source came to.
#[derive(Debug)]
pub(crate) enum Filled {
    Something,
    Nothing {
        /// When time alone brings something.
        next_due: Option<Instant>,
    },
    Ended,
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

impl State {
    pub(crate) fn attach(&mut self, spec: &ConsumerSpec) -> Result<(SourceId, Arc<AtomicUsize>), Error> {
        self.check_connected()?;
        let id = SourceId::try_from(self.sources.len()).unwrap_or(SourceId::MAX);
        let places = match &mut self.model {
            Model::Queue(queues) => queues.attach(spec, id)?,
        };
        let outstanding = Arc::new(AtomicUsize::new(0));
        let epoch = self.next_epoch();
        self.sources.push(Attached {
            consumer: spec.name.clone(),
            topics: spec.subscriptions.iter().map(|subscription| subscription.topic.clone()).collect(),
            places,
            cursor: 0,
            epoch,
            open: true,
            notices: VecDeque::from([Event::Health(Health::Up)]),
            outstanding: outstanding.clone(),
            waker: None,
        });
        Ok((id, outstanding))
    }

    /// Appends what there is for a source.
    pub(crate) fn fill(
        &mut self,
        id: SourceId,
        max: usize,
        events: &mut Vec<Event>,
        settle: &Arc<dyn Settle>,
    ) -> Filled {
        let Some(source) = self.sources.get_mut(id as usize).filter(|source| source.open) else {
            return Filled::Ended;
        };
        let mut something = !source.notices.is_empty();
        events.extend(source.notices.drain(..));
        if max > 0 && !self.disconnected {
            let mut clock = Clock::default();
            let given = match &mut self.model {
                Model::Queue(queues) => queues.fill(id, source, max, &mut clock, events, settle),
            };
            source.outstanding.fetch_add(given, SeqCst);
            something |= given > 0;
        }
        if something {
            return Filled::Something;
        }
        let next_due = match &self.model {
            Model::Queue(queues) if max > 0 && !self.disconnected => queues.next_due(id, source),
            Model::Queue(_) => None,
        };
        Filled::Nothing { next_due }
    }

    /// Remembers whom to wake when something changes for a source.
    pub(crate) fn sleep(&mut self, id: SourceId, waker: &Waker) {
        if let Some(source) = self.sources.get_mut(id as usize) {
            match &source.waker {
                Some(known) if known.will_wake(waker) => {}
                _ => source.waker = Some(waker.clone()),
            }
        }
    }

    /// Applies an answer, unless its incarnation is over.
    pub(crate) fn settle(
        &mut self,
        id: SourceId,
        token: Token,
        message: &Message,
        ack: Ack,
        wakes: &mut Wakes,
    ) {
        let Some(source) = self.sources.get_mut(id as usize).filter(|source| source.open) else { return };
        let holder = Holder { source: id, epoch: token.epoch };
        let mut desk = Desk {
            acks_to_lose: &mut self.acks_to_lose,
            discarded: &mut self.discarded,
            dead: &mut self.dead,
        };
        let others = match &mut self.model {
            Model::Queue(queues) => {
                let rest = || desk.apply(ack, message, source, token.scope);
                let others = queues.settle(token, holder, rest);
                if others == Some(true) {
                    wakes.ids.extend(queues.sources(token.scope));
                }
                others
            }
        };
        if others.is_some() {
            source.outstanding.fetch_sub(1, SeqCst);
            wakes.one = source.waker.take();
        }
    }

    pub(crate) fn publish(&mut self, topic: &str, message: &Message, wakes: &mut Wakes) -> Result<(), Error> {
        self.check_connected()?;
        match &mut self.model {
            Model::Queue(queues) => queues.publish(topic, message, wakes),
        }
    }

    pub(crate) fn check_connected(&self) -> Result<(), Error> {
        if self.disconnected { Err(error::disconnected()) } else { Ok(()) }
    }

    pub(crate) fn bind(&mut self, queue: &str, topic: &str) {
        match &mut self.model {
            Model::Queue(queues) => queues.bind(queue, topic),
        }
    }

    pub(crate) fn prepare(&mut self, spec: &ConsumerSpec) -> Result<(), Error> {
        self.check_connected()?;
        match &mut self.model {
            Model::Queue(queues) => queues.prepare(spec),
        }
    }

    pub(crate) fn replay(&mut self, consumer: &str, topic: &str, letters: Vec<Message>, wakes: &mut Wakes) {
        match &mut self.model {
            Model::Queue(queues) => wakes.ids.extend(queues.replay(consumer, topic, letters)),
        }
    }

    /// Messages a consumer still owes an answer for, of all topics or one.
    pub(crate) fn left(&self, consumer: &str, topic: Option<&str>) -> usize {
        match &self.model {
            Model::Queue(queues) => queues
                .of(consumer)
                .filter(|(name, _)| topic.is_none_or(|topic| topic == *name))
                .map(|(_, queue)| queue.lane.left())
                .sum(),
        }
    }

    /// Gives a source an event beside its deliveries.
    pub(crate) fn notify(&mut self, id: SourceId, event: Event, wakes: &mut Wakes) {
        if let Some(source) = self.sources.get_mut(id as usize) {
            source.notices.push_back(event);
            wakes.ids.push(id);
        }
    }

    pub(crate) fn epoch_of(&self, id: SourceId) -> Option<u64> {
        self.sources.get(id as usize).map(|source| source.epoch)
    }

    /// Ends a source. What it had out comes back; answers that are still to come are void.
    pub(crate) fn detach(&mut self, id: SourceId, wakes: &mut Wakes) {
        self.void(id, true, wakes);
        if let Some(source) = self.sources.get_mut(id as usize) {
            source.open = false;
            source.notices.clear();
            wakes.ids.push(id);
        }
    }

    /// Everything a source has out comes back, and it goes on under another epoch.
    pub(crate) fn void(&mut self, id: SourceId, leave: bool, wakes: &mut Wakes) {
        let epoch = self.next_epoch();
        let Some(source) = self.sources.get_mut(id as usize).filter(|source| source.open) else { return };
        match &mut self.model {
            Model::Queue(queues) => queues.void(id, source, leave, wakes),
        }
        source.epoch = epoch;
        source.outstanding.store(0, SeqCst);
    }

    /// The open sources, all or one consumer's, in the order they were opened.
    pub(crate) fn open_sources(&self, consumer: Option<&str>) -> Vec<SourceId> {
        let fits = |source: &Attached| source.open && consumer.is_none_or(|name| *source.consumer == *name);
        (0..).zip(&self.sources).filter(|(_, source)| fits(source)).map(|(id, _)| id).collect()
    }

    fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }
}

impl Attached {
    /// The topic that a place is consumed for.
    fn topic_at(&self, place: u32) -> Option<&Arc<str>> {
        let index = self.places.iter().position(|known| *known == place)?;
        self.topics.get(index)
    }
}

/// Where answers are turned into what is left to do.
struct Desk<'a> {
    acks_to_lose: &'a mut u64,
    discarded: &'a mut u64,
    dead: &'a mut BTreeMap<(Arc<str>, Arc<str>), Vec<Message>>,
}

impl Desk<'_> {
    fn apply(&mut self, ack: Ack, message: &Message, source: &Attached, place: u32) -> Rest {
        match ack {
            Ack::Accept if *self.acks_to_lose > 0 => {
                *self.acks_to_lose -= 1;
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
                *self.discarded += 1;
                Rest::Done
            }
            // Also a word that this version does not know: nothing may be lost by it.
            _ => Rest::Back,
        }
    }
}
