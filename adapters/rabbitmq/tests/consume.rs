//! What becomes of deliveries.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::raw::{Raw, header, text};
use common::{Log, Running, broker, logging, millis, secs, test, unique, until};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use libtest_mimic::Trial;
use oncemq_core::{Broker, Consumer, Context, Failure, Message};

fn main() {
    let tests: Vec<Trial> = vec![
        test("messages_are_handled_and_gone", messages_are_handled_and_gone),
        test("failures_take_the_ladder_and_end_in_the_dead_letters", ladder),
        test("places_become_free_one_by_one", places_become_free_one_by_one),
        test("a_copy_on_the_wire_has_nothing_it_must_not_have", copies_on_the_wire),
    ];
    common::main(tests)
}

async fn messages_are_handled_and_gone() {
    let (topic, log) = (unique("orders"), Log::default());
    let running = Running::start(
        Consumer::new("points", broker()).topic(topic.as_str()).unguarded(logging(&log, async |_, _| Ok(()))),
    )
    .await;
    let publisher = broker().publisher().await.unwrap();
    for i in 0..500 {
        publisher.publish(&topic, &Message::new(i.to_string())).await.unwrap();
    }
    until("500 handled", secs(20), async || log.len() == 500).await;
    let summary = running.stop().await;
    assert_eq!(summary.handled, 500);
    let raw = Raw::connect().await;
    assert_eq!(raw.ready(&format!("points.{topic}")).await, Some(0));
}

async fn ladder() {
    let (topic, log) = (unique("orders"), Log::default());
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .retry("200ms 400ms dead-letter".parse().unwrap())
        .unguarded(logging(&log, async |_, _| Err(Failure::system("still broken"))));
    let running = Running::start(consumer).await;
    let publisher = broker().publisher().await.unwrap();
    publisher.publish(&topic, &Message::new("poison").with_id("7")).await.unwrap();
    let raw = Raw::connect().await;
    let dead = format!("points.{topic}.dead");
    until("a dead letter", secs(20), async || raw.ready(&dead).await == Some(1)).await;
    let runs = log.runs("poison");
    assert_eq!(runs.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(runs[1].1 - runs[0].1 >= millis(200) && runs[2].1 - runs[1].1 >= millis(400));
    let letter = raw.get(&dead).await.unwrap();
    assert_eq!(letter.data, b"poison");
    assert_eq!(letter.properties.message_id().as_ref().unwrap().as_str(), "7");
    let summary = running.stop().await;
    assert_eq!((summary.retried, summary.rejected), (2, 1));
    assert_eq!(raw.ready(&format!("points.{topic}")).await, Some(0));
}

async fn copies_on_the_wire() {
    let topic = unique("orders");
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .retry("60s dead-letter".parse().unwrap())
        .unguarded(|_: Context, message: Message| async move {
            if message.body() == b"retried" { Err(Failure::system("x")) } else { Err(Failure::business("y")) }
        });
    let running = Running::start(consumer).await;
    let raw = Raw::connect().await;
    let other = unique("other");
    raw.declare(&other, &[]).await;
    let mut table = FieldTable::default();
    let list = |name: &str| AMQPValue::FieldArray(vec![text(name)].into());
    for (name, value) in [
        ("CC", list(&other)),
        ("BCC", list(&other)),
        ("x-death", list("x")),
        ("x-delivery-count", AMQPValue::LongLongInt(3)),
        ("x-first-death-queue", text("q")),
        ("tenant", AMQPValue::LongInt(7)),
    ] {
        table.insert(name.into(), value);
    }
    let loaded = BasicProperties::default()
        .with_headers(table)
        .with_expiration("60000".into())
        .with_user_id("oncemq".into())
        .with_timestamp(1_000_000);
    let queue = format!("points.{topic}");
    for body in ["retried", "rejected"] {
        // By the default exchange, which follows CC.
        raw.publish("", &queue, body.as_bytes(), loaded.clone()).await;
    }
    for (place, body) in [("retry.60000ms", "retried"), ("dead", "rejected")] {
        let place = format!("{queue}.{place}");
        until("the copy", secs(10), async || raw.ready(&place).await == Some(1)).await;
        let copy = raw.get(&place).await.unwrap();
        assert_eq!(copy.data, body.as_bytes());
        let properties = &copy.properties;
        for name in ["CC", "BCC", "x-death", "x-first-death-queue"] {
            assert_eq!(header(properties, name), None, "{name}");
        }
        // The queue of the copy begins to count by itself.
        assert_ne!(header(properties, "x-delivery-count"), Some(&AMQPValue::LongLongInt(3)));
        assert_eq!((properties.expiration(), properties.user_id()), (&None, &None));
        assert_eq!(*properties.delivery_mode(), Some(2));
        assert!(properties.timestamp().unwrap() > 1_700_000_000);
        assert_eq!(header(properties, "tenant"), Some(&AMQPValue::LongInt(7)));
        assert_eq!(header(properties, "oncemq-original-timestamp"), Some(&AMQPValue::Timestamp(1_000_000)));
        assert_eq!(header(properties, "oncemq-original-expiration"), Some(&text("60000")));
        assert_eq!(header(properties, "oncemq-original-user-id"), Some(&text("oncemq")));
    }
    // The CC of the originals, and of nothing else.
    assert_eq!(raw.ready(&other).await, Some(2));
    running.stop().await;
}

async fn places_become_free_one_by_one() {
    let (topic, log) = (unique("orders"), Log::default());
    let consumer = Consumer::new("points", broker()).in_flight(2).topic(topic.as_str()).unguarded(logging(
        &log,
        async |_, _| {
            tokio::time::sleep(millis(5)).await;
            Ok(())
        },
    ));
    let running = Running::start(consumer).await;
    let publisher = broker().publisher().await.unwrap();
    for i in 0..100 {
        publisher.publish(&topic, &Message::new(i.to_string())).await.unwrap();
    }
    until("100 handled", secs(20), async || log.len() == 100).await;
    running.stop().await;
}
