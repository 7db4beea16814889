//! A consumer from its first delivery to its last.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::counters::Counters;
use super::intake::Intake;
use super::worker::{Topic, Worker, WorkerShared};
use super::{Shared, Summary, TopicEnv};
use crate::consumer::Stage;
use crate::route::Route;
use crate::{Error, ErrorKind, Health, Source};

/// What is left for closing after the grace is used up.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Everything a consumer needs to run.
pub(crate) struct Launch {
    pub(crate) source: Box<dyn Source>,
    pub(crate) topics: Vec<(Arc<TopicEnv>, Arc<dyn Route>)>,
    pub(crate) in_flight: usize,
    pub(crate) bytes_max: usize,
    pub(crate) workers: usize,
    pub(crate) grace: Duration,
    pub(crate) shared: Arc<Shared>,
    pub(crate) health: watch::Sender<Health>,
}

pub(crate) async fn run(launch: Launch) -> Result<Summary, Error> {
    let health = launch.health.clone();
    let (grace, shared) = (launch.grace, launch.shared.clone());
    let shutdown = &shared.shutdown;
    let (mut intake, mut workers, counters) = start(launch);
    let ended = tokio::select! {
        biased;
        () = shutdown.reached(Stage::Stop) => None,
        error = intake.consume() => Some(error),
        Some(result) = workers.join_next() => Some(worker_ended(result)),
    };
    intake.stop();
    let deadline = Instant::now() + grace;
    tokio::select! {
        biased;
        () = shutdown.reached(Stage::Now) => {}
        () = drain(&mut intake, &mut workers) => {}
        () = tokio::time::sleep_until(deadline) => {}
    }
    // Whatever still runs is dropped here, and its delivery goes back to the broker.
    workers.shutdown().await;
    let at_once = shutdown.is_reached(Stage::Now);
    let left = if at_once { Duration::ZERO } else { deadline.saturating_duration_since(Instant::now()) };
    shared.late.finish(left.max(Duration::from_millis(100))).await;
    let closed = intake.source.close(left.max(CLOSE_LIMIT)).await;
    let mut summary = Counters::sum(&counters);
    summary.released += intake.released;
    summary.gaps += intake.gaps;
    let result = match ended {
        Some(error) => Err(error),
        None => closed.map(|()| summary),
    };
    let reason = result.as_ref().err().map_or_else(|| "stopped".to_owned(), ToString::to_string);
    health.send_replace(Health::Down(reason));
    result
}

fn start(launch: Launch) -> (Intake, JoinSet<()>, Vec<Arc<Counters>>) {
    let shared: Vec<Arc<WorkerShared>> = (0..launch.workers).map(|_| Arc::default()).collect();
    let counters = shared.iter().map(|worker| worker.counters.clone()).collect();
    let envs = launch.topics.iter().map(|(env, _)| env.clone()).collect();
    let bounds = (launch.in_flight, launch.bytes_max);
    let intake = Intake::new(launch.source, bounds, envs, shared.clone(), launch.shared, launch.health);
    let mut workers = JoinSet::new();
    for worker in shared {
        let topics = launch
            .topics
            .iter()
            .map(|(env, route)| Topic { env: env.clone(), runner: route.clone().runner(env.clone()) })
            .collect();
        workers.spawn(Worker::new(topics, worker, intake.queue.clone()));
    }
    (intake, workers, counters)
}

/// Lets running handlers end while the source goes on settling.
async fn drain(intake: &mut Intake, workers: &mut JoinSet<()>) {
    let all_ended = async { while workers.join_next().await.is_some() {} };
    tokio::pin!(all_ended);
    tokio::select! {
        biased;
        () = &mut all_ended => {}
        // A source that fails now changes nothing for the handlers that still run.
        _ = intake.idle() => all_ended.await,
    }
}

fn worker_ended(result: Result<(), tokio::task::JoinError>) -> Error {
    let why = result.err().map_or_else(|| "it returned".to_owned(), |e| e.to_string());
    Error::new(ErrorKind::Internal, format!("a worker of the consumer ended: {why}"))
}
