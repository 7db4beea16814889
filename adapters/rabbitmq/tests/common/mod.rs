//! What the tests against a real server share.
#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "shared by several binaries")]

pub mod instance;
pub mod management;
pub mod proxy;
pub mod raw;
pub mod source;
pub mod suite;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instance::Instance;
use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use oncemq_core::{Consumer, Context, Error, Failure, Handler, Health, Message, Shutdown, Summary};
use oncemq_rabbitmq::RabbitBroker;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Whether the server is left out by name.
pub fn is_left_out() -> bool {
    let left_out = std::env::var("ONCEMQ_WITHOUT").unwrap_or_default();
    left_out.split(',').any(|name| name == "rabbitmq")
}

/// Whether tests run that take minutes.
pub fn is_long() -> bool {
    std::env::var("ONCEMQ_LONG").is_ok_and(|value| value == "1")
}

/// Runs the tests. A missing server fails them, unless it is left out by name; then they
/// are ignored.
pub fn main(tests: Vec<Trial>) {
    // Many of them wait most of the time, even on a small machine.
    run(tests, is_left_out(), 8).exit();
}

/// Runs tests one after the other that share a server of their own, and may stop it.
pub fn main_alone(name: &str, long: bool, tests: impl FnOnce(Arc<Instance>) -> Vec<Trial>) {
    let ignored = is_left_out() || (long && !is_long());
    let listed = Arguments::from_args().list;
    let instance = Arc::new(if ignored || listed { Instance::none() } else { Instance::start(name) });
    let conclusion = run(tests(instance.clone()), ignored, 1);
    // Removed before the process ends.
    drop(instance);
    conclusion.exit();
}

fn run(tests: Vec<Trial>, ignored: bool, threads: usize) -> Conclusion {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    let tests = tests.into_iter().map(|test| test.with_ignored_flag(ignored)).collect();
    libtest_mimic::run(&arguments, tests)
}

/// A test on a runtime of its own.
pub fn test<F, Fut>(name: &str, body: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let limit = Duration::from_secs(150);
        let run = || runtime.block_on(async { timeout(limit, body()).await.expect("the test hangs") });
        let result = catch_unwind(AssertUnwindSafe(run));
        runtime.shutdown_timeout(Duration::from_secs(1));
        result.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            Failed::from(
                text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default(),
            )
        })
    })
}

pub fn url() -> String {
    std::env::var("ONCEMQ_RABBITMQ_URL").expect(
        "ONCEMQ_RABBITMQ_URL is not set; run `scripts/test`, or leave out with ONCEMQ_WITHOUT=rabbitmq",
    )
}

/// A name nobody has used.
pub fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    format!("{what}-{time:x}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn broker() -> RabbitBroker {
    RabbitBroker::from_url(&url()).unwrap()
}

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
pub struct Log(Arc<Mutex<Vec<(String, u32, Instant2)>>>);

/// The time of a run.
pub type Instant2 = std::time::Instant;

impl Log {
    pub fn add(&self, cx: &Context, message: &Message) {
        let body = String::from_utf8_lossy(message.body()).into_owned();
        self.0.lock().unwrap().push((body, cx.attempt(), Instant2::now()));
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn bodies(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(body, _, _)| body.clone()).collect()
    }

    pub fn runs(&self, body: &str) -> Vec<(u32, Instant2)> {
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

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
