//! Runs of handlers that nothing guards.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;

use super::settle::ack_of;
use super::{Job, Outcome, Tally, TopicEnv};
use crate::fate::{Findings, MessageFate, Run, fate};
use crate::retry::jittered;
use crate::route::{Route, Runner, Runs};
use crate::{Class, Codec, Context, Error, Failure, Handler, Ordering, RecordFacts};

/// A handler without a guard: it runs for every delivery.
pub(crate) struct Unguarded<H, M, C> {
    handler: Arc<H>,
    codec: Arc<C>,
    message: PhantomData<fn(M)>,
}

impl<H, M, C> Unguarded<H, M, C> {
    pub(crate) fn new(handler: H, codec: C) -> Self {
        Self { handler: Arc::new(handler), codec: Arc::new(codec), message: PhantomData }
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
        Box::new(Runs::new(move |job| handle(self.handler.clone(), self.codec.clone(), topic.clone(), job)))
    }
}

async fn handle<H, M, C>(handler: Arc<H>, codec: Arc<C>, topic: Arc<TopicEnv>, job: Job) -> Outcome
where
    H: Handler<Context, M>,
    M: Send + 'static,
    C: Codec<M>,
{
    let mut attempt = topic.attempts(&job.message, job.facts);
    let key = job.key.and_then(Result::ok);
    loop {
        attempt = attempt.saturating_add(1);
        let message = &job.message;
        let key = key.clone();
        let call = async {
            let decoded = codec.decode(message).map_err(Ended::Undecodable)?;
            let cx = Context::new(message.clone(), key, attempt);
            handler.call(cx, decoded).await.map_err(Ended::Failed)
        };
        let ended = match tokio::time::timeout(topic.timeout, AssertUnwindSafe(call).catch_unwind()).await {
            Ok(Ok(Ok(()))) => return Outcome::new(crate::Ack::Accept),
            Ok(Ok(Err(ended))) => ended,
            Ok(Err(panic)) => Ended::Panicked(panic_text(&*panic)),
            Err(_) => Ended::Failed(timed_out(topic.timeout)),
        };
        let mut found = Findings { attempt, ..Findings::default() };
        let (class, reason) = ended.describe(&mut found);
        let end = fate(&found, &topic.policy);
        if let (MessageFate::Retry(delay), Ordering::Ordered) = (end.message, topic.ordering) {
            // The ladder waits in place: later messages of the key queue behind this run.
            let seed = u64::from(attempt) ^ job.message.body().as_ptr() as u64;
            tokio::time::sleep(jittered(delay, seed)).await;
            continue;
        }
        let mut trail = topic.trail(&job.message, job.facts);
        trail.attempt = attempt;
        let tally = Tally { panicked: matches!(found.run, Some(Run::Panicked)), ..Tally::default() };
        return Outcome { ack: ack_of(end.message, trail, class, &reason), tally };
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
    Failure::system(format!("the handler ran longer than {timeout:?}"))
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}
