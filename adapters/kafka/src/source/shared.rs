//! What the threads of a source, its deliveries and its task have in common.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use oncemq_core::partitions::{Answers, Assignments};
use oncemq_core::{Delivery, Error, Event, Facts, Health, Settle};
use rdkafka::error::KafkaError;
use tokio::time::Instant;

use super::part::{Member, Part};
use crate::error;

/// After this time a commit is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Apart from the state, so that settling waits for nobody.
    pub(crate) answers: Arc<Answers>,
    /// There is room for fetched messages again.
    room: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) parts: Assignments<Part>,
    events: VecDeque<Event>,
    /// Why the source has ended.
    pub(crate) fatal: Option<Error>,
    /// Nothing is handed out any more, and the group is left once the last commit was tried.
    pub(crate) closing: bool,
    /// Dropped: nothing is waited for.
    pub(crate) abandoned: bool,
    /// When a commit was asked for that has not been tried yet.
    asked: Option<Instant>,
    /// Of the topics' group, of the rungs', and of the copies.
    topics: Health,
    rungs: Health,
    copies: Health,
    told: Option<Health>,
}

impl Shared {
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
        let mut state = self.state();
        state.fatal.get_or_insert(error);
        drop(state);
        self.answers.wake();
    }

    pub(crate) fn broker_health(&self, member: Member, health: Health) {
        self.change_health(|state| match member {
            Member::Topics => state.topics = health,
            Member::Rungs => state.rungs = health,
        });
    }

    /// A member cannot go on for now. While it cannot, an error that only says so again does not
    /// replace what is known of the cause.
    pub(crate) fn broker_lost(&self, member: Member, address: &str, why: &KafkaError) {
        let vague = why.rdkafka_error_code().is_none_or(error::is_silence);
        self.change_health(|state| {
            let health = match member {
                Member::Topics => &mut state.topics,
                Member::Rungs => &mut state.rungs,
            };
            if !(vague && matches!(health, Health::Degraded(_))) {
                *health = Health::Degraded(error::cause_of(address, why));
            }
        });
    }

    pub(crate) fn copies_health(&self, health: Health) {
        self.change_health(|state| state.copies = health);
    }

    fn change_health(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let now = worst([&state.topics, &state.rungs, &state.copies]).clone();
        if state.told.as_ref() != Some(&now) && now != Health::Starting {
            state.told = Some(now.clone());
            state.events.push_back(Event::Health(now));
            drop(state);
            self.answers.wake();
        }
    }

    /// Waits until less than `limit` messages are fetched and not handed out.
    pub(crate) fn await_room(&self, limit: usize, patience: Duration) -> bool {
        let full = |state: &mut State| state.buffered() >= limit && !state.closing && !state.abandoned;
        let waited = self.room.wait_timeout_while(self.state(), patience, full);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.buffered() < limit
    }

    /// Ends the source after a last commit.
    pub(crate) fn close(&self) {
        self.state().closing = true;
        self.room.notify_all();
    }

    /// Ends the source at once.
    pub(crate) fn abandon(&self) {
        self.state().abandoned = true;
        self.room.notify_all();
    }

    /// Hands out what there is, at most `max` deliveries. Returns when time alone brings more,
    /// and whether a commit is worth a request of its own.
    pub(crate) fn fill(
        &self,
        max: usize,
        events: &mut Vec<Event>,
        settle: &Arc<dyn Settle>,
    ) -> Result<(Option<Instant>, bool), Error> {
        let mut state = self.settled();
        if let Some(error) = &state.fatal {
            return Err(error.clone());
        }
        events.extend(state.events.drain(..));
        if state.closing {
            return Ok((None, false));
        }
        let (now, clock) = (Instant::now(), SystemTime::now());
        let given = state.hand_out(max, (now, clock), events, settle);
        self.answers.handed_out(given);
        let due = if max > 0 { state.next_due(now, clock) } else { None };
        let wanted = state.wants_commit(now);
        drop(state);
        if given > 0 {
            self.room.notify_all();
        }
        Ok((due, wanted))
    }
}

impl State {
    pub(crate) fn tell(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().map(|(_, part)| part)
    }

    pub(crate) fn held_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        self.parts.iter_mut().map(|(_, part)| part)
    }

    /// Messages that are fetched and not handed out.
    pub(crate) fn buffered(&self) -> usize {
        self.held().map(Part::waiting).sum()
    }

    fn hand_out(
        &mut self,
        max: usize,
        (now, clock): (Instant, SystemTime),
        events: &mut Vec<Event>,
        settle: &Arc<dyn Settle>,
    ) -> usize {
        self.parts.take_turns(max, |which, part, limit| {
            part.progress.promote(now);
            for given in 0..limit {
                let Some((message, redelivered)) = part.next(clock) else { return given };
                let token = which.token(&message, redelivered);
                let facts = Facts::new(part.subscription, redelivered);
                events.push(Event::Delivery(Delivery::new(message, facts, token, settle.clone())));
            }
            limit
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

    fn next_due(&self, now: Instant, clock: SystemTime) -> Option<Instant> {
        self.held().filter_map(|part| part.next_due(now, clock)).min()
    }
}

/// The worst of them; the first one if several are as bad: copies cannot be stored either
/// while no broker answers.
fn worst(healths: [&Health; 3]) -> &Health {
    let badness = |health: &Health| match health {
        Health::Up => 0,
        Health::Starting => 1,
        Health::Degraded(_) => 2,
        _ => 3,
    };
    let [first, rest @ ..] = healths;
    rest.into_iter().fold(first, |worst, one| if badness(one) > badness(worst) { one } else { worst })
}
