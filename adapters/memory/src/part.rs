//! How far one group has come in one partition.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use oncemq_core::{Message, Origin};
use tokio::time::Instant;

use crate::desk::Rest;
use crate::lane::{Holder, Lane};
use crate::source::SourceId;

/// One partition of one group. What is committed is the lowest unfinished offset.
#[derive(Debug)]
pub(crate) struct Part {
    /// The topic, by index.
    pub(crate) topic: u32,
    pub(crate) number: u32,
    pub(crate) owner: Option<SourceId>,
    /// The assignment; answers of older ones are void.
    pub(crate) epoch: u64,
    /// It leaves its owner at this time at the latest.
    pub(crate) leaving: Option<Instant>,
    /// Who has it next, or has it now.
    pub(crate) target: Option<SourceId>,
    pub(crate) committed: u64,
    /// What was committed when the owner got it: no commit goes back behind it.
    begun_at: u64,
    /// The next offset to hand out for the first time.
    position: u64,
    /// What is known of the offsets from `committed` to `position`.
    window: VecDeque<Slot>,
    /// Offsets of the window to hand out again.
    again: BTreeSet<u64>,
    /// Offsets of the window that wait for their time.
    held: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Offsets below may have been handed out before the last stop.
    suspects_end: u64,
    /// Something was handed out since the last clean stop.
    dirty: bool,
    /// Copies on the ladder and replays.
    pub(crate) lane: Lane,
    lane_origin: Origin,
    lane_end: i64,
    out: usize,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Out {
        redelivered: bool,
    },
    /// In `again` or `held`.
    Aside {
        redelivered: bool,
    },
    Done,
}

impl Part {
    /// A partition of a group that begins at this offset.
    pub(crate) fn new(topic: u32, number: u32, begin: u64, lane_origin: Origin) -> Self {
        Self {
            topic,
            number,
            owner: None,
            epoch: 0,
            leaving: None,
            target: None,
            committed: begin,
            begun_at: begin,
            position: begin,
            window: VecDeque::new(),
            again: BTreeSet::new(),
            held: BinaryHeap::new(),
            suspects_end: 0,
            dirty: false,
            lane: Lane::default(),
            lane_origin,
            lane_end: 0,
            out: 0,
        }
    }

    /// The name under which copies and replays of this partition come.
    pub(crate) fn lane_topic(&self) -> &str {
        &self.lane_origin.topic
    }

    /// Deliveries that are out.
    pub(crate) fn out(&self) -> usize {
        self.out + self.lane.out()
    }

    /// Messages that are not done, of a log that ends here.
    pub(crate) fn left(&self, log_end: u64) -> usize {
        let done = self.window.iter().filter(|slot| matches!(slot, Slot::Done)).count();
        let owed = usize::try_from(log_end.saturating_sub(self.committed)).unwrap_or(usize::MAX);
        owed.saturating_sub(done) + self.lane.left()
    }

    /// The next offset to hand out of a log of these bounds, and whether it may have been
    /// handed out before.
    pub(crate) fn next(&mut self, log_end: u64) -> Option<(u64, bool)> {
        let (offset, redelivered) = match self.again.pop_first() {
            Some(offset) => (offset, matches!(self.slot(offset)?, Slot::Aside { redelivered: true })),
            None if self.position < log_end => {
                self.position += 1;
                self.window.push_back(Slot::Done);
                (self.position - 1, self.position <= self.suspects_end)
            }
            None => return None,
        };
        *self.slot(offset)? = Slot::Out { redelivered };
        self.out += 1;
        self.dirty = true;
        Some((offset, redelivered))
    }

    /// As [`next`](Self::next) for copies and replays.
    pub(crate) fn next_in_lane(&mut self, holder: Holder) -> Option<(u32, Message, bool)> {
        self.lane.deliver(holder)
    }

    /// Applies an answer for an offset. Returns whether it was out.
    pub(crate) fn settle(&mut self, offset: u64, rest: impl FnOnce() -> Rest) -> bool {
        let Some(Slot::Out { redelivered }) = self.slot(offset).copied() else { return false };
        self.out -= 1;
        let slot = match rest() {
            Rest::Done => Slot::Done,
            Rest::Back => {
                self.again.insert(offset);
                Slot::Aside { redelivered: true }
            }
            Rest::Hold(due) => {
                self.held.push(Reverse((due, offset)));
                Slot::Aside { redelivered }
            }
            Rest::Copy(copy, due) => {
                self.copy_later(&copy, due);
                Slot::Done
            }
        };
        if let Some(place) = self.slot(offset) {
            *place = slot;
        }
        self.advance();
        true
    }

    /// As [`settle`](Self::settle) for copies and replays.
    pub(crate) fn settle_in_lane(&mut self, id: u64, holder: Holder, rest: impl FnOnce() -> Rest) -> bool {
        let Some(stored) = self.lane.take(id, holder) else { return false };
        match rest() {
            Rest::Done => {}
            Rest::Back => self.lane.give_back(stored),
            Rest::Hold(due) => self.lane.hold(stored, due, holder.source),
            Rest::Copy(copy, due) => self.copy_later(&copy, due),
        }
        true
    }

    /// Appends a message to the copies and replays.
    pub(crate) fn push(&mut self, message: &Message) {
        let stored = self.stamped(message);
        self.lane.push(stored);
    }

    fn copy_later(&mut self, copy: &Message, due: Instant) {
        let stored = self.stamped(copy);
        self.lane.push_later(stored, due);
    }

    fn stamped(&mut self, message: &Message) -> Message {
        let number = i32::try_from(self.number).unwrap_or(i32::MAX);
        let mut stored = message.clone();
        stored.parts_mut().origin = self.lane_origin.clone().at(number, self.lane_end);
        self.lane_end += 1;
        stored
    }

    /// Makes ready whose time has come.
    pub(crate) fn promote(&mut self, now: Instant) {
        while self.held.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            if let Some(Reverse((_, offset))) = self.held.pop() {
                self.again.insert(offset);
            }
        }
        self.lane.promote(now);
    }

    /// When the next message becomes ready by time.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let held = self.held.peek().map(|Reverse((due, _))| *due);
        held.into_iter().chain(self.lane.next_due()).min()
    }

    /// Ends the assignment. Returns how many deliveries were out.
    ///
    /// A clean end with nothing out goes on where it was. Any other begins again at the
    /// committed offset, and what was handed out since is suspect; of the offsets that were
    /// done, so many were not committed yet.
    pub(crate) fn release(&mut self, clean: bool, uncommitted: u64) -> usize {
        let Some(owner) = self.owner.take() else { return 0 };
        let out = self.out();
        let clean = clean && out == 0;
        self.lane.void(owner, !clean);
        self.leaving = None;
        self.out = 0;
        if clean {
            self.dirty = false;
            // Suspects of an earlier stop that were not reached stay suspect.
            if self.suspects_end <= self.position {
                self.suspects_end = 0;
            }
            for (offset, slot) in (self.committed..).zip(&mut self.window) {
                if let Slot::Aside { redelivered } = slot {
                    *redelivered = false;
                    self.again.insert(offset);
                }
            }
        } else {
            self.suspects_end = self.suspects_end.max(self.position);
            self.committed = self.committed.saturating_sub(uncommitted).max(self.begun_at);
            self.position = self.committed;
            self.window.clear();
            self.again.clear();
        }
        self.held.clear();
        out
    }

    /// Begins an assignment.
    pub(crate) fn assign(&mut self, owner: SourceId, epoch: u64, in_flight: usize) {
        self.owner = Some(owner);
        self.target = Some(owner);
        self.epoch = epoch;
        self.begun_at = self.committed;
        if self.dirty {
            let in_flight = u64::try_from(in_flight).unwrap_or(u64::MAX);
            self.suspects_end = self.suspects_end.max(self.committed.saturating_add(in_flight));
        }
    }

    /// Offsets below this one are gone. Returns those that were never handed out.
    pub(crate) fn skip_to(&mut self, begin: u64) -> Option<(u64, u64)> {
        let lost = (self.position < begin).then_some((self.position, begin));
        while self.position < begin {
            self.position += 1;
            self.window.push_back(Slot::Done);
        }
        for (offset, slot) in (self.committed..begin).zip(&mut self.window) {
            if let Slot::Aside { .. } = slot {
                *slot = Slot::Done;
                self.again.remove(&offset);
            }
        }
        self.held.retain(|Reverse((_, offset))| *offset >= begin);
        self.advance();
        lost
    }

    fn advance(&mut self) {
        while let Some(Slot::Done) = self.window.front() {
            self.window.pop_front();
            self.committed += 1;
        }
    }

    fn slot(&mut self, offset: u64) -> Option<&mut Slot> {
        let index = usize::try_from(offset.checked_sub(self.committed)?).ok()?;
        self.window.get_mut(index)
    }
}
