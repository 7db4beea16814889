//! What rides in the text of a commit.
//!
//! ```text
//! oncemq1 <cluster> <offset> <c or u> <reach> <finished>
//! ```
//!
//! `c` says that nothing was under way when it was written. `reach` is how many messages
//! from the offset on its writer may hand out before it commits again: those may have been
//! delivered before, if it never came to that. `finished` are ranges above the offset, each
//! as distance and length in base 36: `3-1,2-10`. Tools that copy offsets to another
//! cluster or group copy the text too, so it counts only with its own cluster and offset.

use std::ops::RangeInclusive;

/// The broker's `offset.metadata.max.bytes`, unless its operator changed it.
const MAX: usize = 4096;
const MARK: &str = "oncemq1";

/// What a commit says beside its offset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Note {
    pub(crate) clean: bool,
    pub(crate) reach: usize,
    /// Finished above the offset, in rising order.
    pub(crate) finished: Vec<RangeInclusive<i64>>,
}

impl Note {
    /// The text for a commit of this offset. Ranges that do not fit are left out, the highest
    /// first: their messages run again, and the record answers.
    pub(crate) fn write(&self, cluster: &str, offset: i64) -> String {
        let state = if self.clean { 'c' } else { 'u' };
        let mut text = format!("{MARK} {cluster} {offset} {state} {} ", self.reach);
        let mut last = offset;
        for range in &self.finished {
            let (Some(gap), Some(length)) =
                (range.start().checked_sub(last), range.end().checked_sub(*range.start()))
            else {
                break;
            };
            let comma = if text.ends_with(' ') { "" } else { "," };
            let part = format!("{comma}{}-{}", base36(gap), base36(length));
            if text.len() + part.len() > MAX {
                break;
            }
            text.push_str(&part);
            last = *range.end();
        }
        text
    }

    /// Reads the text of a commit of this offset. `None` if somebody else wrote it, or for
    /// another cluster or offset.
    pub(crate) fn read(text: &str, cluster: &str, offset: i64) -> Option<Self> {
        let mut words = text.split(' ');
        let ours = words.next()? == MARK && words.next()? == cluster;
        if !ours || words.next()?.parse() != Ok(offset) {
            return None;
        }
        let clean = match words.next()? {
            "c" => true,
            "u" => false,
            _ => return None,
        };
        let reach = words.next()?.parse().ok()?;
        let mut finished = Vec::new();
        let mut last = offset;
        for part in words.next()?.split(',').filter(|part| !part.is_empty()) {
            let (gap, length) = part.split_once('-')?;
            let start = last.checked_add(i64::from_str_radix(gap, 36).ok()?)?;
            let end = start.checked_add(i64::from_str_radix(length, 36).ok()?)?;
            if start < last || end < start {
                return None;
            }
            finished.push(start..=end);
            last = end;
        }
        Some(Self { clean, reach, finished })
    }
}

fn base36(mut number: i64) -> String {
    let mut digits = Vec::new();
    loop {
        let digit = u32::try_from(number % 36).unwrap_or(0);
        digits.push(char::from_digit(digit, 36).unwrap_or('0'));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        Note {
            clean: false,
            reach: 4096,
            finished: vec![101..=101, 103..=140, 2_000_000_000_000..=2_000_000_000_036],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = note().write("abc-_1", 100);
        assert!(text.is_ascii() && text.len() < 80, "{text}");
        assert_eq!(Note::read(&text, "abc-_1", 100), Some(note()));
        let clean = Note { clean: true, ..Note::default() };
        assert_eq!(Note::read(&clean.write("c", 0), "c", 0), Some(clean));
    }

    #[test]
    fn a_text_for_another_cluster_or_offset_does_not_count() {
        let text = note().write("abc", 100);
        assert_eq!(Note::read(&text, "abd", 100), None);
        assert_eq!(Note::read(&text, "abc", 101), None);
    }

    #[test]
    fn what_does_not_fit_is_left_out_from_the_end() {
        let finished: Vec<_> = (0..5_000).map(|n| 100 + 2 * n + 1..=100 + 2 * n + 1).collect();
        let text = Note { clean: false, reach: 1, finished: finished.clone() }.write("abc", 100);
        assert!(text.len() <= MAX && text.len() > MAX - 10, "{}", text.len());
        let read = Note::read(&text, "abc", 100).unwrap();
        assert!(read.finished.len() > 900);
        assert_eq!(read.finished, finished[..read.finished.len()]);
    }

    #[test]
    fn foreign_texts_are_no_notes() {
        for text in [
            "",
            "oncemq1",
            "oncemq1 abc 100 c",
            "oncemq1 abc 100 x 1 ",
            "oncemq1 abc 100 u 1 1-",
            "oncemq1 abc 100 u 1 1--5",
            "oncemq1 abc 100 u 1 -1-5",
            "oncemq1 abc 100 u 1 1y2p0ij32e8e7-1y2p0ij32e8e7",
            "ä",
        ] {
            assert_eq!(Note::read(text, "abc", 100), None, "{text:?}");
        }
    }
}
