//! One queue of a topic, while it is ours.

use std::collections::VecDeque;
use std::sync::Arc;

use oncemq_core::partitions::{Point, Progress};
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
    /// Nothing more is handed out.
    pub(crate) leaving: bool,
    /// Wakes whoever fetches.
    pub(crate) room: Arc<Notify>,
    pub(crate) progress: Progress,
    /// The offset of the last commit.
    committed: i64,
    /// Fetched and not handed out yet.
    fetched: VecDeque<Stored>,
    bytes: usize,
    pace: Pace,
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
    pub(crate) fn new(queue: Queue, begin: Begin, pace: Pace, room: Arc<Notify>) -> Self {
        Self {
            queue,
            leaving: false,
            room,
            progress: Progress::new(Watermark::new(begin.offset), if begin.known { pace.reach } else { 0 }),
            committed: begin.offset,
            fetched: VecDeque::new(),
            bytes: 0,
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

    /// Whether nothing more may be handed out before a commit.
    fn is_ahead(&self) -> bool {
        self.progress.ahead() >= self.pace.reach
    }

    /// The next message to hand out, and whether it may have been handed out before.
    pub(crate) fn next(&mut self) -> Option<Next> {
        if self.leaving {
            return None;
        }
        if let Some((message, redelivered)) = self.progress.again() {
            return Some(Next::Again(message, redelivered));
        }
        while !self.is_ahead() {
            let stored = self.fetched.pop_front()?;
            self.bytes = self.bytes.saturating_sub(stored.body.len());
            if let Some(suspect) = self.progress.begin(stored.offset) {
                return Some(Next::Fetched(stored, suspect));
            }
        }
        None
    }

    /// When time alone brings something.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.progress.next_due().filter(|_| !self.leaving)
    }

    /// Whether a commit is worth a request of its own, before its time.
    pub(crate) fn wants_commit(&self) -> bool {
        let news = self.committed < self.progress.mark().committable();
        let many = self.progress.finished() > self.pace.reach / 2;
        news && (self.pace.commit_each || self.is_ahead() || many)
    }

    /// What to commit, if there is news.
    pub(crate) fn commit(&self) -> Option<Point> {
        let point = self.progress.point();
        (self.committed != point.offset).then_some(point)
    }

    /// The broker has this commit.
    pub(crate) fn committed(&mut self, point: Point) {
        self.committed = point.offset;
        self.progress.committed(point);
    }
}

#[cfg(test)]
mod tests {
    use oncemq_core::Token;
    use oncemq_core::partitions::Answer;

    use super::*;

    fn part(known: bool, reach: usize) -> Part {
        let queue = Queue { topic: "t".into(), broker: "b".into(), number: 0 };
        let pace = Pace { reach, commit_each: false };
        Part::new(queue, Begin { offset: 10, known }, pace, Arc::default())
    }

    fn stored(offsets: std::ops::Range<i64>) -> Vec<Stored> {
        offsets.map(|offset| Stored { offset, ..Stored::default() }).collect()
    }

    fn finish(part: &mut Part, offset: u64) {
        part.progress.settle(Answer::Done(Token { epoch: 1, scope: 0, id: offset }));
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
        [11, 12, 13].into_iter().for_each(|offset| finish(&mut part, offset));
        assert!(offsets(&mut part).is_empty() && part.commit().is_none() && !part.wants_commit());
        finish(&mut part, 10);
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
        (10..13).for_each(|offset| finish(&mut again, offset));
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
