//! The source without the runtime, against a real cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use common::raw::Raw;
use common::{KAFKA, broker, with};
use futures_util::stream::{self, StreamExt};
use oncemq_core::{
    Ack, Broker, ConsumerSpec, Delivery, ErrorKind, Event, Identity, Message, Subscription, Topology, Trail,
};
use oncemq_kafka::Start;
use oncemq_test_kit::{Bare, millis, secs, test, unique, until};
use tokio::time::Instant;

fn main() {
    KAFKA.main(vec![
        test("kf11_a_new_group_begins_at_the_oldest_message", earliest),
        test("kf11_asked_to_begin_late_it_loses_nothing_after_its_start", latest),
        test("kf11_offsets_lost_to_retention_are_an_event", gap),
        test("kf11_a_partition_that_was_made_anew_begins_at_its_beginning", made_anew),
        test("a_foreign_commit_is_followed_and_its_text_ignored", foreign_commit),
        test("what_a_crash_left_is_flagged_and_no_more", flagged_after_a_crash),
        test("nothing_is_flagged_after_a_clean_stop", not_flagged_after_a_stop),
        test("a_partition_stops_behind_one_that_does_not_finish", bounded),
        test("rungs_wait_in_the_broker", rungs),
        test("sh4_closing_while_the_topic_is_gone_ends_in_time", close_without_topic),
        test("a_deleted_topic_ends_the_source_with_an_error_that_names_it", deleted),
    ]);
}

fn spec(topic: &str, in_flight: usize) -> ConsumerSpec {
    ConsumerSpec::new(unique("bare"), in_flight, Topology::Declare).with(Subscription::new(topic))
}

async fn take(bare: &mut Bare, n: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    for _ in 0..n {
        taken.push(bare.next().await);
    }
    taken
}

fn offset(delivery: &Delivery) -> i64 {
    delivery.message().origin().offset.unwrap()
}

fn gaps(bare: &Bare) -> Vec<(i64, i64)> {
    let gap = |event: &Event| match event {
        Event::Gap { from, to, .. } => Some((*from, *to)),
        _ => None,
    };
    bare.others.iter().filter_map(gap).collect()
}

async fn earliest() {
    let (topic, raw) = (unique("early"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    raw.send(&topic, 0, b"0").await;
    let mut bare = Bare::with(broker(), &spec(&topic, 10)).await;
    assert_eq!(Bare::body(&bare.next().await), 0);
}

async fn latest() {
    let (topic, raw) = (unique("late"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    raw.send(&topic, 0, b"0").await;
    let spec = spec(&topic, 10);
    let broker = broker().start(Start::Latest);
    let mut bare = Bare::with(broker.clone(), &spec).await;
    until("it has begun", secs(20), async || raw.committed(&spec.name, &topic, 0).is_some()).await;
    drop(bare);
    // Nobody is there when it comes, but the group has begun.
    raw.send(&topic, 0, b"1").await;
    bare = Bare::with(broker, &spec).await;
    let delivery = bare.next().await;
    assert_eq!(Bare::body(&delivery), 1);
}

async fn gap() {
    let (topic, raw) = (unique("gap"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    let spec = spec(&topic, 10);
    for n in 0..20 {
        raw.send(&topic, 0, n.to_string().as_bytes()).await;
    }
    let mut bare = Bare::with(broker(), &spec).await;
    for delivery in take(&mut bare, 3).await {
        delivery.ack(Ack::Accept);
    }
    // Also those that were only fetched go back.
    bare.source.close(secs(5)).await.unwrap();
    assert_eq!(raw.committed(&spec.name, &topic, 0).unwrap().0, 3);
    raw.truncate(&topic, 0, 12).await;
    let mut bare = Bare::with(broker(), &spec).await;
    assert_eq!(Bare::body(&bare.next().await), 12);
    assert_eq!(gaps(&bare), [(3, 12)]);
}

async fn made_anew() {
    let (topic, raw) = (unique("anew"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    raw.send(&topic, 0, b"0").await;
    let spec = spec(&topic, 10);
    raw.commit(&spec.name, &topic, 0, 100, "");
    let mut bare = Bare::with(broker(), &spec).await;
    let delivery = bare.next().await;
    assert_eq!((Bare::body(&delivery), gaps(&bare)), (0, vec![(100, 0)]));
    delivery.ack(Ack::Accept);
    assert!(bare.source.flush(secs(5)).await);
    assert_eq!(raw.committed(&spec.name, &topic, 0).unwrap().0, 1);
}

async fn foreign_commit() {
    let (topic, raw) = (unique("foreign"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    for n in 0..10 {
        raw.send(&topic, 0, n.to_string().as_bytes()).await;
    }
    let spec = spec(&topic, 10);
    // As a mirror writes it: our text, for another cluster.
    raw.commit(&spec.name, &topic, 0, 4, "oncemq1 elsewhere 4 c 0 1-5");
    let mut bare = Bare::with(broker(), &spec).await;
    let offsets: Vec<_> = take(&mut bare, 6).await.iter().map(offset).collect();
    assert_eq!(offsets, [4, 5, 6, 7, 8, 9]);
}

async fn flagged_after_a_crash() {
    let (topic, raw) = (unique("crash"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    for n in 0..200 {
        raw.send(&topic, 0, n.to_string().as_bytes()).await;
    }
    let spec = spec(&topic, 10);
    let mut bare = Bare::with(broker(), &spec).await;
    let taken = take(&mut bare, 10).await;
    assert!(taken.iter().all(|delivery| !delivery.facts().redelivered));
    drop(bare);
    drop(taken);
    let mut bare = Bare::with(broker(), &spec).await;
    let mut flagged = Vec::new();
    for _ in 0..200 {
        let delivery = bare.next().await;
        flagged.push(delivery.facts().redelivered);
        delivery.ack(Ack::Accept);
    }
    assert!(flagged[..10].iter().all(|flag| *flag), "what was out is flagged");
    assert!(!flagged[199], "not everything is");
}

async fn not_flagged_after_a_stop() {
    let (topic, raw) = (unique("stop"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    for n in 0..20 {
        raw.send(&topic, 0, n.to_string().as_bytes()).await;
    }
    let spec = spec(&topic, 10);
    let mut bare = Bare::with(broker(), &spec).await;
    for delivery in take(&mut bare, 5).await {
        delivery.ack(Ack::Accept);
    }
    // Given back without a run.
    bare.drain(drop);
    bare.source.close(secs(5)).await.unwrap();
    let mut bare = Bare::with(broker(), &spec).await;
    let again = take(&mut bare, 10).await;
    assert_eq!(again.iter().map(offset).collect::<Vec<_>>(), (5..15).collect::<Vec<_>>());
    assert!(again.iter().all(|delivery| !delivery.facts().redelivered));
    // The clean stop was taken back before anything was handed out.
    let (at, text) = raw.committed(&spec.name, &topic, 0).unwrap();
    assert!(at == 5 && text.contains(" u "), "{at} {text}");
}

async fn bounded() {
    let (topic, raw) = (unique("bound"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    let publisher = broker().publisher().await.unwrap();
    let all = 70_000_u32;
    let sends = (0..all).map(|n| {
        let (publisher, topic) = (publisher.clone(), topic.clone());
        async move { publisher.publish(&topic, &Message::new(n.to_string())).await.unwrap() }
    });
    let mut sends = Box::pin(stream::iter(sends).buffer_unordered(2_000));
    while sends.next().await.is_some() {}
    let spec = spec(&topic, 1_000);
    let mut bare = Bare::with(broker(), &spec).await;
    let first = bare.next().await;
    let mut seen = 1;
    let mut quiet = Instant::now();
    while quiet.elapsed() < secs(2) {
        bare.poll_for(millis(100)).await;
        bare.drain(|delivery| {
            delivery.ack(Ack::Accept);
            (seen, quiet) = (seen + 1, Instant::now());
        });
    }
    assert!(seen < all as usize, "it goes on for ever");
    let (at, text) = raw.committed(&spec.name, &topic, 0).unwrap();
    assert_eq!(at, offset(&first), "{text}");
    first.ack(Ack::Accept);
    while seen < all as usize - 1 {
        bare.next().await.ack(Ack::Accept);
        seen += 1;
    }
}

async fn rungs() {
    let (topic, raw) = (unique("rungs"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    let delays = [millis(300), millis(900)];
    let spec = ConsumerSpec::new(unique("bare"), 100, Topology::Declare)
        .with(Subscription::new(topic.as_str()).with_rungs(delays));
    let mut bare = Bare::with(broker(), &spec).await;
    for n in 0..200 {
        raw.send(&topic, 0, n.to_string().as_bytes()).await;
    }
    let (mut begun, mut back) = (BTreeMap::new(), 0);
    while back < 200 {
        let delivery = bare.next().await;
        let body = Bare::body(&delivery);
        let delay = delays[usize::try_from(body % 2).unwrap()];
        match begun.get(&body) {
            None => {
                let consumer = bare.consumer.as_str().into();
                let mut trail =
                    Trail::read(delivery.message(), &consumer, &"kind".into(), Identity::Position);
                trail.attempt = 1;
                begun.insert(body, Instant::now());
                delivery.ack(Ack::retry(delay, trail, "busy"));
            }
            Some(begun) => {
                assert!(begun.elapsed() >= delay, "{body}: {:?}", begun.elapsed());
                back += 1;
                delivery.ack(Ack::Accept);
            }
        }
    }
    assert!(bare.source.flush(secs(5)).await);
    assert!(bare.is_silent(secs(1)).await);
    assert_eq!(raw.committed(&spec.name, &topic, 0).unwrap().0, 200);
}

async fn close_without_topic() {
    let topic = unique("gone");
    let mut bare = Bare::with(broker(), &spec(&topic, 10)).await;
    bare.send(0..5).await;
    let taken = take(&mut bare, 5).await;
    Raw::new().delete(&topic).await;
    let begin = Instant::now();
    drop(taken);
    bare.source.close(secs(3)).await.unwrap();
    assert!(begin.elapsed() < secs(5), "{:?}", begin.elapsed());
}

async fn deleted() {
    let topic = unique("deleted");
    let broker = with("topic.metadata.refresh.interval.ms=1000&topic.metadata.propagation.max.ms=1000");
    let mut bare = Bare::with(broker, &spec(&topic, 10)).await;
    bare.send(0..1).await;
    bare.next().await.ack(Ack::Accept);
    assert!(bare.source.flush(secs(5)).await);
    Raw::new().delete(&topic).await;
    let error = bare.until_error(secs(60)).await;
    assert_eq!(error.kind(), ErrorKind::Topology, "{error}");
    let text = error.to_string();
    assert!(text.contains(&topic) && text.contains("deleted") && text.contains("create it"), "{text}");
}
