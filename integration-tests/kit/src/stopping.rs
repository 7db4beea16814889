//! A stop while the broker is there and does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use oncemq_core::{Consumer, Shutdown};
use tokio::time::{Instant, sleep, timeout};

use crate::{Log, millis, secs, until};

/// Runs two consumers on a runtime of one thread, which nothing may block, and has the broker
/// pause. Then one is told to stop and one is dropped. Each has a grace of a second, and the
/// log the one run of a handler that does not end.
pub async fn stop_while_paused(
    consumer: impl Fn() -> Consumer + Send + 'static,
    log: Log,
    pause: impl FnOnce() + Send + 'static,
) {
    let task = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(stop_and_drop(consumer, &log, pause));
    });
    task.await.unwrap();
}

async fn stop_and_drop(consumer: impl Fn() -> Consumer, log: &Log, pause: impl FnOnce()) {
    let run = |stop: &Shutdown| tokio::spawn(consumer().grace(secs(1)).shutdown(stop.clone()).run());
    let (ticks, stop) = (Arc::new(AtomicU32::new(0)), Shutdown::new());
    let ticker = tokio::spawn(tick(ticks.clone()));
    let stopped = run(&stop);
    until("it runs", secs(20), async || log.len() == 1).await;
    let dropped = run(&Shutdown::new());
    sleep(millis(500)).await;
    pause();
    let (begin, before) = (Instant::now(), ticks.load(SeqCst));
    stop.stop();
    dropped.abort();
    timeout(secs(3), stopped).await.expect("ends within grace + 2 s").unwrap().unwrap();
    let took = begin.elapsed();
    let ticked = u128::from(ticks.load(SeqCst) - before);
    assert!(ticked * 40 > took.as_millis(), "{ticked} ticks in {took:?}");
    ticker.abort();
}

async fn tick(ticks: Arc<AtomicU32>) {
    loop {
        sleep(Duration::from_millis(10)).await;
        ticks.fetch_add(1, SeqCst);
    }
}
