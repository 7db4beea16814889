//! Counting what became of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Outcome;
use crate::Ack;

/// What became of the messages of a consumer since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Handled and acknowledged.
    pub handled: u64,
    /// Acknowledged because their key was done already.
    pub duplicates: u64,
    /// Those among the duplicates whose payload was another.
    pub duplicates_that_differ: u64,
    /// Failed and sent to a rung of the ladder.
    pub retried: u64,
    /// Put back for a little while, nobody's fault.
    pub deferred: u64,
    /// Dead-lettered.
    pub rejected: u64,
    /// Dropped by a declared policy.
    pub discarded: u64,
    /// Given back unhandled.
    pub released: u64,
    /// Panics of handlers, all contained.
    pub panics: u64,
    /// Runs that were undone and made again without a charge.
    pub redone: u64,
    /// Times that messages of a log were gone before they were read.
    pub gaps: u64,
}

/// The counters of one worker; nobody else writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    handled: AtomicU64,
    duplicates: AtomicU64,
    differs: AtomicU64,
    retried: AtomicU64,
    deferred: AtomicU64,
    rejected: AtomicU64,
    discarded: AtomicU64,
    released: AtomicU64,
    panics: AtomicU64,
    redone: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    /// Bytes of the deliveries settled so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn count(&self, outcome: &Outcome, bytes: usize) {
        self.leave(bytes);
        let tally = outcome.tally;
        let counter = match &outcome.ack {
            Ack::Accept if tally.duplicate => &self.duplicates,
            Ack::Accept => &self.handled,
            Ack::Retry(_) => &self.retried,
            Ack::Defer { .. } => &self.deferred,
            Ack::Reject(_) => &self.rejected,
            Ack::Discard { .. } => &self.discarded,
            Ack::Release => &self.released,
        };
        bump(counter, 1);
        if tally.differs {
            bump(&self.differs, 1);
        }
        if tally.panicked {
            bump(&self.panics, 1);
        }
        if tally.redone > 0 {
            bump(&self.redone, u64::from(tally.redone));
        }
    }

    /// A delivery given back before it was started.
    pub(crate) fn release(&self, bytes: usize) {
        self.leave(bytes);
        bump(&self.released, 1);
    }

    fn leave(&self, bytes: usize) {
        bump(&self.bytes, u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    pub(crate) fn sum(all: &[Arc<Counters>]) -> Summary {
        let total = |get: fn(&Counters) -> &AtomicU64| all.iter().map(|c| get(c).load(Relaxed)).sum();
        Summary {
            handled: total(|c| &c.handled),
            duplicates: total(|c| &c.duplicates),
            duplicates_that_differ: total(|c| &c.differs),
            retried: total(|c| &c.retried),
            deferred: total(|c| &c.deferred),
            rejected: total(|c| &c.rejected),
            discarded: total(|c| &c.discarded),
            released: total(|c| &c.released),
            panics: total(|c| &c.panics),
            redone: total(|c| &c.redone),
            gaps: 0,
        }
    }
}

/// One writer, so a load and a store do instead of a locked addition.
fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}
