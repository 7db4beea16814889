//! The end of a consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use oncemq_core::{Ack, Consumer, Context, Failure, Message, header};
use tokio::time::Instant;

use crate::common::{open, publish, take};
use crate::{SECOND, brokers, start, until};

#[tokio::test(start_paused = true)]
async fn sh1_a_stop_starts_nothing_finishes_what_runs_and_gives_the_rest_back() {
    for broker in brokers() {
        let stopped = Arc::new(AtomicBool::new(false));
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let handler = {
            let (stopped, begun, ended) = (stopped.clone(), begun.clone(), ended.clone());
            move |_: Context, _: Message| {
                assert!(!stopped.load(SeqCst), "a handler started after the stop");
                begun.fetch_add(1, SeqCst);
                let ended = ended.clone();
                async move {
                    tokio::time::sleep(SECOND / 2).await;
                    ended.fetch_add(1, SeqCst);
                    Ok::<(), Failure>(())
                }
            }
        };
        let consumer = Consumer::new("points", broker.clone())
            .in_flight(50)
            .workers(2)
            .grace(5 * SECOND)
            .topic("orders")
            .unguarded(handler);
        let running = start(consumer).await;
        // Few keys, so that some wait behind others of theirs.
        let publisher = crate::common::publisher(&broker).await;
        for n in 0..200 {
            let message = Message::new(n.to_string()).with_key(format!("{}", n % 20));
            publisher.publish("orders", &message).await.unwrap();
        }
        tokio::time::sleep(SECOND / 4).await;
        stopped.store(true, SeqCst);
        let begin = Instant::now();
        let summary = running.finish().await;
        assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
        let (begun, ended) = (begun.load(SeqCst), ended.load(SeqCst));
        assert!(begun > 0 && begun == ended);
        assert_eq!(summary.handled, ended as u64);
        assert_eq!((broker.left("points"), broker.outstanding("points")), (200 - ended, 0));
        assert_eq!(summary.panics, 0);

        // What was given back has used no attempt.
        let mut source = open(&broker, "points", &["orders"]).await;
        for delivery in take(&mut source, 200 - ended).await {
            assert!(delivery.message().headers().get(header::ATTEMPT).is_none());
            delivery.ack(Ack::Accept);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_grace_without_end_waits_for_what_runs() {
    for broker in brokers() {
        let handler = |_: Context, _: Message| async {
            tokio::time::sleep(3600 * SECOND).await;
            Ok::<(), Failure>(())
        };
        let consumer = Consumer::new("points", broker.clone())
            .grace(Duration::MAX)
            .topic("orders")
            .timeout(Duration::MAX)
            .unguarded(handler);
        let running = start(consumer).await;
        publish(&broker, "orders", &["a"]).await;
        until("it runs", || broker.outstanding("points") == 1).await;
        assert_eq!(running.finish().await.handled, 1);
        assert_eq!(broker.left("points"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_ends_at_once() {
    for broker in brokers() {
        let handler = |_: Context, _: Message| std::future::pending::<Result<(), Failure>>();
        let consumer = Consumer::new("points", broker.clone())
            .grace(3600 * SECOND)
            .topic("orders")
            .timeout(3600 * SECOND)
            .unguarded(handler);
        let running = start(consumer).await;
        publish(&broker, "orders", &["a", "b"]).await;
        until("both run", || broker.outstanding("points") == 2).await;
        running.stop.stop();
        tokio::time::sleep(SECOND).await;
        assert!(!running.task.is_finished());
        let begin = Instant::now();
        let summary = running.finish().await;
        assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
        assert_eq!((summary.handled, broker.left("points"), broker.outstanding("points")), (0, 2, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn what_runs_longer_than_the_grace_is_given_back() {
    for broker in brokers() {
        let handler = |_: Context, _: Message| async {
            tokio::time::sleep(60 * SECOND).await;
            Ok::<(), Failure>(())
        };
        let consumer = Consumer::new("points", broker.clone())
            .grace(5 * SECOND)
            .topic("orders")
            .timeout(100 * SECOND)
            .unguarded(handler);
        let running = start(consumer).await;
        publish(&broker, "orders", &["a"]).await;
        until("it runs", || broker.outstanding("points") == 1).await;
        let begin = Instant::now();
        let summary = running.finish().await;
        assert!(begin.elapsed() >= 5 * SECOND && begin.elapsed() < 7 * SECOND, "{:?}", begin.elapsed());
        assert_eq!((summary.handled, broker.left("points")), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_while_a_retry_waits_it_waits_on_in_the_broker() {
    for broker in brokers() {
        let handler = |_: Context, _: Message| async { Err(Failure::system("no")) };
        let consumer = Consumer::new("points", broker.clone())
            .topic("orders")
            .retry("1m dead-letter".parse().unwrap())
            .unguarded(handler);
        let running = start(consumer).await;
        publish(&broker, "orders", &["a"]).await;
        until("the copy waits", || broker.outstanding("points") == 0 && broker.left("points") == 1).await;
        tokio::time::sleep(SECOND).await;
        let summary = running.finish().await;
        assert_eq!(summary.retried, 1);
        let mut source = open(&broker, "points", &["orders"]).await;
        let copy = take(&mut source, 1).await.remove(0);
        assert_eq!(copy.message().headers().get_str(header::ATTEMPT), Some("1"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_run_gives_everything_back() {
    for broker in brokers() {
        let handler = |_: Context, _: Message| std::future::pending::<Result<(), Failure>>();
        let running = start(Consumer::new("points", broker.clone()).topic("orders").unguarded(handler)).await;
        publish(&broker, "orders", &["a", "b"]).await;
        until("both run", || broker.outstanding("points") == 2).await;
        running.task.abort();
        until("the task is gone", || running.task.is_finished()).await;
        let mut source = open(&broker, "points", &["orders"]).await;
        let again = take(&mut source, 2).await;
        assert!(again.iter().all(|delivery| delivery.facts().redelivered));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stop_ends_several_consumers_of_a_process() {
    let stop = oncemq_core::Shutdown::new();
    let mut tasks = Vec::new();
    for broker in brokers() {
        for name in ["points", "mail"] {
            let handler = |_: Context, _: Message| async { Ok::<(), Failure>(()) };
            let consumer = Consumer::new(name, broker.clone()).topic("orders").unguarded(handler);
            tasks.push(tokio::spawn(consumer.shutdown(stop.clone()).run()));
        }
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    stop.stop();
    for task in tasks {
        tokio::time::timeout(5 * SECOND, task).await.unwrap().unwrap().unwrap();
    }
}
