//! The broker behind one lock.

use std::sync::{Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::Mode;
use crate::source::SourceId;
use crate::state::State;

/// The broker. Everything happens under its lock; tasks are woken after it is free.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) mode: Mode,
    state: Mutex<State>,
}

impl Hub {
    pub(crate) fn new(mode: Mode) -> Self {
        Self { mode, state: Mutex::new(State::new(mode)) }
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
    pub(crate) one: Option<Waker>,
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
