//! A server of the tests' own that is cut off, starved, restarted and stopped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use common::{Instance, ctl};
use common::{Log, Running, logging, management, secs, test, unique, until};
use oncemq_core::{Broker, Consumer, Context, ErrorKind, Failure, Health, Message};
use oncemq_rabbitmq::RabbitBroker;
use oncemq_test_kit::stop_while_paused;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

fn main() {
    // The name makes the server take deliveries back after three seconds.
    common::main_alone("timeout-rabbit", false, |server| {
        let on = |f: fn(Arc<Instance>) -> futures_util::future::LocalBoxFuture<'static, ()>| {
            let server = server.clone();
            move || f(server)
        };
        vec![
            test("rb1_a_handler_longer_than_the_consumer_timeout", on(|s| Box::pin(rb1(s)))),
            test("rb1_a_connection_closed_in_the_middle_of_a_handler", on(|s| Box::pin(rb1_closed(s)))),
            test("rb11_a_blocked_connection_does_not_stop_acknowledgements", on(|s| Box::pin(rb11(s)))),
            test("publishing_waits_for_a_blocked_connection_in_time", on(|s| Box::pin(blocked(s)))),
            test("rb8_a_restarted_broker_is_consumed_again", on(|s| Box::pin(restarted(s)))),
            test("sh4_a_stopped_broker_does_not_hold_up_the_end", on(|s| Box::pin(sh4(s)))),
        ]
    });
}

fn broker(server: &Instance) -> RabbitBroker {
    RabbitBroker::from_url(&server.url()).unwrap().consumer_timeout(secs(3))
}

async fn publish(server: &Instance, topic: &str, bodies: impl IntoIterator<Item = String>) {
    let publisher = broker(server).publisher().await.unwrap();
    for body in bodies {
        publisher.publish(topic, &Message::new(body.clone()).with_id(body)).await.unwrap();
    }
    publisher.close().await.unwrap();
}

fn numbers(n: u32) -> impl Iterator<Item = String> {
    (0..n).map(|n| n.to_string())
}

/// Messages of a queue, ready or not.
async fn messages(server: &Arc<Instance>, queue: &str) -> u32 {
    let (server, queue) = (server.clone(), queue.to_owned());
    let list = move || ctl(&server, &["list_queues", "--no-table-headers", "name", "messages"]);
    let text = tokio::task::spawn_blocking(list).await.unwrap();
    let find = |line: &str| line.split_once('\t').filter(|(name, _)| *name == queue)?.1.trim().parse().ok();
    text.lines().find_map(find).unwrap_or_else(|| panic!("no queue {queue} in {text}"))
}

/// Waits until a queue has no message, ready or not. The numbers of a quorum queue are told
/// every few seconds only.
async fn until_empty(server: &Arc<Instance>, queue: &str) {
    until("the queue is empty", secs(15), async || messages(server, queue).await == 0).await;
}

async fn blocking<T: Send + 'static>(
    server: &Arc<Instance>,
    f: impl FnOnce(&Instance) -> T + Send + 'static,
) -> T {
    let server = server.clone();
    tokio::task::spawn_blocking(move || f(&server)).await.unwrap()
}

async fn rb1(server: Arc<Instance>) {
    let (topic, log) = (unique("rb1"), Log::default());
    let slow = Arc::new(AtomicU32::new(0));
    let consumer = Consumer::new("points", broker(&server))
        .topic(topic.as_str())
        .timeout(secs(60))
        .unguarded(logging(&log, move |_, message: Message| {
            let first = message.body() == b"slow" && slow.fetch_add(1, SeqCst) == 0;
            async move {
                if first {
                    sleep(secs(9)).await;
                }
                Ok(())
            }
        }));
    let plan = consumer.plan().await.unwrap();
    assert!(plan.warnings.iter().any(|line| line.contains("consumer_timeout")), "{plan}");
    let mut running = Running::start(consumer).await;
    publish(&server, &topic, ["slow".to_owned()]).await;
    let health = running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    assert!(health.to_string().contains("timeout"), "{health}");
    running.until_up().await;
    publish(&server, &topic, numbers(5)).await;
    until("all handled", secs(10), async || log.len() == 7).await;
    // The late answer of the first run belongs to a channel that is gone: a 406 for it would
    // close the new one.
    let mut health = running.health.clone();
    health.mark_unchanged();
    sleep(secs(9)).await;
    assert!(!health.has_changed().unwrap(), "{}", *health.borrow());
    let summary = running.stop().await;
    assert_eq!(summary.handled, 7);
    until_empty(&server, &format!("points.{topic}")).await;
}

/// Takes the short consumer timeout of this instance back for what comes next.
async fn patient(server: &Arc<Instance>) {
    blocking(server, |server| {
        ctl(server, &["eval", "application:set_env(rabbit, consumer_timeout, 1800000)."]);
    })
    .await;
}

async fn rb1_closed(server: Arc<Instance>) {
    // Only the closed connection takes the message back: the management's view of
    // connections may be older than the instance's timeout.
    patient(&server).await;
    let (topic, log) = (unique("rb1"), Log::default());
    let (consumer, hold) = (unique("points"), Arc::new(Semaphore::new(0)));
    let running = Running::start(
        Consumer::new(consumer.as_str(), broker(&server)).topic(topic.as_str()).unguarded(logging(&log, {
            let hold = hold.clone();
            move |_, _| {
                let hold = hold.clone();
                async move {
                    hold.acquire().await.unwrap().forget();
                    Ok(())
                }
            }
        })),
    )
    .await;
    publish(&server, &topic, ["x".to_owned()]).await;
    until("it runs", secs(10), async || log.len() == 1).await;
    let (url, name) = (server.get("ONCEMQ_RABBITMQ_MANAGEMENT_URL"), format!("{consumer} consumer"));
    until("closed", secs(20), async || management::close_connections(&url, &name).await == 1).await;
    until("it runs again", secs(20), async || log.len() == 2).await;
    hold.add_permits(100);
    publish(&server, &topic, numbers(5)).await;
    until("all run", secs(10), async || log.len() == 7).await;
    let summary = running.stop().await;
    assert_eq!(summary.handled, 7);
    until_empty(&server, &format!("{consumer}.{topic}")).await;
}

async fn alarm(server: &Arc<Instance>, on: bool) {
    let value: &'static [&'static str] = if on { &["0"] } else { &["absolute", "1GB"] };
    blocking(server, move |server| ctl(server, &[&["set_vm_memory_high_watermark"], value].concat())).await;
}

async fn rb11(server: Arc<Instance>) {
    let (topic, log, hold) = (unique("rb11"), Log::default(), Arc::new(Semaphore::new(0)));
    // Held back until the alarm is up: with a timeout of its own they would be taken back.
    let broker = RabbitBroker::from_url(&server.url()).unwrap();
    patient(&server).await;
    let consumer = Consumer::new("points", broker)
        .topic(topic.as_str())
        .retry("1s dead-letter".parse().unwrap())
        .timeout(secs(120))
        .unguarded(logging(&log, {
            let hold = hold.clone();
            move |cx: Context, message: Message| {
                let (hold, fails) = (hold.clone(), message.body() == b"fails" && cx.attempt() == 1);
                async move {
                    hold.acquire().await.unwrap().forget();
                    if fails { Err(Failure::system("broken")) } else { Ok(()) }
                }
            }
        }));
    let mut running = Running::start(consumer).await;
    publish(&server, &topic, ["fails".to_owned()].into_iter().chain(numbers(10))).await;
    until("all run", secs(10), async || log.len() == 11).await;
    alarm(&server, true).await;
    hold.add_permits(100);
    let queue = format!("points.{topic}");
    until("10 acknowledged", secs(30), async || messages(&server, &queue).await == 1).await;
    let health = running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    assert!(health.to_string().contains("blocks publishing"), "{health}");
    sleep(secs(5)).await;
    assert_eq!(messages(&server, &queue).await, 1);
    assert_eq!(log.runs("fails").len(), 1);
    alarm(&server, false).await;
    running.until_up().await;
    until("tried again", secs(20), async || log.runs("fails").len() == 2).await;
    sleep(secs(3)).await;
    assert_eq!(log.runs("fails").len(), 2, "the copy was doubled");
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.retried), (11, 1));
    blocking(&server, |server| {
        ctl(server, &["eval", "application:set_env(rabbit, consumer_timeout, 3000)."]);
    })
    .await;
}

async fn blocked(server: Arc<Instance>) {
    let topic = unique("blocked");
    let handler = |_: Context, _: Message| async { Ok::<(), Failure>(()) };
    Consumer::new("points", broker(&server)).topic(topic.as_str()).unguarded(handler).plan().await.unwrap();
    let publisher = broker(&server).publish_timeout(secs(2)).publisher().await.unwrap();
    alarm(&server, true).await;
    // The first one makes the server tell; the second one is not even sent.
    for _ in 0..2 {
        let begin = Instant::now();
        let error = publisher.publish(&topic, &Message::new("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unconfirmed);
        assert!(error.to_string().contains("blocks publishing"), "{error}");
        assert!(begin.elapsed() < secs(4));
    }
    alarm(&server, false).await;
    until("unblocked", secs(20), async || publisher.publish(&topic, &Message::new("y")).await.is_ok()).await;
}

async fn restarted(server: Arc<Instance>) {
    let (topic, log) = (unique("restart"), Log::default());
    let consumer = Consumer::new("points", broker(&server))
        .topic(topic.as_str())
        .unguarded(logging(&log, async |_, _| Ok(())));
    let mut running = Running::start(consumer).await;
    publish(&server, &topic, numbers(10)).await;
    until("10 handled", secs(10), async || log.len() == 10).await;
    blocking(&server, Instance::stop).await;
    let health = running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    assert!(health.to_string().contains("not connected"), "{health}");
    blocking(&server, Instance::again).await;
    running.until_up().await;
    publish(&server, &topic, numbers(20)).await;
    until("20 more handled", secs(20), async || log.len() == 30).await;
    running.stop().await;
}

async fn sh4(server: Arc<Instance>) {
    let (topic, log) = (unique("sh4"), Log::default());
    publish_ready(&server, &topic).await;
    let consumer = {
        let (server, log) = (server.clone(), log.clone());
        move || {
            Consumer::new("points", broker(&server)).topic(topic.as_str()).unguarded(logging(&log, endless))
        }
    };
    let pause = {
        let server = server.clone();
        move || server.pause()
    };
    stop_while_paused(consumer, log, pause).await;
    server.resume();
}

async fn endless(_: Context, _: Message) -> Result<(), Failure> {
    sleep(secs(3600)).await;
    Ok(())
}

async fn publish_ready(server: &Arc<Instance>, topic: &str) {
    let handler = |_: Context, _: Message| async { Ok::<(), Failure>(()) };
    Consumer::new("points", broker(server)).topic(topic).unguarded(handler).plan().await.unwrap();
    publish(server, topic, ["x".to_owned()]).await;
}
