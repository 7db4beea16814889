//! What is found, and refused, at the start.

use std::time::Instant;

use libtest_mimic::Trial;
use oncemq_core::{Broker, Consumer, ErrorKind, Topology};
use oncemq_rocketmq::RocketmqBroker;
use oncemq_test_kit::{Log, Running, logging, secs, test, unique};

use crate::common::{ROCKETMQ, broker, numbers, publish, with};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("a_missing_topic_is_an_error_unless_its_queues_are_said", missing),
        test("what_verify_wants_is_what_declare_makes", verify),
        test("a_name_server_that_is_not_there_is_an_error_in_time", unreachable),
        test("a_delay_beyond_the_last_level_is_an_error", beyond),
        test("a_new_group_begins_where_it_is_told", begin),
        test("where_a_new_group_begins_is_held_for_every_queue", held),
    ]
}

fn consumer(broker: RocketmqBroker, group: &str, topic: &str, log: &Log) -> Consumer {
    Consumer::new(group, broker).topic(topic).unguarded(logging(log, |_, _| async { Ok(()) }))
}

async fn missing() {
    let broker = RocketmqBroker::from_url(&ROCKETMQ.url()).unwrap();
    let topic = unique("missing");
    let error = consumer(broker, &unique("points"), &topic, &Log::default()).plan().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Topology && error.to_string().contains("queues"), "{error}");
}

async fn verify() {
    let (group, topic) = (unique("points"), unique("verify"));
    let verified = || consumer(broker(), &group, &topic, &Log::default()).topology(Topology::Verify);
    assert_eq!(verified().plan().await.unwrap_err().kind(), ErrorKind::Topology);
    let other = consumer(broker(), &unique("other"), &topic, &Log::default()).plan().await.unwrap();
    assert!(other.to_string().contains("declared: consumer group other"), "{other}");
    let error = verified().plan().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Topology && error.to_string().contains(&group), "{error}");
    consumer(broker(), &group, &topic, &Log::default()).plan().await.unwrap();
    let plan = verified().plan().await.unwrap().to_string();
    assert!(plan.contains("verified") && plan.contains(&format!("%RETRY%{group}")), "{plan}");
}

async fn unreachable() {
    let broker = RocketmqBroker::from_url("rocketmq://127.0.0.1:1").unwrap();
    let begin = Instant::now();
    let error = consumer(broker.clone(), "points", "topic", &Log::default()).plan().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Connection && error.to_string().contains("127.0.0.1:1"), "{error}");
    let error = broker.publisher().await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert!(begin.elapsed() < secs(15), "{:?}", begin.elapsed());
}

async fn beyond() {
    let consumer = Consumer::new(unique("points"), broker())
        .topic(unique("beyond"))
        .retry("3h dead-letter".parse().unwrap())
        .unguarded(logging(&Log::default(), |_, _| async { Ok(()) }));
    let error = consumer.plan().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("delay level"), "{error}");
}

async fn begin() {
    let topic = unique("begin");
    consumer(broker(), &unique("first"), &topic, &Log::default()).plan().await.unwrap();
    publish(&topic, numbers(3)).await;
    let (early, late) = (Log::default(), Log::default());
    let running = [
        Running::start(consumer(broker(), &unique("early"), &topic, &early)).await,
        Running::start(consumer(with("start=latest"), &unique("late"), &topic, &late)).await,
    ];
    oncemq_test_kit::until("the older ones", secs(20), async || early.len() == 3).await;
    tokio::time::sleep(secs(1)).await;
    publish(&topic, ["3".to_owned()]).await;
    oncemq_test_kit::until("the new one", secs(20), async || early.len() == 4 && late.len() == 1).await;
    for one in running {
        one.stop().await;
    }
    assert_eq!(late.bodies(), ["3"]);
}

/// Or what comes while nobody runs would be left out.
async fn held() {
    let (group, topic, log) = (unique("held"), unique("held"), Log::default());
    let latest = || consumer(with("start=latest").queues(16), &group, &topic, &log);
    let running = Running::start(latest()).await;
    tokio::time::sleep(secs(1)).await;
    // Without a word.
    running.task.abort();
    let _ = running.task.await;
    publish(&topic, numbers(64)).await;
    let running = Running::start(latest()).await;
    oncemq_test_kit::until("all of it", secs(30), async || log.len() == 64).await;
    running.stop().await;
}
