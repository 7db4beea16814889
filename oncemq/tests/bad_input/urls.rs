//! URLs.

use libtest_mimic::Trial;
use oncemq::ErrorKind::{Config, Scheme};
use oncemq::{Consumer, broker};

use crate::{PASSWORD, refused, test};

pub(crate) fn tests(list: &mut Vec<Trial>) {
    list.push(test("a_wrong_broker_url_says_which_part", || async { wrong() }));
    list.push(test("an_unknown_scheme_names_the_known_ones", || async { schemes() }));
    list.push(test("a_password_is_shown_by_no_debug", || async { debug() }));
}

fn wrong() {
    for (url, words) in [
        ("", &["scheme", "amqp://"][..]),
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

fn schemes() {
    for url in ["kafka://u:s3cret@h", "http://u:s3cret@h", "amqp+srv://u:s3cret@h", "rabbitmq://u:s3cret@h"] {
        let scheme = url.split(':').next().unwrap();
        refused(broker(url), Scheme, &[scheme, "amqp://", "memory://"]);
    }
    if cfg!(not(feature = "rabbitmq-tls")) {
        refused(broker("amqps://u:s3cret@h"), Scheme, &["amqps", "`rabbitmq-tls`"]);
    }
    // A scheme is a scheme in capitals too.
    assert!(broker("AMQP://u:s3cret@localhost").is_ok());
    assert!(broker("Memory://capitals").is_ok());
}

fn debug() {
    let broker = broker("amqp://u:s3cret@localhost:5672/v").unwrap();
    let consumer = Consumer::with_broker("points", broker.clone());
    for shown in [format!("{broker:?}"), format!("{consumer:?}"), format!("{:#?}", consumer.topic("orders"))]
    {
        assert!(!shown.contains(PASSWORD), "{shown}");
        assert!(shown.contains("localhost"), "{shown}");
    }
}
