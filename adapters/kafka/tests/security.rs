//! Logins, rights and TLS, against a real cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::KAFKA;
use common::raw::Raw;
use oncemq_core::{Broker, Consumer, Context, Error, ErrorKind, Failure, Message, Topology};
use oncemq_kafka::KafkaBroker;
use oncemq_test_kit::{Running, secs, test, unique, until};
use tokio::time::{Instant, timeout};

fn main() {
    KAFKA.main(vec![
        test("a_user_and_a_password_are_sasl_plain", || works(KAFKA.get("SASL_URL"))),
        test("scram_is_asked_for_by_its_name", || {
            works(KAFKA.get("SASL_URL") + "?sasl.mechanisms=SCRAM-SHA-256")
        }),
        test("tls_trusts_the_authority_it_is_given", || works(KAFKA.get("TLS_URL") + &authority())),
        test("tls_and_a_login_go_together", || works(KAFKA.get("SASL_TLS_URL") + &authority())),
        test("tls_refuses_an_authority_it_does_not_know", unknown_authority),
        test("a_wrong_password_is_an_error_that_does_not_show_it", wrong_password),
        test("tls_on_a_plain_port_is_an_error_in_time", plain_port),
        test("an_account_without_rights_is_told_what_it_lacks", no_rights),
    ]);
}

fn authority() -> String {
    format!("?ssl.ca.location={}", KAFKA.get("CA"))
}

/// Publishes and consumes a message.
async fn works(url: String) {
    let broker = KafkaBroker::from_url(&url).unwrap().partitions(1);
    let topic = unique("secure");
    let handler = async |_: Context, _: Message| Ok::<(), Failure>(());
    let consumer =
        Consumer::new("points", broker.clone()).topic(topic.as_str()).retry("dead-letter".parse().unwrap());
    let running = Running::start(consumer.unguarded(handler)).await;
    broker.publisher().await.unwrap().publish(&topic, &Message::new("x")).await.unwrap();
    let raw = Raw::new();
    until("it is handled", secs(20), async || {
        raw.committed("points", &topic, 0).is_some_and(|(offset, _)| offset == 1)
    })
    .await;
    running.stop().await;
}

/// The error at the start, which must not be long in coming.
async fn refused(url: &str, topology: Topology) -> Error {
    let broker = KafkaBroker::from_url(url).unwrap().partitions(1);
    let handler = async |_: Context, _: Message| Ok::<(), Failure>(());
    let consumer =
        Consumer::new("points", broker).topology(topology).topic(unique("refused")).unguarded(handler);
    let begin = Instant::now();
    let error = timeout(secs(30), consumer.run()).await.expect("it waits for ever").unwrap_err();
    assert!(begin.elapsed() < secs(15), "{:?}", begin.elapsed());
    let text = format!("{error} {error:?}");
    assert!(!text.contains("secret") && text.lines().count() == 1, "{text}");
    error
}

async fn unknown_authority() {
    let error = refused(&KAFKA.get("TLS_URL"), Topology::Declare).await;
    assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
    assert!(error.to_string().contains("TLS"), "{error}");
}

async fn wrong_password() {
    let url = KAFKA.get("SASL_URL").replace("oncemq:oncemq@", "oncemq:secret@");
    let begin = Instant::now();
    for topology in [Topology::Declare, Topology::Trust] {
        let error = refused(&url, topology).await;
        assert_eq!(error.kind(), ErrorKind::Access, "{error}");
    }
    let error = KafkaBroker::from_url(&url).unwrap().publisher().await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Access, "{error}");
    // Not after three times the ten seconds that a broker has to answer in.
    assert!(begin.elapsed() < secs(8), "{:?}", begin.elapsed());
}

async fn plain_port() {
    let place = KAFKA.url().replace("kafka://", "kafkas://");
    let error = refused(&place, Topology::Declare).await;
    assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
}

/// The broker does not tell such an account that a topic exists.
async fn no_rights() {
    let url = KAFKA.get("SASL_URL").replace("oncemq:oncemq@", "limited:limited@");
    let error = refused(&url, Topology::Declare).await;
    assert_eq!(error.kind(), ErrorKind::Access, "{error}");
    let error = refused(&url, Topology::Verify).await;
    assert!(matches!(error.kind(), ErrorKind::Access | ErrorKind::Topology), "{error}");
    let publisher = KafkaBroker::from_url(&url).unwrap().publisher().await.unwrap();
    let topic = unique("closed");
    Raw::new().create(&topic, 1, &[]).await;
    // Nobody looks at the topic before the client does.
    let handler = async |_: Context, _: Message| Ok::<(), Failure>(());
    let broker = KafkaBroker::from_url(&url).unwrap();
    let consumer = Consumer::new("points", broker).topology(Topology::Trust).topic(topic.as_str());
    let consuming = timeout(secs(30), consumer.unguarded(handler).run());
    let error = consuming.await.expect("it waits for ever").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Access, "{error}");
    assert!(error.to_string().contains("grant it"), "{error}");
    let error = publisher.publish(&topic, &Message::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Access, "{error}");
}
