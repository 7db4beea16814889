//! What is published arrives as it was.

use bytes::Bytes;
use libtest_mimic::Failed;

use super::bench::Bench;
use super::{Cases, Outcome, ensure};
use crate::{ErrorKind, Message, Parts};

pub(super) fn cases(list: &mut Cases) {
    list.add("publish::a_confirmed_message_is_delivered", confirmed);
    list.add("publish::an_unroutable_message_is_an_error", unroutable);
    list.add("publish::id_content_type_and_headers_arrive", properties);
    list.add_if(|can| can.repeated_headers, "publish::repeated_and_null_headers_arrive", repeated);
    list.add_if(|can| can.key_order, "publish::the_record_key_arrives", key);
    list.add("publish::an_empty_payload_is_not_a_missing_one", empty);
    list.add("publish::a_large_payload_arrives", large);
    list.add_if(|can| can.tombstones, "publish::a_tombstone_arrives", tombstone);
    list.add("publish::every_consumer_gets_its_own_copy", copies);
    list.add("publish::a_closed_publisher_says_so", closed);
}

/// Publishes a message and returns it as it arrives.
async fn arrives(bench: &Bench, message: &Message) -> Result<Message, Failed> {
    let (mut tap, delivery) = bench.one(message).await?;
    let arrived = delivery.message().clone();
    tap.accept([delivery]).await?;
    tap.close().await?;
    Ok(arrived)
}

async fn confirmed(bench: Bench) -> Outcome {
    let arrived = arrives(&bench, &Message::new("body")).await?;
    let broker = bench.harness.capabilities().broker;
    ensure(arrived.body() == b"body", || format!("the body is {:?}", arrived.body()))?;
    ensure(&*arrived.origin().broker == broker, || format!("it came from {}", arrived.origin()))
}

async fn unroutable(bench: Bench) -> Outcome {
    match bench.publish(&Message::new("nobody keeps it")).await {
        Ok(()) => Err("a message that nobody keeps was confirmed".into()),
        Err(_) => match bench.publisher.publish(&bench.topic, &Message::new("x")).await {
            Err(error) if error.kind() == ErrorKind::Unroutable => Ok(()),
            other => Err(format!("expected Unroutable, got {other:?}").into()),
        },
    }
}

async fn properties(bench: Bench) -> Outcome {
    let sent = Message::new("body")
        .with_id("id-1")
        .with_content_type("application/json")
        .with_header("tenant", "größe")
        .with_header("binary", vec![0, 159, 146, 150]);
    let arrived = arrives(&bench, &sent).await?;
    ensure(arrived.id() == Some("id-1"), || format!("the id is {:?}", arrived.id()))?;
    ensure(arrived.content_type() == sent.content_type(), || format!("{:?}", arrived.content_type()))?;
    ensure(user_headers(&arrived) == user_headers(&sent), || format!("{:?}", user_headers(&arrived)))
}

async fn repeated(bench: Bench) -> Outcome {
    let mut parts = Parts { payload: Some(Bytes::from_static(b"body")), ..Parts::default() };
    for (name, value) in [("t", Some("1")), ("n", None), ("t", Some("2")), ("e", Some(""))] {
        parts.headers.push(name, value.map(Bytes::from));
    }
    let sent = Message::from(parts);
    let arrived = arrives(&bench, &sent).await?;
    ensure(user_headers(&arrived) == user_headers(&sent), || format!("{:?}", user_headers(&arrived)))
}

async fn key(bench: Bench) -> Outcome {
    let arrived = arrives(&bench, &Message::new("body").with_key(vec![0, 255])).await?;
    ensure(arrived.key().is_some_and(|key| **key == [0, 255]), || "another key".into())
}

async fn empty(bench: Bench) -> Outcome {
    let arrived = arrives(&bench, &Message::new("")).await?;
    ensure(arrived.payload().is_some_and(Bytes::is_empty), || format!("it is {:?}", arrived.payload()))
}

async fn large(bench: Bench) -> Outcome {
    let body: Vec<u8> = (0..bench.harness.large_payload()).map(|n| ((n * 31) >> 3) as u8).collect();
    let arrived = arrives(&bench, &Message::new(body.clone())).await?;
    ensure(arrived.body() == body, || format!("{} other bytes", arrived.body().len()))
}

async fn tombstone(bench: Bench) -> Outcome {
    let arrived = arrives(&bench, &Message::tombstone().with_key("k")).await?;
    ensure(arrived.payload().is_none(), || format!("it is {:?}", arrived.payload()))
}

async fn copies(bench: Bench) -> Outcome {
    let mut taps = [bench.subscribe().await?, bench.subscribe_as(&bench.spec_of("b")).await?];
    bench.publish(&Message::new("body")).await?;
    for tap in &mut taps {
        let delivery = tap.one().await?;
        tap.accept([delivery]).await?;
        tap.nothing().await?;
        tap.close().await?;
    }
    Ok(())
}

async fn closed(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publisher.close().await?;
    bench.publisher.close().await?;
    match bench.publisher.publish(&bench.topic, &Message::new("x")).await {
        Err(error) if error.kind() == ErrorKind::Closed => tap.close().await,
        other => Err(format!("expected Closed, got {other:?}").into()),
    }
}

/// Headers as the user set them, sorted by name: not every protocol keeps the order of
/// names, and every one keeps that of the values of a name.
pub(super) fn user_headers(message: &Message) -> Vec<(String, Option<Vec<u8>>)> {
    let ours = |name: &str| crate::header::ALL.contains(&name);
    let mut list: Vec<_> = message
        .headers()
        .iter()
        .filter(|(name, _)| !ours(name))
        .map(|(name, value)| (name.to_owned(), value.map(|value| value.to_vec())))
        .collect();
    list.sort_by(|a, b| a.0.cmp(&b.0));
    list
}
