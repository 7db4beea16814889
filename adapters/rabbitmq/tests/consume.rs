//! What becomes of deliveries.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::raw::Raw;
use common::{Log, Running, broker, logging, millis, secs, test, unique, until};
use libtest_mimic::Trial;
use oncemq_core::{Broker, Consumer, Failure, Message};

fn main() {
    let tests: Vec<Trial> = vec![
        test("messages_are_handled_and_gone", messages_are_handled_and_gone),
        test("failures_take_the_ladder_and_end_in_the_dead_letters", ladder),
        test("places_become_free_one_by_one", places_become_free_one_by_one),
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
