//! Partitions that come, go, and are read again.
//!
//! A unit is closed or aborted before any partition goes, so a partition whose records are in
//! a unit has been held since they were read.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use oncemq_core::{Error, ErrorKind};
use rdkafka::consumer::{Consumer, RebalanceProtocol};
use rdkafka::{Offset, TopicPartitionList};

use super::driver::Driver;
use super::lane::{Lane, Report};
use super::part::Part;
use super::writer::Trouble;
use crate::config::Start;
use crate::error;
use crate::source::context::{Change, Partition, assign, list_of, unassign};

/// The longest a question to the broker may keep the thread from polling.
const ASK: Duration = Duration::from_secs(5);
/// After this time a broker that has just started knows its partitions.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// The wait after a question that was not answered.
const AGAIN: Duration = Duration::from_millis(200);

/// Partitions that go.
pub(super) struct Leaving {
    pub(super) list: Vec<Partition>,
    /// They are gone already.
    lost: bool,
    deadline: Instant,
}

/// A position of a partition.
struct Position {
    topic: String,
    number: i32,
    offset: i64,
    committed: bool,
}

impl Driver {
    /// Makes the changes that the group has decided, one at a time.
    pub(super) fn change(&mut self) -> Result<(), Error> {
        self.let_go()?;
        if self.leaving.is_none() && self.assigning.is_none() {
            match self.client.context().next_change() {
                Some(Change::Assign(list)) => self.assigning = Some(list),
                Some(Change::Revoke { partitions, lost }) => {
                    let deadline = Instant::now() + self.settings.config.revoke_timeout;
                    let parts = self.parts.iter().filter(|part| partitions.iter().any(|one| part.is(one)));
                    parts.for_each(Part::stop);
                    self.leaving = Some(Leaving { list: partitions, lost, deadline });
                    self.let_go()?;
                }
                None => {}
            }
        }
        if self.assigning.is_some() && Instant::now() >= self.retry_at {
            let list = self.assigning.take().unwrap_or_default();
            match self.begin(&list) {
                Ok(()) => self.joined = true,
                Err(why) => {
                    self.ill(why.to_string());
                    self.retry_at = Instant::now() + AGAIN;
                    self.assigning = Some(list);
                }
            }
        }
        Ok(())
    }

    /// Lets partitions go whose records have ended, with what they finished.
    fn let_go(&mut self) -> Result<(), Error> {
        let Some(leaving) = &self.leaving else { return Ok(()) };
        let lost = leaving.lost || self.client.assignment_lost();
        let list = &leaving.list;
        let runs = |part: &Part| part.lane.is_some() && list.iter().any(|one| part.is(one));
        if !lost && Instant::now() < leaving.deadline && self.parts.iter().any(runs) {
            return Ok(());
        }
        if lost && self.unit.is_some() {
            self.undo(Trouble::Redo("the partitions are lost".to_owned()))?;
        } else if let Err(trouble) = self.close() {
            self.undo(trouble)?;
        }
        let Some(left) = self.leaving.take() else { return Ok(()) };
        self.parts.retain(|part| !left.list.iter().any(|one| part.is(one)));
        // Refused only when the group has gone on without this member, which the next poll
        // tells.
        let _ = unassign(&self.client, &list_of(&left.list));
        Ok(())
    }

    fn begin(&mut self, list: &[Partition]) -> Result<(), Error> {
        let positions = self.positions(list)?;
        let mut assigned = TopicPartitionList::with_capacity(positions.len());
        let mut parts = Vec::with_capacity(positions.len());
        for position in positions {
            let names = self.settings.topics.iter().find(|names| *names.work == *position.topic);
            let Some(names) = names else { continue };
            // Before it is assigned, so that no record takes the way of all others.
            let queue = self.client.split_partition_queue(&position.topic, position.number);
            let mut queue =
                queue.ok_or_else(|| Error::new(ErrorKind::Internal, "a partition has no queue"))?;
            let (arrived, reporter) = (self.arrived.clone(), self.reporter.clone());
            queue.set_nonempty_callback(move || {
                if !arrived.swap(true, SeqCst) {
                    let _ = reporter.send(Report::Arrived);
                }
            });
            assigned
                .add_partition_offset(&names.work, position.number, Offset::Offset(position.offset))
                .map_err(|refused| error::from_client("assigning partitions", &refused))?;
            self.tenures += 1;
            parts.push(Part::new(names, position.number, queue, self.tenures, position.offset));
        }
        assign(&self.client, &assigned)
            .map_err(|refused| error::from_client("assigning partitions", &refused))?;
        self.parts.append(&mut parts);
        Ok(())
    }

    /// The committed offsets, once no transaction is open that would change them.
    fn positions(&self, list: &[Partition]) -> Result<Vec<Position>, Error> {
        if list.is_empty() {
            return Ok(Vec::new());
        }
        let committed = self
            .client
            .committed_offsets(list_of(list), ASK)
            .map_err(|refused| error::from_client("reading the committed offsets", &refused))?;
        let mut positions = Vec::with_capacity(list.len());
        for one in committed.elements() {
            one.error().map_err(|refused| error::from_client("reading a committed offset", &refused))?;
            let (offset, committed) = match one.offset() {
                Offset::Offset(offset) => (offset, true),
                _ => (self.begin_of(one.topic(), one.partition())?, false),
            };
            let (topic, number) = (one.topic().to_owned(), one.partition());
            positions.push(Position { topic, number, offset, committed });
        }
        Ok(positions)
    }

    /// Where a partition begins of which nothing is committed.
    fn begin_of(&self, topic: &str, number: i32) -> Result<i64, Error> {
        let known = self.parts.iter().find(|part| part.number == number && *part.topic == *topic);
        if let Some(part) = known {
            return Ok(part.begin);
        }
        let (low, high) = self.bounds(topic, number)?;
        Ok(match self.settings.config.start {
            Start::Earliest => low,
            Start::Latest => high,
        })
    }

    fn bounds(&self, topic: &str, number: i32) -> Result<(i64, i64), Error> {
        self.client
            .fetch_watermarks(topic, number, ASK)
            .map_err(|refused| error::from_client("asking for the bounds of a partition", &refused))
    }

    /// The bounds, looked at twice where this offset is beyond the end: a broker that has just
    /// started may not know yet how far it had come.
    fn bounds_around(&self, topic: &str, number: i32, offset: i64) -> Result<(i64, i64), Error> {
        let (low, high) = self.bounds(topic, number)?;
        if offset <= high {
            return Ok((low, high));
        }
        std::thread::sleep(SECOND_LOOK);
        self.bounds(topic, number)
    }

    /// Has everything read again from the committed offsets, after this time.
    pub(super) fn rewind_in(&mut self, wait: Duration) {
        for part in &mut self.parts {
            self.tenures += 1;
            part.forget(self.tenures);
        }
        self.retry_at = Instant::now() + wait;
    }

    /// Gives a lane to every partition that has none, at its committed offset.
    pub(super) fn rewind(&mut self) -> Result<(), Error> {
        if Instant::now() < self.retry_at || self.stopping.is_some() || self.leaving.is_some() {
            return Ok(());
        }
        let prepared = self.writer.prepare();
        match prepared.and_then(|()| self.read_again()) {
            Ok(()) => Ok(()),
            Err(Trouble::End(error)) => Err(error),
            Err(Trouble::Refused(why) | Trouble::Redo(why)) if self.unit.is_some() => {
                self.undo(Trouble::Redo(why))
            }
            Err(Trouble::Refused(why) | Trouble::Redo(why)) => {
                self.ill(why);
                self.retry_at = Instant::now() + AGAIN;
                Ok(())
            }
        }
    }

    fn read_again(&mut self) -> Result<(), Trouble> {
        let without = self.parts.iter().filter(|part| part.lane.is_none());
        let list: Vec<Partition> = without.map(|part| (part.topic.to_string(), part.number)).collect();
        if list.is_empty() {
            return Ok(());
        }
        let redo = |why: Error| Trouble::Redo(why.to_string());
        let positions = self.positions(&list).map_err(redo)?;
        let mut begins = Vec::new();
        for position in &positions {
            let is = |part: &Part| part.is(&(position.topic.clone(), position.number));
            let Some(place) = self.parts.iter().position(is) else { continue };
            let mut offset = position.offset;
            if self.parts[place].gap {
                let (topic, number) = (&position.topic, position.number);
                let (low, high) = self.bounds_around(topic, number, offset).map_err(redo)?;
                offset = if (low..=high).contains(&offset) { offset } else { low };
            }
            let part = &mut self.parts[place];
            if part.next != offset {
                self.client
                    .seek(&position.topic, position.number, Offset::Offset(offset), ASK)
                    .map_err(|refused| redo(error::from_client("going back", &refused)))?;
                part.next = offset;
            }
            if !position.committed {
                begins.push((part.tenure, part.begin));
            }
        }
        if !begins.is_empty() && self.settings.config.start == Start::Latest {
            self.commit_begins(&begins)?;
        }
        for part in self.parts.iter_mut().filter(|part| part.lane.is_none()) {
            let (work, dead, reports) = (self.work.clone(), part.dead.clone(), self.reporter.clone());
            part.lane = Some(Lane::start(&self.runtime, work, dead, part.tenure, reports));
        }
        Ok(())
    }

    /// Goes on with the first record that is there where the next one is gone.
    pub(super) fn mend(&mut self) -> Result<(), Error> {
        if !self.broken || Instant::now() < self.retry_at || self.leaving.is_some() {
            return Ok(());
        }
        match self.begin_after_gaps() {
            // Nothing that is at work may count: until the next look at the group nobody knows
            // whether the client took this for the answer to a change.
            Ok(()) => {
                self.broken = false;
                self.undo(Trouble::Redo("records are gone from the log".to_owned()))
            }
            Err(why) => {
                self.ill(why.to_string());
                self.retry_at = Instant::now() + AGAIN;
                Ok(())
            }
        }
    }

    /// The client has given up what it could not go on with, does not say which that is, and
    /// would refuse a seek: it gets all partitions anew.
    fn begin_after_gaps(&mut self) -> Result<(), Error> {
        let cooperative = matches!(self.client.rebalance_protocol(), RebalanceProtocol::Cooperative);
        let mut list = TopicPartitionList::new();
        for place in 0..self.parts.len() {
            let part = &self.parts[place];
            let (low, high) = self.bounds_around(&part.topic, part.number, part.next)?;
            let part = &mut self.parts[place];
            if !(low..=high).contains(&part.next) {
                self.summary.gaps += u64::from(!part.gap);
                // Beyond the end the partition was made anew or cut, and begins at its beginning.
                (part.gap, part.next) = (true, low);
            }
            list.add_partition_offset(&part.topic, part.number, Offset::Offset(part.next))
                .map_err(|refused| error::from_client("going on after a gap", &refused))?;
        }
        let left = if cooperative { unassign(&self.client, &list) } else { Ok(()) };
        left.and_then(|()| assign(&self.client, &list))
            .map_err(|refused| error::from_client("going on after a gap", &refused))
    }
}
