//! What is sent, and what is refused.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use libtest_mimic::Trial;
use oncemq_core::{Ack, Broker, ErrorKind, Message, Subscription};
use oncemq_test_kit::{Bare, millis, secs, test, unique};

use crate::common::{admin, broker, with};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("keys_and_tags_are_known_to_the_brokers_tools", tools),
        test("messages_of_a_group_are_in_one_queue", groups),
        test("a_level_and_a_time_delay_a_message", delays),
        test("a_level_beyond_the_last_is_the_last_and_a_time_beyond_is_refused", delays_beyond),
        test("a_body_over_the_limit_is_an_error_and_the_next_goes_through", limit),
        test("properties_over_the_limit_are_an_error", properties),
        test("a_compressed_body_of_a_java_client_is_read", compressed),
    ]
}

async fn open(queues: u16) -> Bare {
    Bare::of(broker().queues(queues), Subscription::new(unique("topic")), 100).await
}

async fn tools() {
    let mut bare = open(1).await;
    let publisher = bare.broker.publisher().await.unwrap();
    let (one, two) = (unique("k"), unique("k"));
    let sent = Message::new("x").with_header("KEYS", format!("{one} {two}")).with_header("TAGS", "paid");
    publisher.publish(&bare.topic, &sent).await.unwrap();
    let delivery = bare.next().await;
    let headers = delivery.message().headers();
    assert_eq!(headers.get_str("TAGS"), Some("paid"));
    assert_eq!(headers.get_str("KEYS"), Some(format!("{one} {two}").as_str()));
    let id = delivery.message().id().unwrap().to_owned();
    delivery.ack(Ack::Accept);
    for key in [one, two] {
        let found = admin(&["queryMsgByKey", "-t", &bare.topic, "-k", &key]);
        assert!(found.contains(&id), "{found}");
    }
    let found = admin(&["queryMsgByUniqueKey", "-t", &bare.topic, "-i", &id]);
    assert!(found.contains("paid"), "{found}");
    bare.source.close(secs(5)).await.unwrap();
}

async fn groups() {
    let mut bare = open(4).await;
    let publisher = bare.broker.publisher().await.unwrap();
    for n in 0..20 {
        for group in ["a", "b", "c"] {
            publisher.publish(&bare.topic, &Message::new(n.to_string()).with_key(group)).await.unwrap();
        }
    }
    let mut queues = std::collections::BTreeMap::new();
    for _ in 0..60 {
        let delivery = bare.next().await;
        let message = delivery.message();
        let queue = message.origin().partition.unwrap();
        let known = *queues.entry(message.key().unwrap().clone()).or_insert(queue);
        assert_eq!(queue, known);
        delivery.ack(Ack::Accept);
    }
    // As `SelectMessageQueueByHash` of the Java client chooses.
    assert_eq!(queues.into_values().collect::<Vec<_>>(), [97 % 4, 98 % 4, 99 % 4]);
    bare.source.close(secs(5)).await.unwrap();
}

async fn delays() {
    let mut bare = open(1).await;
    let publisher = bare.broker.publisher().await.unwrap();
    for (name, value, least) in
        [("DELAY", "2", 2_000), ("TIMER_DELAY_SEC", "2", 1_000), ("TIMER_DELIVER_MS", "", 1_000)]
    {
        let due = (SystemTime::now() + secs(3)).duration_since(UNIX_EPOCH).unwrap().as_millis().to_string();
        let value = if value.is_empty() { &due } else { value };
        let sent = Instant::now();
        publisher.publish(&bare.topic, &Message::new("x").with_header(name, value.to_owned())).await.unwrap();
        let delivery = bare.next().await;
        let waited = sent.elapsed();
        assert!(waited >= millis(least) && waited < Duration::from_secs(6), "{name}: {waited:?}");
        assert!(delivery.message().headers().is_empty(), "{:?}", delivery.message().headers());
        delivery.ack(Ack::Accept);
    }
    bare.source.close(secs(5)).await.unwrap();
}

async fn delays_beyond() {
    let mut bare = open(1).await;
    let publisher = bare.broker.publisher().await.unwrap();
    // Two hours, unless the broker is told otherwise.
    publisher.publish(&bare.topic, &Message::new("x").with_header("DELAY", "99")).await.unwrap();
    // It takes three days at most.
    let late = Message::new("x").with_header("TIMER_DELAY_SEC", "300000");
    let error = publisher.publish(&bare.topic, &late).await.unwrap_err();
    assert!(error.kind() == ErrorKind::TooLarge && error.to_string().contains("max delay"), "{error}");
    assert!(bare.is_silent(secs(2)).await);
    bare.source.close(secs(5)).await.unwrap();
}

async fn limit() {
    let mut bare = open(1).await;
    let publisher = bare.broker.publisher().await.unwrap();
    for size in [5, 17] {
        let large = Message::new(vec![b'x'; size * 1024 * 1024]);
        let error = publisher.publish(&bare.topic, &large).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    }
    publisher.publish(&bare.topic, &Message::new("next")).await.unwrap();
    let delivery = bare.next().await;
    assert_eq!(delivery.message().body(), b"next");
    delivery.ack(Ack::Accept);
    bare.source.close(secs(5)).await.unwrap();
}

async fn properties() {
    let bare = open(1).await;
    let publisher = with("publish_timeout=3s").publisher().await.unwrap();
    let long = Message::new("x").with_header("long", "y".repeat(40_000));
    let error = publisher.publish(&bare.topic, &long).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
}

/// The tool sends as every Java client does: a body over four kilobytes goes out compressed.
async fn compressed() {
    let mut bare = open(1).await;
    let body = "compressed.".repeat(1_000);
    let sent = admin(&["sendMessage", "-t", &bare.topic, "-p", &body, "-k", "k1", "-c", "t1"]);
    assert!(sent.contains("SEND_OK"), "{sent}");
    let delivery = bare.next().await;
    assert!(delivery.message().body() == body.as_bytes());
    assert_eq!(delivery.message().headers().get_str("TAGS"), Some("t1"));
    delivery.ack(Ack::Accept);
    bare.source.close(secs(5)).await.unwrap();
}
