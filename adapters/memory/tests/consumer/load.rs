//! Bounds of the intake, and handlers that block their thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use oncemq_core::{Consumer, Context, Failure, Message};
use oncemq_memory::MemoryBroker;

use crate::common::publish;
use crate::{brokers, drained, start, text};

/// The most that was seen of something.
#[derive(Clone, Default)]
struct Most(Arc<AtomicUsize>);

impl Most {
    fn see(&self, n: usize) {
        self.0.fetch_max(n, SeqCst);
    }

    fn get(&self) -> usize {
        self.0.load(SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_than_in_flight_is_ever_out() {
    for broker in brokers() {
        for in_flight in [1, 5, 64] {
            let (out, running_now) = (Most::default(), Arc::new(AtomicUsize::new(0)));
            let most_running = Most::default();
            let handler = {
                let (broker, out) = (broker.clone(), out.clone());
                let (now, most) = (running_now.clone(), most_running.clone());
                move |_: Context, message: Message| {
                    let (broker, out, now, most) = (broker.clone(), out.clone(), now.clone(), most.clone());
                    async move {
                        most.see(now.fetch_add(1, SeqCst) + 1);
                        out.see(broker.outstanding("points"));
                        let n: u64 = text(&message).parse().unwrap();
                        tokio::time::sleep(Duration::from_millis(n % 7)).await;
                        now.fetch_sub(1, SeqCst);
                        Ok::<(), Failure>(())
                    }
                }
            };
            let consumer = Consumer::new("points", broker.clone())
                .in_flight(in_flight)
                .workers(3)
                .topic("orders")
                .unguarded(handler);
            let running = start(consumer).await;
            let bodies: Vec<_> = (0..300).map(|n| n.to_string()).collect();
            publish(&broker, "orders", &bodies.iter().map(String::as_str).collect::<Vec<_>>()).await;
            drained(&broker, "points").await;
            assert_eq!((out.get(), most_running.get()), (in_flight, in_flight));
            assert_eq!(running.finish().await.handled, 300);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_bytes_that_are_out_are_bounded_too() {
    for broker in brokers() {
        let out = Most::default();
        let handler = {
            let (broker, out) = (broker.clone(), out.clone());
            move |_: Context, _: Message| {
                out.see(broker.outstanding("points"));
                async {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    Ok::<(), Failure>(())
                }
            }
        };
        let consumer = Consumer::new("points", broker.clone())
            .in_flight(100)
            .in_flight_bytes(10_000)
            .topic("orders")
            .unguarded(handler);
        let running = start(consumer).await;
        let large = "x".repeat(1000);
        // The first poll knows nothing about sizes.
        publish(&broker, "orders", &[&large]).await;
        drained(&broker, "points").await;
        publish(&broker, "orders", &vec![&*large; 200]).await;
        drained(&broker, "points").await;
        assert!((5..=11).contains(&out.get()), "{} were out", out.get());
        running.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_handler_does_not_stop_others_from_settling() {
    for broker in [MemoryBroker::queue(), MemoryBroker::log(3)] {
        let handler = move |_: Context, message: Message| async move {
            if text(&message) == "block" {
                std::thread::sleep(Duration::from_secs(2));
            }
            Ok::<(), Failure>(())
        };
        let consumer = Consumer::new("points", broker.clone())
            .in_flight(64)
            .workers(2)
            .topic("orders")
            .unguarded(handler);
        let running = start(consumer).await;
        publish(&broker, "orders", &["block"]).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begin = std::time::Instant::now();
        let bodies: Vec<_> = (0..200).map(|n| n.to_string()).collect();
        publish(&broker, "orders", &bodies.iter().map(String::as_str).collect::<Vec<_>>()).await;
        while broker.left("points") > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(begin.elapsed() < Duration::from_millis(1500), "{} left", broker.left("points"));
        }
        drained(&broker, "points").await;
        assert_eq!(running.finish().await.handled, 201);
    }
}
