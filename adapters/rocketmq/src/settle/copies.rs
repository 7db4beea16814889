//! Retries and dead letters, confirmed before their originals count as done.
//!
//! A retry is the broker's own: it stores the message again by its place in the log, and counts.
//! Where that cannot serve, a copy of ours goes to the same topic: the original has expired, or
//! attempts were charged that the broker did not count. Dead letters are always copies of ours,
//! since the broker's own cannot say why.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use oncemq_core::{Error, ErrorKind, Health, Message, Reject, Retry, Token, failpoint, header};
use tokio::sync::mpsc;

use crate::cluster::{Cluster, SentBack};
use crate::publisher::Producer;
use crate::records::{self, Extra, Native};
use crate::source::{Answer, Shared};
use crate::topology::{Levels, Names};

/// Copies under way at once.
const COPIES_MAX: usize = 256;
/// The diagnostic text of a dead letter, in bytes. All properties of a message together may be
/// 32 KiB long.
const REASON_MAX: usize = 8 * 1024;
/// The wait after a first failed try; it doubles up to the longest.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Why a message is stored again.
#[derive(Debug)]
pub(crate) enum Purpose {
    Retry(Box<Retry>),
    Reject(Box<Reject>),
    /// Sent back for a topic that this consumer does not consume any more.
    Stray,
}

/// A message to store again.
#[derive(Debug)]
pub(crate) struct Job {
    token: Token,
    message: Message,
    purpose: Purpose,
    wait: Duration,
}

impl Job {
    pub(crate) fn new(token: Token, message: Message, purpose: Purpose) -> Self {
        Self { token, message, purpose, wait: WAIT_MIN }
    }
}

/// What storing again needs.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) producer: Producer,
    pub(crate) names: Names,
    pub(crate) levels: Levels,
    pub(crate) shared: Arc<Shared>,
}

/// What became of a try.
enum Tried {
    Stored(Token),
    /// The queue has left: whoever has it now hands the message out again.
    Void,
    Failed(Job, Error),
}

/// Stores again until nobody can ask for it any more.
pub(crate) async fn run(mut jobs: mpsc::UnboundedReceiver<Job>, desk: Arc<Desk>) {
    let mut running: FuturesUnordered<BoxFuture<'static, Tried>> = FuturesUnordered::new();
    let start = |job: Job, wait: Duration| -> BoxFuture<'static, Tried> {
        Box::pin(attempt(job, wait, desk.clone()))
    };
    let shared = &desk.shared;
    let mut failing = 0_usize;
    loop {
        tokio::select! {
            Some(tried) = running.next() => match tried {
                Tried::Failed(mut job, error) => {
                    failing += 1;
                    shared.copies_health(Health::Degraded(format!("a copy cannot be stored: {error}")));
                    let wait = job.wait;
                    job.wait = (wait * 2).min(WAIT_MAX);
                    running.push(start(job, wait));
                }
                done => {
                    if failing > 0 {
                        failing = 0;
                        shared.copies_health(Health::Up);
                    }
                    shared.copies.fetch_sub(1, SeqCst);
                    match done {
                        Tried::Stored(token) => shared.answer(Answer::Done(token)),
                        _ => shared.free(),
                    }
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

async fn attempt(job: Job, wait: Duration, desk: Arc<Desk>) -> Tried {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    failpoint!("rocketmq.before_copy");
    if desk.shared.state().part(job.token).is_none() {
        return Tried::Void;
    }
    match desk.store(&job).await {
        Ok(()) => {
            failpoint!("rocketmq.copied");
            Tried::Stored(job.token)
        }
        Err(error) => Tried::Failed(job, error),
    }
}

impl Desk {
    async fn store(&self, job: &Job) -> Result<(), Error> {
        let native = Native::of(&job.message).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "a delivery has lost what RocketMQ knows it by")
        })?;
        match &job.purpose {
            Purpose::Retry(retry) => self.retry(&job.message, native, retry).await,
            Purpose::Reject(reject) => {
                let letter = |limit| reject.copy(&job.message, limit);
                match self.dead_letter(native, &letter(REASON_MAX)).await {
                    // The text is what can be spared.
                    Err(error) if error.kind() == ErrorKind::TooLarge => {
                        self.dead_letter(native, &letter(0)).await
                    }
                    stored => stored,
                }
            }
            Purpose::Stray => {
                let reason = format!("{} does not consume topic {} any more", self.names.group, native.topic);
                let mut letter = job.message.clone();
                letter.parts_mut().headers.set(header::REASON, reason);
                self.dead_letter(native, &letter).await
            }
        }
    }

    async fn retry(&self, message: &Message, native: &Native, retry: &Retry) -> Result<(), Error> {
        let (level, _) = self.levels.at_least(retry.after).ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("there is no delay level for {:?}", retry.after))
        })?;
        // What is sent back keeps the headers it has: it can count one attempt more, and no
        // other number.
        let counts = retry.trail.attempt == native.charged.saturating_add(1)
            && !native.foreign
            && message.headers().get(header::ID).is_none();
        if counts && self.cluster.send_back(&self.names.group, native, level).await? == SentBack::Stored {
            return Ok(());
        }
        let attempt = retry.trail.attempt;
        let extra = Extra { level: Some(level), counted: Some(attempt), ..Extra::default() };
        let record = records::copy(&retry.copy(message), native, &extra)?;
        self.producer.send(&self.names.retry, &record, attempt).await
    }

    async fn dead_letter(&self, native: &Native, letter: &Message) -> Result<(), Error> {
        let record = records::copy(letter, native, &Extra { dead: true, ..Extra::default() })?;
        self.producer.send(&self.names.dead, &record, 0).await
    }
}
