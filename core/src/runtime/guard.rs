//! The driver of guarded runs: claim, run, commit, and what follows from each outcome.
//!
//! The same code drives every store, the simulated one included.

mod drive;
mod marks;
mod open;
mod patience;
mod unit;

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, Semaphore};

use self::marks::MarkLeft;
use super::{Job, Leaving, Outcome, Tally, TopicEnv};
use crate::fate::{MessageFate, RecordFate};
use crate::route::{Guarded, Route, Runner, Runs};
use crate::{Class, Codec, Entry, Error, Handler, Json, Message, Record, RecordFacts, failpoint};

/// A handler guarded by a record: effect and record commit together, and only then is the
/// message acknowledged.
pub struct Guard<R, H, M, C = Json> {
    record: Arc<R>,
    handler: Arc<H>,
    codec: Arc<C>,
    /// Suspects that may run at once, as many as the record has units.
    places: Arc<Semaphore>,
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
        let places = record.facts().units.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            record,
            handler: Arc::new(handler),
            codec: Arc::new(Json),
            places: Arc::new(Semaphore::new(places)),
            message: PhantomData,
        }
    }
}

impl<R, H, M, C> Guard<R, H, M, C> {
    /// Reads payloads with another codec.
    pub fn codec<D: Codec<M>>(self, codec: D) -> Guard<R, H, M, D> {
        Guard {
            record: self.record,
            handler: self.handler,
            codec: Arc::new(codec),
            places: self.places,
            message: PhantomData,
        }
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
                places: self.places.clone(),
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
    places: Arc<Semaphore>,
    topic: Arc<TopicEnv>,
    retention: Duration,
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
    /// The same for a suspect that runs beside others.
    beside: Option<OwnedRwLockReadGuard<()>>,
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
    let ended = run.mark().await;
    failpoint!("core.marked");
    let outcome = match ended {
        Some(outcome) => outcome,
        None => run.drive::<M>().await,
    };
    failpoint!("core.decided");
    run.unmark(&outcome.ack).await;
    outcome
}
