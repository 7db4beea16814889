//! The state of the broker: sources, and what the mode adds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Waker;

use oncemq_core::{Ack, ConsumerSpec, Error, Event, Message, Settle, Token};
use tokio::time::Instant;

use crate::attached::Attached;
use crate::config::Mode;
use crate::desk::Desk;
use crate::error;
use crate::groups::Board;
use crate::hub::{Clock, Wakes};
use crate::lane::Holder;
use crate::logs::Logs;
use crate::queues::Queues;
use crate::source::SourceId;

#[derive(Debug)]
pub(crate) struct State {
    /// By id; a closed one keeps its place.
    pub(crate) sources: Vec<Attached>,
    pub(crate) model: Model,
    pub(crate) desk: Desk,
    pub(crate) disconnected: bool,
    last_epoch: u64,
}

#[derive(Debug)]
pub(crate) enum Model {
    Queue(Queues),
    Log(Logs),
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

/// The logs of a state and what changing owners needs beside them.
macro_rules! board {
    ($state:expr, $wakes:expr, $clock:expr) => {
        Board {
            sources: &mut $state.sources,
            last_epoch: &mut $state.last_epoch,
            wakes: $wakes,
            clock: $clock,
        }
    };
}

impl State {
    pub(crate) fn new(mode: Mode) -> Self {
        let model = match mode {
            Mode::Queue => Model::Queue(Queues::default()),
            Mode::Log { partitions } => Model::Log(Logs::new(partitions)),
        };
        Self { sources: Vec::new(), model, desk: Desk::default(), disconnected: false, last_epoch: 0 }
    }

    pub(crate) fn check_connected(&self) -> Result<(), Error> {
        if self.disconnected { Err(error::disconnected()) } else { Ok(()) }
    }

    pub(crate) fn prepare(&mut self, spec: &ConsumerSpec) -> Result<(), Error> {
        self.check_connected()?;
        match &mut self.model {
            Model::Queue(queues) => queues.prepare(spec),
            Model::Log(logs) => logs.prepare(spec),
        }
    }

    pub(crate) fn attach(
        &mut self,
        spec: &ConsumerSpec,
        wakes: &mut Wakes,
    ) -> Result<(SourceId, Arc<AtomicUsize>), Error> {
        self.check_connected()?;
        let id = SourceId::try_from(self.sources.len()).unwrap_or(SourceId::MAX);
        let places = match &mut self.model {
            Model::Queue(queues) => queues.attach(spec, id)?,
            Model::Log(logs) => {
                for subscription in &spec.subscriptions {
                    logs.group(&spec.name, &subscription.topic)?;
                }
                Vec::new()
            }
        };
        let source = Attached::new(spec, places, self.next_epoch());
        let outstanding = source.outstanding.clone();
        self.sources.push(source);
        if let Model::Log(logs) = &mut self.model {
            logs.join(id, &mut board!(self, wakes, &mut Clock::default()));
        }
        Ok((id, outstanding))
    }

    /// Appends what there is for a source.
    pub(crate) fn fill(
        &mut self,
        id: SourceId,
        max: usize,
        events: &mut Vec<Event>,
        settle: &Arc<dyn Settle>,
        wakes: &mut Wakes,
    ) -> Filled {
        let mut clock = Clock::default();
        if let Model::Log(logs) = &mut self.model {
            logs.enforce_deadlines(&mut board!(self, wakes, &mut clock));
        }
        let Some(source) = self.sources.get_mut(id as usize).filter(|source| source.open) else {
            return Filled::Ended;
        };
        let before = events.len();
        events.extend(source.notices.drain(..));
        let delivers = max > 0 && !self.disconnected;
        if delivers {
            let given = match &mut self.model {
                Model::Queue(queues) => queues.fill(id, source, max, &mut clock, events, settle),
                Model::Log(logs) => logs.fill(id, source, max, &mut clock, events, settle),
            };
            source.outstanding.fetch_add(given, SeqCst);
        }
        if events.len() > before {
            return Filled::Something;
        }
        let next_due = match &self.model {
            Model::Queue(queues) if delivers => queues.next_due(id, source),
            Model::Queue(_) => None,
            Model::Log(logs) => logs.next_due(source, delivers),
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
        let desk = &mut self.desk;
        let emptied = match &mut self.model {
            Model::Queue(queues) => {
                let holder = Holder { source: id, epoch: token.epoch };
                let rest = || desk.apply(ack, message, source, token.scope);
                let Some(others) = queues.settle(token, holder, rest) else { return };
                if others {
                    wakes.ids.extend(queues.sources(token.scope));
                }
                None
            }
            Model::Log(logs) => {
                let rest = || desk.apply(ack, message, source, token.scope >> 1);
                let Some(part) = logs.settle(token, id, rest) else { return };
                logs.is_let_go(part).then_some(part)
            }
        };
        source.settled(1);
        wakes.one = source.waker.take();
        if let (Model::Log(logs), Some(part)) = (&mut self.model, emptied) {
            logs.hand_over(part, &mut board!(self, wakes, &mut Clock::default()));
        }
    }

    pub(crate) fn publish(&mut self, topic: &str, message: &Message, wakes: &mut Wakes) -> Result<(), Error> {
        self.check_connected()?;
        match &mut self.model {
            Model::Queue(queues) => queues.publish(topic, message, wakes),
            Model::Log(logs) => logs.publish(topic, message, wakes),
        }
    }

    pub(crate) fn bind(&mut self, queue: &str, topic: &str) {
        match &mut self.model {
            Model::Queue(queues) => queues.bind(queue, topic),
            Model::Log(logs) => {
                logs.create_topic(topic);
            }
        }
    }

    pub(crate) fn replay(&mut self, consumer: &str, topic: &str, letters: &[Message], wakes: &mut Wakes) {
        match &mut self.model {
            Model::Queue(queues) => wakes.ids.extend(queues.replay(consumer, topic, letters)),
            Model::Log(logs) => logs.replay(consumer, topic, letters, wakes),
        }
    }

    /// Messages a consumer still owes an answer for, of all topics or one.
    pub(crate) fn left(&self, consumer: &str, topic: Option<&str>) -> usize {
        match &self.model {
            Model::Queue(queues) => queues.left(consumer, topic),
            Model::Log(logs) => logs.left(consumer, topic),
        }
    }

    /// Ends a source. What it had out comes back; answers that are still to come are void.
    pub(crate) fn detach(&mut self, id: SourceId, clean: bool, wakes: &mut Wakes) {
        let Some(source) = self.sources.get_mut(id as usize).filter(|source| source.open) else { return };
        source.open = false;
        source.notices.clear();
        match &mut self.model {
            Model::Queue(queues) => queues.void(id, source, true, wakes),
            Model::Log(logs) => logs.leave(id, clean, &mut board!(self, wakes, &mut Clock::default())),
        }
        self.forget_outstanding(id);
        wakes.ids.push(id);
    }

    /// A source loses its connection: everything it has out comes back, and it goes on
    /// under another epoch.
    pub(crate) fn cut(&mut self, id: SourceId, wakes: &mut Wakes) {
        let epoch = self.next_epoch();
        let Some(source) = self.sources.get_mut(id as usize).filter(|source| source.open) else { return };
        source.epoch = epoch;
        match &mut self.model {
            Model::Queue(queues) => queues.void(id, source, false, wakes),
            Model::Log(logs) => logs.restart(id, &mut board!(self, wakes, &mut Clock::default())),
        }
        self.forget_outstanding(id);
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

    /// The open sources, all or one consumer's, in the order they were opened.
    pub(crate) fn open_sources(&self, consumer: Option<&str>) -> Vec<SourceId> {
        let fits = |source: &Attached| source.open && consumer.is_none_or(|name| *source.consumer == *name);
        (0..).zip(&self.sources).filter(|(_, source)| fits(source)).map(|(id, _)| id).collect()
    }

    fn forget_outstanding(&mut self, id: SourceId) {
        if let Some(source) = self.sources.get(id as usize) {
            source.outstanding.store(0, SeqCst);
        }
    }

    fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }
}
