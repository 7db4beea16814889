//! URLs.

use libtest_mimic::Trial;
use oncemq::ErrorKind::{Config, Scheme};
use oncemq::{Consumer, broker};

use crate::{PASSWORD, refused, test};

pub(crate) fn tests(list: &mut Vec<Trial>) {
    list.push(test("a_wrong_broker_url_says_which_part", || async { wrong() }));
    list.push(test("a_wrong_kafka_url_says_which_part", || async { kafka() }));
    list.push(test("kafka_properties_that_break_the_promise_are_refused_by_name", || async { properties() }));
    list.push(test("an_unknown_scheme_names_the_known_ones", || async { schemes() }));
    list.push(test("a_password_is_shown_by_no_debug", || async { debug() }));
}

fn wrong() {
    for (url, words) in [
        ("", &["scheme", "amqp://", "kafka://"][..]),
        ("localhost:5672", &["scheme", "amqp://"]),
        ("u:s3cret@localhost", &["scheme", "amqp://"]),
        // The scheme was forgotten, and the password looks like one.
        ("u:s3cret@localhost://x", &["scheme", "amqp://"]),
        ("://u:s3cret@localhost", &["scheme", "amqp://"]),
        ("amqp://", &["host"]),
        ("amqp://u:s3cret@", &["host"]),
        ("amqp://u:s3cret@localhost:0", &["port", "65535"]),
        ("amqp://u:s3cret@localhost:99999", &["port", "65535"]),
        ("amqp://u:s3cret@localhost:x", &["port"]),
        ("amqp://u:s3cret%zz@localhost", &["password", "%25"]),
        // Special characters that were not escaped.
        ("amqp://u:1/s3cret@localhost", &["password", "%2f"]),
        ("amqp://u:1?s3cret@localhost", &["password", "%3f"]),
        ("amqp://u:1?heartbeat=s3cret@localhost", &["password", "%3f"]),
        ("amqp://u:s3cret@localhost/a/b", &["virtual host", "%2f"]),
        ("amqp://u:s3cret@localhost?color=red", &["color", "heartbeat"]),
        ("amqp://u:s3cret@localhost?heartbeat=-1", &["heartbeat", "seconds"]),
        ("amqp://u:s3cret@localhost?consumer_timeout=0s", &["consumer_timeout", "10s"]),
        ("amqp://u:s3cret@localhost?consumer_timeout=-5s", &["consumer_timeout", "30s"]),
        ("amqp://u:s3cret@localhost?publish_timeout=5", &["publish_timeout", "30s"]),
        ("amqp://u:s3cret@localhost?connection_timeout=0", &["connect_timeout", "10s"]),
        ("amqp://u:s3cret@localhost/shop\n", &["white space", "end of line"]),
        ("amqp://u:s3 cret@localhost", &["white space", "%20"]),
        ("memory://x?mode=stream", &["memory://name"]),
        ("memory://x?mode=log&partitions=0", &["memory://name", "partitions"]),
        ("memory://u:s3cret@localhost?x=y", &["memory://name"]),
    ] {
        refused(broker(url), Config, words);
    }
}

fn kafka() {
    for (url, words) in [
        ("kafka://", &["host", "kafka://"][..]),
        ("kafka://u:s3cret@", &["host", "kafka://"]),
        ("kafka://s3cret@localhost", &["password", "kafka://"]),
        ("kafka://localhost,", &["host", "kafka://"]),
        ("kafka://u:s3cret@localhost:0", &["port", "65535"]),
        ("kafka://u:s3cret@localhost:99999", &["port", "65535"]),
        ("kafka://u:s3cret@localhost:x", &["port", "65535"]),
        ("kafka://[::1", &["[", "]"]),
        ("kafka://u:s3cret%zz@localhost", &["password", "%25"]),
        // Special characters that were not escaped.
        ("kafka://u:1/s3cret@localhost", &["password", "%2f"]),
        ("kafka://u:1?s3cret@localhost", &["password", "%3f"]),
        ("kafka://u:s3cret@localhost/orders", &["topics", "kafka://"]),
        ("kafka://u:s3cret@localhost?color=red", &["color", "commit_interval"]),
        ("kafka://u:s3cret@localhost?start=now", &["start", "earliest"]),
        ("kafka://u:s3cret@localhost?partitions=x", &["partitions", "number"]),
        ("kafka://u:s3cret@localhost?partitions=0", &["partitions", "above 0"]),
        ("kafka://u:s3cret@localhost?replication=-1", &["replication", "above 0"]),
        ("kafka://u:s3cret@localhost?commit_each=maybe", &["commit_each", "true"]),
        ("kafka://u:s3cret@localhost?commit_interval=0s", &["commit_interval", "10s"]),
        ("kafka://u:s3cret@localhost?connect_timeout=0s", &["connect_timeout", "10s"]),
        ("kafka://u:s3cret@localhost?publish_timeout=5", &["publish_timeout", "30s"]),
        ("kafka://u:s3cret@localhost?revoke_timeout=-5s", &["revoke_timeout", "30s"]),
    ] {
        refused(broker(url), Config, words);
    }
}

fn properties() {
    for (property, instead) in [
        ("enable.auto.commit=true", "after the business commit"),
        ("enable.auto.offset.store=true", "finished"),
        ("auto.offset.reset=latest", "start="),
        ("auto.commit.interval.ms=5000", "commit_interval"),
        ("group.id=points", "consumer's name"),
        ("acks=1", "replicas"),
        ("enable.idempotence=false", "twice"),
        ("message.timeout.ms=5", "publish_timeout"),
        ("bootstrap.servers=x:1", "host of the URL"),
        ("security.protocol=ssl", "kafkas://"),
        ("transactional.id=x", "exactly-once"),
    ] {
        let name = property.split('=').next().unwrap();
        let url = format!("kafka://u:{PASSWORD}@localhost?{property}");
        refused(broker(&url), Config, &[name, "cannot be set", instead]);
    }
    if cfg!(not(any(feature = "kafka-sasl", feature = "kafka-tls"))) {
        let url = format!("kafka://u:{PASSWORD}@localhost?sasl.mechanisms=SCRAM-SHA-256");
        refused(broker(&url), Config, &["SCRAM", "`kafka-sasl`"]);
    }
}

fn schemes() {
    for url in ["nats://u:s3cret@h", "http://u:s3cret@h", "amqp+srv://u:s3cret@h", "rabbitmq://u:s3cret@h"] {
        let scheme = url.split(':').next().unwrap();
        refused(broker(url), Scheme, &[scheme, "amqp://", "kafka://", "memory://"]);
    }
    if cfg!(not(feature = "kafka-tls")) {
        refused(broker("kafkas://u:s3cret@h"), Scheme, &["kafkas", "`kafka-tls`"]);
    }
    if cfg!(not(feature = "rabbitmq-tls")) {
        refused(broker("amqps://u:s3cret@h"), Scheme, &["amqps", "`rabbitmq-tls`"]);
    }
    // A scheme is a scheme in capitals too.
    assert!(broker("AMQP://u:s3cret@localhost").is_ok());
    assert!(broker("KAFKA://u:s3cret@localhost").is_ok());
    assert!(broker("Memory://capitals").is_ok());
}

fn debug() {
    for url in ["amqp://u:s3cret@localhost:5672/v", "kafka://u:s3cret@localhost:9092?ssl.key.password=s3cret"]
    {
        let broker = broker(url).unwrap();
        let consumer = Consumer::with_broker("points", broker.clone());
        let shown =
            [format!("{broker:?}"), format!("{consumer:?}"), format!("{:#?}", consumer.topic("orders"))];
        for shown in shown {
            assert!(!shown.contains(PASSWORD), "{shown}");
            assert!(shown.contains("localhost"), "{shown}");
        }
    }
}
