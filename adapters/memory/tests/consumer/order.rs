//! Order per key, and keys that must not delay others.

use std::collections::BTreeMap;
use std::time::Duration;

use oncemq_core::{Consumer, Context, Failure, Message, Ordering};
use oncemq_memory::MemoryBroker;

use crate::common::publisher;
use crate::{SECOND, Seen, brokers, drained, start, text};

async fn publish_keyed(broker: &MemoryBroker, key: &str, bodies: impl IntoIterator<Item = String>) {
    let publisher = publisher(broker).await;
    for body in bodies {
        publisher.publish("orders", &Message::new(body).with_key(key.to_owned())).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_delays_only_itself() {
    for broker in brokers() {
        let seen = Seen::new();
        let handler = {
            let seen = seen.clone();
            move |_: Context, message: Message| {
                let seen = seen.clone();
                async move {
                    let hot = message.key().unwrap() == "hot".as_bytes();
                    tokio::time::sleep(Duration::from_millis(if hot { 1000 } else { 10 })).await;
                    seen.add(if hot { "hot" } else { "cold" });
                    Ok::<(), Failure>(())
                }
            }
        };
        let running =
            start(Consumer::new("points", broker.clone()).workers(2).topic("orders").unguarded(handler))
                .await;
        publish_keyed(&broker, "hot", (0..50).map(|n| n.to_string())).await;
        for n in 0..100 {
            publish_keyed(&broker, &format!("cold {n}"), ["x".to_owned()]).await;
        }
        drained(&broker, "points").await;
        let cold = seen.times("cold").into_iter().max().unwrap();
        assert!(cold < Duration::from_millis(500), "{cold:?}");
        assert!(seen.times("hot").into_iter().max().unwrap() >= 50 * SECOND);
        running.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_delays_only_itself() {
    for ordering in [Ordering::Free, Ordering::Ordered] {
        for broker in brokers() {
            let seen = Seen::new();
            let handler = {
                let seen = seen.clone();
                move |_: Context, message: Message| {
                    let fails = message.key().unwrap() == "bad".as_bytes();
                    seen.add(if fails { "bad" } else { "good" });
                    async move { if fails { Err(Failure::system("no")) } else { Ok(()) } }
                }
            };
            let consumer = Consumer::new("points", broker.clone())
                .workers(2)
                .topic("orders")
                .ordering(ordering)
                .retry("1s 1s dead-letter".parse().unwrap())
                .unguarded(handler);
            let running = start(consumer).await;
            publish_keyed(&broker, "bad", (0..20).map(|n| n.to_string())).await;
            for n in 0..100 {
                publish_keyed(&broker, &format!("good {n}"), ["x".to_owned()]).await;
            }
            drained(&broker, "points").await;
            let good = seen.times("good");
            assert_eq!((good.len(), seen.times("bad").len()), (100, 60));
            assert!(good.into_iter().max().unwrap() < SECOND / 2);
            assert_eq!(broker.dead_letters("points", "orders").len(), 20);
            running.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ordered_keeps_later_messages_of_a_key_behind_a_failing_one() {
    for (ordering, expected) in [
        (Ordering::Ordered, vec!["0", "0", "0", "1", "2", "3"]),
        (Ordering::Free, vec!["0", "1", "2", "3", "0", "0"]),
    ] {
        for broker in brokers() {
            let seen = Seen::new();
            let handler = {
                let seen = seen.clone();
                move |cx: Context, message: Message| {
                    let body = text(&message);
                    seen.add(body.clone());
                    let fails = body == "0" && cx.attempt() < 3;
                    async move { if fails { Err(Failure::system("not yet")) } else { Ok(()) } }
                }
            };
            let consumer = Consumer::new("points", broker.clone())
                .topic("orders")
                .ordering(ordering)
                .retry("1s 1s 1s dead-letter".parse().unwrap())
                .unguarded(handler);
            let running = start(consumer).await;
            publish_keyed(&broker, "k", (0..4).map(|n| n.to_string())).await;
            drained(&broker, "points").await;
            assert_eq!(seen.names(), expected, "{ordering:?} {:?}", broker.mode());
            assert_eq!(running.finish().await.handled, 4);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_key_keeps_its_order_under_load() {
    for broker in brokers() {
        let seen = Seen::new();
        let handler = {
            let seen = seen.clone();
            move |_: Context, message: Message| {
                let seen = seen.clone();
                async move {
                    let n: u64 = text(&message).split(' ').nth(1).unwrap().parse().unwrap();
                    tokio::time::sleep(Duration::from_millis(n * 7 % 5)).await;
                    seen.add(text(&message));
                    Ok::<(), Failure>(())
                }
            }
        };
        let consumer = Consumer::new("points", broker.clone())
            .in_flight(16)
            .workers(3)
            .topic("orders")
            .unguarded(handler);
        let running = start(consumer).await;
        for n in 0..40 {
            for key in 0..10 {
                publish_keyed(&broker, &key.to_string(), [format!("{key} {n}")]).await;
            }
        }
        drained(&broker, "points").await;
        let mut by_key: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for name in seen.names() {
            let (key, n) = name.split_once(' ').unwrap();
            by_key.entry(key.to_owned()).or_default().push(n.parse().unwrap());
        }
        assert_eq!(by_key.len(), 10);
        assert!(by_key.values().all(|list| *list == (0..40).collect::<Vec<_>>()), "{by_key:?}");
        running.finish().await;
    }
}
