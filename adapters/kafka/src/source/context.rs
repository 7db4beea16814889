//! What the client calls back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Statistics, TopicPartitionList};

use crate::client::Said;

pub(crate) type Client = BaseConsumer<Context>;
pub(crate) type Partition = (String, i32);

/// More than a client says of its connections while one question waits for its answer.
const ERRORS_MAX: usize = 100;

/// What the group decided about this member.
#[derive(Debug)]
pub(crate) enum Change {
    Assign(Vec<Partition>),
    Revoke {
        partitions: Vec<Partition>,
        /// They are gone already: the group has given them to somebody else.
        lost: bool,
    },
}

/// Changes are only noted. The client waits until it is told that they are made, and goes on
/// with the partitions that stay meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Context {
    changes: Mutex<VecDeque<Change>>,
    pub(crate) said: Said,
    /// The consumer is being destroyed: nobody makes changes any more.
    pub(crate) ended: AtomicBool,
}

impl Context {
    pub(crate) fn next_change(&self) -> Option<Change> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl ClientContext for Context {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _text: &str) {}

    fn stats(&self, _statistics: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.said.note(&error, reason);
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &Client, what: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let assigned = what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.ended.load(SeqCst) {
            let _ = if assigned { assign(consumer, list) } else { unassign(consumer, list) };
            return;
        }
        let partitions =
            list.elements().iter().map(|one| (one.topic().to_owned(), one.partition())).collect();
        let change = match assigned {
            true => Change::Assign(partitions),
            false => Change::Revoke { partitions, lost: consumer.assignment_lost() },
        };
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push_back(change);
    }
}

/// Lets the client say what it has noted about its connections; it does so only when polled.
pub(crate) fn listen(consumer: &Client) {
    // Each poll brings one error.
    for _ in 0..ERRORS_MAX {
        if consumer.poll(Duration::from_millis(10)).is_none() {
            return;
        }
    }
}

/// Tells the client that partitions came, in the way of its group's protocol.
pub(crate) fn assign(consumer: &Client, list: &TopicPartitionList) -> Result<(), KafkaError> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
        _ => consumer.assign(list),
    }
}

/// Tells the client that partitions left.
pub(crate) fn unassign(consumer: &Client, list: &TopicPartitionList) -> Result<(), KafkaError> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
        _ => consumer.unassign(),
    }
}

pub(crate) fn list_of(partitions: &[Partition]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for (topic, number) in partitions {
        list.add_partition(topic, *number);
    }
    list
}
