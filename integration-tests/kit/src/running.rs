//! A consumer at work, and what its handler saw.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncemq_core::{Consumer, Context, Error, Failure, Handler, Health, Message, Shutdown, Summary};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// A consumer at work.
pub struct Running {
    pub health: watch::Receiver<Health>,
    pub stop: Shutdown,
    pub task: JoinHandle<Result<Summary, Error>>,
}

impl Running {
    /// Starts a consumer and waits until it consumes.
    pub async fn start(consumer: Consumer) -> Self {
        let mut running = Self::launch(consumer);
        running.until_up().await;
        running
    }

    pub fn launch(consumer: Consumer) -> Self {
        let stop = Shutdown::new();
        let health = consumer.health();
        let task = tokio::spawn(consumer.shutdown(stop.clone()).run());
        Self { health, stop, task }
    }

    pub async fn until_up(&mut self) {
        self.until_health("up", Health::is_up).await;
    }

    /// Waits for a health, and returns it.
    pub async fn until_health(&mut self, what: &str, wanted: impl FnMut(&Health) -> bool) -> Health {
        let health = match timeout(Duration::from_secs(60), self.health.wait_for(wanted)).await {
            Ok(Ok(health)) => Some(health.clone()),
            _ => None,
        };
        health.unwrap_or_else(|| panic!("not {what}, but {}", *self.health.borrow()))
    }

    pub async fn stop(self) -> Summary {
        self.stop.stop();
        self.task.await.unwrap().unwrap()
    }
}

/// What a handler saw.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<(String, u32, std::time::Instant)>>>);

impl Log {
    pub fn add(&self, cx: &Context, message: &Message) {
        let body = String::from_utf8_lossy(message.body()).into_owned();
        self.0.lock().unwrap().push((body, cx.attempt(), std::time::Instant::now()));
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn bodies(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(body, _, _)| body.clone()).collect()
    }

    pub fn runs(&self, body: &str) -> Vec<(u32, std::time::Instant)> {
        let log = self.0.lock().unwrap();
        log.iter().filter(|(b, _, _)| b == body).map(|(_, attempt, at)| (*attempt, *at)).collect()
    }
}

/// A handler that writes into the log and then does what `f` says.
pub fn logging<F, Fut>(log: &Log, f: F) -> impl Handler<Context, Message> + use<F, Fut>
where
    F: Fn(Context, Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let log = log.clone();
    move |cx: Context, message: Message| {
        log.add(&cx, &message);
        f(cx, message)
    }
}

/// Waits until something is so.
pub async fn until(what: &str, limit: Duration, mut so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + limit;
    while !so().await {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
