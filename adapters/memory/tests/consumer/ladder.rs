//! Retries, dead letters and what their copies carry.

use oncemq_core::{Consumer, Context, Failure, Message, header};
use serde::Deserialize;

use crate::common::publisher;
use crate::{SECOND, Seen, brokers, drained, start, text, until};

#[tokio::test(start_paused = true)]
async fn a_failing_message_climbs_the_ladder_and_ends_in_the_dead_letters() {
    for broker in brokers() {
        let seen = Seen::new();
        let handler = {
            let seen = seen.clone();
            move |cx: Context, message: Message| {
                seen.add(format!("{} {}", text(&message), cx.attempt()));
                async { Err(Failure::system("the bank is closed")) }
            }
        };
        let consumer = Consumer::new("points", broker.clone())
            .topic("orders")
            .retry("5s 1m dead-letter".parse().unwrap())
            .unguarded(handler);
        let running = start(consumer).await;
        let message = Message::new("a").with_id("7").with_header("tenant", "x").with_header("tenant", "y");
        publisher(&broker).await.publish("orders", &message).await.unwrap();
        drained(&broker, "points").await;
        assert_eq!(seen.names(), ["a 1", "a 2", "a 3"]);
        let at = |name: &str| seen.times(name)[0];
        assert!(at("a 2") >= 5 * SECOND && at("a 2") < 6 * SECOND);
        assert!(at("a 3") >= at("a 2") + 60 * SECOND);

        let letters = broker.dead_letters("points", "orders");
        assert_eq!(letters.len(), 1);
        let headers = letters[0].headers();
        assert_eq!((letters[0].body(), letters[0].id()), (&b"a"[..], Some("7")));
        assert_eq!(headers.get_str(header::ATTEMPTS), Some("3"));
        assert_eq!(headers.get_str(header::CLASS), Some("system"));
        assert_eq!(headers.get_str(header::REASON), Some("the bank is closed"));
        assert_eq!(headers.get_str(header::CONSUMER), Some("points"));
        assert_eq!(headers.iter().filter(|(name, _)| *name == "tenant").count(), 2);
        for name in header::ALL {
            assert!(headers.iter().filter(|(n, _)| *n == name).count() <= 1, "{name} stands twice");
        }

        // Moved back with all its headers it is a new message with a fresh budget.
        assert_eq!(broker.replay("points", "orders"), 1);
        drained(&broker, "points").await;
        assert_eq!(seen.names()[3..], ["a 1", "a 2", "a 3"]);
        let letters = broker.dead_letters("points", "orders");
        assert_eq!(letters[0].headers().get_str(header::REPLAYS), Some("1"));
        let summary = running.finish().await;
        assert_eq!((summary.retried, summary.rejected, summary.handled), (4, 2, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_business_failure_is_dead_lettered_at_once() {
    for broker in brokers() {
        let handler = |_: Context, _: Message| async { Err(Failure::business("unknown user")) };
        let running = start(Consumer::new("points", broker.clone()).topic("orders").unguarded(handler)).await;
        publisher(&broker).await.publish("orders", &Message::new("a")).await.unwrap();
        drained(&broker, "points").await;
        let letters = broker.dead_letters("points", "orders");
        assert_eq!(letters[0].headers().get_str(header::CLASS), Some("business"));
        assert_eq!(running.finish().await.rejected, 1);
    }
}

#[derive(Deserialize)]
struct Order {
    id: u32,
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_payload_is_dead_lettered_byte_by_byte() {
    for broker in brokers() {
        let seen = Seen::new();
        let handler = {
            let seen = seen.clone();
            move |_: Context, order: Order| {
                seen.add(order.id.to_string());
                async { Ok::<(), Failure>(()) }
            }
        };
        let running = start(Consumer::new("points", broker.clone()).topic("orders").unguarded(handler)).await;
        let publisher = publisher(&broker).await;
        let bad = [&b"\xff\x00{\"id\":1}"[..], b"", b"{\"id\":", b"{\"id\":\"x\"}"];
        for payload in bad {
            publisher.publish("orders", &Message::new(payload.to_vec())).await.unwrap();
        }
        publisher.publish("orders", &Message::tombstone()).await.unwrap();
        publisher.publish("orders", &Message::new(r#"{"id":3}"#)).await.unwrap();
        drained(&broker, "points").await;
        assert_eq!(seen.names(), ["3"]);
        let letters = broker.dead_letters("points", "orders");
        assert_eq!(letters.len(), 5);
        for payload in bad {
            let same = |letter: &&Message| letter.payload().is_some_and(|body| body == payload);
            assert_eq!(letters.iter().filter(same).count(), 1, "{payload:?}");
        }
        assert_eq!(letters.iter().filter(|letter| letter.payload().is_none()).count(), 1);
        let reason = letters[0].headers().get_str(header::REASON).unwrap();
        assert!(reason.contains("undecodable"), "{reason}");
        running.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_hundred_attempts_overflow_nothing() {
    for broker in brokers() {
        let seen = Seen::new();
        let handler = {
            let seen = seen.clone();
            move |cx: Context, _: Message| {
                seen.add(cx.attempt().to_string());
                async { Err(Failure::system("still closed")) }
            }
        };
        let consumer = Consumer::new("points", broker.clone())
            .topic("orders")
            .retry("1s keep-trying".parse().unwrap())
            .unguarded(handler);
        let running = start(consumer).await;
        publisher(&broker).await.publish("orders", &Message::new("a")).await.unwrap();
        until("it was tried 200 times", || seen.len() >= 200).await;
        assert_eq!(seen.names()[..200], (1..=200).map(|n| n.to_string()).collect::<Vec<_>>()[..]);
        running.finish().await;
        assert_eq!((broker.left("points"), broker.dead_letters("points", "orders").len()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_runs_too_long_is_a_failure_of_the_system() {
    for broker in brokers() {
        let handler = |_: Context, _: Message| std::future::pending::<Result<(), Failure>>();
        let consumer = Consumer::new("points", broker.clone())
            .topic("orders")
            .timeout(2 * SECOND)
            .retry("1s dead-letter".parse().unwrap())
            .unguarded(handler);
        let running = start(consumer).await;
        let begin = tokio::time::Instant::now();
        publisher(&broker).await.publish("orders", &Message::new("a")).await.unwrap();
        drained(&broker, "points").await;
        assert!(begin.elapsed() >= 5 * SECOND && begin.elapsed() < 6 * SECOND, "{:?}", begin.elapsed());
        let letters = broker.dead_letters("points", "orders");
        assert_eq!(letters[0].headers().get_str(header::ATTEMPTS), Some("2"));
        let reason = letters[0].headers().get_str(header::REASON).unwrap();
        assert!(reason.contains("longer than 2s"), "{reason}");
        running.finish().await;
    }
}
