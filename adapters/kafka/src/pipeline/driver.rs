//! The thread that does everything but run handlers: polls, writes, commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use oncemq_core::fate::Run;
use oncemq_core::{Error, ErrorKind, Health};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::PipelineSummary;
use super::group::Leaving;
use super::lane::{Done, Job, Report, Work};
use super::launch::End;
use super::part::Part;
use super::settings::Settings;
use super::unit::Unit;
use super::writer::{Trouble, Writer};
use crate::error;
use crate::records::Reader;
use crate::source::context::{Client, Partition, list_of, unassign};

/// The longest wait for a report: partitions that come or go wait as long.
const TICK: Duration = Duration::from_millis(20);
/// The group is looked at again at least so often while reports come.
const ROUND: Duration = Duration::from_millis(50);
/// The bytes of records that lanes have, all together.
const BYTES_MAX: usize = 32 * 1024 * 1024;
/// What the last abort may take: the broker ends by itself what is left open.
const LAST_ABORT: Duration = Duration::from_secs(1);
/// Between two questions whether the broker is back.
const PROBE: Duration = Duration::from_secs(1);

pub(super) struct Driver {
    pub(super) client: Arc<Client>,
    pub(super) settings: Arc<Settings>,
    pub(super) runtime: Handle,
    pub(super) work: Arc<Work>,
    pub(super) writer: Writer,
    pub(super) end: End,
    pub(super) health: watch::Sender<Health>,
    pub(super) reports: Receiver<Report>,
    pub(super) reporter: Sender<Report>,
    /// A report says already that there are records to take.
    pub(super) arrived: Arc<AtomicBool>,
    pub(super) reader: Reader,
    pub(super) parts: Vec<Part>,
    pub(super) tenures: u64,
    pub(super) unit: Option<Unit>,
    /// So many records are to be in units of their own.
    pub(super) singly: usize,
    /// Units aborted since the last commit.
    pub(super) aborts: u32,
    /// Nothing is begun again before.
    pub(super) retry_at: Instant,
    pub(super) joined: bool,
    /// The client could not go on with a partition.
    pub(super) broken: bool,
    pub(super) assigning: Option<Vec<Partition>>,
    pub(super) leaving: Option<Leaving>,
    /// What runs may finish until then.
    pub(super) stopping: Option<Instant>,
    /// Since when something is wrong, or was looked at.
    pub(super) ill_since: Option<Instant>,
    pub(super) summary: PipelineSummary,
}

impl Driver {
    /// Works until it is stopped. The group has been left when it returns.
    pub(super) fn run(mut self) -> Result<PipelineSummary, Error> {
        let worked = self.work_on();
        self.finish(worked)
    }

    fn work_on(&mut self) -> Result<(), Error> {
        while !self.is_over() {
            self.take_reports()?;
            self.poll()?;
            self.change()?;
            self.mend()?;
            self.rewind()?;
            self.feed()?;
            if self.due().is_some_and(|due| due <= Instant::now())
                && let Err(trouble) = self.close()
            {
                self.undo(trouble)?;
            }
            self.probe();
        }
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        if self.end.is_here() {
            return true;
        }
        if self.stopping.is_none() && self.end.is_near() {
            self.stopping = Some(Instant::now() + self.settings.grace);
            self.parts.iter().for_each(Part::stop);
        }
        let idle = self.parts.iter().all(|part| part.lane.is_none());
        self.stopping.is_some_and(|deadline| idle || Instant::now() >= deadline)
    }

    fn finish(mut self, worked: Result<(), Error>) -> Result<PipelineSummary, Error> {
        self.parts.iter_mut().for_each(|part| part.lane = None);
        let mut ended = worked;
        if ended.is_ok() && !self.end.is_here() {
            // What cannot be committed now is run again by whoever comes next.
            if let Err(Trouble::End(error)) = self.close() {
                ended = Err(error);
            }
        }
        if self.unit.take().is_some() {
            self.writer.abort(LAST_ABORT);
            self.summary.aborted += 1;
        }
        let Self { client, parts, writer, summary, leaving, assigning, .. } = self;
        drop((parts, writer));
        // The client waits for an answer to its last change.
        if leaving.is_some() || assigning.is_some() {
            let list = leaving.map_or_else(Vec::new, |leaving| leaving.list);
            let _ = unassign(&client, &list_of(&list));
        }
        client.context().ended.store(true, SeqCst);
        // Leaves the group. Nobody else has it any more.
        drop(client);
        ended.map(|()| summary)
    }

    fn take_reports(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let wait = self.due().map_or(TICK, |due| due.saturating_duration_since(now).min(TICK));
        let mut next = self.reports.recv_timeout(wait).ok();
        let begin = Instant::now();
        while let Some(report) = next {
            self.take(report)?;
            next = if begin.elapsed() < ROUND { self.reports.try_recv().ok() } else { None };
        }
        Ok(())
    }

    fn take(&mut self, report: Report) -> Result<(), Error> {
        match report {
            Report::Arrived => self.arrived.store(false, SeqCst),
            Report::Failed { tenure, offset, failed } => {
                self.summary.failures += 1;
                self.summary.panics += u64::from(failed.run == Run::Panicked);
                if let Some(part) = self.part(tenure) {
                    part.failed = Some((offset, failed));
                }
            }
            Report::Done(done) => return self.done(done),
            Report::Ended { tenure } => {
                let Some(part) = self.part(tenure) else { return Ok(()) };
                let lane = part.lane.take();
                if lane.is_some_and(|lane| !lane.is_stopping()) {
                    return Err(Error::new(ErrorKind::Closed, "the runtime is shutting down"));
                }
            }
        }
        Ok(())
    }

    /// What it is about, unless it is void by now.
    fn part(&mut self, tenure: u64) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.tenure == tenure)
    }

    fn done(&mut self, done: Done) -> Result<(), Error> {
        let Some(part) = self.part(done.tenure) else { return Ok(()) };
        part.leave();
        match self.add(done) {
            Ok(()) => Ok(()),
            Err(trouble) => self.undo(trouble),
        }
    }

    /// Gives lanes the records that they have room for.
    fn feed(&mut self) -> Result<(), Error> {
        if self.stopping.is_some() {
            return Ok(());
        }
        let held = self.parts.len().max(1);
        let room = (2 * self.settings.records / held).max(8);
        let bytes = BYTES_MAX / held;
        let mut failures = Vec::new();
        for part in self.parts.iter_mut().filter(|part| part.wants(room, bytes)) {
            let mut jobs = Vec::new();
            while part.waiting() < room && part.bytes < bytes {
                match part.queue.poll(Duration::ZERO) {
                    None => break,
                    Some(Err(failed)) => {
                        failures.push(failed);
                        break;
                    }
                    Some(Ok(record)) => {
                        let (message, offset) = (
                            self.reader.read(&record).into_message(&part.origin, record.partition()),
                            record.offset(),
                        );
                        drop(record);
                        if part.enter(offset, message.size()) {
                            jobs.push(Job { message, failed: part.failed_at(offset) });
                        }
                    }
                }
            }
            if let Some(lane) = part.lane.as_ref().filter(|_| !jobs.is_empty()) {
                lane.give(jobs);
            }
        }
        failures.iter().try_for_each(|failed| self.failed(failed))
    }

    /// Lets the client tell what happened to the group.
    fn poll(&mut self) -> Result<(), Error> {
        let client = self.client.clone();
        while let Some(polled) = client.poll(Duration::ZERO) {
            match polled {
                Err(failed) => self.failed(&failed)?,
                // Partitions have queues of their own. What came another way is read again.
                Ok(_) => self.undo(Trouble::Redo("a record came out of turn".to_owned()))?,
            }
        }
        Ok(())
    }

    /// A lost broker is waited for; what nobody but a person can mend ends the pipeline.
    fn failed(&mut self, failed: &KafkaError) -> Result<(), Error> {
        let address = self.settings.config.address().to_owned();
        match (failed, failed.rdkafka_error_code()) {
            (KafkaError::PartitionEOF(_), _) => Ok(()),
            (_, Some(Code::AutoOffsetReset)) => {
                self.broken = true;
                Ok(())
            }
            (KafkaError::MessageConsumptionFatal(_), _) => Err(error::from_client(
                &format!("Kafka at {address} shut this member out of its group"),
                failed,
            )),
            (_, Some(code)) if error::is_final(code) => {
                Err(error::from_client(&format!("consuming from Kafka at {address}"), failed))
            }
            _ => {
                let said = self.client.context().said.take().map(|(_, why)| why);
                self.ill(said.unwrap_or_else(|| error::text_of(failed)));
                Ok(())
            }
        }
    }

    pub(super) fn ill(&mut self, why: String) {
        self.ill_since = Some(Instant::now());
        let text = format!("Kafka at {}: {why}", self.settings.config.address());
        self.tell(Health::Degraded(text));
    }

    pub(super) fn well(&mut self) {
        self.ill_since = None;
        self.tell(Health::Up);
    }

    fn tell(&self, now: Health) {
        self.health.send_if_modified(|health| {
            let news = *health != now;
            *health = now;
            news
        });
    }

    /// Says that all is well once it is: an idle member hears nothing of a broker that is back.
    fn probe(&mut self) {
        let ready =
            self.joined && self.writer.is_ready() && self.parts.iter().all(|part| part.lane.is_some());
        if !ready || self.stopping.is_some() {
            return;
        }
        match self.ill_since {
            None => self.tell(Health::Up),
            Some(since) if since.elapsed() >= PROBE => {
                self.ill_since = Some(Instant::now());
                let topic = self.settings.topics.first().map(|names| &*names.work);
                if self.client.fetch_metadata(topic, PROBE / 2).is_ok() {
                    self.well();
                }
            }
            Some(_) => {}
        }
    }

    /// Passes a place where tests kill the process.
    pub(super) fn pass(&self, place: impl Future<Output = ()>) {
        self.runtime.block_on(place);
    }
}
