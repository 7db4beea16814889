//! What the key of a message decides before and after its handler.

use std::sync::Arc;
use std::time::Duration;

use oncemq_core::sim::{Faults, SimStore, SimTx};
use oncemq_core::{
    Consumer, Failure, Guard, Key, Message, MissingKey, Shutdown, Summary, TopicBuilder, header,
};
use oncemq_memory::MemoryBroker;

use crate::orders::{CONSUMER, TOPIC, in_virtual_time, nothing_left, publish};

/// Runs a consumer over messages sent at these seconds until nothing is left.
fn run(
    store: &SimStore,
    settings: impl FnOnce(TopicBuilder) -> TopicBuilder,
    messages: Vec<(u64, Message)>,
) -> (MemoryBroker, Summary) {
    in_virtual_time(async {
        let broker = MemoryBroker::queue();
        let shutdown = Shutdown::new();
        let handler = |mut tx: SimTx, message: Message| async move {
            tx.add(message.body()).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok::<(), Failure>(())
        };
        let topic = Consumer::new(CONSUMER, broker.clone())
            .shutdown(shutdown.clone())
            .topic(TOPIC)
            .retry("1s dead-letter".parse().unwrap());
        let consumer = settings(topic).handler(Guard::new(Arc::new(store.clone()), handler));
        consumer.plan().await.unwrap();
        let run = tokio::spawn(consumer.run());
        let start = tokio::time::Instant::now();
        for (second, message) in messages {
            tokio::time::sleep_until(start + Duration::from_secs(second)).await;
            publish(&broker, &[message]).await;
        }
        nothing_left(&broker).await;
        shutdown.stop();
        (broker, run.await.unwrap().unwrap())
    })
}

fn payment(amount: u32) -> Message {
    Message::new(format!(r#"{{"id":"k","amount":{amount},"sent_at":"now"}}"#))
}

fn effects(store: &SimStore) -> Vec<String> {
    store.effects().into_keys().map(|name| String::from_utf8(name).unwrap()).collect()
}

/// The design's meaning: with declared fields another event under a done key is a conflict.
#[test]
fn kd2_other_fields_under_a_done_key_are_a_conflict() {
    let store = SimStore::new(1, Faults::default());
    // B while A runs, B after A is done, and A again.
    let messages = vec![(0, payment(1)), (1, payment(2)), (9, payment(2)), (9, payment(1))];
    let fields = |topic: TopicBuilder| topic.key(Key::json("/id")).conflict_on(Key::fingerprint(["/amount"]));
    let (broker, summary) = run(&store, fields, messages);
    assert_eq!(effects(&store).len(), 1, "B had an effect");
    assert_eq!((summary.handled, summary.duplicates, summary.rejected), (1, 1, 2));
    let letters = broker.dead_letters(CONSUMER, TOPIC);
    assert!(letters.iter().all(|letter| letter.body() == payment(2).body()));
    assert!(letters[0].headers().get_str(header::REASON).unwrap().contains("key conflict"));
}

/// Not declared, the key alone decides: B is a duplicate, counted as one that differs.
#[test]
fn kd2_without_declared_fields_the_key_decides() {
    let store = SimStore::new(1, Faults::default());
    let messages = vec![(0, payment(1)), (9, payment(2))];
    let (_, summary) = run(&store, |topic| topic.key(Key::json("/id")), messages);
    assert_eq!((summary.handled, summary.duplicates, summary.duplicates_that_differ), (1, 1, 1));
}

/// Two sends of one event differ in what transport adds; two events of one entity differ in
/// what they say.
#[test]
fn kd1_a_fingerprint_sees_the_event_and_not_its_transport() {
    let store = SimStore::new(1, Faults::default());
    let event = |amount: u32, sent_at: &str| {
        Message::new(format!(r#"{{"id":"k","amount":{amount},"sent_at":"{sent_at}"}}"#))
            .with_id(sent_at.to_owned())
    };
    let messages = vec![(0, event(1, "a")), (3, event(1, "b")), (4, event(2, "c"))];
    let (_, summary) = run(&store, |topic| topic.key(Key::fingerprint(["/id", "/amount"])), messages);
    assert_eq!((summary.handled, summary.duplicates), (2, 1));
}

/// One policy for messages without an id: a dead letter at once, byte-identical, no run.
#[test]
fn kd3_messages_without_an_id_are_dead_letters_unless_a_fallback_is_declared() {
    let messages = || {
        vec![
            (0, Message::new("one")),
            (0, Message::new("two").with_id("")),
            (0, Message::new("three").with_id("  ")),
        ]
    };
    let store = SimStore::new(1, Faults::default());
    let (broker, summary) = run(&store, |topic| topic.key(Key::message_id()), messages());
    assert_eq!((summary.handled, summary.rejected), (0, 3));
    let mut bodies: Vec<_> = broker.dead_letters(CONSUMER, TOPIC).iter().map(|m| m.body().to_vec()).collect();
    bodies.sort();
    assert_eq!(bodies, [b"one".to_vec(), b"three".to_vec(), b"two".to_vec()]);
    assert!(effects(&store).is_empty());

    let store = SimStore::new(1, Faults::default());
    let discard = |topic: TopicBuilder| topic.key(Key::message_id()).missing_key(MissingKey::Discard);
    let (broker, summary) = run(&store, discard, messages());
    assert_eq!((summary.discarded, summary.rejected), (3, 0));
    assert!(broker.dead_letters(CONSUMER, TOPIC).is_empty());

    // With a stable fallback two messages without an id are not duplicates of each other.
    let store = SimStore::new(1, Faults::default());
    let body = |message: &Message| Some(message.body().to_vec());
    let (_, summary) =
        run(&store, move |topic| topic.key(Key::message_id().or(Key::from_fn(body))), messages());
    assert_eq!((summary.handled, summary.duplicates), (3, 0));
}

/// A payload that cannot be read for its key is a dead letter, and stays byte-identical.
#[test]
fn undecodable_payloads_are_dead_letters_at_once() {
    let store = SimStore::new(1, Faults::default());
    let broken = Message::new(&b"{\"id\":\"k\xff"[..]);
    let (broker, summary) = run(&store, |topic| topic.key(Key::json("/id")), vec![(0, broken.clone())]);
    assert_eq!((summary.handled, summary.retried, summary.rejected), (0, 0, 1));
    assert_eq!(broker.dead_letters(CONSUMER, TOPIC)[0].body(), broken.body());
}
