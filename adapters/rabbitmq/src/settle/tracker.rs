//! Which deliveries of a channel can be acknowledged in one stroke.

use std::collections::VecDeque;

/// What is known about a delivery tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Nobody has answered for it yet.
    Open,
    /// To be acknowledged with the next flush.
    Accepted,
    /// Answered for; the tag must never be sent again.
    Gone,
}

/// An acknowledgement to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AckFrame {
    pub(crate) tag: u64,
    /// Whether it also stands for every older open tag.
    pub(crate) multiple: bool,
    /// How many deliveries it answers for.
    pub(crate) count: usize,
}

/// The delivery tags of one channel with one consumer, which the broker counts from 1
/// without gaps. Knows the lowest open tag: everything below it may go in one frame.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// The lowest open tag, and the tag of the first mark.
    first: u64,
    marks: VecDeque<Mark>,
    /// Accepted since the last flush, in the order of the answers.
    fresh: Vec<u64>,
}

impl Tracker {
    pub(crate) fn new() -> Self {
        Self { first: 1, marks: VecDeque::new(), fresh: Vec::new() }
    }

    /// Notes a delivery as done. Returns whether it was open.
    pub(crate) fn accept(&mut self, tag: u64) -> bool {
        let open = self.set(tag, Mark::Accepted);
        if open {
            self.fresh.push(tag);
        }
        open
    }

    /// Notes that a frame of its own is sent for a delivery. Returns whether it was open.
    pub(crate) fn take(&mut self, tag: u64) -> bool {
        self.set(tag, Mark::Gone)
    }

    /// How many deliveries are done whose acknowledgement was not asked for yet.
    pub(crate) fn accepted(&self) -> usize {
        self.fresh.len()
    }

    /// The acknowledgements for what was accepted so far: one for all below the lowest open
    /// tag and, if `all` is asked for, one each for the others, which else wait for a later
    /// flush.
    pub(crate) fn flush(&mut self, all: bool, frames: &mut Vec<AckFrame>) {
        while self.marks.front().is_some_and(|mark| *mark != Mark::Open) {
            self.marks.pop_front();
            self.first += 1;
        }
        let first = self.first;
        let (mut count, mut highest) = (0, 0);
        self.fresh.retain(|tag| {
            let below = *tag < first;
            if below {
                count += 1;
                highest = highest.max(*tag);
            }
            !below
        });
        if count > 0 {
            frames.push(AckFrame { tag: highest, multiple: count > 1, count });
        }
        if all {
            self.flush_above(frames);
        }
    }

    fn flush_above(&mut self, frames: &mut Vec<AckFrame>) {
        for tag in self.fresh.drain(..) {
            let place = usize::try_from(tag - self.first).unwrap_or(usize::MAX);
            if let Some(mark) = self.marks.get_mut(place) {
                *mark = Mark::Gone;
            }
            frames.push(AckFrame { tag, multiple: false, count: 1 });
        }
    }

    fn set(&mut self, tag: u64, mark: Mark) -> bool {
        let Some(place) = tag.checked_sub(self.first).and_then(|place| usize::try_from(place).ok()) else {
            return false;
        };
        if place >= self.marks.len() {
            self.marks.resize(place + 1, Mark::Open);
        }
        let open = self.marks[place] == Mark::Open;
        if open {
            self.marks[place] = mark;
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn flush(tracker: &mut Tracker) -> Vec<(u64, bool, usize)> {
        let mut frames = Vec::new();
        tracker.flush(true, &mut frames);
        frames.iter().map(|frame| (frame.tag, frame.multiple, frame.count)).collect()
    }

    #[test]
    fn a_run_from_the_lowest_open_tag_goes_in_one_frame() {
        let mut tracker = Tracker::new();
        for tag in [2, 1, 3] {
            assert!(tracker.accept(tag));
        }
        assert_eq!(flush(&mut tracker), [(3, true, 3)]);
        assert_eq!(flush(&mut tracker), []);
    }

    #[test]
    fn above_an_open_tag_each_goes_alone() {
        let mut tracker = Tracker::new();
        for tag in [1, 3, 5] {
            tracker.accept(tag);
        }
        assert_eq!(flush(&mut tracker), [(1, false, 1), (3, false, 1), (5, false, 1)]);
        for tag in [2, 4] {
            tracker.accept(tag);
        }
        assert_eq!(flush(&mut tracker), [(4, true, 2)]);
    }

    #[test]
    fn what_waits_above_an_open_tag_joins_the_run_below() {
        let mut tracker = Tracker::new();
        for tag in [1, 3] {
            tracker.accept(tag);
        }
        let mut frames = Vec::new();
        tracker.flush(false, &mut frames);
        assert_eq!(frames.drain(..).map(|frame| frame.tag).collect::<Vec<_>>(), [1]);
        assert_eq!(tracker.accepted(), 1);
        tracker.accept(2);
        tracker.flush(false, &mut frames);
        assert_eq!(frames, [AckFrame { tag: 3, multiple: true, count: 2 }]);
        assert_eq!(tracker.accepted(), 0);
    }

    #[test]
    fn rb2_a_tag_is_answered_for_once() {
        let mut tracker = Tracker::new();
        assert!(tracker.accept(1));
        assert!(!tracker.accept(1));
        assert!(!tracker.take(1));
        flush(&mut tracker);
        assert!(!tracker.accept(1));
        assert!(tracker.take(2));
        assert!(!tracker.accept(2));
        assert_eq!(flush(&mut tracker), []);
    }

    /// The broker's rules for tags: a frame for a tag that is not open ends the channel.
    #[derive(Default)]
    struct Broker {
        open: BTreeSet<u64>,
        acked: BTreeSet<u64>,
    }

    impl Broker {
        fn ack(&mut self, frame: AckFrame) {
            assert!(self.open.contains(&frame.tag), "unknown tag {}", frame.tag);
            let tags: Vec<u64> = match frame.multiple {
                true => self.open.range(..=frame.tag).copied().collect(),
                false => vec![frame.tag],
            };
            assert_eq!(tags.len(), frame.count);
            for tag in tags {
                self.open.remove(&tag);
                self.acked.insert(tag);
            }
        }
    }

    #[test]
    fn a_model_broker_never_sees_a_wrong_tag() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for _ in 0..300 {
            let (mut tracker, mut broker) = (Tracker::new(), Broker::default());
            let (mut out, mut accepted, mut taken) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
            let mut next = 1;
            for _ in 0..random(400) {
                match random(4) {
                    0 | 1 => {
                        broker.open.insert(next);
                        out.push(next);
                        next += 1;
                    }
                    2 if !out.is_empty() => {
                        let place = random(out.len() as u64) as usize;
                        let tag = out.swap_remove(place);
                        if random(5) == 0 {
                            assert!(tracker.take(tag));
                            broker.open.remove(&tag);
                            taken.insert(tag);
                        } else {
                            assert!(tracker.accept(tag));
                            accepted.insert(tag);
                        }
                    }
                    _ => {
                        let (mut frames, all) = (Vec::new(), random(2) == 0);
                        tracker.flush(all, &mut frames);
                        frames.into_iter().for_each(|frame| broker.ack(frame));
                        assert!(broker.acked == accepted || (!all && tracker.accepted() > 0));
                        assert!(broker.acked.is_subset(&accepted));
                    }
                }
            }
            let still: BTreeSet<u64> = out.iter().copied().collect();
            assert!(still.is_disjoint(&broker.acked) && taken.is_disjoint(&broker.acked));
        }
    }
}
