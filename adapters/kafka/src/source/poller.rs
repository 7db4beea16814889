//! The thread that only polls: messages come in, partitions come and go. No handler ever
//! runs here, so however long handlers take, the group sees a member that is alive.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use oncemq_core::Health;
use oncemq_core::partitions::Assignment;
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message as _};
use tokio::sync::oneshot;

use super::commits::Request;
use super::context::{Client, list_of};
use super::ends;
use super::part::{Member, Part, Place};
use super::rebalance::Rebalance;
use super::shared::Shared;
use crate::config::Config;
use crate::error;
use crate::records::{Reader, Record};

/// The longest wait for a message: what else is to be done waits as long.
const TICK: Duration = Duration::from_millis(20);
/// The same while partitions leave.
const QUICK_TICK: Duration = Duration::from_millis(2);
/// Messages taken from the client before they are handed on.
const BATCH: usize = 256;
/// Messages that a partition which cannot go on may have waiting.
const STUCK_MAX: usize = 64;
/// How long a full buffer is waited for before the client is told to fetch nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two questions whether the broker is back.
const PROBE: Duration = Duration::from_secs(1);

pub(crate) struct Poller {
    pub(crate) client: Arc<Client>,
    pub(crate) member: Member,
    pub(crate) shared: Arc<Shared>,
    pub(crate) config: Arc<Config>,
    pub(crate) group: String,
    pub(crate) places: HashMap<String, Place>,
    pub(crate) rebalance: Rebalance,
    pub(crate) commits: Sender<Request>,
    pub(crate) committer: JoinHandle<()>,
    /// The most messages that are fetched and not handed out.
    pub(crate) buffer_max: usize,
    pub(crate) reader: Reader,
    pub(crate) batch: Vec<(Assignment, Record)>,
    pub(crate) probed: Option<Instant>,
}

impl Poller {
    /// Polls until the source is closed or dropped; the group has been left when it returns.
    pub(crate) fn run(mut self, ended: oneshot::Sender<()>) {
        while !self.is_over() {
            self.rebalance.go_on(&self.client, &self.shared, &self.places, &self.commits);
            self.pause_and_resume();
            self.poll();
            self.probe();
        }
        let _ = self.commits.send(Request::End);
        let _ = self.committer.join();
        self.client.context().ended.store(true, SeqCst);
        // Leaves the group. Nobody else has it any more.
        drop(self.client);
        let _ = ended.send(());
    }

    fn is_over(&mut self) -> bool {
        let state = self.shared.state();
        if state.abandoned || state.fatal.is_some() {
            return true;
        }
        let closing = state.closing;
        drop(state);
        closing && {
            self.rebalance.leave_all(&self.shared);
            self.rebalance.is_left(&self.shared, &self.commits)
        }
    }

    fn poll(&mut self) {
        let mut wait = if self.rebalance.is_leaving() { QUICK_TICK } else { TICK };
        let client = self.client.clone();
        for _ in 0..BATCH {
            match client.poll(wait) {
                None => break,
                Some(Ok(record)) => self.take(&record),
                Some(Err(failed)) => {
                    // What came before counts for where its partition goes on.
                    self.hand_on();
                    return self.failed(&failed);
                }
            }
            wait = Duration::ZERO;
        }
        self.hand_on();
    }

    fn take(&mut self, record: &BorrowedMessage<'_>) {
        // Of a partition that has left something may still be in the client.
        if let Some(which) = self.rebalance.index().find(record.topic(), record.partition()) {
            self.batch.push((which, self.reader.read(record)));
        }
    }

    fn hand_on(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut state = self.shared.state();
        for (which, record) in self.batch.drain(..) {
            if let Some(part) = state.parts.get_mut(which) {
                part.fetched(record);
            }
        }
        drop(state);
        self.shared.answers.wake();
        if self.probed.is_some() {
            self.found();
        }
    }

    /// A lost broker is waited for; what nobody but a person can mend ends the source.
    fn failed(&mut self, failed: &KafkaError) {
        let code = failed.rdkafka_error_code();
        let address = self.config.address();
        match (failed, code) {
            (KafkaError::PartitionEOF(_), _) => {}
            (_, Some(Code::AutoOffsetReset)) => {
                if let Err(why) = self.rebalance.mend_positions(&self.client, &self.shared) {
                    self.lost(&why);
                }
            }
            (KafkaError::MessageConsumptionFatal(_), _) => {
                let what = format!("Kafka at {address} shut this member out of its group");
                self.shared.fail(error::from_client(&what, failed));
            }
            (_, Some(code)) if error::is_final(code) => {
                let topics: Vec<_> = self.places.keys().map(String::as_str).collect();
                self.shared.fail(ends::explain(&self.client, (address, &self.group), &topics, failed));
            }
            // One connection says nothing of the others.
            (_, Some(Code::BrokerTransportFailure)) => drop(self.probed.get_or_insert_with(Instant::now)),
            _ => self.lost(failed),
        }
    }

    fn lost(&mut self, why: &KafkaError) {
        self.shared.broker_lost(self.member, self.config.address(), why);
        self.probed.get_or_insert_with(Instant::now);
    }

    fn found(&mut self) {
        self.probed = None;
        // Partitions that cannot begin yet say for themselves when they can.
        if !self.rebalance.is_beginning() {
            self.shared.broker_health(self.member, Health::Up);
        }
    }

    /// An idle consumer hears nothing of a broker that is back: it asks.
    fn probe(&mut self) {
        if self.probed.is_none_or(|probed| probed.elapsed() < PROBE) {
            return;
        }
        let topic = self.places.keys().next().map(String::as_str);
        match self.client.fetch_metadata(topic, PROBE / 2) {
            Ok(_) => self.found(),
            Err(silent) => {
                self.probed = Some(Instant::now());
                self.shared.broker_lost(self.member, self.config.address(), &silent);
            }
        }
    }

    /// Pauses what nobody takes, and resumes what can go on.
    fn pause_and_resume(&mut self) {
        let leaving = self.rebalance.is_leaving();
        let full = !leaving && !self.shared.await_room(self.buffer_max, PATIENCE);
        let now = SystemTime::now();
        let mut state = self.shared.state();
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        for part in state.held_mut().filter(|part| part.member == self.member) {
            let (waiting, stuck) = (part.waiting(), part.is_stuck(now));
            let stop = full && waiting > 0 || stuck && waiting >= STUCK_MAX;
            let go = !full && (!stuck || waiting < STUCK_MAX / 2);
            if stop && !part.paused {
                part.paused = true;
                pause.push(name(part));
            } else if go && part.paused {
                part.paused = false;
                resume.push(name(part));
            }
        }
        drop(state);
        // Of a partition that has just left nothing needs to be paused.
        if !pause.is_empty() {
            let _ = self.client.pause(&list_of(&pause));
        }
        if !resume.is_empty() {
            let _ = self.client.resume(&list_of(&resume));
        }
    }
}

fn name(part: &Part) -> (String, i32) {
    (part.topic.to_string(), part.number)
}
