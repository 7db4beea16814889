//! What takes minutes, or a broker that may be killed: one of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod expired;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{ROCKETMQ, admin_with, committed_with, counts, ladder, numbers};
use libtest_mimic::Trial;
use oncemq_core::{Broker, Consumer, Context, ErrorKind, Failure, Health, Message, Ordering};
use oncemq_rocketmq::RocketmqBroker;
use oncemq_test_kit::{
    Instance, Log, Running, logging, millis, secs, stop_while_paused, test, unique, until,
};
use tokio::time::sleep;

fn main() {
    ROCKETMQ.main_alone("outage", true, |instance| {
        let with = |name: &str, body: fn(Server) -> Body| {
            let instance = instance.clone();
            test(name, move || {
                // A test that failed may have left it down.
                instance.resume();
                instance.again();
                body(Server(instance))
            })
        };
        let mut tests: Vec<Trial> = vec![
            with("a_killed_broker_comes_back_and_everything_is_handled", |server| Box::pin(killed(server))),
            with("a_broker_that_stops_in_order_comes_back", |server| Box::pin(stopped(server))),
            with("without_its_name_server_work_goes_on", |server| Box::pin(name_server(server))),
            with("a_name_server_that_hangs_holds_nothing_up", |server| Box::pin(name_server_hangs(server))),
            with("rm3_a_send_back_without_an_answer_leaves_the_offset", |server| Box::pin(rm3(server))),
            with("ordered_queues_stay_apart_though_their_broker_forgets", |server| Box::pin(forgets(server))),
            with("rm4_while_messages_wait_nothing_spins", |server| Box::pin(rm4(server))),
            with("sh4_a_broker_that_hangs_does_not_hold_up_the_end", |server| Box::pin(sh4(server))),
            with("rm2_a_handler_of_minutes_runs_once", |server| Box::pin(rm2(server))),
            with("ten_thousand_messages_while_members_die_and_join", |server| Box::pin(storm(server))),
            with("what_the_broker_has_expired_is_retried_and_told", |server| Box::pin(expired::run(server))),
        ];
        tests.extend(cluster::tests());
        #[cfg(feature = "acl")]
        tests.push(test("an_access_key_is_checked", keys));
        tests
    });
}

type Body = std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// The broker of these tests.
#[derive(Clone)]
struct Server(Arc<Instance>);

impl Server {
    fn broker(&self, options: &str) -> RocketmqBroker {
        RocketmqBroker::from_url(&format!("{}?{options}", self.0.url())).unwrap().queues(4)
    }

    async fn start(name: &'static str) -> Self {
        let start = move || Self(Arc::new(Instance::start(ROCKETMQ, name)));
        tokio::task::spawn_blocking(start).await.unwrap()
    }

    async fn remove(self) {
        tokio::task::spawn_blocking(move || drop(self)).await.unwrap();
    }

    async fn publish(&self, topic: &str, messages: impl IntoIterator<Item = Message>) {
        let publisher = self.broker("").publisher().await.unwrap();
        for message in messages {
            publisher.publish(topic, &message).await.unwrap();
        }
        publisher.close().await.unwrap();
    }

    /// Runs the broker's own tool.
    async fn admin(&self, arguments: &str) -> String {
        let (tool, arguments) = (self.0.get("ONCEMQ_ROCKETMQ_ADMIN"), arguments.to_owned());
        let run = move || admin_with(&tool, &arguments.split(' ').collect::<Vec<_>>());
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    /// Blocking calls beside a consumer.
    async fn blocking(&self, call: impl FnOnce(&Instance) + Send + 'static) {
        let instance = self.0.clone();
        tokio::task::spawn_blocking(move || call(&instance)).await.unwrap();
    }
}

/// Publishes numbers until told to stop, each until it is confirmed. Returns how many.
fn stream(server: &Server, topic: &str) -> (Arc<AtomicBool>, tokio::task::JoinHandle<u32>) {
    let (stop, broker, topic) =
        (Arc::new(AtomicBool::new(false)), server.broker("publish_timeout=5s"), topic.to_owned());
    let stopped = stop.clone();
    let task = tokio::spawn(async move {
        let publisher = broker.publisher().await.unwrap();
        let mut sent = 0_u32;
        while !stopped.load(SeqCst) {
            let message = Message::new(sent.to_string()).with_id(format!("id-{sent}"));
            while let Err(error) = publisher.publish(&topic, &message).await {
                assert!(matches!(error.kind(), ErrorKind::Connection | ErrorKind::Unconfirmed), "{error:?}");
            }
            sent += 1;
            sleep(millis(10)).await;
        }
        publisher.close().await.unwrap();
        sent
    });
    (stop, task)
}

/// Consumes a stream while something happens, and checks that each message was handled.
async fn through(server: &Server, case: &str, what: impl AsyncFnOnce(&mut Running, &Log)) {
    let (group, topic, log) = (unique("points"), unique(case), Log::default());
    let consumer = Consumer::new(group.as_str(), server.broker(""))
        .topic(topic.as_str())
        .unguarded(logging(&log, |_, _| async { Ok(()) }));
    let mut running = Running::start(consumer).await;
    let (stop, sending) = stream(server, &topic);
    until("work goes on", secs(20), async || log.len() > 100).await;
    what(&mut running, &log).await;
    let before = log.len();
    until("it goes on again", secs(60), async || log.len() > before + 100).await;
    stop.store(true, SeqCst);
    let sent = sending.await.unwrap();
    let all: BTreeSet<String> = numbers(sent).collect();
    until("all are handled", secs(60), async || {
        let seen: BTreeSet<String> = log.bodies().into_iter().collect();
        seen.is_superset(&all)
    })
    .await;
    running.until_up().await;
    running.stop().await;
    let repeated = counts(&log).values().filter(|runs| **runs > 1).count();
    assert!(repeated < 1_000, "{repeated} of {sent} handled more than once");
}

async fn killed(server: Server) {
    through(&server, "killed", async |running, log| {
        for _ in 0..2 {
            server.blocking(|instance| instance.kill()).await;
            running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
            // Long enough for every task of the consumer to fail more than once.
            sleep(secs(10)).await;
            server.blocking(|instance| instance.again()).await;
            let before = log.len();
            until("messages are handled again", secs(12), async || log.len() > before).await;
            running.until_up().await;
        }
    })
    .await;
}

async fn stopped(server: Server) {
    through(&server, "stopped", async |running, _| {
        server.blocking(|instance| instance.stop()).await;
        running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
        server.blocking(|instance| instance.again()).await;
        running.until_up().await;
    })
    .await;
}

async fn name_server(server: Server) {
    through(&server, "names", async |_, log| {
        server.blocking(|instance| drop(instance.tool("ONCEMQ_ROCKETMQ_NAMESRV", &["kill"]))).await;
        // Longer than what it said is taken for new.
        sleep(secs(20)).await;
        let before = log.len();
        until("new messages are handled without it", secs(10), async || log.len() > before + 100).await;
        server.blocking(|instance| drop(instance.tool("ONCEMQ_ROCKETMQ_NAMESRV", &["start"]))).await;
        sleep(secs(5)).await;
    })
    .await;
}

async fn name_server_hangs(server: Server) {
    through(&server, "hung", async |_, log| {
        server.blocking(|instance| drop(instance.tool("ONCEMQ_ROCKETMQ_NAMESRV", &["pause"]))).await;
        // Longer than what it said is taken for new, and then many questions without an answer.
        for second in 0..25 {
            let before = log.len();
            sleep(secs(1)).await;
            assert!(log.len() > before, "nothing was handled in second {second}");
        }
        server.blocking(|instance| drop(instance.tool("ONCEMQ_ROCKETMQ_NAMESRV", &["resume"]))).await;
    })
    .await;
}

async fn rm3(server: Server) {
    let (group, topic, log) = (unique("points"), unique("rm3"), Log::default());
    let consumer = |log: &Log| {
        Consumer::new(group.as_str(), server.broker("publish_timeout=3s").queues(1))
            .topic(topic.as_str())
            .retry(ladder("1s dead-letter"))
            .unguarded(logging(log, {
                let server = server.clone();
                move |cx: Context, _| {
                    let server = server.clone();
                    async move {
                        if cx.attempt() > 1 {
                            return Ok(());
                        }
                        // Its send-back finds a broker that does not answer.
                        server.blocking(|instance| instance.pause()).await;
                        Err(Failure::system("busy"))
                    }
                }
            }))
    };
    let running = Running::start(consumer(&log)).await;
    let publisher = server.broker("").publisher().await.unwrap();
    publisher.publish(&topic, &Message::new("0").with_id("id-0")).await.unwrap();
    until("it has failed", secs(20), async || log.len() == 1).await;
    // Long enough for more than one send-back to fail.
    sleep(secs(10)).await;
    // Without a word: what was not confirmed must come again.
    running.task.abort();
    let _ = running.task.await;
    server.blocking(|instance| instance.resume()).await;
    let tool = server.0.get("ONCEMQ_ROCKETMQ_ADMIN");
    let offsets = {
        let (group, topic) = (group.clone(), topic.clone());
        tokio::task::spawn_blocking(move || committed_with(&tool, &group, &topic)).await.unwrap()
    };
    assert_eq!(offsets, [0], "its offset has moved");
    let again = Log::default();
    let running = Running::launch(consumer(&again));
    until("it is handled again", secs(90), async || {
        if again.runs("0").iter().any(|(attempt, _)| *attempt > 1) {
            return true;
        }
        // The first run of this process pauses the broker once more.
        server.blocking(|instance| instance.resume()).await;
        sleep(secs(1)).await;
        false
    })
    .await;
    running.stop().await;
}

async fn rm4(server: Server) {
    let (group, ordered, free, log) = (unique("points"), unique("rm4"), unique("rm4-free"), Log::default());
    let busy = |log: &Log| logging(log, |_, _| async { Err(Failure::system("busy")) });
    let consumer = Consumer::new(group.as_str(), server.broker(""))
        .topic(ordered.as_str())
        .ordering(Ordering::Ordered)
        .retry(ladder("1m dead-letter"))
        .unguarded(busy(&log))
        .topic(free.as_str())
        .retry(ladder("1m dead-letter"))
        .unguarded(busy(&log));
    let running = Running::start(consumer).await;
    let publisher = server.broker("").publisher().await.unwrap();
    for number in 0..8 {
        for topic in [&ordered, &free] {
            let message = Message::new(number.to_string()).with_key(format!("key-{number}"));
            publisher.publish(topic, &message).await.unwrap();
        }
    }
    until("all have failed", secs(20), async || log.len() == 16).await;
    sleep(secs(2)).await;
    let before = processor_time();
    sleep(secs(10)).await;
    let used = processor_time() - before;
    assert!(used < secs(1), "{used:?} of processor time in ten seconds");
    running.stop().await;
}

/// Of this process, in which only one test runs at a time.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    // In hundredths of a second.
    let ticks: u64 = [fields[11], fields[12]].map(|ticks| ticks.parse::<u64>().unwrap()).iter().sum();
    millis(ticks * 10)
}

/// A broker that restarts knows no member and no lock any more.
async fn forgets(server: Server) {
    // More than are done in the end.
    const MESSAGES: usize = 320;
    let (group, topic, log) = (unique("points"), unique("forgets"), Log::default());
    let (running, overlaps) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicUsize::new(0)));
    let consumer = || {
        let (running, overlaps) = (running.clone(), overlaps.clone());
        Consumer::new(group.as_str(), server.broker(""))
            .topic(topic.as_str())
            .ordering(Ordering::Ordered)
            .unguarded(logging(&log, move |_, message: Message| {
                let (running, overlaps) = (running.clone(), overlaps.clone());
                async move {
                    let key = message.key().unwrap().to_vec();
                    if !running.lock().unwrap().insert(key.clone()) {
                        overlaps.fetch_add(1, SeqCst);
                    }
                    // Longer than both need to be back.
                    sleep(secs(5)).await;
                    running.lock().unwrap().remove(&key);
                    Ok(())
                }
            }))
    };
    let first = Running::start(consumer()).await;
    // They look at the lists in turn.
    sleep(millis(1_500)).await;
    let second = Running::start(consumer()).await;
    let publisher = server.broker("").publisher().await.unwrap();
    for number in 0..MESSAGES {
        let message = Message::new(number.to_string()).with_key(format!("key-{}", number % 8));
        publisher.publish(&topic, &message).await.unwrap();
    }
    until("work goes on", secs(20), async || log.len() > 10).await;
    for _ in 0..3 {
        server.blocking(|instance| instance.kill()).await;
        server.blocking(|instance| instance.again()).await;
        let before = log.len();
        sleep(secs(12)).await;
        assert!(log.len() > before, "work does not go on");
    }
    first.stop().await;
    second.stop().await;
    assert_eq!(overlaps.load(SeqCst), 0, "two ran at once");
}

async fn sh4(server: Server) {
    let (group, topic, log) = (unique("points"), unique("sh4"), Log::default());
    let consumer = {
        let (server, topic, log) = (server.clone(), topic.clone(), log.clone());
        move || {
            let broker = server.broker("").queues(1);
            Consumer::new(group.as_str(), broker).topic(topic.as_str()).unguarded(logging(
                &log,
                |_, _| async {
                    sleep(secs(3600)).await;
                    Ok(())
                },
            ))
        }
    };
    consumer().plan().await.unwrap();
    let publisher = server.broker("").publisher().await.unwrap();
    publisher.publish(&topic, &Message::new("x")).await.unwrap();
    stop_while_paused(consumer, log, move || server.0.pause()).await;
}

async fn rm2(server: Server) {
    let (group, topic, log) = (unique("points"), unique("rm2"), Log::default());
    let consumer = Consumer::new(group.as_str(), server.broker(""))
        .in_flight(4)
        .topic(topic.as_str())
        .timeout(secs(300))
        .unguarded(logging(&log, |_, message: Message| async move {
            sleep(if message.body() == b"0" { secs(130) } else { millis(100) }).await;
            Ok(())
        }));
    let running = Running::start(consumer).await;
    let publisher = server.broker("").publisher().await.unwrap();
    for n in 0..200 {
        publisher.publish(&topic, &Message::new(n.to_string())).await.unwrap();
    }
    until("the others are done", secs(60), async || log.len() == 200).await;
    sleep(secs(75)).await;
    let summary = running.stop().await;
    assert!(counts(&log).values().all(|runs| *runs == 1) && summary.retried == 0, "{summary:?}");
}

async fn storm(server: Server) {
    const MESSAGES: u32 = 10_000;
    let (group, topic, log) = (unique("points"), unique("storm"), Log::default());
    let effects: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let consumer = || {
        let effects = effects.clone();
        Consumer::new(group.as_str(), server.broker("")).in_flight(50).topic(topic.as_str()).unguarded(
            logging(&log, move |_, message: Message| {
                let effects = effects.clone();
                async move {
                    sleep(millis(2)).await;
                    let body = String::from_utf8_lossy(message.body()).into_owned();
                    *effects.lock().unwrap().entry(body).or_default() += 1;
                    Ok(())
                }
            }),
        )
    };
    consumer().plan().await.unwrap();
    let sending = tokio::spawn({
        let (broker, topic) = (server.broker(""), topic.clone());
        async move {
            let publisher = broker.publisher().await.unwrap();
            for n in 0..MESSAGES {
                publisher.publish(&topic, &Message::new(n.to_string())).await.unwrap();
            }
        }
    });
    let first = Running::start(consumer()).await;
    let second = Running::start(consumer()).await;
    until("work goes on", secs(60), async || log.len() > 2_000).await;
    first.task.abort();
    let _ = first.task.await;
    sleep(secs(2)).await;
    let third = Running::start(consumer()).await;
    sending.await.unwrap();
    until("each has had its effect", secs(100), async || effects.lock().unwrap().len() == MESSAGES as usize)
        .await;
    second.stop().await;
    third.stop().await;
    let runs = log.len();
    // What was not committed is repeated, and no more: half a second of two members.
    assert!(runs < MESSAGES as usize + 2_000, "{runs} runs");
}

#[cfg(feature = "acl")]
async fn keys() {
    let server = Server::start("acl").await;
    let (group, topic, log) = (unique("points"), unique("keys"), Log::default());
    let broker = |url: &str| RocketmqBroker::from_url(url).unwrap().queues(1);
    let right = server.0.url();
    for wrong in [right.replace(":oncemq@", ":other@"), right.replace("oncemq:oncemq@", "")] {
        let error = Consumer::new(group.as_str(), broker(&wrong))
            .topic(topic.as_str())
            .unguarded(logging(&log, |_, _| async { Ok(()) }))
            .plan()
            .await
            .unwrap_err();
        assert!(error.kind() == ErrorKind::Access && !error.to_string().contains(":other"), "{error:?}");
    }
    let consumer = Consumer::new(group.as_str(), broker(&right))
        .topic(topic.as_str())
        .unguarded(logging(&log, |_, _| async { Ok(()) }));
    let running = Running::start(consumer).await;
    broker(&right).publisher().await.unwrap().publish(&topic, &Message::new("x")).await.unwrap();
    until("it is handled", secs(20), async || log.len() == 1).await;
    running.stop().await;
    server.remove().await;
}
