//! The same over TLS; the broker takes both on one port.

use std::time::Instant;

use libtest_mimic::Trial;
use oncemq_core::{Ack, Broker, ErrorKind, Message, Subscription};
use oncemq_rocketmq::RocketmqBroker;
use oncemq_test_kit::{Bare, secs, test, unique};

use crate::common::ROCKETMQ;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("over_tls_messages_come_and_go", both_ways),
        test("a_certificate_of_an_unknown_authority_is_refused_in_time", unknown),
    ]
}

fn tls(options: &str) -> RocketmqBroker {
    let url = ROCKETMQ.url().replace("rocketmq://", "rocketmqs://");
    RocketmqBroker::from_url(&format!("{url}?{options}")).unwrap().queues(1)
}

/// A broker whose certificate is trusted.
pub(crate) fn trusted() -> RocketmqBroker {
    tls(&format!("tls_ca={}", ROCKETMQ.get("CA")))
}

async fn both_ways() {
    let mut bare = Bare::of(trusted(), Subscription::new(unique("tls")), 10).await;
    let publisher = bare.broker.publisher().await.unwrap();
    publisher.publish(&bare.topic, &Message::new("x")).await.unwrap();
    let delivery = bare.next().await;
    assert_eq!(delivery.message().body(), b"x");
    delivery.ack(Ack::Accept);
    bare.source.close(secs(5)).await.unwrap();
}

async fn unknown() {
    let begin = Instant::now();
    let error = tls("").publisher().await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
    assert!(begin.elapsed() < secs(10), "{:?}", begin.elapsed());
}
