//! The runs of one partition, one record after the other.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncemq_core::fate::{Findings, MessageFate, Run, fate};
use oncemq_core::url::Time;
use oncemq_core::{Class, Context, Failure, Identity, Message, Reject, RetryPolicy, Trail};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::Output;
use crate::records;

/// The diagnostic text of a dead letter, in bytes.
const REASON_MAX: usize = 4 * 1024;

pub(super) type Step =
    dyn Fn(Context, Message) -> BoxFuture<'static, Result<Vec<Output>, Failure>> + Send + Sync;

/// What the runs of a pipeline share.
pub(super) struct Work {
    pub(super) name: Arc<str>,
    pub(super) step: Arc<Step>,
    pub(super) policy: RetryPolicy,
    pub(super) timeout: Duration,
}

/// A record to run.
pub(super) struct Job {
    pub(super) message: Message,
    /// Its last failure, if it was run before.
    pub(super) failed: Option<Failed>,
}

/// A run that failed.
#[derive(Debug, Clone)]
pub(super) struct Failed {
    /// Which run it was, from 1.
    pub(super) attempt: u32,
    pub(super) run: Run,
    pub(super) class: Class,
    pub(super) reason: String,
}

/// What a lane says.
pub(super) enum Report {
    /// Not a lane: there are records to take.
    Arrived,
    /// A run failed, and is made again when its delay is over.
    Failed { tenure: u64, offset: i64, failed: Failed },
    /// The record is done: its outputs count once they are stored.
    Done(Done),
    /// Nothing more is run.
    Ended { tenure: u64 },
}

/// A record that is done.
pub(super) struct Done {
    pub(super) tenure: u64,
    pub(super) offset: i64,
    pub(super) outputs: Vec<Output>,
    /// The last run.
    pub(super) attempt: u32,
    /// The output is its dead letter.
    pub(super) rejected: bool,
}

/// The task that runs the records of a partition. Dropped, it runs nothing more.
pub(super) struct Lane {
    jobs: mpsc::UnboundedSender<Vec<Job>>,
    stop: watch::Sender<bool>,
    task: AbortHandle,
}

impl Lane {
    pub(super) fn start(
        runtime: &Handle,
        work: Arc<Work>,
        dead: Arc<str>,
        tenure: u64,
        reports: Sender<Report>,
    ) -> Self {
        let (jobs, queue) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let runner = Runner { work, dead, tenure, reports, stopped };
        let task = runtime.spawn(runner.run(queue)).abort_handle();
        Self { jobs, stop, task }
    }

    pub(super) fn give(&self, jobs: Vec<Job>) {
        // It ends by itself with its runtime only, and says so.
        let _ = self.jobs.send(jobs);
    }

    /// Lets the run end that is at work, but not its ladder.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Runner {
    work: Arc<Work>,
    dead: Arc<str>,
    tenure: u64,
    reports: Sender<Report>,
    stopped: watch::Receiver<bool>,
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.reports.send(Report::Ended { tenure: self.tenure });
    }
}

impl Runner {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Vec<Job>>) {
        loop {
            let jobs = tokio::select! {
                biased;
                _ = self.stopped.wait_for(|stopped| *stopped) => return,
                jobs = queue.recv() => jobs,
            };
            let Some(jobs) = jobs else { return };
            for job in jobs {
                if *self.stopped.borrow() || !self.finish(job).await {
                    return;
                }
            }
        }
    }

    /// Runs a record until it is done. Returns whether it is.
    async fn finish(&mut self, job: Job) -> bool {
        let Job { message, mut failed } = job;
        let tenure = self.tenure;
        let Some(offset) = message.origin().offset else { return true };
        loop {
            let mut attempt = 1;
            if let Some(failed) = failed.take() {
                let found =
                    Findings { run: Some(failed.run), attempt: failed.attempt, ..Findings::default() };
                let MessageFate::Retry(delay) = fate(&found, &self.work.policy).message else {
                    let outputs = vec![self.dead_letter(&message, &failed)];
                    let done = Done { tenure, offset, outputs, attempt: failed.attempt, rejected: true };
                    return self.reports.send(Report::Done(done)).is_ok();
                };
                attempt = failed.attempt.saturating_add(1);
                tokio::select! {
                    biased;
                    _ = self.stopped.wait_for(|stopped| *stopped) => return false,
                    () = tokio::time::sleep(delay) => {}
                }
            }
            let said = match self.work.run(&message, attempt).await {
                Ok(outputs) => {
                    let done = Done { tenure, offset, outputs, attempt, rejected: false };
                    return self.reports.send(Report::Done(done)).is_ok();
                }
                Err(ended) => {
                    failed = Some(ended.clone());
                    Report::Failed { tenure, offset, failed: ended }
                }
            };
            if self.reports.send(said).is_err() {
                return false;
            }
        }
    }
}

impl Runner {
    fn dead_letter(&self, message: &Message, failed: &Failed) -> Output {
        let identity = Identity::Position;
        let mut trail = Trail::read(message, &self.work.name, &message.origin().topic, identity);
        trail.attempt = failed.attempt;
        let reject = Reject::new(failed.class, trail, failed.reason.as_str());
        Output::new(self.dead.clone(), reject.copy(message, REASON_MAX))
    }
}

impl Work {
    /// One run, in time and contained.
    async fn run(&self, message: &Message, attempt: u32) -> Result<Vec<Output>, Failed> {
        let (step, cx) = (self.step.clone(), Context::new(message.clone(), None, attempt));
        let message = message.clone();
        let contained = AssertUnwindSafe(async move { step(cx, message).await }).catch_unwind();
        let failed = |run, class, reason: String| Failed { attempt, run, class, reason };
        let failure = match tokio::time::timeout(self.timeout, contained).await {
            Ok(Ok(Ok(outputs))) => match outputs.iter().find_map(Output::unusable) {
                None => return Ok(outputs),
                Some(why) => Failure::business(why),
            },
            Ok(Ok(Err(failure))) => failure,
            Ok(Err(panic)) => {
                let text = format!("the handler panicked: {}", panic_text(&*panic));
                return Err(failed(Run::Panicked, Class::System, text));
            }
            Err(_) => Failure::system(format!("the handler ran longer than {}", Time(self.timeout))),
        };
        Err(failed(Run::Failed(failure.class()), failure.class(), failure.reason().to_owned()))
    }
}

impl Output {
    /// Why it can never be sent.
    fn unusable(&self) -> Option<String> {
        let name = records::unusable_header(self.message.headers())?;
        Some(format!("a header name with a zero byte ({name:?}) cannot be sent to Kafka"))
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}
