//! How far a consumer has come in one partition of a log.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// The offsets of one partition from the lowest unfinished one to the next one to come.
///
/// A log broker remembers one number a partition, and everything below it counts as done.
/// Messages finish in any order, so that number may only be the lowest unfinished offset:
/// [`committable`](Self::committable). Offsets may have holes (compaction, markers of
/// transactions); a hole holds nothing up.
///
/// ```
/// use oncemq_core::Watermark;
///
/// let mut mark = Watermark::new(7);
/// for offset in [7, 8, 12] {
///     assert!(mark.begin(offset));
/// }
/// mark.finish(8);
/// assert_eq!(mark.committable(), 7);
/// mark.finish(7);
/// assert_eq!(mark.committable(), 12); // 9 to 11 never came
/// ```
#[derive(Debug, Clone)]
pub struct Watermark {
    /// Everything from here on has not come yet.
    next: i64,
    /// In order; the first one is unfinished.
    window: VecDeque<Entry>,
    /// Ranges that were finished before the partition came here, in order.
    known: VecDeque<RangeInclusive<i64>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    offset: i64,
    done: bool,
}

impl Watermark {
    /// Goes on at this offset: everything below is finished.
    pub fn new(next: i64) -> Self {
        Self { next, window: VecDeque::new(), known: VecDeque::new() }
    }

    /// Offsets that are finished although they are not below the offset it goes on at:
    /// [`begin`](Self::begin) says of them that there is nothing to do. In rising order.
    pub fn with_finished(mut self, ranges: impl IntoIterator<Item = RangeInclusive<i64>>) -> Self {
        self.known = ranges.into_iter().collect();
        self
    }

    /// The message at this offset has come. Returns whether it is to be handled: not if it
    /// came before, or was finished before.
    pub fn begin(&mut self, offset: i64) -> bool {
        if offset < self.next {
            return false;
        }
        self.next = offset.saturating_add(1);
        let done = self.was_finished(offset);
        if !done || !self.window.is_empty() {
            self.window.push_back(Entry { offset, done });
        }
        !done
    }

    fn was_finished(&mut self, offset: i64) -> bool {
        while self.known.front().is_some_and(|range| *range.end() < offset) {
            self.known.pop_front();
        }
        self.known.front().is_some_and(|range| range.contains(&offset))
    }

    /// The message at this offset is done. Returns whether it was begun and not done yet.
    pub fn finish(&mut self, offset: i64) -> bool {
        let Some(place) = self.place(offset) else { return false };
        let was_done = std::mem::replace(&mut self.window[place].done, true);
        self.advance();
        !was_done
    }

    /// Without holes the place follows from the offset; with holes it is further to the front.
    fn place(&self, offset: i64) -> Option<usize> {
        let first = self.window.front()?.offset;
        let distance = usize::try_from(offset.checked_sub(first)?).ok()?;
        if self.window.get(distance).is_some_and(|entry| entry.offset == offset) {
            return Some(distance);
        }
        self.window.binary_search_by_key(&offset, |entry| entry.offset).ok()
    }

    /// Everything below this offset is gone from the log: what is unfinished of it will never
    /// be finished, and holds nothing up.
    pub fn skip_to(&mut self, offset: i64) {
        self.next = self.next.max(offset);
        for entry in self.window.iter_mut().take_while(|entry| entry.offset < offset) {
            entry.done = true;
        }
        self.advance();
    }

    fn advance(&mut self) {
        while self.window.front().is_some_and(|entry| entry.done) {
            self.window.pop_front();
        }
    }

    /// The offset to commit: the lowest unfinished one, or the next one to come.
    pub fn committable(&self) -> i64 {
        self.window.front().map_or(self.next, |entry| entry.offset)
    }

    /// The lowest offset that has not come yet.
    pub fn next(&self) -> i64 {
        self.next
    }

    /// Messages from the lowest unfinished one on: what a crash would repeat, if it were
    /// committed now.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Whether everything that was begun is finished.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// What is finished above the lowest unfinished offset, in rising order. A range may run
    /// over a hole.
    pub fn finished(&self) -> impl Iterator<Item = RangeInclusive<i64>> {
        let not_come = self.known.iter().map(|range| *range.start().max(&self.next)..=*range.end());
        let mut entries = self.window.iter().peekable();
        std::iter::from_fn(move || {
            let first = entries.find(|entry| entry.done)?.offset;
            let mut last = first;
            while let Some(entry) = entries.next_if(|entry| entry.done) {
                last = entry.offset;
            }
            Some(first..=last)
        })
        .chain(not_come.filter(|range| !range.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The same, as plainly as it can be said.
    #[derive(Default)]
    struct Model {
        next: i64,
        begun: BTreeMap<i64, bool>,
    }

    impl Model {
        fn committable(&self) -> i64 {
            let open = self.begun.iter().find(|(_, done)| !**done);
            open.map_or(self.next, |(offset, _)| *offset)
        }

        fn finished(&self) -> Vec<i64> {
            let from = self.committable();
            self.begun.iter().filter(|(offset, done)| **done && **offset > from).map(|(o, _)| *o).collect()
        }
    }

    /// Numbers that look random and are the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    fn compare(mark: &Watermark, model: &Model, seed: u64) {
        assert_eq!((mark.committable(), mark.next()), (model.committable(), model.next), "seed {seed}");
        let ranges: Vec<_> = mark.finished().collect();
        let inside: Vec<_> =
            model.begun.keys().copied().filter(|o| ranges.iter().any(|r| r.contains(o))).collect();
        assert_eq!(inside, model.finished(), "seed {seed}");
    }

    #[test]
    fn kf5_generated_histories_commit_what_the_model_commits() {
        for seed in 0..500 {
            let mut numbers = Numbers(seed);
            let start = i64::try_from(numbers.below(1_000)).unwrap();
            let mut mark = Watermark::new(start);
            let mut model = Model { next: start, ..Model::default() };
            for _ in 0..300 {
                match numbers.below(100) {
                    0..45 => {
                        // One in ten leaves a hole.
                        let hole = if numbers.below(10) == 0 { numbers.below(50) } else { 0 };
                        let offset = model.next + i64::try_from(hole).unwrap();
                        assert!(mark.begin(offset));
                        model.begun.insert(offset, false);
                        model.next = offset + 1;
                    }
                    45..95 => {
                        let open: Vec<_> =
                            model.begun.iter().filter(|(_, done)| !**done).map(|(o, _)| *o).collect();
                        let Some(last) = open.len().checked_sub(1) else { continue };
                        let offset = open[usize::try_from(numbers.below(last as u64 + 1)).unwrap()];
                        assert!(mark.finish(offset));
                        assert!(!mark.finish(offset), "finished twice");
                        model.begun.insert(offset, true);
                    }
                    95..98 => {
                        // What came before comes again, as after a rewind of the client.
                        assert!(!mark.begin(model.next - 1 - i64::try_from(numbers.below(5)).unwrap()));
                    }
                    _ => {
                        let gone = model.committable() + i64::try_from(numbers.below(8)).unwrap();
                        mark.skip_to(gone);
                        model.begun.range_mut(..gone).for_each(|(_, done)| *done = true);
                        model.next = model.next.max(gone);
                    }
                }
                compare(&mark, &model, seed);
            }
        }
    }

    #[test]
    fn kf5_a_later_offset_that_is_finished_first_commits_nothing() {
        let mut mark = Watermark::new(0);
        assert!(mark.begin(0) && mark.begin(1));
        mark.finish(1);
        assert_eq!(mark.committable(), 0);
        mark.finish(0);
        assert_eq!(mark.committable(), 2);
    }

    #[test]
    fn kf6_what_is_committed_is_the_next_offset() {
        let mut mark = Watermark::new(41);
        mark.begin(41);
        mark.finish(41);
        assert_eq!(mark.committable(), 42);
    }

    #[test]
    fn what_was_finished_before_a_restart_is_not_begun_again() {
        let mut first = Watermark::new(0);
        assert!((0..10).all(|offset| first.begin(offset)));
        assert!([2, 3, 4, 7].into_iter().all(|offset| first.finish(offset)));
        let ranges: Vec<_> = first.finished().collect();
        assert_eq!(ranges, [2..=4, 7..=7]);
        let mut second = Watermark::new(first.committable()).with_finished(ranges);
        let again: Vec<_> = (0..10).filter(|offset| second.begin(*offset)).collect();
        assert_eq!(again, [0, 1, 5, 6, 8, 9]);
        assert!(again.into_iter().all(|offset| second.finish(offset)));
        assert_eq!(second.committable(), 10);
    }

    #[test]
    fn what_was_finished_before_and_has_not_come_again_is_still_known() {
        let mut mark = Watermark::new(0).with_finished([5..=9]);
        mark.begin(0);
        assert_eq!(mark.finished().collect::<Vec<_>>(), [5..=9]);
        assert!(!mark.begin(5));
        assert_eq!(mark.finished().collect::<Vec<_>>(), [5..=5, 6..=9]);
    }
}
