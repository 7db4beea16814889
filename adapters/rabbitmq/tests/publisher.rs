//! Publishing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use common::raw::{Raw, header, text};
use common::{broker, test, unique};
use lapin::types::AMQPValue;
use oncemq_core::{Broker, ErrorKind, Message};

fn main() {
    common::main(vec![
        test("what_is_published_arrives_whole", arrives_whole),
        test("unroutable_is_an_error", unroutable),
        test("many_at_once_each_get_their_own_answer", own_answers),
        test("a_full_queue_is_an_error", full_queue),
        test("what_does_not_fit_is_refused_and_nothing_hangs", too_large),
        test("after_close_it_is_closed", closed),
    ]);
}

/// An exchange with a queue bound to it, as somebody else may have made them.
async fn bound(raw: &Raw, arguments: &[(&str, AMQPValue)]) -> String {
    let name = unique("t");
    raw.declare(&name, arguments).await;
    exchange(raw, &name).await;
    let (name_, options) = (name.as_str(), lapin::options::QueueBindOptions::default());
    raw.channel.queue_bind(name_.into(), name_.into(), "".into(), options, Default::default()).await.unwrap();
    name
}

async fn exchange(raw: &Raw, name: &str) {
    let options = lapin::options::ExchangeDeclareOptions { durable: true, ..Default::default() };
    let kind = lapin::ExchangeKind::Fanout;
    raw.channel.exchange_declare(name.into(), kind, options, Default::default()).await.unwrap();
}

async fn arrives_whole() {
    let raw = Raw::connect().await;
    let topic = bound(&raw, &[]).await;
    let publisher = broker().publisher().await.unwrap();
    let large = vec![7; 300_000];
    let message =
        Message::new(large.clone()).with_id("1").with_content_type("x/y").with_header("a", vec![0, 255]);
    publisher.publish(&topic, &message).await.unwrap();
    publisher.publish(&topic, &Message::new("")).await.unwrap();
    let first = raw.get(&topic).await.unwrap();
    assert_eq!((first.data, first.routing_key.as_str()), (large, topic.as_str()));
    assert_eq!(*first.properties.delivery_mode(), Some(2));
    assert_eq!(first.properties.message_id().as_ref().unwrap().as_str(), "1");
    assert_eq!(first.properties.content_type().as_ref().unwrap().as_str(), "x/y");
    assert_eq!(header(&first.properties, "a"), Some(&AMQPValue::LongString(vec![0, 255].into())));
    assert!(first.properties.timestamp().is_some());
    assert_eq!(raw.get(&topic).await.unwrap().data, b"");
}

async fn unroutable() {
    let (raw, topic) = (Raw::connect().await, unique("t"));
    let publisher = broker().publisher().await.unwrap();
    let kind = |result: Result<(), oncemq_core::Error>| result.unwrap_err().kind();
    assert_eq!(kind(publisher.publish(&topic, &Message::new("x")).await), ErrorKind::Unroutable);
    exchange(&raw, &topic).await;
    assert_eq!(kind(publisher.publish(&topic, &Message::new("x")).await), ErrorKind::Unroutable);
    assert_eq!(kind(publisher.publish(&topic, &Message::tombstone()).await), ErrorKind::Unsupported);
    let long = "x".repeat(256);
    assert_eq!(kind(publisher.publish(&long, &Message::new("x")).await), ErrorKind::Config);
    // It is as good as before.
    let bound = bound(&raw, &[]).await;
    publisher.publish(&bound, &Message::new("x")).await.unwrap();
}

async fn own_answers() {
    let raw = Raw::connect().await;
    let good = bound(&raw, &[("x-queue-type", text("quorum"))]).await;
    let bad = unique("t");
    exchange(&raw, &bad).await;
    let publisher = broker().publisher().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..600u32 {
        let (publisher, topic) =
            (Arc::clone(&publisher), if i % 3 == 0 { bad.clone() } else { good.clone() });
        tasks.spawn(async move {
            let result = publisher.publish(&topic, &Message::new(i.to_string())).await;
            assert_eq!(
                result.map_err(|e| e.kind()).err(),
                (i % 3 == 0).then_some(ErrorKind::Unroutable),
                "{i}"
            );
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(raw.ready(&good).await, Some(400));
}

async fn full_queue() {
    let raw = Raw::connect().await;
    let arguments = [("x-max-length", AMQPValue::LongInt(1)), ("x-overflow", text("reject-publish"))];
    let topic = bound(&raw, &arguments).await;
    let publisher = broker().publisher().await.unwrap();
    publisher.publish(&topic, &Message::new("1")).await.unwrap();
    let error = publisher.publish(&topic, &Message::new("2")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}");
    assert!(error.to_string().contains("full"), "{error}");
}

async fn too_large() {
    let raw = Raw::connect().await;
    let topic = bound(&raw, &[]).await;
    let publisher = broker().publisher().await.unwrap();
    let error = publisher
        .publish(&topic, &Message::new("x").with_header("h", vec![b'x'; 200_000]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    // Just under a frame it is carried.
    publisher.publish(&topic, &Message::new("x").with_header("h", vec![b'x'; 130_000])).await.unwrap();
    assert_eq!(raw.ready(&topic).await, Some(1));
}

async fn closed() {
    let publisher = broker().publisher().await.unwrap();
    publisher.close().await.unwrap();
    publisher.close().await.unwrap();
    let error = publisher.publish("t", &Message::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}
