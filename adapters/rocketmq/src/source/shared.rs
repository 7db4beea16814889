//! What the tasks of a source and its deliveries have in common.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use oncemq_core::{Delivery, Error, Event, Facts, Health, Message, Settle, Token};
use tokio::time::Instant;

use super::part::{Next, Part};
use crate::cluster::Queue;
use crate::records::{self, Native};

/// The most deliveries of one queue in a row, while others wait.
const TURN_MAX: usize = 64;
/// After this time a commit is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Shared {
    /// The subscriptions' topics.
    topics: Vec<Arc<str>>,
    state: Mutex<State>,
    /// Apart from the state, so that settling waits for nobody.
    answers: Mutex<Vec<Answer>>,
    waker: AtomicWaker,
    outstanding: AtomicUsize,
    /// Copies that are not confirmed.
    pub(crate) copies: AtomicUsize,
}

/// What became of a delivery, as far as its queue has to know.
#[derive(Debug)]
pub(crate) enum Answer {
    Done(Token),
    Back(Token, Message, Option<Instant>),
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Places are used again; the epoch tells old tokens from new ones.
    pub(crate) parts: Vec<Option<Part>>,
    epoch: u64,
    events: VecDeque<Event>,
    /// Why the source has ended.
    fatal: Option<Error>,
    /// Nothing is handed out any more.
    closing: bool,
    /// The queue whose turn it is.
    turn: usize,
    /// When a commit was asked for that has not been tried yet.
    asked: Option<Instant>,
    /// The group has told this member its share.
    joined: bool,
    /// What does not answer, and why.
    troubles: BTreeMap<String, String>,
    copies: Health,
    told: Option<Health>,
}

/// What a look for deliveries found.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    /// When time alone brings more.
    pub(crate) due: Option<Instant>,
    /// A commit is worth a request of its own.
    pub(crate) wanted: bool,
    /// Messages that belong to no subscription.
    pub(crate) strays: Vec<(Token, Message)>,
}

impl Shared {
    pub(crate) fn new(topics: Vec<Arc<str>>) -> Self {
        let state = State { copies: Health::Up, ..State::default() };
        Self {
            topics,
            state: Mutex::new(state),
            answers: Mutex::default(),
            waker: AtomicWaker::new(),
            outstanding: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with every answer so far applied.
    pub(crate) fn settled(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        let answers = std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner));
        for answer in answers {
            state.apply(answer);
        }
        state
    }

    pub(crate) fn answer(&self, answer: Answer) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        self.free();
    }

    /// A place has become free.
    pub(crate) fn free(&self) {
        self.outstanding.fetch_sub(1, SeqCst);
        self.waker.wake();
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(SeqCst)
    }

    pub(crate) fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Ends the source with this error, unless it has ended already.
    pub(crate) fn fail(&self, error: Error) {
        self.state().fatal.get_or_insert(error);
        self.wake();
    }

    /// The group has told this member its share.
    pub(crate) fn joined(&self) {
        self.change_health(|state| state.joined = true);
    }

    /// Something does not answer, or does again.
    pub(crate) fn trouble(&self, what: &str, why: Option<String>) {
        self.change_health(|state| match why {
            Some(why) => drop(state.troubles.insert(what.to_owned(), why)),
            None => drop(state.troubles.remove(what)),
        });
    }

    pub(crate) fn copies_health(&self, health: Health) {
        self.change_health(|state| state.copies = health);
    }

    fn change_health(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let broker = match state.troubles.values().next() {
            Some(why) => Health::Degraded(why.clone()),
            None if state.joined => Health::Up,
            None => Health::Starting,
        };
        // The worse of them is what counts.
        let now = (&broker).max(&state.copies).clone();
        if state.told.as_ref() != Some(&now) && now != Health::Starting {
            state.told = Some(now.clone());
            state.events.push_back(Event::Health(now));
            drop(state);
            self.wake();
        }
    }

    /// Hands out nothing any more.
    pub(crate) fn close(&self) {
        self.state().closing = true;
    }

    /// Hands out what there is, at most `max` deliveries.
    pub(crate) fn fill(
        &self,
        max: usize,
        events: &mut Vec<Event>,
        settle: &Arc<dyn Settle>,
    ) -> Result<Filled, Error> {
        let mut state = self.settled();
        if let Some(error) = &state.fatal {
            return Err(error.clone());
        }
        events.extend(state.events.drain(..));
        let mut filled = Filled::default();
        if state.closing {
            return Ok(filled);
        }
        let now = Instant::now();
        let given = state.hand_out(max, now, &self.topics, events, &mut filled.strays, settle);
        self.outstanding.fetch_add(given, SeqCst);
        filled.due = if max > 0 { state.held().filter_map(Part::next_due).min() } else { None };
        filled.wanted = state.wants_commit(now);
        Ok(filled)
    }
}

impl State {
    /// The queue of a delivery, if it is still the same assignment.
    pub(crate) fn part(&self, token: Token) -> Option<&Part> {
        let place = usize::try_from(token.scope >> 1).ok()?;
        self.parts.get(place)?.as_ref().filter(|part| part.epoch == token.epoch)
    }

    /// The queue of this assignment, if it is still ours.
    pub(crate) fn of_epoch(&mut self, epoch: u64) -> Option<&mut Part> {
        self.held_mut().find(|part| part.epoch == epoch)
    }

    fn apply(&mut self, answer: Answer) {
        let (Answer::Done(token) | Answer::Back(token, ..)) = &answer;
        let (token, place) = (*token, usize::try_from(token.scope >> 1).unwrap_or(usize::MAX));
        let part =
            self.parts.get_mut(place).and_then(Option::as_mut).filter(|part| part.epoch == token.epoch);
        let (Some(part), Ok(offset)) = (part, i64::try_from(token.id)) else { return };
        match answer {
            Answer::Done(_) => part.finish(offset),
            Answer::Back(_, message, due) => part.back(offset, message, token.scope & 1 == 1, due),
        }
    }

    /// A new assignment's number.
    pub(crate) fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    pub(crate) fn add(&mut self, part: Part) {
        match self.parts.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(part),
            None => self.parts.push(Some(part)),
        }
    }

    pub(crate) fn remove(&mut self, queue: &Queue) {
        let gone = self.parts.iter_mut().find(|part| part.as_ref().is_some_and(|part| part.queue == *queue));
        if let Some(place) = gone {
            *place = None;
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().flatten()
    }

    pub(crate) fn held_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        self.parts.iter_mut().flatten()
    }

    fn hand_out(
        &mut self,
        max: usize,
        now: Instant,
        topics: &[Arc<str>],
        events: &mut Vec<Event>,
        strays: &mut Vec<(Token, Message)>,
        settle: &Arc<dyn Settle>,
    ) -> usize {
        let (places, mut given, mut idle) = (self.parts.len(), 0, 0);
        while given < max && idle < places {
            let place = self.turn % places;
            self.turn = (place + 1) % places;
            idle += 1;
            let Some(part) = &mut self.parts[place] else { continue };
            part.promote(now);
            for _ in 0..TURN_MAX.min(max - given) {
                let Some(next) = part.next() else { break };
                let (message, redelivered) = match next {
                    Next::Fetched(stored, redelivered) => {
                        (records::read(stored, &part.queue, topics), redelivered)
                    }
                    Next::Again(message, redelivered) => (message, redelivered),
                };
                let (token, facts) = name(place, part.epoch, &message, redelivered);
                match facts {
                    Some(facts) => {
                        events.push(Event::Delivery(Delivery::new(message, facts, token, settle.clone())));
                    }
                    None => strays.push((token, message)),
                }
                given += 1;
                idle = 0;
            }
            part.room.notify_one();
        }
        given
    }

    /// Asked for once, and again if nothing came of it for a while.
    fn wants_commit(&mut self, now: Instant) -> bool {
        let wanted = self.held().any(Part::wants_commit);
        let asked = self.asked.is_some_and(|asked| now < asked + ASK_AGAIN);
        if wanted && !asked {
            self.asked = Some(now);
        }
        wanted && !asked
    }

    /// A commit has been tried.
    pub(crate) fn answered(&mut self) {
        self.asked = None;
    }
}

fn name(place: usize, epoch: u64, message: &Message, redelivered: bool) -> (Token, Option<Facts>) {
    let scope = u32::try_from(place).unwrap_or(u32::MAX >> 1) << 1 | u32::from(redelivered);
    let id = message.origin().offset.and_then(|offset| u64::try_from(offset).ok()).unwrap_or_default();
    let facts = Native::of(message).and_then(|native| {
        let mut facts = Facts::new(native.subscription?, redelivered);
        facts.charged = native.charged;
        Some(facts)
    });
    (Token { epoch, scope, id }, facts)
}
