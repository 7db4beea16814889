//! The broker under a whole consumer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod ladder;
mod load;
mod order;
mod panics;
mod rebalance;
mod sharing;
mod shutdown;
mod together;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncemq_core::{Consumer, Error, Shutdown, Summary};
use oncemq_memory::MemoryBroker;
use tokio::task::JoinHandle;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// A consumer at work.
struct Running {
    stop: Shutdown,
    task: JoinHandle<Result<Summary, Error>>,
}

/// Declares what a consumer needs, then runs it.
async fn start(consumer: Consumer) -> Running {
    consumer.plan().await.unwrap();
    let stop = Shutdown::new();
    let task = tokio::spawn(consumer.shutdown(stop.clone()).run());
    Running { stop, task }
}

impl Running {
    async fn finish(self) -> Summary {
        self.stop.stop();
        self.task.await.unwrap().unwrap()
    }
}

/// Waits until something holds, at most an hour of the test's clock.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waits = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(3600 * SECOND, waits).await.is_ok(), "in vain: {what}");
}

async fn drained(broker: &MemoryBroker, consumer: &str) {
    until("everything is done", || broker.left(consumer) == 0).await;
}

/// Both kinds of broker.
fn brokers() -> [MemoryBroker; 2] {
    [MemoryBroker::queue(), MemoryBroker::log(3)]
}

/// What handlers saw, with the time since the start.
#[derive(Clone)]
struct Seen {
    start: Instant,
    list: Arc<Mutex<Vec<(String, Duration)>>>,
}

impl Seen {
    fn new() -> Self {
        Self { start: Instant::now(), list: Arc::default() }
    }

    fn add(&self, what: impl Into<String>) {
        self.list.lock().unwrap().push((what.into(), self.start.elapsed()));
    }

    fn names(&self) -> Vec<String> {
        self.list.lock().unwrap().iter().map(|(name, _)| name.clone()).collect()
    }

    fn times(&self, name: &str) -> Vec<Duration> {
        self.list.lock().unwrap().iter().filter(|(seen, _)| seen == name).map(|(_, at)| *at).collect()
    }

    fn len(&self) -> usize {
        self.list.lock().unwrap().len()
    }
}

fn text(message: &oncemq_core::Message) -> String {
    String::from_utf8(message.body().to_vec()).unwrap()
}
