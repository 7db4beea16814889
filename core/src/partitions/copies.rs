//! Messages that are stored again, each confirmed before its original counts as done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::{Answer, Answers};
use crate::{Ack, Error, ErrorKind, Health, Message, Reject, Retry, Settle, Token};

/// Copies under way at once.
const COPIES_MAX: usize = 256;
/// The wait after a first failed try; it doubles up to the longest.
const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Why a message is stored again.
#[derive(Debug)]
#[non_exhaustive]
pub enum Purpose {
    /// On a rung, or by the broker's own retry.
    Retry(Box<Retry>),
    /// As a dead letter.
    Reject(Box<Reject>),
    /// As a dead letter, because no handler can have it: it belongs to no subscription, or cannot
    /// be read.
    Stray,
}

/// A message to store again.
#[derive(Debug)]
pub struct CopyJob {
    /// Its delivery.
    pub token: Token,
    /// As it was delivered.
    pub message: Message,
    /// Why.
    pub purpose: Purpose,
}

/// What became of a [`CopyJob`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// The broker has it.
    Confirmed,
    /// Its partition has left: whoever has it now hands the message out again.
    Void,
}

/// The adapter's part: storing one message.
#[async_trait]
pub trait Copier: fmt::Debug + Send + Sync + 'static {
    /// Stores a message again, and returns once the broker has confirmed it.
    ///
    /// # Errors
    /// Whatever kept it from being confirmed: it is tried again, after a wait that doubles from
    /// 100 ms to 10 s, for as long as the partition stays.
    async fn store(&self, job: &CopyJob) -> Result<Stored, Error>;

    /// Told when copies cannot be stored, and when all of them can again.
    fn health(&self, health: Health);
}

/// The side of a source that its deliveries keep.
///
/// What is done or given back becomes an [`Answer`] at once; a retry and a dead letter become a
/// [`CopyJob`], and an answer once they are stored. Whoever takes the jobs, [`Copies::run`], may have
/// ended: then the offset stays where it is, and the message comes again.
#[derive(Debug)]
pub struct Copies {
    answers: Arc<Answers>,
    jobs: mpsc::UnboundedSender<CopyJob>,
}

impl Copies {
    /// With the queue that [`run`](Self::run) takes.
    pub fn new(answers: Arc<Answers>) -> (Self, mpsc::UnboundedReceiver<CopyJob>) {
        let (jobs, queue) = mpsc::unbounded_channel();
        (Self { answers, jobs }, queue)
    }

    /// Has a message stored again.
    pub fn ask(&self, job: CopyJob) {
        self.answers.copy_begun();
        if self.jobs.send(job).is_err() {
            self.answers.copy_ended();
            self.answers.free();
        }
    }

    /// Stores messages, 256 at once, until every [`Copies`] of the queue is gone and all are
    /// stored. Dropped before, what is not confirmed comes again with its original.
    pub async fn run(
        mut jobs: mpsc::UnboundedReceiver<CopyJob>,
        answers: Arc<Answers>,
        copier: Arc<dyn Copier>,
    ) {
        let mut running = FuturesUnordered::new();
        let mut failing = Failing::default();
        let mut open = true;
        while open || !running.is_empty() {
            tokio::select! {
                Some(tried) = running.next() => {
                    let Tried { mut copy, result } = tried;
                    match result {
                        Err(error) => {
                            failing.failed(&mut copy, &error, &*copier);
                            running.push(attempt(copy, copier.clone()));
                        }
                        Ok(stored) => {
                            failing.ended(&copy, &*copier);
                            answers.copy_ended();
                            match stored {
                                Stored::Confirmed => answers.give(Answer::Done(copy.job.token)),
                                Stored::Void => answers.free(),
                            }
                        }
                    }
                }
                job = jobs.recv(), if open && running.len() < COPIES_MAX => match job {
                    Some(job) => running.push(attempt(Copy { job, wait: None }, copier.clone())),
                    // It would say so at once, again and again.
                    None => open = false,
                },
            }
        }
    }
}

impl Settle for Copies {
    fn settle(&self, token: Token, message: Message, ack: Ack) {
        let purpose = match ack {
            Ack::Accept | Ack::Discard { .. } => return self.answers.give(Answer::Done(token)),
            Ack::Retry(retry) => Purpose::Retry(retry),
            Ack::Reject(reject) => Purpose::Reject(reject),
            Ack::Defer { after } => {
                let due = Instant::now() + after;
                return self.answers.give(Answer::Back(token, message, Some(due)));
            }
            Ack::Release => return self.answers.give(Answer::Back(token, message, None)),
        };
        self.ask(CopyJob { token, message, purpose });
    }
}

/// A job, and how long it waited before its last try if one has failed.
struct Copy {
    job: CopyJob,
    wait: Option<Duration>,
}

struct Tried {
    copy: Copy,
    result: Result<Stored, Error>,
}

fn attempt(copy: Copy, copier: Arc<dyn Copier>) -> BoxFuture<'static, Tried> {
    Box::pin(async move {
        if let Some(wait) = copy.wait {
            sleep(wait).await;
        }
        let result = copier.store(&copy.job).await;
        Tried { copy, result }
    })
}

/// Copies that could not be stored so far. The health speaks of one of them for as long as it
/// is so, whatever becomes of the others meanwhile.
#[derive(Debug, Default)]
struct Failing {
    count: usize,
    told: Option<(Token, ErrorKind)>,
}

impl Failing {
    fn failed(&mut self, copy: &mut Copy, error: &Error, copier: &dyn Copier) {
        if copy.wait.is_none() {
            self.count += 1;
        }
        copy.wait = Some(copy.wait.map_or(WAIT_MIN, |wait| (wait * 2).min(WAIT_MAX)));
        let now = (copy.job.token, error.kind());
        if self.told.is_none_or(|told| told.0 == now.0 && told != now) {
            self.told = Some(now);
            let origin = copy.job.message.origin();
            copier.health(Health::Degraded(format!("a copy of {origin} cannot be stored: {error}")));
        }
    }

    fn ended(&mut self, copy: &Copy, copier: &dyn Copier) {
        self.told = self.told.filter(|told| told.0 != copy.job.token);
        if copy.wait.is_some() {
            self.count -= 1;
            if self.count == 0 {
                copier.health(Health::Up);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::task::JoinHandle;

    use super::*;
    use crate::{Class, Identity, Trail};

    /// Takes its results from a list, and then confirms.
    #[derive(Debug, Default)]
    struct Fake {
        results: Mutex<Vec<Result<Stored, Error>>>,
        tries: Mutex<Vec<Instant>>,
        told: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl Copier for Fake {
        async fn store(&self, _job: &CopyJob) -> Result<Stored, Error> {
            self.tries.lock().unwrap().push(Instant::now());
            self.results.lock().unwrap().pop().unwrap_or(Ok(Stored::Confirmed))
        }

        fn health(&self, health: Health) {
            self.told.lock().unwrap().push(health.to_string());
        }
    }

    struct Bench {
        answers: Arc<Answers>,
        copies: Copies,
        copier: Arc<Fake>,
        task: JoinHandle<()>,
    }

    impl Bench {
        fn new(results: Vec<Result<Stored, Error>>) -> Self {
            let answers = Arc::new(Answers::default());
            let (copies, jobs) = Copies::new(answers.clone());
            let copier = Arc::new(Fake { results: results.into(), ..Fake::default() });
            let task = tokio::spawn(Copies::run(jobs, answers.clone(), copier.clone()));
            Self { answers, copies, copier, task }
        }

        fn reject(&self, id: u64) {
            let message = Message::new("");
            let trail = Trail::read(&message, &"c".into(), &"k".into(), Identity::Position);
            self.answers.handed_out(1);
            self.copies.settle(token(id), message, Ack::reject(Class::Business, trail, "no product"));
        }
    }

    fn token(id: u64) -> Token {
        Token { epoch: 1, scope: 0, id }
    }

    fn down() -> Result<Stored, Error> {
        Err(Error::new(ErrorKind::Connection, "nobody is there"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_is_an_answer_once_it_is_stored_and_until_then_it_is_tried() {
        let bench = Bench::new(vec![down(), down(), down()]);
        let begin = Instant::now();
        bench.reject(7);
        assert_eq!((bench.answers.outstanding(), bench.answers.copying()), (1, 1));
        assert!(!bench.answers.copied(begin + Duration::from_millis(650)).await);
        assert!(bench.answers.take().is_empty());
        assert!(bench.answers.copied(begin + Duration::from_secs(1)).await);
        let ids: Vec<_> = bench.answers.take().iter().map(|answer| answer.token().id).collect();
        assert_eq!((ids, bench.answers.outstanding()), (vec![7], 0));
        let tries: Vec<_> =
            bench.copier.tries.lock().unwrap().iter().map(|at| (*at - begin).as_millis()).collect();
        assert_eq!(tries, [0, 100, 300, 700]);
        let told = bench.copier.told.lock().unwrap().clone();
        assert!(told.len() == 2 && told[0].contains("nobody is there") && told[1] == "up", "{told:?}");
        drop(bench.copies);
        bench.task.await.unwrap();
    }

    /// A task that is never idle would keep the time from going on.
    #[tokio::test(start_paused = true)]
    async fn what_was_asked_for_is_stored_after_the_last_delivery_is_gone() {
        let bench = Bench::new(vec![down(), down()]);
        bench.reject(7);
        drop(bench.copies);
        bench.task.await.unwrap();
        assert_eq!((bench.answers.copying(), bench.answers.take().len()), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_of_a_partition_that_has_left_frees_its_place_without_an_answer() {
        let bench = Bench::new(vec![Ok(Stored::Void)]);
        bench.reject(7);
        assert!(bench.answers.copied(Instant::now() + Duration::from_secs(1)).await);
        assert_eq!((bench.answers.outstanding(), bench.answers.take().len()), (0, 0));
        // The same where nobody makes copies any more.
        bench.task.abort();
        let _ = bench.task.await;
        let (answers, copies) = (bench.answers.clone(), &bench.copies);
        answers.handed_out(1);
        copies.ask(CopyJob { token: token(8), message: Message::new(""), purpose: Purpose::Stray });
        assert_eq!((answers.outstanding(), answers.copying(), answers.take().len()), (0, 0, 0));
    }

    #[tokio::test]
    async fn what_needs_no_copy_is_an_answer_at_once() {
        let bench = Bench::new(Vec::new());
        bench.answers.handed_out(3);
        let after = Duration::from_secs(9);
        for (id, ack) in [(1, Ack::Accept), (2, Ack::Defer { after }), (3, Ack::Release)] {
            bench.copies.settle(token(id), Message::new(""), ack);
        }
        assert_eq!((bench.answers.outstanding(), bench.answers.copying()), (0, 0));
        let found = bench.answers.take();
        assert!(
            matches!(
                found.as_slice(),
                [Answer::Done(_), Answer::Back(_, _, Some(_)), Answer::Back(_, _, None)]
            ),
            "{found:?}"
        );
    }
}
