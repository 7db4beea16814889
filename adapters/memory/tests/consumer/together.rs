//! Several consumers of one process, run as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use oncemq_core::{Consumer, Context, ErrorKind, Failure, Health, Message, Shutdown};
use oncemq_memory::MemoryBroker;

use crate::common::publish;
use crate::{SECOND, brokers, until};

/// Counts what it has finished; each message takes a second.
fn counting(done: &Arc<AtomicU32>, broker: &MemoryBroker) -> Consumer {
    let done = done.clone();
    Consumer::new("points", broker.clone()).topic("orders").unguarded(move |_: Context, _: Message| {
        let done = done.clone();
        async move {
            tokio::time::sleep(SECOND).await;
            done.fetch_add(1, SeqCst);
            Ok::<(), Failure>(())
        }
    })
}

#[tokio::test(start_paused = true)]
async fn one_given_shutdown_ends_them_all_and_each_says_what_it_did() {
    let (brokers, stop) = (brokers(), Shutdown::new());
    let done = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let consumers = [counting(&done[0], &brokers[0]), counting(&done[1], &brokers[1]).shutdown(stop.clone())];
    for consumer in &consumers {
        consumer.plan().await.unwrap();
    }
    publish(&brokers[0], "orders", &["1", "2"]).await;
    publish(&brokers[1], "orders", &["3"]).await;
    let task = tokio::spawn(Consumer::run_all(consumers));
    until("all is done", || done.iter().map(|one| one.load(SeqCst)).sum::<u32>() == 3).await;
    stop.stop();
    let summaries = task.await.unwrap().unwrap();
    assert_eq!(summaries.iter().map(|one| one.handled).collect::<Vec<_>>(), [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_stops_the_others_in_order() {
    let [good, bad] = brokers();
    let done = Arc::new(AtomicU32::new(0));
    let consumers = [counting(&done, &good), counting(&done, &bad)];
    for consumer in &consumers {
        consumer.plan().await.unwrap();
    }
    publish(&good, "orders", &["1"]).await;
    let task = tokio::spawn(Consumer::run_all(consumers));
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(good.left("points"), 1, "it runs");
    bad.crash("points");
    let ended = tokio::time::timeout(60 * SECOND, task).await.expect("the other one is stopped");
    let error = ended.unwrap().unwrap_err();
    assert!(error.to_string().starts_with("consumer points on memory: "), "{error}");
    assert_eq!((good.left("points"), done.load(SeqCst)), (0, 1), "what ran was to finish");
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_start_is_named() {
    let [good, bad] = brokers();
    let done = Arc::default();
    let broken = counting(&done, &bad).in_flight(0).shutdown(Shutdown::new());
    let run = Consumer::run_all([counting(&done, &good), broken]);
    let ended = tokio::time::timeout(60 * SECOND, run).await.expect("the other one is stopped");
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().starts_with("consumer points on memory: "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_health_of_all_is_the_worst_one() {
    let (brokers, stop) = (brokers(), Shutdown::new());
    let done = Arc::new(AtomicU32::new(0));
    let consumers = brokers.each_ref().map(|broker| counting(&done, broker).shutdown(stop.clone()));
    let mut health = Health::of_all(consumers.each_ref().map(Consumer::health));
    assert_eq!(*health.borrow(), Health::Starting);
    let task = tokio::spawn(Consumer::run_all(consumers));
    let soon = Duration::from_secs(60);
    tokio::time::timeout(soon, health.wait_for(Health::is_up)).await.unwrap().unwrap();
    brokers[1].disconnect();
    tokio::time::timeout(soon, health.wait_for(|now| matches!(now, Health::Degraded(_))))
        .await
        .unwrap()
        .unwrap();
    brokers[1].reconnect();
    tokio::time::timeout(soon, health.wait_for(Health::is_up)).await.unwrap().unwrap();
    stop.stop();
    task.await.unwrap().unwrap();
    tokio::time::timeout(soon, health.wait_for(|now| matches!(now, Health::Down(_)))).await.unwrap().unwrap();
}
