//! `amqps://` against a server whose certificate no system trusts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::raw::Raw;
use common::{Log, Running, logging, secs, test, unique, until};
use oncemq_core::{Broker, Consumer, ErrorKind, Message};
use oncemq_rabbitmq::RabbitBroker;

fn main() {
    common::main(vec![
        test("messages_travel_by_tls", messages),
        test("a_certificate_that_nobody_trusts_is_one_error", untrusted),
        test("a_missing_file_of_authorities_is_one_error", missing_file),
    ]);
}

fn get(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

async fn messages() {
    let url = format!("{}?cacertfile={}", get("ONCEMQ_RABBITMQ_TLS_URL"), get("ONCEMQ_RABBITMQ_CA"));
    let broker = RabbitBroker::from_url(&url).unwrap();
    let (topic, log) = (unique("tls"), Log::default());
    let handler = logging(&log, async |_, _| Ok(()));
    let running =
        Running::start(Consumer::new("points", broker.clone()).topic(topic.as_str()).unguarded(handler))
            .await;
    let publisher = broker.publisher().await.unwrap();
    for number in 0..50 {
        publisher.publish(&topic, &Message::new(number.to_string())).await.unwrap();
    }
    until("50 handled", secs(20), async || log.len() == 50).await;
    running.stop().await;
    assert_eq!(Raw::connect().await.ready(&format!("points.{topic}")).await, Some(0));
}

async fn untrusted() {
    let broker = RabbitBroker::from_url(&get("ONCEMQ_RABBITMQ_TLS_URL")).unwrap();
    let error = broker.publisher().await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
    assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");
}

async fn missing_file() {
    let url = format!("{}?cacertfile=/nowhere/ca.pem", get("ONCEMQ_RABBITMQ_TLS_URL"));
    let error = RabbitBroker::from_url(&url).unwrap().publisher().await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
}
