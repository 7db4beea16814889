//! One queue of a topic, while it is ours.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use oncemq_core::{Message, Watermark};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::client::Stored;
use crate::cluster::Queue;

/// Messages of one queue that are fetched and not handed out, and their bytes.
const FETCHED_MAX: usize = 256;
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// A queue of this consumer.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) queue: Queue,
    /// The assignment; answers of older ones are void.
    pub(crate) epoch: u64,
    /// Nothing more is handed out.
    pub(crate) leaving: bool,
    /// Wakes whoever fetches.
    pub(crate) room: Arc<Notify>,
    mark: Watermark,
    /// The offset of the last commit.
    committed: i64,
    /// Fetched and not handed out yet.
    fetched: VecDeque<Stored>,
    bytes: usize,
    /// Given back, to be handed out again, by offset.
    again: BTreeMap<i64, Held>,
    /// Waits for its time.
    held: BTreeMap<(Instant, i64), Held>,
    /// Deliveries that are out.
    out: usize,
    /// Messages handed out beyond the last commit.
    ahead: usize,
    /// So many messages from here on may have been handed out before.
    suspects: usize,
    pace: Pace,
}

/// A message that waits here.
#[derive(Debug)]
struct Held {
    message: Message,
    redelivered: bool,
}

/// Where a queue begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begin {
    pub(crate) offset: i64,
    /// Whether the group has been here before: what follows may have been handed out then.
    pub(crate) known: bool,
}

/// How much may be under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The most messages handed out beyond the last commit. Behind one that does not finish,
    /// this is where its queue stops. An offset carries no word beside itself, so after every
    /// start as many are taken for handed out before.
    pub(crate) reach: usize,
    pub(crate) commit_each: bool,
}

impl Pace {
    pub(crate) fn new(in_flight: usize, commit_each: bool) -> Self {
        Self { reach: in_flight.saturating_mul(4).clamp(1_024, 65_536), commit_each }
    }
}

/// What there is to hand out.
#[derive(Debug)]
pub(crate) enum Next {
    Fetched(Stored, bool),
    Again(Message, bool),
}

impl Part {
    pub(crate) fn new(queue: Queue, epoch: u64, begin: Begin, pace: Pace, room: Arc<Notify>) -> Self {
        Self {
            queue,
            epoch,
            leaving: false,
            room,
            mark: Watermark::new(begin.offset),
            committed: begin.offset,
            fetched: VecDeque::new(),
            bytes: 0,
            again: BTreeMap::new(),
            held: BTreeMap::new(),
            out: 0,
            ahead: 0,
            suspects: if begin.known { pace.reach } else { 0 },
            pace,
        }
    }

    /// Takes in messages of the broker, in order.
    pub(crate) fn fetched(&mut self, messages: Vec<Stored>) {
        self.bytes += messages.iter().map(|message| message.body.len()).sum::<usize>();
        self.fetched.extend(messages);
    }

    /// Whether more is to be fetched.
    pub(crate) fn has_room(&self) -> bool {
        !self.leaving && self.fetched.len() < FETCHED_MAX && self.bytes < BYTES_MAX
    }

    pub(crate) fn out(&self) -> usize {
        self.out
    }

    /// Whether nothing more may be handed out before a commit.
    fn is_ahead(&self) -> bool {
        self.ahead >= self.pace.reach
    }

    /// The next message to hand out, and whether it may have been handed out before.
    pub(crate) fn next(&mut self) -> Option<Next> {
        if self.leaving {
            return None;
        }
        if let Some((_, held)) = self.again.pop_first() {
            self.out += 1;
            return Some(Next::Again(held.message, held.redelivered));
        }
        while !self.is_ahead() {
            let stored = self.fetched.pop_front()?;
            self.bytes = self.bytes.saturating_sub(stored.body.len());
            let wanted = self.mark.begin(stored.offset);
            let suspect = self.suspects > 0;
            self.suspects = self.suspects.saturating_sub(1);
            if wanted {
                self.ahead += 1;
                self.out += 1;
                return Some(Next::Fetched(stored, suspect));
            }
        }
        None
    }

    /// When time alone brings something.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let due = self.held.keys().next().map(|(due, _)| *due);
        due.filter(|_| !self.leaving)
    }

    /// Hands out again whose time has come.
    pub(crate) fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.held.first_entry().filter(|entry| entry.key().0 <= now) {
            let offset = entry.key().1;
            self.again.insert(offset, entry.remove());
        }
    }

    /// A delivery is done.
    pub(crate) fn finish(&mut self, offset: i64) {
        self.out = self.out.saturating_sub(1);
        self.mark.finish(offset);
    }

    /// A delivery comes back, at once or at its time.
    pub(crate) fn back(&mut self, offset: i64, message: Message, redelivered: bool, due: Option<Instant>) {
        self.out = self.out.saturating_sub(1);
        match due {
            Some(due) => drop(self.held.insert((due, offset), Held { message, redelivered })),
            // Given back: it may have been run.
            None => drop(self.again.insert(offset, Held { message, redelivered: true })),
        }
    }

    /// Whether a commit is worth a request of its own, before its time.
    pub(crate) fn wants_commit(&self) -> bool {
        let news = self.committed < self.mark.committable();
        let finished = self.ahead.saturating_sub(self.mark.len());
        news && (self.pace.commit_each || self.is_ahead() || finished > self.pace.reach / 2)
    }

    /// The offset to commit, if there is news.
    pub(crate) fn commit(&self) -> Option<Commit> {
        let offset = self.mark.committable();
        (self.committed != offset).then(|| Commit { offset, unfinished: self.mark.len(), ahead: self.ahead })
    }

    /// The broker has this commit.
    pub(crate) fn committed(&mut self, commit: Commit) {
        self.committed = commit.offset;
        self.ahead = self.ahead.saturating_sub(commit.ahead) + commit.unfinished;
    }

    /// Everything below is gone from the log.
    pub(crate) fn skip_to(&mut self, offset: i64) {
        self.again.retain(|kept, _| *kept >= offset);
        self.held.retain(|(_, kept), _| *kept >= offset);
        self.mark.skip_to(offset);
    }
}

/// A commit of one queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Commit {
    pub(crate) offset: i64,
    /// Messages from the offset on that had been handed out.
    unfinished: usize,
    /// Messages handed out beyond the commit before.
    ahead: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(known: bool, reach: usize) -> Part {
        let queue = Queue { topic: "t".into(), broker: "b".into(), number: 0 };
        let pace = Pace { reach, commit_each: false };
        Part::new(queue, 1, Begin { offset: 10, known }, pace, Arc::default())
    }

    fn stored(offsets: std::ops::Range<i64>) -> Vec<Stored> {
        offsets.map(|offset| Stored { offset, ..Stored::default() }).collect()
    }

    fn offsets(part: &mut Part) -> Vec<i64> {
        let next = || match part.next()? {
            Next::Fetched(stored, _) => Some(stored.offset),
            Next::Again(message, _) => message.origin().offset,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn behind_a_message_that_does_not_finish_its_queue_stops_and_goes_on_after_the_commit() {
        let mut part = part(false, 4);
        part.fetched(stored(10..20));
        assert_eq!(offsets(&mut part), [10, 11, 12, 13]);
        [11, 12, 13].into_iter().for_each(|offset| part.finish(offset));
        assert!(offsets(&mut part).is_empty() && part.commit().is_none() && !part.wants_commit());
        part.finish(10);
        assert!(part.wants_commit());
        let commit = part.commit().unwrap();
        assert_eq!(commit.offset, 14);
        part.committed(commit);
        assert_eq!(offsets(&mut part), [14, 15, 16, 17]);
    }

    #[test]
    fn what_a_crash_may_have_handed_out_is_suspect_and_no_more() {
        let flags = |part: &mut Part| {
            let flag = || match part.next()? {
                Next::Fetched(_, suspect) | Next::Again(_, suspect) => Some(suspect),
            };
            std::iter::from_fn(flag).collect::<Vec<_>>()
        };
        let mut again = part(true, 3);
        again.fetched(stored(10..13));
        assert_eq!(flags(&mut again), [true; 3]);
        (10..13).for_each(|offset| again.finish(offset));
        let commit = again.commit().unwrap();
        again.committed(commit);
        again.fetched(stored(13..15));
        assert_eq!(flags(&mut again), [false; 2]);
        let mut new = part(false, 3);
        new.fetched(stored(10..12));
        assert_eq!(flags(&mut new), [false; 2]);
    }

    #[test]
    fn a_full_part_fetches_no_more() {
        let mut part = part(false, 1_024);
        part.fetched(stored(10..10 + FETCHED_MAX as i64));
        assert!(!part.has_room());
        assert_eq!(offsets(&mut part).len(), FETCHED_MAX);
        assert!(part.has_room());
        part.fetched(vec![Stored { offset: 900, body: vec![0; BYTES_MAX].into(), ..Stored::default() }]);
        assert!(!part.has_room());
    }
}
