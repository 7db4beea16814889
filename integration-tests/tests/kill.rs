//! What is left when a process is killed at the worst moment, or told to stop.
//!
//! Every test ends with the ledger: nothing lost, nothing doubled, effect and record
//! together, the balance right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use oncemq_integration_tests::event::{Act, Event};
use oncemq_integration_tests::outside::Outside;
use oncemq_integration_tests::scene::{PATIENCE, Scene};
use oncemq_integration_tests::service::micros_now;
use oncemq_integration_tests::suite::{self, BrokerKind, StoreKind, servers, until, url_of};

const SERVICE: &str = env!("CARGO_BIN_EXE_service");
/// On Kafka, rungs have a group of their own, with commits of its own.
const NO_RUNGS: &str = "dead-letter";

fn main() {
    let mut tests = Vec::new();
    for store in StoreKind::ALL {
        let mut add = |name: &str, broker: BrokerKind, body: fn(Stage) -> Body| {
            let name = format!("{name}_{}_{}", broker.name(), store.name());
            let stage = Stage { broker, store };
            tests.push(suite::test(name, &servers(broker, store), move || body(stage)));
        };
        for &server in BrokerKind::SERVERS {
            add("sh3_killed_between_commit_and_ack", server, |s| Box::pin(after_commit(s)));
            add("sh1_sigterm_in_the_middle_of_a_batch", server, |s| Box::pin(sigterm(s)));
            add("sh1_a_retry_waits_at_the_broker", server, |s| Box::pin(retry_waits(s)));
            add("killed_in_the_handler", server, |s| Box::pin(in_the_handler(s)));
            add("killed_between_claim_and_commit", server, |s| Box::pin(before_commit(s)));
            add("producer_killed_before_its_confirm_resends", server, |s| Box::pin(producer_killed(s)));
            add("producer_resend_is_one_effect", server, |s| Box::pin(producer_resends(s)));
            add("process_killing_message_becomes_a_dead_letter", server, |s| Box::pin(killer(s)));
            if server == BrokerKind::RabbitMq {
                continue;
            }
            add("kf6_killed_after_the_offset_commit", server, |s| Box::pin(after_offset_commit(s)));
            if store != StoreKind::Sqlite {
                // SQLite has one writer: what comes after the first would wait for it.
                add("kf5_killed_while_the_first_of_many_is_at_work", server, |s| Box::pin(first_of_many(s)));
            }
        }
        let memory = BrokerKind::Memory;
        add("sh3_killed_between_commit_and_resend", memory, |s| Box::pin(after_commit_in_memory(s)));
        add("broker_dies_with_the_process_and_all_is_resent", memory, |s| Box::pin(in_memory(s)));
    }
    // They wait most of the time.
    suite::main(tests, 6)
}

type Body = std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// What a test runs on.
#[derive(Debug, Clone, Copy)]
struct Stage {
    broker: BrokerKind,
    store: StoreKind,
}

impl Stage {
    async fn set(self) -> Scene {
        Scene::new(SERVICE, self.broker, self.store).await
    }

    /// Where the work is committed and the broker is about to be told.
    fn before_ack(self) -> &'static str {
        match self.broker {
            // The first commit of a group's member says that it begins.
            BrokerKind::Kafka => "kafka.before_commit=kill@2",
            BrokerKind::RocketMq => "rocketmq.before_commit=kill",
            _ => "rabbitmq.before_ack=kill",
        }
    }

    /// Where a log has been told.
    fn after_ack(self) -> &'static str {
        match self.broker {
            BrokerKind::RocketMq => "rocketmq.committed=kill",
            _ => "kafka.committed=kill@2",
        }
    }
}

/// Committed, and then nobody told the broker. The next process must find the key done.
async fn after_commit(stage: Stage) {
    for place in ["inbox.committed=kill", stage.before_ack()] {
        let mut scene = stage.set().await;
        scene.spec.retry = NO_RUNGS.into();
        scene.declare().await;
        scene.send(&[Event::new("order-1", Act::Quick)]).await;
        scene.consume(Some(place)).killed(PATIENCE).await;
        assert_eq!(scene.database.effects_of("order-1").await.unwrap(), 1, "{place}: not committed");

        let summary = scene.settle(0).await;
        assert_eq!((summary["handled"], summary["duplicates"]), (0, 1), "{place}");
        assert_eq!(scene.runs_of("order-1"), 1, "{place}");
        scene.close().await;
    }
}

/// The broker in the process is gone too, so here the event comes again by a resend.
async fn after_commit_in_memory(stage: Stage) {
    let mut scene = stage.set().await;
    // One after another, so that the second one's effect says that the first is settled.
    scene.spec.in_flight = 1;
    scene.fill_outbox(&Event::quick("order", 2)).await;
    scene.consume(Some("inbox.committed=kill")).killed(PATIENCE).await;
    assert_eq!(scene.database.effects_of("order-0").await.unwrap(), 1, "not committed");
    let again = scene.consume(None);
    again.until_said("sent everything: true", PATIENCE).await;
    scene.until_complete().await;
    let summary = again.stop(PATIENCE).await;
    assert_eq!((summary["handled"], summary["duplicates"]), (1, 1));
    assert_eq!(scene.runs_of("order-0"), 1);
    scene.close().await;
}

/// The case lets one message wait for 60 s and gives SIGTERM 5 s of grace. Here it waits
/// 10 s, so that the test sees it come back.
async fn sigterm(stage: Stage) {
    let mut scene = stage.set().await;
    scene.spec.in_flight = 50;
    scene.spec.retry = "10s dead-letter".into();
    // SQLite has one writer, so its handlers run one after another.
    let count = if stage.store == StoreKind::Sqlite { 24 } else { 80 };
    let mut events = vec![Event::new("waits", Act::Flaky(1))];
    events.extend((0..count).map(|i| Event::new(format!("slow-{i}"), Act::Slow(500))));
    scene.declare().await;
    scene.send(&events).await;
    let mut first = scene.consume(None);
    scene.until_runs("waits", 1).await;
    until("handlers at work", PATIENCE, async || scene.runs().len() >= 4).await;

    let (signal, begin) = (micros_now(), Instant::now());
    first.terminate();
    let status = first.ended(PATIENCE).await;
    let took = begin.elapsed();
    assert!(status.success(), "{status}: {}", first.said());
    assert!(took < scene.spec.grace + Duration::from_secs(1), "the end took {took:?}");
    // The signal needs a moment to arrive, on a busy machine a long one. Without a stop handlers
    // would start for seconds, or be through.
    let late: Vec<_> = scene.runs().into_iter().filter(|run| run.at > signal + 1_000_000).collect();
    assert!(late.is_empty(), "started after the signal at {signal}: {late:?}");
    let summary = first.summary();
    let started = scene.runs().len() as u64;
    assert!(started < events.len() as u64, "all were done before the signal");
    // Whatever started was finished and acknowledged.
    assert_eq!(summary["handled"] + summary["retried"], started, "{summary:?}");
    let handled = summary["handled"];

    let again = scene.consume(None);
    scene.until_complete().await;
    let summary = again.stop(PATIENCE).await;
    assert_eq!((summary["retried"], summary["rejected"]), (0, 0), "{summary:?}");
    // RocketMQ keeps an offset and nothing beside it: what was finished above a message that
    // was given back comes again, and the record answers for it. Each of them once, so there are
    // no more than were finished. The one that was sent back for its retry is the first of its
    // queue: nothing below it was given back, so its original does not come again.
    let finished = if stage.broker == BrokerKind::RocketMq { handled } else { 0 };
    assert!(summary["duplicates"] <= finished, "{finished} finished by the first process: {summary:?}");
    assert_eq!(scene.runs().len(), events.len() + 1, "only the one that waited ran twice");
    scene.close().await;
}

/// Nobody consumes, and all that was delivered is settled: what is left is the broker's to keep.
async fn retry_waits(stage: Stage) {
    let mut scene = stage.set().await;
    scene.spec.retry = "5s dead-letter".into();
    scene.declare().await;
    scene.send(&[Event::new("waits", Act::Flaky(1))]).await;
    let first = scene.consume(None);
    scene.until_runs("waits", 1).await;
    assert_eq!(first.stop(PATIENCE).await["retried"], 1);
    let outside = Outside::of(&scene.spec).await;
    assert!(!outside.owes_nothing().await, "what waits is not seen");
    let summary = scene.settle(0).await;
    assert_eq!((summary["handled"], summary["duplicates"]), (1, 0), "{summary:?}");
    assert_eq!(scene.runs_of("waits"), 2);
    scene.close().await;
}

/// The effect was written, but the transaction is still open.
async fn in_the_handler(stage: Stage) {
    let scene = stage.set().await;
    scene.declare().await;
    scene.send(&[Event::new("order-1", Act::HangsOnce), Event::new("order-2", Act::Quick)]).await;
    let first = scene.consume(None);
    scene.until_runs("order-1", 1).await;
    first.kill();
    assert_eq!(scene.database.effects_of("order-1").await.unwrap(), 0, "half an effect");

    let again = scene.consume(None);
    scene.until_complete().await;
    again.stop(PATIENCE).await;
    assert_eq!(scene.runs_of("order-1"), 2);
    scene.close().await;
}

/// On a log everything below the committed offset counts as done. The first message of the
/// partition is at work while the others are done and their commits have had time.
async fn first_of_many(stage: Stage) {
    let mut scene = stage.set().await;
    scene.spec.broker = stage.broker.service_url_with(&url_of(stage.broker.name()), 1);
    // A user of its own: nobody else waits for the lock on that account.
    let mut events = vec![Event { user: 1, ..Event::new("first", Act::HangsOnce) }];
    events.extend(Event::quick("later", 7));
    scene.declare().await;
    scene.send(&events).await;
    let consumer = scene.consume(None);
    until("all others are done", PATIENCE, async || {
        scene.database.number("SELECT count(*) FROM effect").await.unwrap() == 7
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let outside = Outside::of(&scene.spec).await;
    assert!(!outside.owes_nothing().await, "what is at work was committed");
    consumer.kill();
    let summary = scene.settle(0).await;
    assert_eq!(summary["handled"], 1, "{summary:?}");
    assert_eq!(scene.runs_of("first"), 2);
    assert_eq!(scene.runs().len(), events.len() + 1, "only the one that was at work ran twice");
    scene.close().await;
}

/// The broker knows that the message is done: it is not delivered again.
async fn after_offset_commit(stage: Stage) {
    let mut scene = stage.set().await;
    scene.spec.retry = NO_RUNGS.into();
    scene.declare().await;
    scene.send(&[Event::new("order-1", Act::Quick)]).await;
    scene.consume(Some(stage.after_ack())).killed(PATIENCE).await;
    assert_eq!(scene.database.effects_of("order-1").await.unwrap(), 1, "not committed");
    let outside = Outside::of(&scene.spec).await;
    assert!(outside.owes_nothing().await, "what is committed is not the offset after the message");

    let again = scene.consume(None);
    scene.send(&Event::quick("later", 8)).await;
    scene.until_complete().await;
    let summary = again.stop(PATIENCE).await;
    assert_eq!((summary["handled"], summary["duplicates"]), (8, 0), "{summary:?}");
    scene.close().await;
}

async fn before_commit(stage: Stage) {
    for (place, runs) in [("core.claimed", 1), ("core.ran", 2), ("inbox.committing", 2)] {
        let scene = stage.set().await;
        scene.declare().await;
        scene.send(&[Event::new("order-1", Act::Quick)]).await;
        scene.consume(Some(&format!("{place}=kill"))).killed(PATIENCE).await;
        assert_eq!(scene.database.effects_of("order-1").await.unwrap(), 0, "{place}: half an effect");
        let again = scene.consume(None);
        scene.until_complete().await;
        let summary = again.stop(PATIENCE).await;
        assert_eq!((summary["handled"], summary["duplicates"]), (1, 0), "{place}");
        assert_eq!(scene.runs_of("order-1"), runs, "{place}");
        scene.close().await;
    }
}

/// A broker in the process forgets everything; whoever sends again gets one effect each.
async fn in_memory(stage: Stage) {
    let mut scene = stage.set().await;
    scene.spec.in_flight = 1;
    scene.fill_outbox(&Event::quick("order", 30)).await;
    scene.consume(Some("core.ended=kill@8")).killed(PATIENCE).await;
    let done = scene.database.number("SELECT count(*) FROM effect").await.unwrap();
    assert_eq!(done, 8);
    let again = scene.consume(None);
    again.until_said("sent everything: true", PATIENCE).await;
    scene.until_complete().await;
    let summary = again.stop(PATIENCE).await;
    assert_eq!(summary["duplicates"], done.unsigned_abs());
    scene.close().await;
}

/// The third event is on its way and its confirm is not seen.
async fn producer_killed(stage: Stage) {
    let mut scene = stage.set().await;
    scene.fill_outbox(&Event::quick("order", 6)).await;
    scene.declare().await;
    let place = format!("{}.published=kill@3", stage.broker.name());
    scene.produce(Some(&place)).killed(PATIENCE).await;
    let noted = std::fs::read_to_string(scene.file("outbox.sent")).unwrap();
    assert_eq!(noted.lines().count(), 2, "only confirmed events are noted");
    consume_the_rest(scene, 0..=1).await;
}

/// The third event is stored, which the producer did not write down.
async fn producer_resends(stage: Stage) {
    let mut scene = stage.set().await;
    scene.fill_outbox(&Event::quick("order", 6)).await;
    scene.declare().await;
    scene.produce(Some("producer.confirmed=kill@3")).killed(PATIENCE).await;
    consume_the_rest(scene, 1..=1).await;
}

async fn consume_the_rest(mut scene: Scene, duplicates: std::ops::RangeInclusive<u64>) {
    let mut producer = scene.produce(None);
    assert!(producer.ended(PATIENCE).await.success(), "{}", producer.said());
    assert!(producer.said().contains("2 were sent before"), "{}", producer.said());
    // The events are the producer's business now.
    scene.spec.outbox = None;
    let summary = scene.settle(0).await;
    assert_eq!(summary["handled"], 6);
    assert!(duplicates.contains(&summary["duplicates"]), "{summary:?}");
    scene.close().await;
}

/// It may end the process once unsuspected and as often as the ceiling says; others go on.
async fn killer(stage: Stage) {
    let scene = stage.set().await;
    let mut events = Event::quick("order", 10);
    events.insert(3, Event::new("killer", Act::Kills));
    scene.declare().await;
    scene.send(&events).await;
    let outside = Outside::of(&scene.spec).await;
    let mut deaths = 0;
    while outside.dead().await == 0 {
        assert!(deaths < 5, "the process died {deaths} times");
        let mut process = scene.consume(None);
        let mut died = false;
        until("death or a dead letter", PATIENCE, async || {
            died = process.has_ended();
            died || outside.dead().await == 1
        })
        .await;
        if died {
            process.killed(PATIENCE).await;
            deaths += 1;
        } else {
            scene.until_complete().await;
            process.stop(PATIENCE).await;
        }
    }
    assert_eq!(deaths, scene.runs_of("killer"));
    assert!((2..=4).contains(&deaths), "one free and at most three suspected, not {deaths}");
    let letters = outside.dead_letters().await;
    assert_eq!(letters.into_iter().collect::<Vec<_>>(), [events[3].message().body()]);
    scene.close().await;
}
