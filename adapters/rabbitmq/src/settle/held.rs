//! What waits in the process for its time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use oncemq_core::{Message, Token};
use tokio::time::Instant;

use super::Job;

/// Something whose time has come.
#[derive(Debug)]
pub(crate) enum Due {
    /// A deferred delivery is handed out again.
    Again(Token, Message),
    /// A deferred delivery has been here too long and goes back to the broker.
    Return(Token),
    /// A copy is tried again.
    Copy(Job),
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    /// Keeps the order of entries of one moment.
    order: u64,
    due: Due,
}

/// Everything that waits, by time.
#[derive(Debug, Default)]
pub(crate) struct Held {
    heap: BinaryHeap<Entry>,
    count: u64,
}

impl Held {
    pub(crate) fn push(&mut self, at: Instant, due: Due) {
        self.count += 1;
        self.heap.push(Entry { at, order: self.count, due });
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// The next one whose time has come.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Due> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.due)
    }

    /// Whether a copy waits for its next try.
    pub(crate) fn copies(&self) -> usize {
        self.heap.iter().filter(|entry| matches!(entry.due, Due::Copy(_))).count()
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest is the greatest: it comes out of the heap first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_waits_comes_out_by_time_and_then_by_order() {
        let start = Instant::now();
        let mut held = Held::default();
        let token = |id| Token { epoch: 1, scope: 0, id };
        for (millis, id) in [(20, 3), (10, 1), (10, 2)] {
            held.push(start + Duration::from_millis(millis), Due::Return(token(id)));
        }
        assert!(held.pop(start).is_none());
        assert_eq!(held.next(), Some(start + Duration::from_millis(10)));
        let mut seen = Vec::new();
        while let Some(Due::Return(token)) = held.pop(start + Duration::from_millis(20)) {
            seen.push(token.id);
        }
        assert_eq!(seen, [1, 2, 3]);
    }
}
