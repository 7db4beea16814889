//! Runs of handlers that nothing guards.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures_util::FutureExt;

use super::settle::ack_of;
use super::{Job, Outcome, Tally, TopicEnv};
use crate::fate::{Findings, MessageFate, Run, fate};
use crate::route::{Places, Route, Runner, Runs};
use crate::{
    Ack, Class, Codec, Context, Delivery, Error, Facts, Failure, Handler, Message, Ordering, RecordFacts, url,
};

/// A handler without a guard: it runs for every delivery.
pub(crate) struct Unguarded<H, M, C> {
    // One reference for both: every message in flight holds it.
    parts: Arc<(H, C)>,
    message: PhantomData<fn(M)>,
}

impl<H, M, C> Unguarded<H, M, C> {
    pub(crate) fn new(handler: H, codec: C) -> Self {
        Self { parts: Arc::new((handler, codec)), message: PhantomData }
    }
}

impl<H, M, C> Route for Unguarded<H, M, C>
where
    H: Handler<Context, M>,
    M: Send + 'static,
    C: Codec<M>,
{
    fn record(&self) -> Option<RecordFacts> {
        None
    }

    fn check(&self) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + '_>> {
        Box::pin(async { Ok(()) })
    }

    fn runner(self: Arc<Self>, topic: Arc<TopicEnv>) -> Box<dyn Runner> {
        match topic.ordering {
            Ordering::Free => Box::new(FreeRuns {
                start: move |attempt, job| call(self.parts.clone(), attempt, job),
                places: Places::new(),
                topic,
            }),
            Ordering::Ordered => {
                Box::new(Runs::new(move |job| in_order(self.parts.clone(), topic.clone(), job)))
            }
        }
    }
}

/// One call of the handler, contained against panics.
async fn call<H, M, C>(parts: Arc<(H, C)>, attempt: u32, job: Job) -> Result<(), Ended>
where
    H: Handler<Context, M>,
    M: Send + 'static,
    C: Codec<M>,
{
    let cx = Context::shared(job.message, job.key.and_then(|found| found.ok()), attempt);
    let call = async move {
        let (handler, codec) = &*parts;
        let decoded = codec.decode(cx.message()).map_err(Ended::Undecodable)?;
        handler.call(cx, decoded).await.map_err(Ended::Failed)
    };
    let contained = AssertUnwindSafe(call).catch_unwind();
    contained.await.unwrap_or_else(|panic| Err(Ended::Panicked(panic_text(&*panic))))
}

/// Runs whose failures go to the broker's rungs. Small: everything but the call itself is
/// looked up from the delivery when the run is over.
struct FreeRuns<S, F> {
    start: S,
    places: Places<F>,
    topic: Arc<TopicEnv>,
}

impl<S, F> FreeRuns<S, F> {
    fn outcome(&self, ended: Result<(), Ended>, delivery: &Delivery) -> Outcome {
        match ended {
            Ok(()) => Outcome::new(Ack::Accept),
            Err(ended) => {
                let attempt = self.topic.attempts(delivery.message(), delivery.facts()).saturating_add(1);
                Decided::new(ended, attempt, &self.topic).outcome(
                    delivery.message(),
                    delivery.facts(),
                    &self.topic,
                )
            }
        }
    }
}

impl<S, F> Runner for FreeRuns<S, F>
where
    S: Fn(u32, Job) -> F + Send,
    F: Future<Output = Result<(), Ended>> + Send,
{
    fn limit(&self) -> Option<Duration> {
        Some(self.topic.timeout)
    }

    fn start(&mut self, job: Job) -> u32 {
        let attempt = self.topic.attempts(&job.message, job.facts).saturating_add(1);
        self.places.start((self.start)(attempt, job))
    }

    fn poll(&mut self, place: u32, delivery: &Delivery, cx: &mut TaskContext<'_>) -> Poll<Outcome> {
        let ended = std::task::ready!(self.places.poll(place, cx));
        Poll::Ready(self.outcome(ended, delivery))
    }

    fn expire(&mut self, place: u32, delivery: &Delivery) -> Outcome {
        self.places.cancel(place);
        self.outcome(Err(Ended::Failed(timed_out(self.topic.timeout))), delivery)
    }

    fn cancel(&mut self, place: u32) {
        self.places.cancel(place);
    }
}

/// A run whose ladder waits in place: later messages of the key queue behind it.
async fn in_order<H, M, C>(parts: Arc<(H, C)>, topic: Arc<TopicEnv>, job: Job) -> Outcome
where
    H: Handler<Context, M>,
    M: Send + 'static,
    C: Codec<M>,
{
    let Job { message, facts, key, leaving } = job;
    let mut attempt = topic.attempts(&message, facts);
    let key = key.and_then(|found| found.ok());
    loop {
        attempt = attempt.saturating_add(1);
        let key = key.clone().map(|key| Box::new(Ok(key)));
        let job = Job { message: message.clone(), facts, key, leaving: leaving.clone() };
        let run = call(parts.clone(), attempt, job);
        let ended = match tokio::time::timeout(topic.timeout, run).await {
            Ok(Ok(())) => return Outcome::new(Ack::Accept),
            Ok(Err(ended)) => ended,
            Err(_) => Ended::Failed(timed_out(topic.timeout)),
        };
        let decided = Decided::new(ended, attempt, &topic);
        let MessageFate::Retry(delay) = decided.fate else {
            return decided.outcome(&message, facts, &topic);
        };
        let seed = topic.trail(&message, facts).id.seed().wrapping_add(u64::from(attempt));
        if !topic.wait_for_rung(delay, seed, &leaving).await {
            return Outcome::new(Ack::Release);
        }
    }
}

/// What follows from a run that did not succeed.
struct Decided {
    fate: MessageFate,
    class: Class,
    reason: String,
    attempt: u32,
    panicked: bool,
}

impl Decided {
    fn new(ended: Ended, attempt: u32, topic: &TopicEnv) -> Self {
        let mut found = Findings { attempt, ..Findings::default() };
        let (class, reason) = ended.describe(&mut found);
        let fate = fate(&found, &topic.policy).message;
        Self { fate, class, reason, attempt, panicked: found.run == Some(Run::Panicked) }
    }

    fn outcome(self, message: &Message, facts: Facts, topic: &TopicEnv) -> Outcome {
        let mut trail = topic.trail(message, facts);
        trail.attempt = self.attempt;
        let tally = Tally { panicked: self.panicked, ..Tally::default() };
        Outcome { ack: ack_of(self.fate, trail, self.class, &self.reason), tally }
    }
}

/// How a run ended that did not succeed.
pub(crate) enum Ended {
    Undecodable(String),
    Failed(Failure),
    Panicked(String),
}

impl Ended {
    /// Enters it into the findings and returns class and reason for the dead letter.
    pub(crate) fn describe(self, found: &mut Findings) -> (Class, String) {
        match self {
            Ended::Undecodable(why) => {
                found.undecodable = true;
                (Class::Business, format!("undecodable: {why}"))
            }
            Ended::Failed(failure) => {
                found.run = Some(Run::Failed(failure.class()));
                (failure.class(), failure.reason().to_owned())
            }
            Ended::Panicked(text) => {
                found.run = Some(Run::Panicked);
                (Class::System, format!("the handler panicked: {text}"))
            }
        }
    }
}

pub(crate) fn timed_out(timeout: std::time::Duration) -> Failure {
    Failure::system(format!("the handler ran longer than {}", url::Time(timeout)))
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}
