//! How handlers of many types run behind one virtual call.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use crate::runtime::{Job, Outcome, TopicEnv};
use crate::{Ack, Delivery, Error, RecordFacts};

/// A handler together with what guards it, ready to be put on a topic.
///
/// Made by an inbox (`inbox.handler(f)`); a handler without a guard is put on a topic with
/// `unguarded` instead.
#[diagnostic::on_unimplemented(
    message = "a bare handler has no idempotency guard",
    label = "this handler would run again for every duplicate",
    note = "guard it: `.handler(inbox.handler(f))`",
    note = "or say that repetitions are harmless: `.unguarded(f)`"
)]
pub trait Guarded: Send + 'static {
    #[doc(hidden)]
    fn into_route(self) -> Arc<dyn Route>;
}

/// One topic's handler, erased.
#[doc(hidden)]
pub trait Route: Send + Sync + 'static {
    /// What the record behind it promises, if there is one.
    fn record(&self) -> Option<RecordFacts>;

    /// Whether it needs an idempotency key.
    fn needs_key(&self) -> bool {
        self.record().is_some()
    }

    /// Checks that the store answers.
    fn check(&self) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + '_>>;

    /// The runs of one worker on this topic.
    fn runner(self: Arc<Self>, topic: Arc<TopicEnv>) -> Box<dyn Runner>;
}

/// The runs of one worker on one topic.
#[doc(hidden)]
pub trait Runner: Send {
    /// How long a pending run may take, if the worker is to watch it. A route that must
    /// clean up after a run watches its own.
    fn limit(&self) -> Option<Duration>;

    /// Puts a run into a free place and returns the place.
    fn start(&mut self, job: Job) -> u32;

    /// Polls the run at a place. A finished run leaves its place free.
    fn poll(&mut self, place: u32, delivery: &Delivery, cx: &mut TaskContext<'_>) -> Poll<Outcome>;

    /// Drops the run at a place because its time is up.
    fn expire(&mut self, place: u32, delivery: &Delivery) -> Outcome;

    /// Drops the run at a place.
    fn cancel(&mut self, place: u32);
}

/// Futures of one type in reused boxes: after warm-up a run costs no allocation.
pub(crate) struct Places<F> {
    places: Vec<Pin<Box<Option<F>>>>,
    free: Vec<u32>,
}

impl<F: Future> Places<F> {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn start(&mut self, run: F) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize].as_mut().set(Some(run));
            return place;
        }
        self.places.push(Box::pin(Some(run)));
        u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn poll(&mut self, place: u32, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        let mut run = self.places[place as usize].as_mut();
        let Some(future) = run.as_mut().as_pin_mut() else {
            // A waker that outlived its run.
            return Poll::Pending;
        };
        let output = std::task::ready!(future.poll(cx));
        run.set(None);
        self.free.push(place);
        Poll::Ready(output)
    }

    pub(crate) fn cancel(&mut self, place: u32) {
        let mut run = self.places[place as usize].as_mut();
        if run.is_some() {
            run.set(None);
            self.free.push(place);
        }
    }
}

/// Runs that come to their outcome by themselves, their time included.
pub(crate) struct Runs<S, F> {
    start: S,
    places: Places<F>,
}

impl<S, F> Runs<S, F>
where
    S: Fn(Job) -> F + Send,
    F: Future<Output = Outcome> + Send,
{
    pub(crate) fn new(start: S) -> Self {
        Self { start, places: Places::new() }
    }
}

impl<S, F> Runner for Runs<S, F>
where
    S: Fn(Job) -> F + Send,
    F: Future<Output = Outcome> + Send,
{
    fn limit(&self) -> Option<Duration> {
        None
    }

    fn start(&mut self, job: Job) -> u32 {
        self.places.start((self.start)(job))
    }

    fn poll(&mut self, place: u32, _delivery: &Delivery, cx: &mut TaskContext<'_>) -> Poll<Outcome> {
        self.places.poll(place, cx)
    }

    fn expire(&mut self, place: u32, _delivery: &Delivery) -> Outcome {
        self.cancel(place);
        Outcome::new(Ack::Release)
    }

    fn cancel(&mut self, place: u32) {
        self.places.cancel(place);
    }
}
