//! Settings of a consumer.

use std::time::Duration;

use libtest_mimic::Trial;
use oncemq::ErrorKind::{Config, Unsupported};
use oncemq::core::TopicBuilder;
use oncemq::memory::MemoryBroker;
use oncemq::{Consumer, Context, End, Failure, Key, Message, Ordering, RetryPolicy, broker};

use crate::{refused, refused_soon, test};

pub(crate) fn tests(list: &mut Vec<Trial>) {
    list.push(test("numbers_that_cannot_work_are_refused", numbers));
    list.push(test("names_that_are_empty_or_doubled_are_refused", names));
    list.push(test("keys_that_find_nothing_are_refused", keys));
    list.push(test("durations_of_zero_or_less_are_refused", durations));
    list.push(test("names_that_rabbitmq_refuses_are_refused_before_connecting", refused_names));
    list.push(test("names_that_kafka_refuses_are_refused_before_connecting", kafka_names));
}

async fn ignore(_cx: Context, _message: Message) -> Result<(), Failure> {
    Ok(())
}

fn points() -> Consumer {
    Consumer::new("points", MemoryBroker::queue())
}

fn orders() -> Consumer {
    points().topic("orders").unguarded(ignore)
}

async fn numbers() {
    for (consumer, words) in [
        (orders().in_flight(0), ["in_flight", "at least 1"]),
        (orders().in_flight(70_000), ["in_flight", "65535"]),
        (orders().in_flight_bytes(0), ["in_flight_bytes", "at least 1"]),
        (orders().workers(0), ["workers", "at least 1"]),
        (points(), ["no topic", ".topic("]),
        (points().topic("orders").crash_ceiling(0).unguarded(ignore), ["crash_ceiling", "at least 1"]),
    ] {
        let consumer_again = consumer.plan();
        refused_soon(consumer_again, Config, &words).await;
        // Running says the same as planning, and ends.
        refused_soon(consumer.run(), Config, &words).await;
    }
}

async fn names() {
    let topic = |name: &str| points().topic(name.to_owned());
    let second = |consumer: Consumer, change: fn(TopicBuilder) -> TopicBuilder| {
        change(consumer.topic("payments")).unguarded(ignore)
    };
    let named = |name: &str| Consumer::new(name.to_owned(), MemoryBroker::queue());
    for (consumer, words) in [
        (named("").topic("orders").unguarded(ignore), ["consumer name", "letters"]),
        (named("a b").topic("orders").unguarded(ignore), ["a b", "letters"]),
        (named("größe").topic("orders").unguarded(ignore), ["größe", "letters"]),
        (named("a\nb").topic("orders").unguarded(ignore), ["consumer name", "letters"]),
        (named(&"x".repeat(65)).topic("orders").unguarded(ignore), ["consumer name", "64"]),
        (topic("").unguarded(ignore), ["empty name", ".topic("]),
        (topic("orders").kind("").unguarded(ignore), ["kind", "orders"]),
        (topic("orders").queue("").unguarded(ignore), ["queue without a name", "orders"]),
        (topic("orders").topic_on("memory", "").unguarded(ignore), ["empty name", ".topic_on("]),
        (topic("a\nb").timeout(Duration::ZERO).unguarded(ignore), ["a b", "timeout"]),
        (orders().topic("orders").unguarded(ignore), ["orders", "twice"]),
        // Two names that are one on this broker.
        (second(orders(), |topic| topic.topic_on("memory", "orders")), ["orders", "twice"]),
        (
            second(points().topic("orders").queue("q").unguarded(ignore), |topic| topic.queue("q")),
            ["payments", "queue"],
        ),
    ] {
        refused_soon(consumer.plan(), Config, &words).await;
    }
}

async fn keys() {
    let topic = || points().topic("orders");
    let unrooted = || Key::json("order_id");
    let compared = |fields| topic().conflict_on(fields);
    for (topic, words) in [
        (topic().key(unrooted()), [".key(", "\"/order_id\""]),
        (topic().order_by(unrooted()), [".order_by(", "\"/order_id\""]),
        (topic().key(Key::message_id().or(Key::all([unrooted()]))), [".key(", "\"/order_id\""]),
        (topic().key(Key::fingerprint(["/a", "b"])), [".key(", "\"/b\""]),
        (topic().key(Key::fingerprint(Vec::<String>::new())), ["fingerprint", "name some"]),
        (topic().key(Key::all([])), ["no parts", "name some"]),
        (topic().key(Key::header("")), ["no header", "name"]),
        (compared(Key::fingerprint(["a"])), [".conflict_on(", "\"/a\""]),
        (compared(Key::json("/points")), [".conflict_on(", "Key::fingerprint("]),
    ] {
        let consumer = topic.unguarded(ignore);
        refused_soon(consumer.plan(), Config, &words).await;
    }
    for key in [Key::json(""), Key::json("/"), Key::json("/a/0/b~1c"), Key::fingerprint([""])] {
        assert!(topic().key(key).unguarded(ignore).plan().await.is_ok());
    }
}

async fn durations() {
    for text in
        ["0s dead-letter", "-5s dead-letter", "5s -1m dead-letter", "0ms keep-trying", "5 dead-letter"]
    {
        refused(text.parse::<RetryPolicy>(), Config, &["above 0", "5s"]);
    }
    for text in ["", "5s", "dead-letter 5s", "5s\ndead-letters", "keep-trying"] {
        refused(text.parse::<RetryPolicy>(), Config, &["5s"]);
    }
    let policy = RetryPolicy::new([Duration::from_secs(1), Duration::ZERO], End::DeadLetter);
    refused(policy, Config, &["zero", "1ms"]);
    refused(RetryPolicy::exponential(Duration::ZERO, Duration::from_secs(9), 3), Config, &["zero", "1ms"]);
    let consumer = points().topic("orders").timeout(Duration::ZERO).unguarded(ignore);
    refused_soon(consumer.plan(), Config, &["timeout", "orders", "longest run"]).await;
}

/// Nothing listens there, so a connection would end as another kind of error.
async fn refused_names() {
    let points = || Consumer::with_broker("points", broker("amqp://u:s3cret@127.0.0.1:1").unwrap());
    let long = "x".repeat(250);
    for (consumer, words) in [
        (points().topic(long.as_str()).unguarded(ignore), ["255", "bytes"]),
        (points().topic("amq.direct").unguarded(ignore), ["amq.direct", "choose another"]),
        (points().topic("orders").queue("amq.x").unguarded(ignore), ["belong to the broker", "the queue"]),
        (
            points().topic("orders").retry("60d dead-letter".parse().unwrap()).unguarded(ignore),
            ["orders", "shorten"],
        ),
        (
            points()
                .topic("orders")
                .ordering(Ordering::Ordered)
                .retry("20m dead-letter".parse().unwrap())
                .unguarded(ignore),
            ["ordered", "half"],
        ),
        (
            points().topic("orders").queue("legacy").ordering(Ordering::Ordered).unguarded(ignore),
            ["x-single-active-consumer", "assert_single_active"],
        ),
    ] {
        refused_soon(consumer.plan(), Config, &words).await;
    }
}

/// As [`refused_names`].
async fn kafka_names() {
    let points = || Consumer::with_broker("points", broker("kafka://u:s3cret@127.0.0.1:1").unwrap());
    let long = "x".repeat(250);
    for (consumer, kind, words) in [
        (points().topic(long.as_str()).unguarded(ignore), Config, ["249", "topic name"]),
        (points().topic("a b").unguarded(ignore), Config, ["a b", "249"]),
        (points().topic("größe").unguarded(ignore), Config, ["größe", "249"]),
        (points().topic("..").unguarded(ignore), Config, ["..", "249"]),
        // The topic of its dead letters would not fit.
        (points().topic(&long[..245]).unguarded(ignore), Config, ["points.x", "249"]),
        (points().topic("orders").queue("q").unguarded(ignore), Unsupported, ["queue q", "no queues"]),
        (points().in_flight(0).topic("orders").unguarded(ignore), Config, ["in_flight", "at least 1"]),
    ] {
        refused_soon(consumer.plan(), kind, &words).await;
    }
}
