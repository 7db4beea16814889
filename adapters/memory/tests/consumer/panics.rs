//! Panics in handlers.

use std::sync::{Arc, Mutex, PoisonError};

use oncemq_core::{Consumer, Context, Failure, Message, header};

use crate::common::publish;
use crate::{brokers, drained, start, text};

#[tokio::test(start_paused = true)]
async fn sh2_a_panic_is_contained_counted_and_ends_in_the_dead_letters() {
    for broker in brokers() {
        let effects = Arc::new(Mutex::new(Vec::new()));
        let handler = {
            let effects = effects.clone();
            move |_: Context, message: Message| {
                let effects = effects.clone();
                async move {
                    // The panic comes while a mutex is held that all runs share.
                    let mut effects = effects.lock().unwrap_or_else(PoisonError::into_inner);
                    let body = text(&message);
                    assert!(body != "4", "the fourth is cursed");
                    effects.push(body);
                    Ok::<(), Failure>(())
                }
            }
        };
        let consumer = Consumer::new("points", broker.clone())
            .topic("orders")
            .retry("1s 2s dead-letter".parse().unwrap())
            .unguarded(handler);
        let running = start(consumer).await;
        let bodies: Vec<_> = (1..=20).map(|n| n.to_string()).collect();
        publish(&broker, "orders", &bodies.iter().map(String::as_str).collect::<Vec<_>>()).await;
        drained(&broker, "points").await;
        assert!(!running.task.is_finished());
        assert_eq!(effects.lock().unwrap_or_else(PoisonError::into_inner).len(), 19);
        let letters = broker.dead_letters("points", "orders");
        assert_eq!((letters.len(), letters[0].body()), (1, &b"4"[..]));
        assert_eq!(letters[0].headers().get_str(header::ATTEMPTS), Some("3"));
        let reason = letters[0].headers().get_str(header::REASON).unwrap();
        assert!(reason.contains("the fourth is cursed"), "{reason}");
        let summary = running.finish().await;
        assert_eq!((summary.handled, summary.rejected, summary.panics), (19, 1, 3));
    }
}

/// Panics where it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("in a destructor");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn panics_before_the_future_and_in_destructors_are_contained_too() {
    for broker in brokers() {
        let handler = |_: Context, message: Message| {
            let body = text(&message);
            assert!(body != "call", "before there is a future");
            async move {
                let _bomb = (body == "drop").then(|| Bomb);
                if body == "drop" {
                    std::future::pending::<()>().await;
                }
                Ok::<(), Failure>(())
            }
        };
        let consumer = Consumer::new("points", broker.clone())
            .topic("orders")
            .timeout(crate::SECOND)
            .retry("1s dead-letter".parse().unwrap())
            .unguarded(handler);
        let running = start(consumer).await;
        publish(&broker, "orders", &["call", "drop", "fine"]).await;
        drained(&broker, "points").await;
        assert_eq!(broker.dead_letters("points", "orders").len(), 2);
        publish(&broker, "orders", &["fine"]).await;
        drained(&broker, "points").await;
        let summary = running.finish().await;
        assert_eq!((summary.handled, summary.rejected), (2, 2));
    }
}
