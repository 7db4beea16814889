//! One partition of a log, from what is handed out to what may be committed.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::Answer;
use crate::{Message, Watermark};

/// How far a consumer has come in one partition: what is out, what came back and waits, and
/// what a commit would say.
///
/// Everything that was handed out beyond the last commit is handed out again after a crash. An
/// adapter limits it by [`ahead`](Self::ahead), and says at the next start how many messages are
/// suspects for that.
#[derive(Debug)]
pub struct Progress {
    mark: Watermark,
    /// To be handed out again, by offset, and whether as redelivered.
    again: BTreeMap<i64, (Message, bool)>,
    /// The same, not before its time.
    held: BTreeMap<(Instant, i64), (Message, bool)>,
    out: usize,
    ahead: usize,
    suspects: usize,
}

/// What a commit says of a partition: everything below its offset is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Point {
    /// The offset to commit.
    pub offset: i64,
    /// Messages from the offset on that had been handed out.
    pub unfinished: usize,
    /// Messages that had been handed out beyond the commit before.
    pub ahead: usize,
}

impl Progress {
    /// Goes on where the mark does. So many messages from there on may have been handed out
    /// before.
    pub fn new(mark: Watermark, suspects: usize) -> Self {
        Self { mark, again: BTreeMap::new(), held: BTreeMap::new(), out: 0, ahead: 0, suspects }
    }

    /// The message at this offset is next to be handed out. Returns whether it may have been
    /// handed out before; `None` if it must not be handed out, since it came or was finished
    /// before.
    pub fn begin(&mut self, offset: i64) -> Option<bool> {
        if offset < self.mark.next() {
            return None;
        }
        let suspect = self.suspects > 0;
        self.suspects = self.suspects.saturating_sub(1);
        self.ahead += 1;
        let wanted = self.mark.begin(offset);
        self.out += usize::from(wanted);
        wanted.then_some(suspect)
    }

    /// The lowest message that is to be handed out again, and whether as redelivered. These come
    /// before new ones.
    pub fn again(&mut self) -> Option<(Message, bool)> {
        let (_, again) = self.again.pop_first()?;
        self.out += 1;
        Some(again)
    }

    /// Applies the answer for a delivery of this partition.
    pub fn settle(&mut self, answer: Answer) {
        let token = answer.token();
        let Ok(offset) = i64::try_from(token.id) else { return };
        self.out = self.out.saturating_sub(1);
        match answer {
            Answer::Done(_) => drop(self.mark.finish(offset)),
            // Given back: it may have been run.
            Answer::Back(_, message, None) => drop(self.again.insert(offset, (message, true))),
            Answer::Back(_, message, Some(due)) => {
                self.held.insert((due, offset), (message, token.scope & 1 == 1));
            }
        }
    }

    /// Whose time has come is handed out again.
    pub fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.held.first_entry().filter(|entry| entry.key().0 <= now) {
            let offset = entry.key().1;
            self.again.insert(offset, entry.remove());
        }
    }

    /// When time alone brings something to hand out.
    pub fn next_due(&self) -> Option<Instant> {
        self.held.keys().next().map(|(due, _)| *due)
    }

    /// Deliveries that are out.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Messages handed out beyond the last commit, the finished ones among them.
    pub fn ahead(&self) -> usize {
        self.ahead
    }

    /// Messages that a commit now would take off [`ahead`](Self::ahead).
    pub fn finished(&self) -> usize {
        self.ahead.saturating_sub(self.mark.len())
    }

    /// So many messages from here on may have been handed out before.
    pub fn suspects(&self) -> usize {
        self.suspects
    }

    /// Which offsets are finished.
    pub fn mark(&self) -> &Watermark {
        &self.mark
    }

    /// What a commit would say now.
    pub fn point(&self) -> Point {
        Point { offset: self.mark.committable(), unfinished: self.mark.len(), ahead: self.ahead }
    }

    /// The broker has this commit. What was handed out since it was made stays ahead of it.
    pub fn committed(&mut self, point: Point) {
        self.ahead = self.ahead.saturating_sub(point.ahead) + point.unfinished;
    }

    /// Everything below this offset is gone from the log: what waits of it is dropped, and what
    /// is out of it holds nothing up.
    pub fn skip_to(&mut self, offset: i64) {
        self.again.retain(|kept, _| *kept >= offset);
        self.held.retain(|(_, kept), _| *kept >= offset);
        self.mark.skip_to(offset);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Token;

    fn progress(suspects: usize) -> Progress {
        Progress::new(Watermark::new(10), suspects)
    }

    fn token(offset: u64, redelivered: bool) -> Token {
        Token { epoch: 1, scope: u32::from(redelivered), id: offset }
    }

    fn done(offset: u64) -> Answer {
        Answer::Done(token(offset, false))
    }

    fn back(offset: u64, redelivered: bool, due: Option<Instant>) -> Answer {
        Answer::Back(token(offset, redelivered), Message::new(offset.to_string()), due)
    }

    /// What there is to hand out again: its offset, and whether as redelivered.
    fn again(progress: &mut Progress) -> Vec<(String, bool)> {
        let next = || {
            progress.again().map(|(message, flag)| {
                (
                    String::from_utf8_lossy(message.payload().map_or(&[][..], |payload| payload))
                        .into_owned(),
                    flag,
                )
            })
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_commit_takes_off_what_was_finished_when_it_was_made() {
        let mut one = progress(0);
        assert!((10..14).all(|offset| one.begin(offset) == Some(false)));
        [10, 11, 13].into_iter().for_each(|offset| one.settle(done(offset)));
        let point = one.point();
        assert_eq!(point, Point { offset: 12, unfinished: 2, ahead: 4 });
        assert_eq!((one.out(), one.finished()), (1, 2));
        // These come while the commit is under way.
        assert!((14..17).all(|offset| one.begin(offset).is_some()));
        one.settle(done(12));
        one.committed(point);
        assert_eq!((one.ahead(), one.finished(), one.point().offset), (5, 2, 14));
        let point = one.point();
        one.committed(point);
        assert_eq!((one.ahead(), one.finished(), one.out()), (3, 0, 3));
    }

    #[test]
    fn suspects_are_counted_by_messages_and_not_by_what_comes_twice() {
        let mark = Watermark::new(10).with_finished([11..=11]);
        let mut one = Progress::new(mark, 3);
        assert_eq!([10, 10, 11, 10].map(|offset| one.begin(offset)), [Some(true), None, None, None]);
        assert_eq!((one.suspects(), one.ahead(), one.out()), (1, 2, 1));
        assert_eq!([12, 13].map(|offset| one.begin(offset)), [Some(true), Some(false)]);
    }

    #[test]
    fn what_comes_back_is_handed_out_again_in_order_and_at_its_time() {
        let (mut one, now) = (progress(0), Instant::now());
        assert!((10..15).all(|offset| one.begin(offset).is_some()));
        let due = now + Duration::from_secs(1);
        [back(13, false, None), back(12, true, Some(due)), back(11, false, Some(due)), back(10, false, None)]
            .into_iter()
            .for_each(|answer| one.settle(answer));
        assert_eq!((one.out(), one.next_due()), (1, Some(due)));
        one.promote(now);
        assert_eq!(again(&mut one), [("10".to_owned(), true), ("13".to_owned(), true)]);
        one.promote(due);
        assert_eq!(again(&mut one), [("11".to_owned(), false), ("12".to_owned(), true)]);
        assert_eq!((one.out(), one.next_due(), one.point().offset), (5, None, 10));
    }

    #[test]
    fn what_is_gone_from_the_log_is_not_handed_out_again_and_holds_nothing_up() {
        let (mut one, due) = (progress(0), Instant::now());
        assert!((10..16).all(|offset| one.begin(offset).is_some()));
        [
            back(10, false, None),
            back(11, false, Some(due)),
            back(13, false, None),
            back(14, false, Some(due)),
        ]
        .into_iter()
        .for_each(|answer| one.settle(answer));
        one.skip_to(13);
        one.promote(due);
        assert_eq!(again(&mut one), [("13".to_owned(), true), ("14".to_owned(), false)]);
        assert_eq!(one.point().offset, 13);
        // Its answer comes all the same.
        one.settle(done(12));
        assert_eq!((one.point().offset, one.out()), (13, 3));
    }
}
