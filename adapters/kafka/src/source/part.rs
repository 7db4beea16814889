//! One partition, while it is ours.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use oncemq_core::partitions::{Point, Progress};
use oncemq_core::{Message, Origin, Watermark};
use tokio::time::Instant;

use super::metadata::Note;
use crate::records::Record;

/// The most messages handed out beyond the last commit. Behind one that does not finish, this
/// is where its partition stops.
const REACH_MAX: usize = 65_536;

/// A partition of this consumer.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) topic: Arc<str>,
    pub(crate) number: i32,
    pub(crate) subscription: u16,
    /// Which member of the consumer's groups has it.
    pub(crate) member: Member,
    /// On a topic of a rung: how long its messages wait after they were written.
    rung: Option<Duration>,
    /// Broker and topic of its messages.
    origin: Origin,
    pub(crate) stage: Stage,
    /// The client was told to fetch nothing of it.
    pub(crate) paused: bool,
    pub(crate) progress: Progress,
    /// The offset of the last commit; none if the group has committed nothing here.
    committed: Option<i64>,
    /// What that commit said beside.
    told: Note,
    /// Fetched and not handed out yet.
    fetched: VecDeque<Record>,
    /// The least reach of a commit.
    reach_min: usize,
    /// Whether every step of the watermark is worth a commit.
    commit_each: bool,
}

/// What becomes of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing is handed out before a commit says that something may be.
    Opening,
    /// It is ours.
    Held,
    /// Nothing more is handed out; what runs may finish until then.
    Leaving { deadline: Instant },
    /// The last commit is under way, until then at most.
    Committing { deadline: Instant },
    /// It can be let go.
    Done,
}

/// Where a partition begins.
#[derive(Debug, Clone)]
pub(crate) struct Begin {
    pub(crate) offset: i64,
    /// Whether the group had committed it, and what that commit said beside.
    pub(crate) committed: Option<Option<Note>>,
}

/// A consumer is a member of two groups, one for its topics and one for their rungs. In one
/// group, idle partitions of rungs would count as much as busy ones, and an instance could be
/// left with nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Member {
    Topics,
    Rungs,
}

impl Member {
    fn of(rung: Option<Duration>) -> Self {
        if rung.is_some() { Member::Rungs } else { Member::Topics }
    }
}

/// Which topic of the consumer a partition belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) topic: Arc<str>,
    pub(crate) subscription: u16,
    pub(crate) rung: Option<Duration>,
}

/// How much may be under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) in_flight: usize,
    pub(crate) commit_each: bool,
}

impl Part {
    pub(crate) fn new(place: &Place, number: i32, begin: Begin, pace: Pace) -> Self {
        let reach_min = pace.in_flight.saturating_mul(2).clamp(64, REACH_MAX);
        let (committed, told) = match begin.committed {
            None => (None, Note::default()),
            // Somebody else's commit: what is there may have been handed out.
            Some(None) => (Some(begin.offset), Note { reach: reach_min, ..Note::default() }),
            Some(Some(note)) => (Some(begin.offset), note),
        };
        let mark = Watermark::new(begin.offset).with_finished(told.finished.clone());
        Self {
            origin: Origin::new("kafka", place.topic.clone()),
            topic: place.topic.clone(),
            number,
            subscription: place.subscription,
            member: Member::of(place.rung),
            rung: place.rung,
            stage: Stage::Opening,
            paused: false,
            progress: Progress::new(mark, if told.clean { 0 } else { told.reach }),
            committed,
            told,
            fetched: VecDeque::new(),
            reach_min,
            commit_each: pace.commit_each,
        }
    }

    /// Takes in a record of the client. Returns whether it was kept.
    pub(crate) fn fetched(&mut self, record: Record) -> bool {
        let ours = matches!(self.stage, Stage::Opening | Stage::Held);
        if ours {
            self.fetched.push_back(record);
        }
        ours
    }

    /// Messages that are fetched and not handed out.
    pub(crate) fn waiting(&self) -> usize {
        self.fetched.len()
    }

    /// Whether it cannot go on for a while, whatever room there is and whatever is committed:
    /// its next message waits for its time, or too much waits for one that does not finish.
    pub(crate) fn is_stuck(&self, now: SystemTime) -> bool {
        self.progress.mark().len() >= REACH_MAX || self.due(now).is_some()
    }

    /// Whether nothing more may be handed out before a commit.
    fn is_ahead(&self) -> bool {
        self.progress.ahead() >= self.told.reach
    }

    /// How long the next fetched message still has to wait.
    fn due(&self, now: SystemTime) -> Option<Duration> {
        let (rung, record) = (self.rung?, self.fetched.front()?);
        // The time of a record has no fractions of a millisecond.
        let rung = rung + Duration::from_millis(1);
        let written = record.timestamp().unwrap_or(now);
        let wait = written.checked_add(rung)?.duration_since(now).ok()?;
        // A clock that runs ahead of ours must not hold a message for longer than asked.
        (!wait.is_zero()).then(|| wait.min(rung))
    }

    /// The next message to hand out, and whether it may have been handed out before.
    pub(crate) fn next(&mut self, now: SystemTime) -> Option<(Message, bool)> {
        if self.stage != Stage::Held {
            return None;
        }
        if let Some(again) = self.progress.again() {
            return Some(again);
        }
        while !self.is_ahead() && self.due(now).is_none() {
            let record = self.fetched.pop_front()?;
            if let Some(suspect) = self.progress.begin(record.offset) {
                return Some((record.into_message(&self.origin, self.number), suspect));
            }
        }
        None
    }

    /// When time alone brings something.
    pub(crate) fn next_due(&self, now: Instant, clock: SystemTime) -> Option<Instant> {
        if self.stage != Stage::Held {
            return None;
        }
        let rung = self.due(clock).map(|wait| now + wait);
        self.progress.next_due().into_iter().chain(rung).min()
    }

    /// Whether a commit is worth a request of its own, before its time.
    pub(crate) fn wants_commit(&self) -> bool {
        let mark = self.progress.mark();
        self.stage == Stage::Opening
            || self.commit_each && self.committed.is_some_and(|offset| offset < mark.committable())
            || self.is_ahead() && mark.len() < REACH_MAX
            || self.progress.finished() > self.told.reach / 2
    }

    /// The offset to commit and what to say with it, if there is news.
    pub(crate) fn commit(&self) -> Option<Commit> {
        let last = matches!(self.stage, Stage::Committing { .. });
        let (progress, point) = (&self.progress, self.progress.point());
        let room = progress.finished().max(self.reach_min).saturating_mul(2);
        let reach = point.unfinished.saturating_add(room).min(REACH_MAX);
        let note = Note {
            clean: last && progress.out() == 0,
            reach: if last { progress.ahead().max(progress.suspects()) } else { reach },
            finished: progress.mark().finished().collect(),
        };
        let same = self.committed == Some(point.offset)
            && self.told.clean == note.clean
            && self.told.finished == note.finished
            && !(self.is_ahead() && note.reach > self.told.reach);
        (!same || self.stage == Stage::Opening).then_some(Commit { point, note })
    }

    /// The broker has this commit.
    pub(crate) fn committed(&mut self, commit: Commit) {
        self.committed = Some(commit.point.offset);
        self.told = commit.note;
        self.progress.committed(commit.point);
        if self.stage == Stage::Opening {
            self.stage = Stage::Held;
        }
    }

    /// The lowest offset that the client has not given yet.
    pub(crate) fn position(&self) -> i64 {
        let last = self.fetched.back().map(|record| record.offset);
        last.map_or(self.progress.mark().next(), |offset| offset + 1)
    }

    /// The partition has another history now: everything begins at this offset.
    pub(crate) fn start_again(&mut self, offset: i64) {
        self.progress = Progress::new(Watermark::new(offset), 0);
        self.fetched.clear();
        self.committed = None;
        if self.stage == Stage::Held {
            self.stage = Stage::Opening;
        }
    }
}

/// A commit of one partition.
#[derive(Debug, Clone)]
pub(crate) struct Commit {
    pub(crate) point: Point,
    pub(crate) note: Note,
}
