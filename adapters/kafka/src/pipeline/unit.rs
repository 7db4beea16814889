//! The open transaction: outputs of finished records, and their offsets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use oncemq_core::fate::Run;
use oncemq_core::{Class, Error, ErrorKind, failpoint};
use rdkafka::consumer::{Consumer, ConsumerGroupMetadata};
use rdkafka::{Offset, TopicPartitionList};

use super::driver::Driver;
use super::lane::{Done, Failed};
use super::writer::Trouble;

/// The wait after a first unit that was aborted in vain; it doubles up to the longest.
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(5);

pub(super) struct Unit {
    /// Taken with the first record. The group may have gone on without this member since: the
    /// broker then refuses the offsets.
    metadata: ConsumerGroupMetadata,
    opened: Instant,
    records: Vec<Member>,
    /// The next offset of each partition, by tenure.
    next: BTreeMap<u64, i64>,
    outputs: u64,
}

/// A record of a unit.
#[derive(Debug, Clone, Copy)]
struct Member {
    tenure: u64,
    offset: i64,
    attempt: u32,
    rejected: bool,
}

impl Driver {
    /// Takes a finished record into the unit.
    pub(super) fn add(&mut self, done: Done) -> Result<(), Trouble> {
        let Done { tenure, offset, outputs, attempt, rejected } = done;
        self.open()?;
        let Some(unit) = &mut self.unit else { return Ok(()) };
        unit.records.push(Member { tenure, offset, attempt, rejected });
        unit.next.insert(tenure, offset.saturating_add(1));
        for output in &outputs {
            self.writer.send(&output.topic, &output.message)?;
            unit.outputs += 1;
        }
        let most = if self.singly > 0 { 1 } else { self.settings.records };
        if unit.records.len() >= most { self.close() } else { Ok(()) }
    }

    fn open(&mut self) -> Result<(), Trouble> {
        if self.unit.is_some() {
            return Ok(());
        }
        let metadata = self.client.group_metadata();
        // While it is lost the metadata may name no member, and such a commit is not checked.
        let metadata = metadata.filter(|_| !self.client.assignment_lost());
        let metadata = metadata.ok_or_else(|| Trouble::Redo("the partitions are lost".to_owned()))?;
        self.writer.begin()?;
        let opened = Instant::now();
        self.unit = Some(Unit { metadata, opened, records: Vec::new(), next: BTreeMap::new(), outputs: 0 });
        Ok(())
    }

    /// When the unit is to be closed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.unit.as_ref().map(|unit| unit.opened + self.settings.interval)
    }

    /// Commits where partitions begin that the group has never committed, so that a later
    /// start does not begin at a later end.
    pub(super) fn commit_begins(&mut self, begins: &[(u64, i64)]) -> Result<(), Trouble> {
        self.open()?;
        if let Some(unit) = &mut self.unit {
            unit.next.extend(begins.iter().copied());
        }
        self.close()
    }

    /// Stores outputs and offsets together.
    pub(super) fn close(&mut self) -> Result<(), Trouble> {
        let Some(unit) = &self.unit else { return Ok(()) };
        let mut offsets = TopicPartitionList::with_capacity(unit.next.len());
        for part in &self.parts {
            if let Some(next) = unit.next.get(&part.tenure) {
                let added = offsets.add_partition_offset(&part.topic, part.number, Offset::Offset(*next));
                added.map_err(|failed| Trouble::Redo(failed.to_string()))?;
            }
        }
        self.pass(async {
            failpoint!("kafka.unit_written");
        });
        self.writer.add_offsets(&offsets, &unit.metadata)?;
        self.pass(async {
            failpoint!("kafka.unit_with_offsets");
        });
        self.writer.commit()?;
        self.pass(async {
            failpoint!("kafka.unit_committed");
        });
        self.closed();
        Ok(())
    }

    fn closed(&mut self) {
        let Some(unit) = self.unit.take() else { return };
        for part in &mut self.parts {
            let Some(done) = unit.next.get(&part.tenure) else { continue };
            part.failed.take_if(|(offset, _)| *offset < *done);
            part.gap = false;
        }
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let rejected = unit.records.iter().filter(|record| record.rejected).count();
        self.summary.rejected += count(rejected);
        self.summary.handled += count(unit.records.len() - rejected);
        self.summary.outputs += unit.outputs - count(rejected);
        self.summary.transactions += 1;
        self.singly = self.singly.saturating_sub(unit.records.len());
        self.aborts = 0;
        self.well();
    }

    /// Takes the unit back, and has its records run again. An error is one that ends the
    /// pipeline.
    pub(super) fn undo(&mut self, trouble: Trouble) -> Result<(), Error> {
        let unit = self.unit.take();
        self.summary.aborted += u64::from(unit.is_some());
        let records = unit.map_or_else(Vec::new, |unit| unit.records);
        match trouble {
            Trouble::End(error) => {
                self.writer.abort(self.settings.transaction_timeout);
                return Err(error);
            }
            Trouble::Refused(why) => {
                if let [record] = records.as_slice() {
                    self.blame(*record, why)?;
                }
                // Which output it was is not sure: a broker refuses what came together.
                self.singly = records.len();
                self.rewind_in(Duration::ZERO);
            }
            Trouble::Redo(why) => {
                let wait = WAIT_MIN.saturating_mul(1 << self.aborts.min(10)).min(WAIT_MAX);
                self.aborts += 1;
                self.ill(why);
                self.rewind_in(wait);
            }
        }
        self.writer.abort(self.settings.transaction_timeout);
        Ok(())
    }

    /// Charges a record with outputs that cannot be stored.
    fn blame(&mut self, record: Member, why: String) -> Result<(), Error> {
        let Some(part) = self.parts.iter_mut().find(|part| part.tenure == record.tenure) else {
            return Ok(());
        };
        if record.rejected {
            let place = format!("{}/{}@{}", part.topic, part.number, record.offset);
            return Err(Error::new(
                ErrorKind::Topology,
                format!("the dead letter of {place} cannot be stored, and nothing may be lost: {why}"),
            ));
        }
        let failed = Failed {
            attempt: record.attempt,
            run: Run::Failed(Class::System),
            class: Class::System,
            reason: why,
        };
        part.failed = Some((record.offset, failed));
        self.summary.failures += 1;
        Ok(())
    }
}
