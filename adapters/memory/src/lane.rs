//! A queue whose messages are settled one by one.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use oncemq_core::Message;
use tokio::time::Instant;

use crate::source::SourceId;

/// Messages in order, those that wait for their time, and those that are out.
///
/// In queue mode a consumer's queue is one of these; in log mode the copies and replays of
/// each partition are.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    ready: VecDeque<Stored>,
    /// Given back, by their first place in the queue: they come before everything ready.
    returned: BTreeMap<u64, Stored>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    out: Vec<Option<Out>>,
    free: Vec<u32>,
    out_count: usize,
    next_place: u64,
}

/// A message as the queue keeps it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) message: Message,
    pub(crate) redelivered: bool,
    /// Its place in the queue; lower comes first.
    place: u64,
}

/// Who has a delivery, in which incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) source: SourceId,
    pub(crate) epoch: u64,
}

#[derive(Debug)]
struct Out {
    stored: Stored,
    holder: Holder,
}

#[derive(Debug)]
struct Waiting {
    due: Instant,
    stored: Stored,
    /// Still the delivery of this source, which waits in its process; else a message of its
    /// own that came back by a copy.
    held_by: Option<SourceId>,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.stored.place).cmp(&(other.due, other.stored.place))
    }
}

impl Lane {
    /// Appends a message.
    pub(crate) fn push(&mut self, message: Message) {
        let place = self.take_place();
        self.ready.push_back(Stored { message, redelivered: false, place });
    }

    /// Appends a message once its time has come.
    pub(crate) fn push_later(&mut self, message: Message, due: Instant) {
        let place = self.take_place();
        let stored = Stored { message, redelivered: false, place };
        self.waiting.push(Reverse(Waiting { due, stored, held_by: None }));
    }

    /// Hands out the next message: its id among those out, the message, and whether it may
    /// have been out before.
    pub(crate) fn deliver(&mut self, holder: Holder) -> Option<(u32, Message, bool)> {
        let stored = match self.returned.pop_first() {
            Some((_, stored)) => stored,
            None => self.ready.pop_front()?,
        };
        let (message, redelivered) = (stored.message.clone(), stored.redelivered);
        let out = Some(Out { stored, holder });
        let id = match self.free.pop() {
            Some(id) => {
                self.out[id as usize] = out;
                id
            }
            None => {
                let id = u32::try_from(self.out.len()).ok()?;
                self.out.push(out);
                id
            }
        };
        self.out_count += 1;
        Some((id, message, redelivered))
    }

    /// Takes back what is out under this id, if this incarnation still has it.
    pub(crate) fn take(&mut self, id: u64, holder: Holder) -> Option<Stored> {
        let index = usize::try_from(id).ok()?;
        let slot = self.out.get_mut(index)?;
        let out = slot.take_if(|out| out.holder == holder)?;
        self.free.push(u32::try_from(index).ok()?);
        self.out_count -= 1;
        Some(out.stored)
    }

    /// Puts a message back to where it was, flagged as delivered before.
    pub(crate) fn give_back(&mut self, mut stored: Stored) {
        stored.redelivered = true;
        self.returned.insert(stored.place, stored);
    }

    /// Keeps a delivery aside for its source until its time has come.
    pub(crate) fn hold(&mut self, stored: Stored, due: Instant, source: SourceId) {
        self.waiting.push(Reverse(Waiting { due, stored, held_by: Some(source) }));
    }

    /// Makes ready whose time has come.
    pub(crate) fn promote(&mut self, now: Instant) {
        while self.waiting.peek().is_some_and(|Reverse(first)| first.due <= now) {
            let Some(Reverse(Waiting { mut stored, held_by, .. })) = self.waiting.pop() else { return };
            match held_by {
                Some(_) => {
                    self.returned.insert(stored.place, stored);
                }
                None => {
                    stored.place = self.take_place();
                    self.ready.push_back(stored);
                }
            }
        }
    }

    /// When the next message becomes ready by time.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse(first)| first.due)
    }

    /// A source is gone: everything it had out or held comes back, flagged or as it was.
    pub(crate) fn void(&mut self, source: SourceId, flag: bool) {
        let mut back = Vec::new();
        for (index, slot) in self.out.iter_mut().enumerate() {
            if let Some(out) = slot.take_if(|out| out.holder.source == source) {
                self.free.push(u32::try_from(index).unwrap_or(u32::MAX));
                back.push(out.stored);
            }
        }
        self.out_count -= back.len();
        if self.waiting.iter().any(|Reverse(waiting)| waiting.held_by == Some(source)) {
            let (held, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|Reverse(waiting)| waiting.held_by == Some(source));
            self.waiting = stay.into();
            back.extend(held.into_iter().map(|Reverse(waiting)| waiting.stored));
        }
        for mut stored in back {
            stored.redelivered |= flag;
            self.returned.insert(stored.place, stored);
        }
    }

    /// Messages that are not done.
    pub(crate) fn left(&self) -> usize {
        self.ready.len() + self.returned.len() + self.waiting.len() + self.out_count
    }

    /// Those of them that are out.
    pub(crate) fn out(&self) -> usize {
        self.out_count
    }

    fn take_place(&mut self) -> u64 {
        self.next_place += 1;
        self.next_place
    }
}
