//! What operators do while consumers work, with the broker's own tool.

use libtest_mimic::Trial;
use oncemq_core::{Consumer, Context, Failure, Health};
use oncemq_rocketmq::RocketmqBroker;
use oncemq_test_kit::{Log, Running, logging, secs, test, unique, until};
use tokio::time::sleep;

use crate::common::{admin, broker, counts, ladder, numbers, publish, with};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("a_group_with_more_retry_queues_loses_no_retry", retry_queues),
        test("latest_leaves_out_nothing_of_a_queue_that_is_added", added),
        test("an_offset_that_is_reset_is_taken", reset),
        test("a_group_that_is_switched_off_waits", switched_off),
    ]
}

async fn tool(arguments: &str) -> String {
    let arguments = arguments.to_owned();
    let run = move || admin(&arguments.split(' ').collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.unwrap()
}

fn consumer(broker: RocketmqBroker, group: &str, topic: &str, log: &Log) -> Consumer {
    Consumer::new(group, broker).topic(topic).unguarded(logging(log, |_, _| async { Ok(()) }))
}

async fn retry_queues() {
    let (group, topic, log) = (unique("points"), unique("queues"), Log::default());
    tool(&format!("updateSubGroup -c oncemq -g {group} -q 4 -r 16")).await;
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("1s dead-letter"))
        .unguarded(logging(&log, |cx: Context, _| async move {
            if cx.attempt() == 1 { Err(Failure::system("busy")) } else { Ok(()) }
        }));
    let running = Running::start(consumer).await;
    publish(&topic, numbers(20)).await;
    until("each has run twice", secs(30), async || {
        counts(&log).len() == 20 && counts(&log).values().all(|runs| *runs == 2)
    })
    .await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.retried), (20, 20));
}

async fn added() {
    let (group, topic, log) = (unique("points"), unique("added"), Log::default());
    let latest = || consumer(with("start=latest"), &group, &topic, &log);
    Running::start(latest()).await.stop().await;
    tool(&format!("updateTopic -c oncemq -t {topic} -r 4 -w 4")).await;
    publish(&topic, numbers(20)).await;
    let running = Running::start(latest()).await;
    until("all of it", secs(30), async || log.len() == 20).await;
    running.stop().await;
}

async fn reset() {
    let (group, topic, log) = (unique("points"), unique("reset"), Log::default());
    let running = Running::start(consumer(broker(), &group, &topic, &log)).await;
    publish(&topic, numbers(10)).await;
    until("all are handled", secs(20), async || log.len() == 10).await;
    // Committed, so that the end is what is reset.
    sleep(secs(1)).await;
    tool(&format!("resetOffsetByTime -g {group} -t {topic} -s 1000")).await;
    until("all are handled again", secs(30), async || counts(&log).values().all(|runs| *runs == 2)).await;
    running.stop().await;
}

async fn switched_off() {
    let (group, topic, log) = (unique("points"), unique("off"), Log::default());
    let mut running = Running::start(consumer(broker(), &group, &topic, &log)).await;
    tool(&format!("updateSubGroup -c oncemq -g {group} -s false")).await;
    let health = running.until_health("told", |health| matches!(health, Health::Degraded(_))).await;
    assert!(health.to_string().contains("permission"), "{health}");
    publish(&topic, numbers(5)).await;
    tool(&format!("updateSubGroup -c oncemq -g {group} -s true")).await;
    until("all are handled", secs(20), async || log.len() == 5).await;
    running.until_up().await;
    running.stop().await;
}
