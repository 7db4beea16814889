//! What the tasks of a source and its deliveries have in common.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncemq_core::partitions::{Answers, Assignments};
use oncemq_core::{Delivery, Error, Event, Facts, Health, Message, Settle, Token};
use tokio::time::Instant;

use super::part::{Next, Part};
use crate::cluster::Queue;
use crate::records::{self, Native};

/// After this time a commit is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct Shared {
    /// The subscriptions' topics.
    topics: Vec<Arc<str>>,
    state: Mutex<State>,
    /// Apart from the state, so that settling waits for nobody.
    pub(crate) answers: Arc<Answers>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) parts: Assignments<Part>,
    events: VecDeque<Event>,
    /// Why the source has ended.
    fatal: Option<Error>,
    /// Nothing is handed out any more.
    closing: bool,
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
    /// Messages that no handler can have.
    pub(crate) strays: Vec<(Token, Message)>,
}

impl Shared {
    pub(crate) fn new(topics: Vec<Arc<str>>) -> Self {
        let state = State { copies: Health::Up, ..State::default() };
        Self { topics, state: Mutex::new(state), answers: Arc::default() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with every answer so far applied.
    pub(crate) fn settled(&self) -> MutexGuard<'_, State> {
        let mut state = self.state();
        for answer in self.answers.take() {
            if let Some(part) = state.parts.of_mut(answer.token()) {
                part.progress.settle(answer);
            }
        }
        state
    }

    /// Ends the source with this error, unless it has ended already.
    pub(crate) fn fail(&self, error: Error) {
        self.state().fatal.get_or_insert(error);
        self.answers.wake();
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

    /// The last health that was told.
    #[cfg(test)]
    pub(crate) fn told(&self) -> Health {
        self.state().told.clone().unwrap_or_default()
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
            self.answers.wake();
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
        self.answers.handed_out(given);
        filled.due = if max > 0 { state.held().filter_map(Part::next_due).min() } else { None };
        filled.wanted = state.wants_commit(now);
        Ok(filled)
    }
}

impl State {
    pub(crate) fn remove(&mut self, queue: &Queue) {
        let gone = self.parts.iter().find(|(_, part)| part.queue == *queue).map(|(which, _)| which);
        if let Some(which) = gone {
            self.parts.remove(which);
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().map(|(_, part)| part)
    }

    pub(crate) fn held_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        self.parts.iter_mut().map(|(_, part)| part)
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
        self.parts.take_turns(max, |which, part, limit| {
            part.progress.promote(now);
            let mut given = 0;
            while given < limit {
                let Some(next) = part.next() else { break };
                let (message, redelivered) = match next {
                    Next::Fetched(stored, redelivered) => {
                        (records::read(stored, &part.queue, topics), redelivered)
                    }
                    Next::Again(message, redelivered) => (message, redelivered),
                };
                let token = which.token(&message, redelivered);
                match facts(&message, redelivered) {
                    Some(facts) => {
                        events.push(Event::Delivery(Delivery::new(message, facts, token, settle.clone())));
                    }
                    None => strays.push((token, message)),
                }
                given += 1;
            }
            part.room.notify_one();
            given
        })
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

/// What the broker said beside the message; `None` if no handler can have it: it belongs to no
/// subscription, or its body cannot be read.
fn facts(message: &Message, redelivered: bool) -> Option<Facts> {
    let native = Native::of(message).filter(|native| native.unreadable.is_none())?;
    let mut facts = Facts::new(native.subscription?, redelivered);
    facts.charged = native.charged;
    Some(facts)
}
