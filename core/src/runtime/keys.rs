//! The FIFO of each order key of one worker.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::OrderHash;

/// The keys that have a run at work, and what waits behind it, linked through the worker's
/// slab. A key without work has no entry.
///
/// Keys are 64-bit hashes: two keys that share one wait for each other, which costs time
/// and never correctness.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    waiting: HashMap<OrderHash, Option<Queue>, BuildHasherDefault<Hashed>>,
}

#[derive(Debug, Clone, Copy)]
struct Queue {
    first: u32,
    last: u32,
}

/// What to do with a delivery of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing of the key runs.
    Now,
    /// Behind this place of the slab.
    Behind(u32),
    /// Behind the run at work, as the first to wait.
    First,
}

impl Keys {
    /// Whether anything of the key runs.
    pub(crate) fn is_busy(&self, key: OrderHash) -> bool {
        self.waiting.contains_key(&key)
    }

    /// Marks the key as running.
    pub(crate) fn occupy(&mut self, key: OrderHash) {
        self.waiting.entry(key).or_default();
    }

    /// Queues a place behind the key's run. The caller links `place` after the returned one.
    pub(crate) fn queue(&mut self, key: OrderHash, place: u32) -> Turn {
        match self.waiting.get_mut(&key) {
            None => Turn::Now,
            Some(Some(queue)) => {
                let behind = queue.last;
                queue.last = place;
                Turn::Behind(behind)
            }
            Some(empty) => {
                *empty = Some(Queue { first: place, last: place });
                Turn::First
            }
        }
    }

    /// Ends the key's run: the next place, whose follower the caller reads with `next`.
    /// Without one the key is forgotten.
    pub(crate) fn advance(&mut self, key: OrderHash, next: impl FnOnce(u32) -> Option<u32>) -> Option<u32> {
        match self.waiting.get_mut(&key)? {
            Some(queue) => {
                let first = queue.first;
                match next(first) {
                    Some(follower) => queue.first = follower,
                    None => {
                        self.waiting.insert(key, None);
                    }
                }
                Some(first)
            }
            None => {
                self.waiting.remove(&key);
                None
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// The keys are hashes already.
#[derive(Debug, Default)]
pub(crate) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = self.0.rotate_left(5) ^ u64::from_ne_bytes(word);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_runs_one_at_a_time_in_order_and_is_forgotten_when_idle() {
        let mut keys = Keys::default();
        let (key, other) = (OrderHash::MAX, OrderHash::MIN);
        assert!(!keys.is_busy(key));
        keys.occupy(key);
        assert_eq!(keys.queue(key, 1), Turn::First);
        assert_eq!(keys.queue(key, 2), Turn::Behind(1));
        assert_eq!(keys.queue(other, 3), Turn::Now);
        let follower = |place| (place == 1).then_some(2);
        assert_eq!(keys.advance(key, follower), Some(1));
        assert_eq!(keys.advance(key, follower), Some(2));
        assert!(keys.is_busy(key));
        assert_eq!(keys.advance(key, follower), None);
        assert!(!keys.is_busy(key));
    }
}
