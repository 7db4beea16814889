//! When a failed message is tried again, and when it is given up.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{Class, Error, ErrorKind, url};

/// A ladder of delays and what comes at its end.
///
/// Written as `"5s 1m 10m dead-letter"`: the first failure waits 5 seconds, the second a
/// minute, the third ten, the fourth ends in the dead letters. `keep-trying` instead of
/// `dead-letter` repeats the last rung for ever. Units: `ms`, `s`, `m`, `h`, `d`.
///
/// The ladder is compiled once for each broker: delay queues on RabbitMQ, retry topics on
/// Kafka, delay levels on RocketMQ. The delays of a broker are floors. On topics that are
/// consumed in order the ladder waits in the process, between a sixteenth of a delay and the
/// whole, so that messages that failed together are not tried together again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    rungs: Vec<Duration>,
    end: End,
    business_limit: Option<u32>,
}

/// What happens when the ladder is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The message becomes a dead letter.
    DeadLetter,
    /// The last rung repeats.
    KeepTrying,
}

/// More rungs than this are a mistake: each is a queue or topic on the broker.
const RUNGS_MAX: usize = 64;
/// A panic or a message that breaks its connection is not retried for ever, whatever the
/// policy says.
const PANICS_MAX: u32 = 10;

impl Default for RetryPolicy {
    /// `"5s 1m 10m dead-letter"`.
    fn default() -> Self {
        Self {
            rungs: [5, 60, 600].map(Duration::from_secs).to_vec(),
            end: End::DeadLetter,
            business_limit: None,
        }
    }
}

impl RetryPolicy {
    /// A ladder of these delays.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) for a zero delay, for more than 64 rungs, and for
    /// `KeepTrying` without any rung.
    pub fn new(rungs: impl IntoIterator<Item = Duration>, end: End) -> Result<Self, Error> {
        let rungs: Vec<_> = rungs.into_iter().collect();
        if rungs.iter().any(Duration::is_zero) {
            return Err(config("a retry delay is zero; the shortest is 1ms"));
        }
        if rungs.len() > RUNGS_MAX {
            return Err(config(&format!("{} retry delays; the most is {RUNGS_MAX}", rungs.len())));
        }
        if rungs.is_empty() && end == End::KeepTrying {
            return Err(config("keep-trying needs at least one delay, as in \"5s keep-trying\""));
        }
        Ok(Self { rungs, end, business_limit: None })
    }

    /// A ladder of `retries` rungs that doubles from `base` up to `cap`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn exponential(base: Duration, cap: Duration, retries: u32) -> Result<Self, Error> {
        let rung = |i: u32| base.saturating_mul(2u32.saturating_pow(i)).min(cap);
        Self::new((0..retries).map(rung), End::DeadLetter)
    }

    /// How often a [`Class::BusinessLimited`] failure is retried before the dead letter; as
    /// often as the ladder has rungs unless set.
    pub fn business_limit(mut self, retries: u32) -> Self {
        self.business_limit = Some(retries);
        self
    }

    /// The delays.
    pub fn rungs(&self) -> &[Duration] {
        &self.rungs
    }

    /// What comes at the end.
    pub fn end(&self) -> End {
        self.end
    }

    /// The longest time from the first failure to the last run, without waiting in queues;
    /// `None` if it has no end.
    pub fn horizon(&self) -> Option<Duration> {
        match self.end {
            End::DeadLetter => Some(self.rungs.iter().fold(Duration::ZERO, |a, b| a.saturating_add(*b))),
            End::KeepTrying => None,
        }
    }

    /// The delay before the next run, or `None` for the dead letter, after `attempt` charged
    /// runs (1 after the first failure).
    pub fn next(&self, class: Class, attempt: u32) -> Option<Duration> {
        let rungs = u32::try_from(self.rungs.len()).unwrap_or(u32::MAX);
        let retries = match (class, self.end) {
            (Class::Business, _) => return None,
            (Class::BusinessLimited, _) => self.business_limit.unwrap_or(rungs),
            (Class::System, End::DeadLetter) => rungs,
            (Class::System, End::KeepTrying) => u32::MAX,
        };
        self.rung(attempt).filter(|_| attempt <= retries)
    }

    /// As [`next`](Self::next) for a panic, which is tried again at most ten times even by
    /// a policy that keeps trying.
    pub fn next_after_panic(&self, attempt: u32) -> Option<Duration> {
        self.next(Class::System, attempt).filter(|_| attempt < PANICS_MAX)
    }

    fn rung(&self, attempt: u32) -> Option<Duration> {
        let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        self.rungs.get(index.min(self.rungs.len().saturating_sub(1))).copied()
    }
}

/// A wait in process: between a sixteenth of `delay` and the whole, so that messages that
/// failed together do not come back together. `seed` is any number that differs between
/// messages.
pub(crate) fn jittered(delay: Duration, seed: u64) -> Duration {
    // splitmix64: spreads neighbouring seeds over the whole range.
    let mut x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    let part = (x % 1024) as u32;
    let floor = delay / 16;
    (floor + (delay - floor) / 1024 * part).max(Duration::from_millis(1)).min(delay)
}

impl FromStr for RetryPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let end = match words.pop() {
            Some("dead-letter") => End::DeadLetter,
            Some("keep-trying") => End::KeepTrying,
            _ => {
                return Err(config(&format!(
                    "retry policy {text:?} does not say what comes at its end; \
                     write \"5s 1m dead-letter\" or \"5s 1m keep-trying\""
                )));
            }
        };
        let rungs = words.into_iter().map(parse_duration).collect::<Result<Vec<_>, _>>()?;
        Self::new(rungs, end)
    }
}

impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rung in &self.rungs {
            write!(f, "{} ", url::Time(*rung))?;
        }
        f.write_str(match self.end {
            End::DeadLetter => "dead-letter",
            End::KeepTrying => "keep-trying",
        })
    }
}

fn parse_duration(word: &str) -> Result<Duration, Error> {
    url::duration(word).filter(|delay| !delay.is_zero()).ok_or_else(|| {
        config(&format!(
            "{word:?} is not a retry delay; write a whole number above 0 with ms, s, m, h or d, as in 5s"
        ))
    })
}

fn config(message: &str) -> Error {
    Error::new(ErrorKind::Config, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str) -> RetryPolicy {
        text.parse().unwrap()
    }

    #[test]
    fn the_ladder_is_climbed_rung_by_rung() {
        let ladder = policy("5s 1m 10m dead-letter");
        let next: Vec<_> = (1..6).map(|a| ladder.next(Class::System, a).map(|d| d.as_secs())).collect();
        assert_eq!(next, [Some(5), Some(60), Some(600), None, None]);
        assert_eq!(ladder.next(Class::Business, 1), None);
        assert_eq!(ladder.horizon(), Some(Duration::from_secs(665)));
    }

    #[test]
    fn keep_trying_repeats_the_last_rung_but_not_for_panics() {
        let ladder = policy("1s 2s keep-trying");
        assert_eq!(ladder.next(Class::System, u32::MAX), Some(Duration::from_secs(2)));
        assert!(ladder.next_after_panic(9).is_some());
        assert!(ladder.next_after_panic(10).is_none());
        assert_eq!(ladder.horizon(), None);
    }

    #[test]
    fn the_business_limit_counts_retries() {
        let ladder = policy("1s 2s 3s dead-letter").business_limit(1);
        assert!(ladder.next(Class::BusinessLimited, 1).is_some());
        assert!(ladder.next(Class::BusinessLimited, 2).is_none());
        let more = policy("1s dead-letter").business_limit(5);
        assert_eq!(more.next(Class::BusinessLimited, 5), Some(Duration::from_secs(1)));
        assert!(more.next(Class::BusinessLimited, 6).is_none());
        assert!(policy("dead-letter").business_limit(5).next(Class::BusinessLimited, 1).is_none());
    }

    #[test]
    fn er2_two_hundred_attempts_stay_within_base_and_cap() {
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(60));
        let ladder = RetryPolicy::exponential(base, cap, 64).unwrap();
        for attempt in 1..=200 {
            if let Some(delay) = ladder.next(Class::System, attempt) {
                assert!(delay >= base && delay <= cap, "{attempt}: {delay:?}");
            }
        }
        let endless = RetryPolicy { end: End::KeepTrying, ..ladder };
        for attempt in (1..=200).chain([u32::MAX]) {
            let delay = endless.next(Class::System, attempt).unwrap();
            assert!(delay >= base && delay <= cap, "{attempt}: {delay:?}");
        }
    }

    #[test]
    fn er2_waits_in_process_are_spread() {
        let mut slots = [0; 11];
        for seed in 0..500 {
            let wait = jittered(Duration::from_secs(1), seed);
            assert!(!wait.is_zero() && wait <= Duration::from_secs(1));
            slots[(wait.as_millis() / 100) as usize] += 1;
        }
        assert!(slots.iter().all(|n| *n <= 500 * 15 / 100), "{slots:?}");
    }

    #[test]
    fn bad_policies_say_what_to_write() {
        for text in [
            "",
            "5s",
            "5 dead-letter",
            "-5s dead-letter",
            "0s dead-letter",
            "x dead-letter",
            "5s 1y dead-letter",
            "keep-trying",
            "99999999999999999999s dead-letter",
            "5s dead-letter 1m",
        ] {
            let error = text.parse::<RetryPolicy>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{text}");
            assert!(error.to_string().contains("5s") || error.to_string().contains("1ms"), "{error}");
        }
        assert!(RetryPolicy::new([Duration::ZERO], End::DeadLetter).is_err());
    }
}
