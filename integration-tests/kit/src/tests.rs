//! How tests are made, named and left out.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use tokio::time::timeout;

use crate::Instance;

/// A server that tests need, by its name in `scripts/services`.
#[derive(Debug, Clone, Copy)]
pub struct Server(pub &'static str);

impl Server {
    /// Whether it is left out by name.
    pub fn is_left_out(self) -> bool {
        let left_out = std::env::var("ONCEMQ_WITHOUT").unwrap_or_default();
        left_out.split(',').any(|name| name.trim() == self.0)
    }

    /// A variable that names it or a part of it.
    pub fn get(self, part: &str) -> String {
        let name = format!("ONCEMQ_{}_{part}", self.0.to_uppercase());
        std::env::var(&name).unwrap_or_else(|_| {
            panic!("{name} is not set; run `scripts/test`, or leave out with ONCEMQ_WITHOUT={}", self.0)
        })
    }

    pub fn url(self) -> String {
        self.get("URL")
    }

    /// Runs the tests. A missing server fails them, unless it is left out by name; then they
    /// are ignored.
    pub fn main(self, tests: Vec<Trial>) {
        // Many of them wait most of the time, even on a small machine.
        run(tests, self.is_left_out(), 8).exit();
    }

    /// Runs tests one after the other that share an instance of their own, and may stop it.
    pub fn main_alone(self, name: &str, long: bool, tests: impl FnOnce(Arc<Instance>) -> Vec<Trial>) {
        let ignored = self.is_left_out() || (long && !is_long());
        let listed = Arguments::from_args().list;
        let none = ignored || listed;
        let instance = Arc::new(if none { Instance::none(self) } else { Instance::start(self, name) });
        let conclusion = run(tests(instance.clone()), ignored, 1);
        // Removed before the process ends.
        drop(instance);
        conclusion.exit();
    }
}

/// Whether tests run that take minutes.
pub fn is_long() -> bool {
    std::env::var("ONCEMQ_LONG").is_ok_and(|value| value == "1")
}

fn run(mut tests: Vec<Trial>, ignored: bool, threads: usize) -> Conclusion {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    if ignored {
        tests = tests.into_iter().map(|test| test.with_ignored_flag(true)).collect();
    }
    libtest_mimic::run(&arguments, tests)
}

/// Runs tests of several servers, so many at once. Each says for itself whether it is ignored.
pub fn main(tests: Vec<Trial>, threads: usize) -> ! {
    run(tests, false, threads).exit()
}

/// A test on a runtime of its own.
pub fn test<F, Fut>(name: &str, body: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    test_within(name, secs(150), body)
}

/// The same for one that may take so long.
pub fn test_within<F, Fut>(name: &str, limit: Duration, body: F) -> Trial
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
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

/// A name nobody has used.
pub fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    format!("{what}-{time:x}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
