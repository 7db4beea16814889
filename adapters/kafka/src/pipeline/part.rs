//! One partition, while it is ours.

use std::collections::VecDeque;
use std::sync::Arc;

use oncemq_core::Origin;
use rdkafka::consumer::base_consumer::PartitionQueue;

use super::lane::{Failed, Lane};
use crate::source::context::{Context, Partition};
use crate::topology::Names;

/// A partition that was assigned, and the records of it that are at work.
pub(super) struct Part {
    pub(super) topic: Arc<str>,
    pub(super) number: i32,
    pub(super) dead: Arc<str>,
    pub(super) origin: Origin,
    pub(super) queue: PartitionQueue<Context>,
    /// Names this reading of it: what is said of an older one is void.
    pub(super) tenure: u64,
    /// Where it begins if nothing is committed.
    pub(super) begin: i64,
    /// The next offset to take from the client.
    pub(super) next: i64,
    /// The committed offset may be gone from the log: nothing was committed since it was.
    pub(super) gap: bool,
    /// Sizes of the records that the lane has.
    waiting: VecDeque<usize>,
    pub(super) bytes: usize,
    /// None: its position is to be read from the broker.
    pub(super) lane: Option<Lane>,
    /// The last failure of the record at this offset.
    pub(super) failed: Option<(i64, Failed)>,
}

impl Part {
    pub(super) fn new(
        names: &Names,
        number: i32,
        queue: PartitionQueue<Context>,
        tenure: u64,
        begin: i64,
    ) -> Self {
        Self {
            topic: names.work.clone(),
            number,
            dead: names.dead.clone(),
            origin: Origin::new("kafka", names.work.clone()),
            queue,
            tenure,
            begin,
            next: begin,
            gap: false,
            waiting: VecDeque::new(),
            bytes: 0,
            lane: None,
            failed: None,
        }
    }

    pub(super) fn is(&self, (topic, number): &Partition) -> bool {
        self.number == *number && *self.topic == **topic
    }

    pub(super) fn stop(&self) {
        self.lane.iter().for_each(Lane::stop);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether it is worth asking for more.
    pub(super) fn wants(&self, room: usize, bytes: usize) -> bool {
        let runs = self.lane.as_ref().is_some_and(|lane| !lane.is_stopping());
        runs && self.waiting.len() <= room / 2 && self.bytes < bytes
    }

    /// Takes in a record. Returns whether it is one to run.
    pub(super) fn enter(&mut self, offset: i64, size: usize) -> bool {
        if offset < self.next {
            return false;
        }
        self.next = offset.saturating_add(1);
        self.waiting.push_back(size);
        self.bytes += size;
        true
    }

    pub(super) fn leave(&mut self) {
        self.bytes -= self.waiting.pop_front().unwrap_or(0);
    }

    pub(super) fn failed_at(&self, offset: i64) -> Option<Failed> {
        let (_, failed) = self.failed.as_ref().filter(|(at, _)| *at == offset)?;
        Some(failed.clone())
    }

    pub(super) fn forget(&mut self, tenure: u64) {
        self.tenure = tenure;
        self.lane = None;
        self.waiting.clear();
        self.bytes = 0;
    }
}
