//! Declaring, verifying, trusting; and everything that is refused at the start.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::raw::{Raw, text};
use common::{broker, management, millis, secs, test, unique, url};
use lapin::types::AMQPValue;
use oncemq_core::{Broker, ConsumerSpec, Error, ErrorKind, Ordering, Plan, Subscription, Topology};
use oncemq_rabbitmq::{QueueType, RabbitBroker};

fn main() {
    common::main(vec![
        test("declared_twice_it_is_the_same", declared_twice),
        test("rb7_other_arguments_are_one_error_with_both_values", other_arguments),
        test("rb7_another_type_of_queue_is_one_error", another_type),
        test("an_exchange_of_another_type_is_one_error", another_exchange),
        test("verify_names_what_is_missing", verify_names_what_is_missing),
        test("without_the_right_to_configure", without_the_right),
        test("a_queue_that_was_there_before_is_not_bound", existing_queue),
        test("the_plan_says_what_it_did", plan_says),
        test("rb5_an_old_queue_without_the_limit_is_taken_as_it_is", rb5_old_queue),
        test("ordered_needs_a_single_active_consumer", ordered),
        test("rb1_a_handler_longer_than_the_server_allows_is_a_warning", rb1_warning),
        test("rb10_a_prefetch_without_bound_is_refused", rb10_refused),
        test("a_wrong_password_is_one_error", wrong_password),
        test("a_closed_port_is_one_error", closed_port),
        test("an_unknown_virtual_host_is_one_error", unknown_vhost),
        test("a_host_that_does_not_answer_is_one_error", silent_host),
    ]);
}

fn spec(topic: &str, topology: Topology) -> ConsumerSpec {
    let subscription = Subscription::new(topic).with_rungs([secs(1), secs(60)]);
    ConsumerSpec::new("points", 10, topology).with(subscription)
}

async fn prepare(broker: &RabbitBroker, spec: &ConsumerSpec) -> Result<Plan, Error> {
    let mut plan = Plan::default();
    broker.prepare(spec, &mut plan).await.map(|()| plan)
}

/// One line of this kind that contains these words and no password.
fn refused(result: Result<Plan, Error>, kind: ErrorKind, words: &[&str]) {
    let error = result.expect_err("refused");
    let line = error.to_string();
    assert_eq!(error.kind(), kind, "{line}");
    for word in words {
        assert!(line.contains(word), "{word:?} is not in {line:?}");
    }
    assert!(!line.contains('\n') && !line.contains("s3cret"), "{line}");
}

async fn declared_twice() {
    for queue_type in [QueueType::Quorum, QueueType::Classic] {
        let (broker, spec) = (broker().queue_type(queue_type), spec(&unique("t"), Topology::Declare));
        prepare(&broker, &spec).await.unwrap();
        prepare(&broker, &spec).await.unwrap();
    }
}

async fn other_arguments() {
    let (raw, topic) = (Raw::connect().await, unique("t"));
    let queue = format!("points.{topic}");
    raw.declare(&queue, &[("x-queue-type", text("quorum")), ("x-message-ttl", AMQPValue::LongInt(5000))])
        .await;
    let result = prepare(&broker(), &spec(&topic, Topology::Declare)).await;
    refused(result, ErrorKind::Topology, &[&queue, "x-message-ttl", "5000", "none"]);
    // A rung of the ladder whose delay was changed by hand.
    let topic = unique("t");
    let rung = format!("points.{topic}.retry.1000ms");
    let arguments = [
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", AMQPValue::LongInt(9)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(&format!("points.{topic}"))),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ];
    raw.declare(&rung, &arguments).await;
    let result = prepare(&broker(), &spec(&topic, Topology::Declare)).await;
    refused(result, ErrorKind::Topology, &[&rung, "x-message-ttl", "9", "1000"]);
}

async fn another_type() {
    let (raw, topic) = (Raw::connect().await, unique("t"));
    let queue = format!("points.{topic}");
    raw.declare(&queue, &[]).await;
    let result = prepare(&broker(), &spec(&topic, Topology::Declare)).await;
    refused(result, ErrorKind::Topology, &[&queue, "x-queue-type", "quorum", "classic"]);
}

async fn another_exchange() {
    let (raw, topic) = (Raw::connect().await, unique("t"));
    let kind = lapin::ExchangeKind::Topic;
    let options = lapin::options::ExchangeDeclareOptions { durable: true, ..Default::default() };
    raw.channel.exchange_declare(topic.as_str().into(), kind, options, Default::default()).await.unwrap();
    let result = prepare(&broker(), &spec(&topic, Topology::Declare)).await;
    refused(result, ErrorKind::Topology, &["exchange", &topic, "fanout", "topic"]);
}

async fn verify_names_what_is_missing() {
    let (raw, topic) = (Raw::connect().await, unique("t"));
    let verify = spec(&topic, Topology::Verify);
    refused(prepare(&broker(), &verify).await, ErrorKind::Topology, &["exchange", &topic, "create it"]);
    prepare(&broker(), &spec(&topic, Topology::Declare)).await.unwrap();
    prepare(&broker(), &verify).await.unwrap();
    for part in ["dead", "retry.1000ms", "retry.60000ms"] {
        let queue = format!("points.{topic}.{part}");
        raw.delete(&queue).await;
        refused(prepare(&broker(), &verify).await, ErrorKind::Topology, &["queue", &queue, "create it"]);
        prepare(&broker(), &spec(&topic, Topology::Declare)).await.unwrap();
    }
}

/// The shared server with another account.
fn as_user(user: &str, password: &str) -> String {
    let url = url();
    let (_, place) = url.split_once('@').unwrap();
    format!("amqp://{user}:{password}@{place}")
}

async fn without_the_right() {
    let (user, topic) = (unique("reader"), unique("t"));
    management::ask("PUT", &format!("/users/{user}"), r#"{"password":"s3cret","tags":""}"#).await;
    let rights = r#"{"configure":"^$","write":".*","read":".*"}"#;
    management::ask("PUT", &format!("/permissions/%2f/{user}"), rights).await;
    let restricted = RabbitBroker::from_url(&as_user(&user, "s3cret")).unwrap();
    let result = prepare(&restricted, &spec(&topic, Topology::Declare)).await;
    refused(result, ErrorKind::Access, &["refused", "configure"]);
    let result = prepare(&restricted, &spec(&topic, Topology::Verify)).await;
    refused(result, ErrorKind::Topology, &[&topic, "does not exist"]);
    prepare(&broker(), &spec(&topic, Topology::Declare)).await.unwrap();
    for topology in [Topology::Verify, Topology::Trust] {
        let spec = spec(&topic, topology);
        prepare(&restricted, &spec).await.unwrap();
        let mut source = restricted.subscribe(&spec).await.unwrap();
        source.close(secs(5)).await.unwrap();
    }
    management::ask("DELETE", &format!("/users/{user}"), "").await;
}

async fn existing_queue() {
    let (raw, queue) = (Raw::connect().await, unique("legacy"));
    let mut spec = ConsumerSpec::new("points", 10, Topology::Declare);
    spec = spec.with(Subscription::new("whatever").with_queue(queue.as_str()).with_rungs([millis(5)]));
    let result = prepare(&broker(), &spec).await;
    refused(result, ErrorKind::Topology, &[&queue, "does not exist"]);
    raw.declare(&queue, &[("x-max-length", AMQPValue::LongInt(1000))]).await;
    let plan = prepare(&broker(), &spec).await.unwrap();
    assert!(plan.to_string().contains("was there before"), "{plan}");
    assert_eq!(raw.ready(&format!("{queue}.retry.5ms")).await, Some(0));
    assert_eq!(raw.ready(&format!("{queue}.dead")).await, Some(0));
}

async fn plan_says() {
    let topic = unique("t");
    let plan = prepare(&broker(), &spec(&topic, Topology::Declare)).await.unwrap();
    let text = plan.to_string();
    for part in ["declared", "fanout", "retry.1000ms", "retry.60000ms", ".dead"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(plan.warnings.is_empty(), "{text}");
    let plan = prepare(&broker(), &spec(&topic, Topology::Verify)).await.unwrap();
    assert!(plan.to_string().contains("arguments are not seen"), "{plan}");
}

/// A queue made by hand has no `x-delivery-limit`; a broker that knows -1 must not refuse it.
async fn rb5_old_queue() {
    let (raw, topic) = (Raw::connect().await, unique("t"));
    raw.declare(&format!("points.{topic}"), &[("x-queue-type", text("quorum"))]).await;
    let plan = prepare(&broker(), &spec(&topic, Topology::Declare)).await.unwrap();
    let version = management::ask("GET", "/overview?columns=rabbitmq_version", "").await;
    let has_default = !version.contains(":\"3.");
    let warned = plan.warnings.iter().any(|line| line.contains("x-delivery-limit"));
    assert_eq!(warned, has_default, "{version}: {plan}");
}

async fn ordered() {
    let topic = unique("t");
    let with = |topology, rungs: &[u64]| {
        let mut subscription = Subscription::new(topic.as_str());
        subscription = subscription.with_rungs(rungs.iter().map(|n| secs(*n)));
        subscription.ordering = Ordering::Ordered;
        ConsumerSpec::new("points", 10, topology).with(subscription)
    };
    let plain = broker().consumer_timeout(secs(100));
    let asserted = plain.clone().assert_single_active();
    for topology in [Topology::Verify, Topology::Trust] {
        let result = prepare(&plain, &with(topology, &[])).await;
        refused(result, ErrorKind::Config, &["x-single-active-consumer", "assert_single_active"]);
    }
    let result = prepare(&asserted, &with(Topology::Trust, &[20, 30])).await;
    refused(result, ErrorKind::Config, &["ladder", "50s", "half"]);
    prepare(&asserted, &with(Topology::Trust, &[20, 29])).await.unwrap();
    prepare(&plain, &with(Topology::Declare, &[20, 29])).await.unwrap();
    // The queue has the argument: declared without it, it is another queue.
    let result = prepare(&plain, &spec(&topic, Topology::Declare)).await;
    refused(result, ErrorKind::Topology, &["x-single-active-consumer"]);
}

async fn rb1_warning() {
    let mut subscription = Subscription::new(unique("t"));
    subscription.timeout = secs(200);
    let spec = ConsumerSpec::new("points", 10, Topology::Declare).with(subscription);
    let plan = prepare(&broker().consumer_timeout(secs(60)), &spec).await.unwrap();
    assert!(plan.warnings.iter().any(|line| line.contains("200s") && line.contains("1m")), "{plan}");
}

async fn rb10_refused() {
    for in_flight in [0, 65536] {
        let spec =
            ConsumerSpec::new("points", in_flight, Topology::Declare).with(Subscription::new(unique("t")));
        refused(prepare(&broker(), &spec).await, ErrorKind::Config, &["in_flight", "prefetch"]);
    }
}

async fn wrong_password() {
    let broker = RabbitBroker::from_url(&as_user("oncemq", "s3cret")).unwrap();
    let result = prepare(&broker, &spec("t", Topology::Trust)).await;
    refused(result, ErrorKind::Access, &["oncemq", "password"]);
    let error = broker.publisher().await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Access);
    assert!(!format!("{broker:?} {error:?}").contains("s3cret"));
}

async fn closed_port() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let broker = RabbitBroker::from_url(&format!("amqp://oncemq:s3cret@{free}")).unwrap();
    let result = prepare(&broker, &spec("t", Topology::Trust)).await;
    refused(result, ErrorKind::Connection, &[&free.to_string(), "port"]);
}

async fn unknown_vhost() {
    let url = url();
    let (start, _) = url.rsplit_once('/').unwrap();
    let broker = RabbitBroker::from_url(&format!("{start}/nowhere")).unwrap();
    let result = prepare(&broker, &spec("t", Topology::Trust)).await;
    refused(result, ErrorKind::Config, &["nowhere"]);
}

async fn silent_host() {
    // Accepts and says nothing, as a stopped process does.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let url = format!("amqp://oncemq:s3cret@{address}?connection_timeout=500ms");
    let broker = RabbitBroker::from_url(&url).unwrap();
    let result = prepare(&broker, &spec("t", Topology::Trust)).await;
    refused(result, ErrorKind::Connection, &[&address.to_string(), "no answer"]);
}
