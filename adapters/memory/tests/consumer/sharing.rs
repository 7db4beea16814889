//! Several topics, several consumers.

use oncemq_core::{Consumer, Context, Failure, Message};
use serde::Deserialize;

use crate::common::publish;
use crate::{Seen, brokers, drained, start, text};

#[derive(Deserialize)]
struct Order {
    order: u32,
}

#[derive(Deserialize)]
struct Refund {
    refund: String,
}

#[tokio::test(start_paused = true)]
async fn topics_of_a_consumer_have_their_own_types_and_dead_letters() {
    for broker in brokers() {
        let seen = Seen::new();
        let orders = {
            let seen = seen.clone();
            move |_: Context, order: Order| {
                seen.add(format!("order {}", order.order));
                async { Ok::<(), Failure>(()) }
            }
        };
        let refunds = {
            let seen = seen.clone();
            move |_: Context, refund: Refund| {
                seen.add(format!("refund {}", refund.refund));
                async { Err(Failure::business("too late")) }
            }
        };
        let consumer = Consumer::new("points", broker.clone())
            .topic("orders")
            .unguarded(orders)
            .topic("refunds")
            .unguarded(refunds);
        let running = start(consumer).await;
        publish(&broker, "orders", &[r#"{"order":1}"#]).await;
        publish(&broker, "refunds", &[r#"{"refund":"r"}"#]).await;
        drained(&broker, "points").await;
        let mut names = seen.names();
        names.sort();
        assert_eq!(names, ["order 1", "refund r"]);
        assert!(broker.dead_letters("points", "orders").is_empty());
        assert_eq!(broker.dead_letters("points", "refunds").len(), 1);
        assert_eq!(running.finish().await.handled, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn consumers_of_other_names_each_get_everything() {
    for broker in brokers() {
        let mut all = Vec::new();
        for name in ["points", "mail"] {
            let seen = Seen::new();
            let handler = {
                let seen = seen.clone();
                move |_: Context, message: Message| {
                    seen.add(text(&message));
                    async { Ok::<(), Failure>(()) }
                }
            };
            let consumer = Consumer::new(name, broker.clone()).topic("orders").unguarded(handler);
            all.push((name, seen, start(consumer).await));
        }
        publish(&broker, "orders", &["a", "b", "c"]).await;
        for (name, seen, running) in all {
            drained(&broker, name).await;
            let mut names = seen.names();
            names.sort();
            assert_eq!(names, ["a", "b", "c"]);
            assert_eq!(running.finish().await.handled, 3);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_memory_broker_passes_strict_and_says_what_it_is() {
    for broker in brokers() {
        let handler = |_: Context, _: Message| async { Ok::<(), Failure>(()) };
        let consumer = Consumer::new("points", broker).strict().topic("orders").unguarded(handler);
        let plan = consumer.plan().await.unwrap();
        assert!(plan.warnings.is_empty());
        assert!(plan.to_string().contains("ends with it"), "{plan}");
    }
}
