//! Publishing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, SystemTime};

use common::raw::Raw;
use common::suite::read_all;
use common::{KAFKA, broker};
use oncemq_core::{Broker, ErrorKind, Message};
use oncemq_test_kit::{test, unique};

fn main() {
    KAFKA.main(vec![
        test("what_is_published_arrives_whole", arrives_whole),
        test("a_key_always_finds_its_partition", partitioned),
        test("an_unknown_topic_is_an_error", unknown_topic),
        test("what_does_not_fit_is_refused_and_others_pass", too_large),
        test("a_header_name_that_cannot_be_sent_is_refused", unsendable),
        test("after_close_it_is_closed", closed),
    ]);
}

async fn arrives_whole() {
    let (topic, raw) = (unique("whole"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    let publisher = broker().publisher().await.unwrap();
    let message = Message::new(vec![7; 300_000])
        .with_key(vec![0, 255])
        .with_id("1")
        .with_content_type("x/y")
        .with_header("a", vec![0, 255]);
    publisher.publish(&topic, &message).await.unwrap();
    publisher.publish(&topic, &Message::tombstone().with_key("k")).await.unwrap();
    let arrived = read_all(&broker(), &topic).await;
    let first = &arrived[0];
    assert_eq!((first.body(), first.key()), (message.body(), message.key()));
    assert_eq!(
        (first.id(), first.content_type(), first.headers()),
        (Some("1"), Some("x/y"), message.headers())
    );
    let age = SystemTime::now().duration_since(first.timestamp().unwrap()).unwrap_or_default();
    assert!(age < Duration::from_secs(60), "{age:?}");
    assert_eq!((arrived.len(), arrived[1].payload()), (2, None));
}

/// By the rule of the Java client, so that producers of both keep a key in one partition.
async fn partitioned() {
    let (topic, raw) = (unique("partitioned"), Raw::new());
    raw.create(&topic, 8, &[]).await;
    let publisher = broker().publisher().await.unwrap();
    for key in ["21", "foobar", "a-little-bit-long-string", "21", "foobar"] {
        publisher.publish(&topic, &Message::new("x").with_key(key)).await.unwrap();
    }
    // murmur2, positive, modulo 8, as the Java client's own tests have it.
    let expected = |key: &[u8]| match key {
        b"21" => (-973_932_308_i32 & 0x7fff_ffff) % 8,
        b"foobar" => (-790_332_482_i32 & 0x7fff_ffff) % 8,
        _ => (-985_981_536_i32 & 0x7fff_ffff) % 8,
    };
    let arrived = read_all(&broker(), &topic).await;
    assert_eq!(arrived.len(), 5);
    for message in arrived {
        assert_eq!(message.origin().partition, Some(expected(message.key().unwrap())), "{:?}", message.key());
    }
}

async fn unknown_topic() {
    let publisher = broker().publisher().await.unwrap();
    let error = publisher.publish(&unique("nowhere"), &Message::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unroutable, "{error}");
}

/// Sent at once they share a batch, which the broker refuses as a whole.
async fn too_large() {
    let (topic, raw) = (unique("large"), Raw::new());
    raw.create(&topic, 1, &[("max.message.bytes", "10000")]).await;
    let publisher = broker().publisher().await.unwrap();
    let (large, small) = (Message::new(vec![0; 20_000]), Message::new("x"));
    let both = tokio::join!(publisher.publish(&topic, &large), publisher.publish(&topic, &small));
    assert_eq!(both.0.unwrap_err().kind(), ErrorKind::TooLarge);
    both.1.unwrap();
    assert_eq!(read_all(&broker(), &topic).await.len(), 1);
}

async fn unsendable() {
    let publisher = broker().publisher().await.unwrap();
    let error = publisher.publish("any", &Message::new("x").with_header("a\0b", "1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

async fn closed() {
    let publisher = broker().publisher().await.unwrap();
    publisher.close().await.unwrap();
    let error = publisher.publish("any", &Message::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}
