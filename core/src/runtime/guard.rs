//! The driver of guarded runs: claim, run, commit, and what follows from each outcome.
//!
//! The same code drives every store, the simulated one included.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use sha2::{Digest, Sha256};
use tokio::sync::OwnedRwLockWriteGuard;

use super::settle::ack_of;
use super::unguarded::{Ended, panic_text, timed_out};
use super::{Job, Leaving, Outcome, Tally, TopicEnv};
use crate::fate::{Conflict, Findings, MessageFate, RecordFate, Run, fate};
use crate::key::{Document, NoKey};
use crate::retry::jittered;
use crate::route::{Guarded, Route, Runner, Runs};
use crate::{
    Ack, Claim, Class, Codec, Context, Ending, Entry, Error, Failed, Failure, Handler, Json, Marks, Message,
    Note, Ordering, Record, RecordFacts, Unit, failpoint,
};

/// Runs of one message that are undone by nobody's fault end after so many, then they are
/// charged.
const REDOS_MAX: u32 = 10;
/// How long a run waits for a twin before it gives its place back.
const TWIN_WAIT: Duration = Duration::from_millis(100);
const TWIN_POLL: Duration = Duration::from_millis(10);
/// What the server gives a unit beyond the handler's time before it ends it itself.
const UNIT_MARGIN: Duration = Duration::from_secs(5);

/// A handler guarded by a record: effect and record commit together, and only then is the
/// message acknowledged.
pub struct Guard<R, H, M, C = Json> {
    record: Arc<R>,
    handler: Arc<H>,
    codec: Arc<C>,
    message: PhantomData<fn(M)>,
}

impl<R, H, M> Guard<R, H, M>
where
    R: Record,
    H: Handler<R::Loan, M>,
    M: Send + 'static,
{
    /// Guards a handler. Payloads are read as JSON unless [`codec`](Self::codec) says
    /// otherwise.
    pub fn new(record: Arc<R>, handler: H) -> Self {
        Self { record, handler: Arc::new(handler), codec: Arc::new(Json), message: PhantomData }
    }
}

impl<R, H, M, C> Guard<R, H, M, C> {
    /// Reads payloads with another codec.
    pub fn codec<D: Codec<M>>(self, codec: D) -> Guard<R, H, M, D> {
        Guard { record: self.record, handler: self.handler, codec: Arc::new(codec), message: PhantomData }
    }
}

impl<R, H, M, C> std::fmt::Debug for Guard<R, H, M, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

impl<R, H, M, C> Guarded for Guard<R, H, M, C>
where
    R: Record,
    H: Handler<R::Loan, M>,
    M: Send + 'static,
    C: Codec<M>,
{
    fn into_route(self) -> Arc<dyn Route> {
        Arc::new(self)
    }
}

impl<R, H, M, C> Route for Guard<R, H, M, C>
where
    R: Record,
    H: Handler<R::Loan, M>,
    M: Send + 'static,
    C: Codec<M>,
{
    fn record(&self) -> Option<RecordFacts> {
        Some(self.record.facts())
    }

    fn check(&self) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + '_>> {
        Box::pin(self.record.probe())
    }

    fn runner(self: Arc<Self>, topic: Arc<TopicEnv>) -> Box<dyn Runner> {
        Box::new(Runs::new(move |job| {
            let parts = Parts {
                record: self.record.clone(),
                handler: self.handler.clone(),
                codec: self.codec.clone(),
                topic: topic.clone(),
                retention: self.record.facts().retention,
            };
            // Boxed: a guarded run is large and goes to a database anyway.
            Box::pin(handle(parts, job))
        }))
    }
}

struct Parts<R, H, C> {
    record: Arc<R>,
    handler: Arc<H>,
    codec: Arc<C>,
    topic: Arc<TopicEnv>,
    retention: Duration,
}

/// Repeats a step on the store until it succeeds. While it fails the gate is shut, nothing
/// is settled and nothing is charged.
macro_rules! until_up {
    ($run:expr, $step:expr) => {{
        let mut tries = 0;
        loop {
            match $step.await {
                Ok(value) => break value,
                Err(error) => {
                    $run.parts.topic.shared.gate.wait(&error, tries, || $run.parts.record.probe()).await;
                    tries += 1;
                }
            }
        }
    }};
}

async fn handle<R, H, M, C>(parts: Parts<R, H, C>, job: Job) -> Outcome
where
    R: Record,
    H: Handler<R::Loan, M>,
    M: Send + 'static,
    C: Codec<M>,
{
    let mut run = match Running::open(parts, job) {
        Ok(run) => run,
        Err(outcome) => return outcome,
    };
    let marked = run.mark().await;
    failpoint!("core.marked");
    let outcome = if marked.marks > run.parts.topic.crash_ceiling {
        run.too_many_deaths(marked.marks).await
    } else {
        run.entry.trail.attempt = run.entry.trail.attempt.max(marked.attempts);
        run.drive::<M>().await
    };
    failpoint!("core.decided");
    run.unmark(&outcome.ack).await;
    outcome
}

/// One message on its way through claim, run and commit.
struct Running<R: Record, H, C> {
    parts: Parts<R, H, C>,
    message: Message,
    leaving: Leaving,
    key_problem: Option<String>,
    entry: Entry,
    /// A suspect of having ended a process: its runs leave a mark.
    suspect: bool,
    may_repeat: bool,
    /// Runs as the only delivery in the process.
    alone: bool,
    /// The place for that, until the first unit takes it.
    turn: Option<OwnedRwLockWriteGuard<()>>,
    mark: Option<MarkLeft<R>>,
    tally: Tally,
}

/// A decision that ends a delivery, or puts it off in place.
struct End {
    message: MessageFate,
    record: RecordFate,
    class: Class,
    reason: String,
}

/// What one unit came to.
enum Step {
    End(End),
    /// Undone by nobody's fault, and run again.
    Redo,
    /// The store was away in the middle, and is back.
    Again,
    /// The connection broke, but the store answers: run again, and charged the next time.
    Broke,
    /// The consumer stops, and the handler was not started.
    Stopped,
}

impl<R: Record, H, C> Running<R, H, C> {
    fn open(parts: Parts<R, H, C>, job: Job) -> Result<Self, Outcome> {
        let topic = &parts.topic;
        let trail = topic.trail(&job.message, job.facts);
        let mut entry = Entry::new(None, trail, Sha256::digest(job.message.body()).into());
        entry.message_id = job.message.id().map(str::to_owned);
        let mut missing = None;
        let mut key_problem = None;
        match job.key.map(|found| *found) {
            Some(Ok(key)) => entry.key = Some(Arc::unwrap_or_clone(key)),
            Some(Err(NoKey::Unreadable(why))) => key_problem = Some(why),
            Some(Err(NoKey::Missing(why))) => missing = Some(why),
            None => missing = Some("the topic declares none".into()),
        }
        if let Some(fields) = &topic.conflict {
            let found = fields.find(&job.message, &mut Document::default());
            entry.conflict = found.ok().and_then(|value| value.as_bytes().try_into().ok());
        }
        if let Some(outcome) = refused_at_once(topic, &entry, missing, parts.retention) {
            return Err(outcome);
        }
        Ok(Self {
            suspect: job.facts.redelivered,
            may_repeat: topic.shared.capabilities.log || job.facts.redelivered,
            alone: false,
            turn: None,
            mark: None,
            tally: Tally::default(),
            message: job.message,
            leaving: job.leaving,
            key_problem,
            entry,
            parts,
        })
    }

    /// Leaves a crash mark for a suspect. One that was marked before waits for its turn
    /// alone first: a mark that it left while it waits would blame it for what another one
    /// does meanwhile.
    async fn mark(&mut self) -> Note {
        if !self.suspect {
            return Note::default();
        }
        let shared = self.parts.topic.shared.clone();
        let beside = shared.alone.read().await;
        let note = self.leave_mark().await;
        if note.marks <= 1 || note.marks > self.parts.topic.crash_ceiling {
            return note;
        }
        self.take_marks(Marks::One).await;
        drop(beside);
        self.alone = true;
        self.turn = Some(shared.alone.clone().write_owned().await);
        self.leave_mark().await
    }

    async fn leave_mark(&mut self) -> Note {
        let note = until_up!(self, self.parts.record.mark(&self.entry.trail.id));
        self.mark = Some(MarkLeft {
            record: Some(self.parts.record.clone()),
            topic: self.parts.topic.clone(),
            id: self.entry.trail.id,
        });
        note
    }

    async fn take_marks(&mut self, marks: Marks) {
        if let Some(mut mark) = self.mark.take() {
            until_up!(self, self.parts.record.unmark(&self.entry.trail.id, marks));
            mark.record = None;
        }
    }

    /// Takes marks back as the outcome says, before the broker is told.
    async fn unmark(&mut self, ack: &Ack) {
        let marks = match ack {
            Ack::Defer { .. } | Ack::Release => Marks::One,
            _ => Marks::All,
        };
        self.take_marks(marks).await;
    }

    async fn too_many_deaths(&mut self, marks: u32) -> Outcome {
        let reason = format!("its runs ended the process {marks} times");
        let end =
            End { message: MessageFate::Reject, record: RecordFate::Failed, class: Class::System, reason };
        self.finish(end).await
    }

    async fn drive<M>(&mut self) -> Outcome
    where
        H: Handler<R::Loan, M>,
        M: Send + 'static,
        C: Codec<M>,
    {
        let mut redos = 0;
        let mut broke = false;
        loop {
            let step = match &self.key_problem {
                Some(why) => {
                    let ended = Ended::Undecodable(why.clone());
                    Step::End(self.charge(ended))
                }
                None => self.unit::<M>().await,
            };
            let end = match step {
                Step::End(end) => end,
                Step::Again => continue,
                Step::Stopped => return Outcome { ack: Ack::Release, tally: self.tally },
                Step::Redo if redos < REDOS_MAX => {
                    redos += 1;
                    self.tally.redone += 1;
                    let wait = Duration::from_millis(10).saturating_mul(redos);
                    tokio::time::sleep(jittered(wait, self.seed())).await;
                    continue;
                }
                Step::Broke if !broke => {
                    broke = true;
                    self.tally.redone += 1;
                    continue;
                }
                Step::Redo => {
                    self.charge(system(format!("undone {REDOS_MAX} times by deadlocks or lost commits")))
                }
                Step::Broke => {
                    self.charge(system("its run broke the connection twice while the store was up"))
                }
            };
            match end.message {
                MessageFate::Retry(delay) if self.parts.topic.ordering == Ordering::Ordered => {
                    if !self.wait_in_place(delay).await {
                        return Outcome { ack: Ack::Release, tally: self.tally };
                    }
                }
                _ => return self.finish(end).await,
            }
        }
    }

    /// The ladder waits here: later messages of the key queue behind this run. Returns
    /// whether to go on; the attempts are noted, so that whoever goes on counts from there.
    async fn wait_in_place(&self, delay: Duration) -> bool {
        let trail = &self.entry.trail;
        until_up!(self, self.parts.record.charge(&trail.id, trail.attempt));
        self.parts.topic.wait_for_rung(delay, self.seed(), &self.leaving).await
    }

    /// One transaction: claim, run, commit.
    async fn unit<M>(&mut self) -> Step
    where
        H: Handler<R::Loan, M>,
        M: Send + 'static,
        C: Codec<M>,
    {
        let shared = self.parts.topic.shared.clone();
        let (_beside, _alone);
        if self.alone {
            _alone = match self.turn.take() {
                Some(turn) => turn,
                None => shared.alone.clone().write_owned().await,
            };
        } else {
            _beside = shared.alone.read().await;
        }
        let mut unit = match self.claim().await {
            Ok(unit) => unit,
            Err(end) => return Step::End(end),
        };
        failpoint!("core.claimed");
        if shared.shutdown.is_stopping() {
            // It waited for its turn at the store while the consumer was told to stop.
            let _ = unit.rollback().await;
            return Step::Stopped;
        }
        let ended = self.call::<M>(&mut unit).await;
        failpoint!("core.ran");
        let ending = match &ended {
            Ok(()) => unit.commit().await,
            Err(_) => unit.rollback().await,
        };
        failpoint!("core.ended");
        self.judge(ended, ending).await
    }

    /// Opens a unit and claims the key in it, or says why nothing is run.
    async fn claim(&mut self) -> Result<R::Unit, End> {
        let limit = self.parts.topic.timeout.saturating_add(UNIT_MARGIN);
        let started = tokio::time::Instant::now();
        loop {
            let (unit, verdict) = until_up!(self, self.open_and_claim(limit));
            let note = verdict.note.unwrap_or_default();
            let mut found = Findings {
                failed_note: note.failed.is_some(),
                may_repeat: self.may_repeat,
                ..Findings::default()
            };
            let (mut class, mut reason) = (Class::Business, String::new());
            match verdict.claim {
                Claim::New => {
                    if let Some(failed) = note.failed {
                        (class, reason) = (failed.class, failed.reason);
                    }
                }
                Claim::Busy => found.twin = true,
                Claim::Done { same_body, conflict } => {
                    found.done = Some(if conflict { Conflict::Fields } else { Conflict::None });
                    self.tally.duplicate = !conflict;
                    self.tally.differs = !same_body;
                    if conflict {
                        reason = "key conflict: the key was done by a message with other fields".into();
                    }
                }
            }
            let end = fate(&found, &self.parts.topic.policy);
            if end.message == MessageFate::Proceed {
                return Ok(unit);
            }
            // Nothing was written, so how it ends does not matter.
            let _ = unit.rollback().await;
            if end.message == MessageFate::Defer && started.elapsed() < TWIN_WAIT {
                tokio::time::sleep(TWIN_POLL).await;
                continue;
            }
            return Err(End { message: end.message, record: end.record, class, reason });
        }
    }

    async fn open_and_claim(&self, limit: Duration) -> Result<(R::Unit, crate::Verdict), Error> {
        let mut unit = self.parts.record.begin(limit).await?;
        failpoint!("core.begun");
        let mut verdicts = unit.claim(std::slice::from_ref(&self.entry)).await?;
        let verdict = verdicts
            .pop()
            .ok_or_else(|| Error::new(crate::ErrorKind::Internal, "the store gave no verdict for a claim"))?;
        Ok((unit, verdict))
    }

    /// Decodes and runs the handler, contained in time and against panics.
    async fn call<M>(&self, unit: &mut R::Unit) -> Result<(), Ended>
    where
        H: Handler<R::Loan, M>,
        M: Send + 'static,
        C: Codec<M>,
    {
        let attempt = self.entry.trail.attempt.saturating_add(1);
        let call = async {
            let decoded = self.parts.codec.decode(&self.message).map_err(Ended::Undecodable)?;
            let context = Context::new(self.message.clone(), self.entry.key.clone(), attempt);
            let loan = unit.lend(context);
            self.parts.handler.call(loan, decoded).await.map_err(Ended::Failed)
        };
        let timeout = self.parts.topic.timeout;
        match tokio::time::timeout(timeout, AssertUnwindSafe(call).catch_unwind()).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(panic)) => Err(Ended::Panicked(panic_text(&*panic))),
            Err(_) => Err(Ended::Failed(timed_out(timeout))),
        }
    }

    /// What the handler said and how the store saw the unit end, together. The store's word
    /// is the stronger one.
    async fn judge(&mut self, ended: Result<(), Ended>, ending: Ending) -> Step {
        match (ending, ended) {
            (Ending::Committed, _) => Step::End(End {
                message: MessageFate::Accept,
                record: RecordFate::Done,
                class: Class::System,
                reason: String::new(),
            }),
            (Ending::RolledBack, Err(ended)) => Step::End(self.charge(ended)),
            (Ending::RolledBack, Ok(())) => Step::End(self.charge(system("the commit was rolled back"))),
            (Ending::Redo(_) | Ending::Unknown(_), _) => Step::Redo,
            (Ending::Refused(failure), _) => Step::End(self.charge(Ended::Failed(failure))),
            (Ending::NotReturned, _) => {
                Step::End(self.charge(system("the handler kept its transaction instead of dropping it")))
            }
            (Ending::Broken(_), _) => match self.parts.record.probe().await {
                Ok(()) => Step::Broke,
                Err(error) => {
                    self.parts.topic.shared.gate.wait(&error, 0, || self.parts.record.probe()).await;
                    Step::Again
                }
            },
        }
    }

    /// Charges an attempt and looks up what follows.
    fn charge(&mut self, ended: Ended) -> End {
        let attempt = self.entry.trail.attempt.saturating_add(1);
        self.entry.trail.attempt = attempt;
        let mut found = Findings { attempt, ..Findings::default() };
        let (class, reason) = ended.describe(&mut found);
        self.tally.panicked |= found.run == Some(Run::Panicked);
        let end = fate(&found, &self.parts.topic.policy);
        End { message: end.message, record: end.record, class, reason }
    }

    /// Writes what the decision asks of the record, then names the ack.
    async fn finish(&mut self, end: End) -> Outcome {
        let mut message = end.message;
        if end.record == RecordFate::Failed {
            let failed = Failed::now(end.class, end.reason.clone());
            let written = until_up!(self, self.parts.record.fail(&self.entry, &failed));
            failpoint!("core.noted");
            if !written {
                message = MessageFate::Accept;
                self.tally.duplicate = true;
            }
        }
        let trail = self.entry.trail.clone();
        Outcome { ack: ack_of(message, trail, end.class, &end.reason), tally: self.tally }
    }

    /// A number that differs between messages and attempts.
    fn seed(&self) -> u64 {
        self.entry.trail.id.seed().wrapping_add(u64::from(self.entry.trail.attempt))
    }
}

/// A message that is refused before the store is asked: without a key, or a copy that is
/// older than the memory of what is done.
fn refused_at_once(
    topic: &TopicEnv,
    entry: &Entry,
    missing: Option<String>,
    retention: Duration,
) -> Option<Outcome> {
    let trail = &entry.trail;
    if let Some(why) = missing {
        let found = Findings { missing_key: Some(topic.missing_key), ..Findings::default() };
        let reason = format!("no idempotency key: {why}");
        let end = fate(&found, &topic.policy).message;
        return Some(Outcome::new(ack_of(end, trail.clone(), Class::Business, &reason)));
    }
    let age = SystemTime::now().duration_since(trail.first_seen).unwrap_or_default();
    if trail.from_ladder && age > retention {
        let reason = "beyond retention: the record of it may be gone already";
        return Some(Outcome::new(Ack::reject(Class::System, trail.clone(), reason)));
    }
    None
}

fn system(reason: impl Into<String>) -> Ended {
    Ended::Failed(Failure::system(reason.into()))
}

/// A crash mark that this delivery left. When the run is dropped without an outcome, as at
/// the end of a shutdown's grace, the mark is taken back beside: the process did not die of
/// it.
struct MarkLeft<R: Record> {
    record: Option<Arc<R>>,
    topic: Arc<TopicEnv>,
    id: crate::TrailId,
}

impl<R: Record> Drop for MarkLeft<R> {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            let id = self.id;
            self.topic.shared.late.spawn(async move {
                // A mark that stays makes the next run careful, nothing more.
                let _ = record.unmark(&id, Marks::One).await;
            });
        }
    }
}
