//! Where a lane is while a handler has it on loan.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dialect::Dialect;
use crate::error::refused;
use crate::lane::Lane;

/// Where a unit's lane lies when no statement has it in hand.
pub(crate) struct Slot<DB: Dialect> {
    state: Mutex<SlotState<DB>>,
}

struct SlotState<DB: Dialect> {
    lane: Option<Lane<DB>>,
    lent: bool,
    over: bool,
}

/// What a unit finds when it asks for its lane back.
pub(crate) enum Recalled<DB: Dialect> {
    /// The lane, and whether the handler still keeps its loan.
    Lane { lane: Box<Lane<DB>>, kept: bool },
    /// A statement of a kept loan runs on it.
    Away,
}

impl<DB: Dialect> Slot<DB> {
    pub(crate) fn new(lane: Lane<DB>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(SlotState { lane: Some(lane), lent: false, over: false }) })
    }

    fn state(&self) -> MutexGuard<'_, SlotState<DB>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lane for one use.
    pub(crate) fn hold(self: &Arc<Self>) -> Result<Hold<DB>, sqlx::Error> {
        let mut state = self.state();
        if state.over {
            return Err(refused("the transaction is over; a handler must not keep it"));
        }
        match state.lane.take() {
            Some(lane) => Ok(Hold { slot: self.clone(), lane: Some(lane) }),
            None => Err(refused("another statement of this transaction is open")),
        }
    }

    pub(crate) fn lend(&self) {
        self.state().lent = true;
    }

    pub(crate) fn give_back(&self) {
        self.state().lent = false;
    }

    /// Ends the loan: whoever still has it can do nothing more with it.
    pub(crate) fn recall(&self) -> Recalled<DB> {
        let mut state = self.state();
        state.over = true;
        match state.lane.take() {
            Some(lane) => Recalled::Lane { lane: Box::new(lane), kept: state.lent },
            None => Recalled::Away,
        }
    }

    pub(crate) fn leave_savepoint(&self, name: String) {
        if let Some(lane) = &mut self.state().lane {
            lane.leave_savepoint(name);
        }
    }
}

/// The lane in use. Goes back to its slot when dropped, or is closed if the unit is over.
pub(crate) struct Hold<DB: Dialect> {
    slot: Arc<Slot<DB>>,
    lane: Option<Lane<DB>>,
}

impl<DB: Dialect> Hold<DB> {
    pub(crate) fn lane(&mut self) -> Result<&mut Lane<DB>, sqlx::Error> {
        self.lane.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    pub(crate) fn lane_ref(&self) -> Option<&Lane<DB>> {
        self.lane.as_ref()
    }
}

impl<DB: Dialect> Drop for Hold<DB> {
    fn drop(&mut self) {
        let lane = self.lane.take();
        let mut state = self.slot.state();
        if state.over {
            drop(state);
            drop(lane);
        } else {
            state.lane = lane;
        }
    }
}
