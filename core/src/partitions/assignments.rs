//! The partitions that are assigned to a consumer.

use crate::{Message, Token};

/// The most deliveries of one partition in a row, while others wait.
const TURN_MAX: usize = 64;

/// Names a partition for as long as it is assigned. The same partition that leaves and comes
/// again has another name, so what is said of the old one is void.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Assignment {
    place: usize,
    epoch: u64,
}

impl Assignment {
    /// The token of a delivery: the assignment, the offset of the message, and whether it was
    /// handed out as redelivered.
    pub fn token(self, message: &Message, redelivered: bool) -> Token {
        let place = u32::try_from(self.place).unwrap_or(u32::MAX >> 1);
        let id = message.origin().offset.and_then(|offset| u64::try_from(offset).ok()).unwrap_or_default();
        Token { epoch: self.epoch, scope: place << 1 | u32::from(redelivered), id }
    }

    /// The assignment that made this token.
    fn of(token: Token) -> Self {
        // No table is longer than what the largest number names.
        let place = usize::try_from(token.scope >> 1).unwrap_or(usize::MAX);
        Self { place, epoch: token.epoch }
    }
}

/// The partitions of a consumer, with what an adapter keeps of each.
///
/// A partition is found by its [`Assignment`] or by the token of a delivery in constant time,
/// and not at all once it has left or was assigned anew.
///
/// ```
/// use oncemq_core::partitions::Assignments;
///
/// let mut held = Assignments::default();
/// let first = held.add("orders 0");
/// held.remove(first);
/// let again = held.add("orders 0");
/// assert_eq!((held.get(first), held.get(again)), (None, Some(&"orders 0")));
/// ```
#[derive(Debug)]
pub struct Assignments<P> {
    /// Places are used again; the epoch tells old assignments from new ones.
    places: Vec<Option<Held<P>>>,
    epoch: u64,
    /// The place whose turn it is.
    turn: usize,
}

#[derive(Debug)]
struct Held<P> {
    epoch: u64,
    part: P,
}

impl<P> Default for Assignments<P> {
    fn default() -> Self {
        Self { places: Vec::new(), epoch: 0, turn: 0 }
    }
}

impl<P> Assignments<P> {
    /// A partition has come.
    pub fn add(&mut self, part: P) -> Assignment {
        self.epoch += 1;
        let held = Some(Held { epoch: self.epoch, part });
        let place = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        match self.places.get_mut(place) {
            Some(free) => *free = held,
            None => self.places.push(held),
        }
        Assignment { place, epoch: self.epoch }
    }

    /// A partition has left.
    pub fn remove(&mut self, which: Assignment) -> Option<P> {
        let place = self.places.get_mut(which.place)?;
        place.take_if(|held| held.epoch == which.epoch).map(|held| held.part)
    }

    /// A partition stays and is another one now, such as one that was made anew: it gets
    /// another name, and answers for the old one are void.
    pub fn renew(&mut self, which: Assignment) -> Option<Assignment> {
        let held = self.places.get_mut(which.place)?.as_mut().filter(|held| held.epoch == which.epoch)?;
        self.epoch += 1;
        held.epoch = self.epoch;
        Some(Assignment { epoch: self.epoch, ..which })
    }

    /// The partition, if it is still assigned.
    pub fn get(&self, which: Assignment) -> Option<&P> {
        let held = self.places.get(which.place)?.as_ref();
        held.filter(|held| held.epoch == which.epoch).map(|held| &held.part)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, which: Assignment) -> Option<&mut P> {
        let held = self.places.get_mut(which.place)?.as_mut();
        held.filter(|held| held.epoch == which.epoch).map(|held| &mut held.part)
    }

    /// The partition of a delivery, if it is still the same assignment.
    pub fn of(&self, token: Token) -> Option<&P> {
        self.get(Assignment::of(token))
    }

    /// The same, to change it.
    pub fn of_mut(&mut self, token: Token) -> Option<&mut P> {
        self.get_mut(Assignment::of(token))
    }

    /// Every partition.
    pub fn iter(&self) -> impl Iterator<Item = (Assignment, &P)> {
        self.places.iter().enumerate().filter_map(|(place, held)| {
            let held = held.as_ref()?;
            Some((Assignment { place, epoch: held.epoch }, &held.part))
        })
    }

    /// The same, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Assignment, &mut P)> {
        self.places.iter_mut().enumerate().filter_map(|(place, held)| {
            let held = held.as_mut()?;
            Some((Assignment { place, epoch: held.epoch }, &mut held.part))
        })
    }

    /// Hands out at most `max` deliveries, so that every partition gets its turn: 64 in a row at
    /// most, and the next call goes on with the next one. `give` is told how many it may hand
    /// out of a partition and returns how many it did. Returns how many these are together.
    pub fn take_turns(
        &mut self,
        max: usize,
        mut give: impl FnMut(Assignment, &mut P, usize) -> usize,
    ) -> usize {
        let (places, mut given, mut idle) = (self.places.len(), 0, 0);
        while given < max && idle < places {
            let place = self.turn % places;
            self.turn = (place + 1) % places;
            idle += 1;
            let Some(held) = &mut self.places[place] else { continue };
            let which = Assignment { place, epoch: held.epoch };
            let count = give(which, &mut held.part, TURN_MAX.min(max - given));
            given += count;
            if count > 0 {
                idle = 0;
            }
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Origin, Parts};

    fn message(offset: i64) -> Message {
        Parts { origin: Origin::new("log", "orders").at(0, offset), ..Parts::default() }.into()
    }

    #[test]
    fn a_token_finds_its_assignment_and_no_later_one_in_the_same_place() {
        let mut held = Assignments::default();
        let (old, other) = (held.add("old"), held.add("other"));
        let token = old.token(&message(42), true);
        assert_eq!((token.id, token.scope & 1, held.of(token)), (42, 1, Some(&"old")));
        assert_eq!(held.of(other.token(&message(42), false)), Some(&"other"));
        assert_eq!((held.remove(old), held.remove(old)), (Some("old"), None));
        assert_eq!(held.of(token), None);
        let new = held.add("new");
        assert!(held.of(token).is_none() && held.of_mut(token).is_none() && held.get_mut(old).is_none());
        assert_eq!(held.remove(old), None);
        let names: Vec<_> = held.iter().collect();
        assert_eq!(names, [(new, &"new"), (other, &"other")]);
    }

    #[test]
    fn a_renewed_partition_stays_and_its_old_name_is_void() {
        let mut held = Assignments::default();
        let first = held.add(1);
        let token = first.token(&message(0), false);
        let second = held.renew(first).unwrap();
        assert!(held.get(first).is_none() && held.of(token).is_none() && held.renew(first).is_none());
        assert_eq!(held.get(second), Some(&1));
        assert!(held.add(2) != second);
    }

    #[test]
    fn a_full_partition_lets_the_others_have_their_turns() {
        let mut held = Assignments::default();
        for waiting in [1_000, 0, 3] {
            held.add(waiting);
        }
        let turns = |held: &mut Assignments<usize>, max| {
            let mut turns = Vec::new();
            let given = held.take_turns(max, |which, waiting, limit| {
                let count = limit.min(*waiting);
                *waiting -= count;
                turns.push((which.place, count));
                count
            });
            (given, turns)
        };
        assert_eq!(turns(&mut held, 100), (100, vec![(0, 64), (1, 0), (2, 3), (0, 33)]));
        // The next call goes on behind it, and ends when a whole round brought nothing.
        let first = held.iter_mut().next();
        first.into_iter().for_each(|(_, waiting)| *waiting = 5);
        assert_eq!(turns(&mut held, 100), (5, vec![(1, 0), (2, 0), (0, 5), (1, 0), (2, 0), (0, 0)]));
        assert_eq!(turns(&mut held, 0), (0, vec![]));
        assert_eq!(turns(&mut Assignments::default(), 9), (0, vec![]));
    }
}
