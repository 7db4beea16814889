//! Copies for rungs and dead letters, confirmed before their originals are acknowledged.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lapin::types::ShortString;
use oncemq_core::{Error, ErrorKind, Message, Reject, Retry, Token, failpoint};
use tokio::time::Instant;

use crate::config::Config;
use crate::connection::Backoff;
use crate::properties;
use crate::publisher::{Outgoing, Pool};

/// Copies under way at once.
const COPIES_MAX: usize = 64;
/// The diagnostic text of a dead letter, in bytes. All properties share one frame.
const REASON_MAX: usize = 4096;

/// Why a copy is made.
#[derive(Debug)]
pub(crate) enum Purpose {
    Retry(Box<Retry>),
    Reject(Box<Reject>),
}

/// A copy to make.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) token: Token,
    pub(crate) message: Message,
    pub(crate) queue: ShortString,
    pub(crate) purpose: Purpose,
    pub(crate) backoff: Backoff,
    /// Whether the channel of the original still lives.
    pub(crate) alive: Arc<AtomicBool>,
}

/// A copy that was tried.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) job: Job,
    pub(crate) result: Result<(), Error>,
}

/// All copies of one source. They have a connection of their own, made with the first one,
/// so that a broker that blocks publishing does not stop acknowledgements.
pub(crate) struct Copies {
    pool: Arc<Pool>,
    running: FuturesUnordered<BoxFuture<'static, Copied>>,
    waiting: VecDeque<Job>,
    /// When the broker last confirmed one, or began to have some.
    moved: Instant,
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

impl Copies {
    pub(crate) fn new(config: Arc<Config>, consumer: &str) -> Self {
        Self {
            pool: Arc::new(Pool::new(config, format!("{consumer} copies"))),
            running: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            moved: Instant::now(),
        }
    }

    pub(crate) fn start(&mut self, job: Job) {
        if self.running.is_empty() {
            self.moved = Instant::now();
        }
        if self.running.len() >= COPIES_MAX {
            self.waiting.push_back(job);
            return;
        }
        self.running.push(Box::pin(attempt(job, self.pool.clone())));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The next copy that was tried; never, while there is none. Cancel safe.
    pub(crate) async fn next(&mut self) -> Copied {
        match self.running.next().await {
            Some(copied) => {
                self.moved = Instant::now();
                copied
            }
            None => std::future::pending().await,
        }
    }

    /// The next one that waits for a place, if there is a place.
    pub(crate) fn admit(&mut self) -> Option<Job> {
        if self.running.len() < COPIES_MAX { self.waiting.pop_front() } else { None }
    }

    /// Whether the broker has stopped reading what is published.
    pub(crate) fn blocked(&self) -> bool {
        !self.running.is_empty() && self.pool.blocked()
    }

    /// How long the copies under way have been waiting for a confirmation.
    pub(crate) fn stalled(&self) -> Duration {
        if self.running.is_empty() { Duration::ZERO } else { self.moved.elapsed() }
    }

    /// Closes the connection, within this time.
    pub(crate) async fn close(&mut self, limit: Duration) {
        self.running.clear();
        self.waiting.clear();
        self.pool.close(limit).await;
    }
}

/// One try. A confirmation that is late is waited for as long as the connection lives:
/// to publish again meanwhile would double the copy.
async fn attempt(job: Job, pool: Arc<Pool>) -> Copied {
    failpoint!("rabbitmq.before_copy");
    if let Err(error) = pool.writable().await {
        return Copied { job, result: Err(error) };
    }
    if !job.alive.load(Relaxed) {
        // The broker delivers the original again; a copy now would be one too many.
        let result = Err(Error::new(ErrorKind::Closed, "the channel of the original is gone"));
        return Copied { job, result };
    }
    let result = publish(&job, &pool, REASON_MAX).await;
    let result = match result {
        // The original fills the frame almost by itself; the text is what can be spared.
        Err(error) if error.kind() == ErrorKind::TooLarge => publish(&job, &pool, 0).await,
        result => result,
    };
    if result.is_ok() {
        failpoint!("rabbitmq.copied");
    }
    Copied { job, result }
}

async fn publish(job: &Job, pool: &Pool, reason_max: usize) -> Result<(), Error> {
    let copy = match &job.purpose {
        Purpose::Retry(retry) => retry.copy(&job.message),
        Purpose::Reject(reject) => reject.copy(&job.message, reason_max),
    };
    let outgoing = Outgoing {
        exchange: &ShortString::default(),
        routing_key: &job.queue,
        properties: properties::of_copy(&copy)?,
        body: copy.body(),
    };
    pool.send(&outgoing).await
}
