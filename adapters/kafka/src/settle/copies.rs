//! Copies for rungs and dead letters, confirmed before their originals count as done.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use oncemq_core::partitions::Answer;
use oncemq_core::{Error, ErrorKind, Health, Message, Reject, Retry, Token, failpoint};
use tokio::sync::mpsc;

use crate::publisher::Producer;
use crate::source::{Lane, Shared};

/// Copies under way at once.
const COPIES_MAX: usize = 256;
/// The diagnostic text of a dead letter, in bytes.
const REASON_MAX: usize = 16 * 1024;
/// The wait after a first failed try; it doubles up to the longest.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Why a copy is made.
#[derive(Debug)]
pub(crate) enum Purpose {
    Retry(Box<Retry>),
    Reject(Box<Reject>),
}

/// A copy to make.
#[derive(Debug)]
pub(crate) struct Job {
    token: Token,
    message: Message,
    purpose: Purpose,
    wait: Duration,
    /// It could not be stored the last time.
    failed: bool,
}

impl Job {
    pub(crate) fn new(token: Token, message: Message, purpose: Purpose) -> Self {
        Self { token, message, purpose, wait: WAIT_MIN, failed: false }
    }
}

/// What became of a try.
enum Tried {
    Stored(Job),
    /// The partition has left: whoever has it now hands the message out again.
    Void(Job),
    Failed(Job, Error),
}

/// Makes copies until nobody can ask for one any more.
pub(crate) async fn run(
    mut jobs: mpsc::UnboundedReceiver<Job>,
    producer: Producer,
    lanes: Arc<[Lane]>,
    shared: Arc<Shared>,
) {
    let mut running: FuturesUnordered<BoxFuture<'static, Tried>> = FuturesUnordered::new();
    let start = |job: Job, wait: Duration| -> BoxFuture<'static, Tried> {
        Box::pin(attempt(job, wait, producer.clone(), lanes.clone(), shared.clone()))
    };
    let mut failing = Failing::default();
    loop {
        tokio::select! {
            Some(tried) = running.next() => match tried {
                Tried::Failed(mut job, error) => {
                    failing.failed(&mut job, &error, &shared);
                    let wait = job.wait;
                    job.wait = (wait * 2).min(WAIT_MAX);
                    running.push(start(job, wait));
                }
                Tried::Stored(job) => {
                    failing.ended(&job, &shared);
                    shared.copies.fetch_sub(1, SeqCst);
                    shared.answers.give(Answer::Done(job.token));
                }
                Tried::Void(job) => {
                    failing.ended(&job, &shared);
                    shared.copies.fetch_sub(1, SeqCst);
                    shared.answers.free();
                }
            },
            job = jobs.recv(), if running.len() < COPIES_MAX => match job {
                Some(job) => running.push(start(job, Duration::ZERO)),
                None if running.is_empty() => return,
                None => {}
            },
        }
    }
}

/// Copies that could not be stored so far. The health speaks of one of them for as long as it
/// is so, whatever becomes of the others meanwhile.
#[derive(Debug, Default)]
struct Failing {
    count: usize,
    told: Option<(Token, ErrorKind)>,
}

impl Failing {
    fn failed(&mut self, job: &mut Job, error: &Error, shared: &Shared) {
        if !std::mem::replace(&mut job.failed, true) {
            self.count += 1;
        }
        let now = (job.token, error.kind());
        if self.told.is_none_or(|told| told.0 == now.0 && told != now) {
            self.told = Some(now);
            shared.copies_health(Health::Degraded(format!("a copy cannot be stored: {error}")));
        }
    }

    fn ended(&mut self, job: &Job, shared: &Shared) {
        self.told = self.told.filter(|told| told.0 != job.token);
        if job.failed {
            self.count -= 1;
            if self.count == 0 {
                shared.copies_health(Health::Up);
            }
        }
    }
}

async fn attempt(
    job: Job,
    wait: Duration,
    producer: Producer,
    lanes: Arc<[Lane]>,
    shared: Arc<Shared>,
) -> Tried {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    failpoint!("kafka.before_copy");
    let lane = shared.state().parts.of(job.token).map(|part| usize::from(part.subscription));
    let Some(lane) = lane.and_then(|lane| lanes.get(lane)) else { return Tried::Void(job) };
    let stored = match publish(&job, lane, &producer, REASON_MAX).await {
        // The text is what can be spared.
        Err(error) if error.kind() == ErrorKind::TooLarge => publish(&job, lane, &producer, 0).await,
        stored => stored,
    };
    match stored {
        Ok(()) => {
            failpoint!("kafka.copied");
            Tried::Stored(job)
        }
        Err(error) => Tried::Failed(job, error),
    }
}

async fn publish(job: &Job, lane: &Lane, producer: &Producer, reason_max: usize) -> Result<(), Error> {
    match &job.purpose {
        Purpose::Retry(retry) => {
            let topic = lane.names.rung(retry.after).ok_or_else(|| {
                let text = format!("there is no retry topic for a delay of {:?}", retry.after);
                Error::new(ErrorKind::Internal, text)
            })?;
            producer.send(topic, &retry.copy(&job.message)).await
        }
        Purpose::Reject(reject) => {
            producer.send(&lane.names.dead, &reject.copy(&job.message, reason_max)).await
        }
    }
}
