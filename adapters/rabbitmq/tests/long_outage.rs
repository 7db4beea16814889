//! A server that is away for long while messages come and go. Takes minutes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use common::Instance;
use common::raw::Raw;
use common::{Running, millis, secs, test, unique, until};
use oncemq_core::{Broker, Consumer, Context, Failure, Health, Message};
use oncemq_rabbitmq::{QueueType, RabbitBroker};
use tokio::time::sleep;

fn main() {
    common::main_alone("rabbit-outage", true, |server| {
        let on = |f: fn(Arc<Instance>) -> futures_util::future::LocalBoxFuture<'static, ()>| {
            let server = server.clone();
            move || f(server)
        };
        vec![
            test("a_broker_stopped_for_20_seconds_loses_nothing", on(|s| Box::pin(away(s, Instance::stop)))),
            test("a_broker_killed_for_20_seconds_loses_nothing", on(|s| Box::pin(away(s, Instance::kill)))),
            test("a_broker_paused_for_40_seconds_loses_nothing", on(|s| Box::pin(paused(s)))),
        ]
    });
}

const MESSAGES: u32 = 3000;

/// One in ten fails once.
fn fails_once(number: u32) -> bool {
    number.is_multiple_of(10)
}

/// One in fifty is given up.
fn gives_up(number: u32) -> bool {
    number % 50 == 7
}

/// Runs of each message by the attempt they were.
type Ledger = Arc<Mutex<HashMap<String, Vec<u32>>>>;

fn consumer(server: &Instance, topic: &str, ledger: &Ledger) -> Consumer {
    let broker = RabbitBroker::from_url(&server.url()).unwrap().queue_type(QueueType::Quorum);
    let ledger = ledger.clone();
    Consumer::new("points", broker)
        .in_flight(100)
        .topic(topic)
        .retry("500ms dead-letter".parse().unwrap())
        .unguarded(move |cx: Context, message: Message| {
            let body = String::from_utf8(message.body().to_vec()).unwrap();
            let number: u32 = body.parse().unwrap();
            let fails = (fails_once(number) && cx.attempt() == 1) || gives_up(number);
            ledger.lock().unwrap().entry(body).or_default().push(cx.attempt());
            async move {
                sleep(millis(5)).await;
                if fails { Err(Failure::system("broken")) } else { Ok(()) }
            }
        })
}

/// Publishes every message until it is confirmed, whatever happens to the server.
async fn produce(server: Arc<Instance>, topic: String) {
    let broker = RabbitBroker::from_url(&server.url()).unwrap().publish_timeout(secs(60));
    let publisher = broker.publisher().await.unwrap();
    for number in 0..MESSAGES {
        let message = Message::new(number.to_string()).with_id(number.to_string());
        while publisher.publish(&topic, &message).await.is_err() {
            sleep(millis(200)).await;
        }
        sleep(millis(5)).await;
    }
}

async fn away(server: Arc<Instance>, how: fn(&Instance)) {
    let (topic, ledger) = (unique("away"), Ledger::default());
    let mut running = Running::start(consumer(&server, &topic, &ledger)).await;
    let producer = tokio::spawn(produce(server.clone(), topic.clone()));
    sleep(secs(3)).await;
    let stopped = server.clone();
    tokio::task::spawn_blocking(move || how(&stopped)).await.unwrap();
    running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    sleep(secs(20)).await;
    assert!(!running.health.borrow().is_up());
    let back = server.clone();
    tokio::task::spawn_blocking(move || back.again()).await.unwrap();
    running.until_up().await;
    producer.await.unwrap();
    check(&server, &topic, &ledger, running).await;
}

async fn paused(server: Arc<Instance>) {
    let (topic, ledger) = (unique("paused"), Ledger::default());
    let mut running = Running::start(consumer(&server, &topic, &ledger)).await;
    let producer = tokio::spawn(produce(server.clone(), topic.clone()));
    sleep(secs(3)).await;
    server.pause();
    // Two heartbeats of ten seconds without an answer.
    running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    sleep(secs(15)).await;
    server.resume();
    running.until_up().await;
    producer.await.unwrap();
    check(&server, &topic, &ledger, running).await;
}

/// Nothing is lost: each message ended as it had to. Runs may repeat, since nothing guards
/// them here.
async fn check(server: &Arc<Instance>, topic: &str, ledger: &Ledger, running: Running) {
    let all = MESSAGES as usize;
    until("every message seen", secs(60), async || ledger.lock().unwrap().len() == all).await;
    // On its way to a rung a message is ready nowhere.
    until("every retry seen", secs(60), async || {
        let ledger = ledger.lock().unwrap();
        let failed = (0..MESSAGES).filter(|number| fails_once(*number) || gives_up(*number));
        failed.map(|number| number.to_string()).all(|body| ledger[&body].contains(&2))
    })
    .await;
    let (raw, queue) = (Raw::to(&server.url()).await, format!("points.{topic}"));
    until("nothing left", secs(60), async || {
        let rung = raw.ready(&format!("{queue}.retry.500ms")).await;
        raw.ready(&queue).await == Some(0) && rung == Some(0)
    })
    .await;
    running.stop().await;
    assert_eq!(raw.ready(&queue).await, Some(0));
    let mut letters: HashMap<String, u32> = HashMap::new();
    while let Some(letter) = raw.get(&format!("{queue}.dead")).await {
        *letters.entry(String::from_utf8(letter.data).unwrap()).or_default() += 1;
    }
    let ledger = ledger.lock().unwrap();
    for number in 0..MESSAGES {
        let body = number.to_string();
        let attempts = &ledger[&body];
        assert_eq!(letters.contains_key(&body), gives_up(number), "{body} ran as {attempts:?}");
    }
}
