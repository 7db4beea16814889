//! Failures that others reported, against a real cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use bytes::Bytes;
use common::raw::Raw;
use common::suite::read_all;
use common::{KAFKA, broker, with};
use oncemq_core::{
    Broker, Consumer, Context, ErrorKind, Failure, Health, Message, Ordering, RetryPolicy, Topology, header,
};
use oncemq_test_kit::{Log, Running, logging, millis, secs, test, unique, until};
use rdkafka::message::{Header, OwnedHeaders};
use tokio::time::sleep;

fn main() {
    KAFKA.main(vec![
        test("kf1_a_handler_longer_than_the_poll_interval_keeps_its_partition", kf1),
        test("kf4_settings_that_lose_messages_are_refused", kf4),
        test("kf5_a_later_offset_that_is_done_first_commits_nothing", kf5),
        test("kf6_a_clean_stop_commits_the_next_offset_and_repeats_nothing", kf6),
        test("kf7_an_undecodable_record_is_dead_lettered_once_and_commits_move_on", kf7),
        test("kf8_a_copy_near_the_limit_keeps_payload_and_headers", kf8),
        test("kf9_a_dead_lettered_last_record_stays_dead_after_restarts", kf9),
        test("rb6_a_forbidden_dead_letter_topic_settles_nothing", rb6),
        test("kd3_two_messages_without_key_or_id_are_two", kd3),
        test("ordered_a_failing_message_holds_its_key_and_no_other", ordered),
        test("sh1_a_stop_finishes_what_runs_and_gives_back_the_rest", sh1),
        test("sh2_a_panic_ends_in_the_dead_letters_and_others_go_on", sh2),
        test("sh4_a_stop_during_a_handler_keeps_its_ack", sh4),
    ]);
}

fn ladder(text: &str) -> RetryPolicy {
    text.parse().unwrap()
}

async fn publish(topic: &str, bodies: impl IntoIterator<Item = String>) {
    let publisher = broker().publisher().await.unwrap();
    for body in bodies {
        publisher.publish(topic, &Message::new(body.clone()).with_key(body)).await.unwrap();
    }
}

fn numbers(n: u32) -> impl Iterator<Item = String> {
    (0..n).map(|n| n.to_string())
}

/// Counts the runs of each body.
fn counts(log: &Log) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    log.bodies().into_iter().for_each(|body| *counts.entry(body).or_default() += 1);
    counts
}

async fn kf1() {
    let (topic, log) = (unique("kf1"), Log::default());
    let broker = with("max.poll.interval.ms=6000&session.timeout.ms=6000");
    let consumer = Consumer::new("points", broker).topic(topic.as_str()).timeout(secs(60)).unguarded(
        logging(&log, |_, message: Message| async move {
            let slow = message.body() == b"0";
            sleep(if slow { secs(15) } else { millis(1) }).await;
            Ok(())
        }),
    );
    let mut running = Running::start(consumer).await;
    publish(&topic, numbers(20)).await;
    until("all are handled", secs(30), async || log.len() == 20).await;
    sleep(secs(16)).await;
    assert!(running.health.borrow_and_update().is_up());
    let summary = running.stop().await;
    assert_eq!((summary.handled, log.len()), (20, 20));
    assert_eq!(Raw::new().committed("points", &topic, 0).unwrap().0, 20);
}

async fn kf4() {
    for option in ["enable.auto.commit=true", "enable.auto.offset.store=true", "auto.offset.reset=latest"] {
        let error = oncemq_kafka::KafkaBroker::from_url(&format!("{}?{option}", KAFKA.url())).unwrap_err();
        let name = option.split('=').next().unwrap();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(name), "{error}");
    }
}

async fn kf5() {
    let (topic, log) = (unique("kf5"), Log::default());
    let first = || {
        Consumer::new("points", broker()).topic(topic.as_str()).unguarded(logging(
            &log,
            |_, message: Message| async move {
                if message.body() == b"0" {
                    std::future::pending::<()>().await;
                }
                Ok(())
            },
        ))
    };
    let running = Running::start(first()).await;
    publish(&topic, numbers(10)).await;
    until("all have begun", secs(20), async || log.len() == 10).await;
    // Later than a commit by time.
    sleep(millis(1200)).await;
    let raw = Raw::new();
    assert_eq!(raw.committed("points", &topic, 0).unwrap().0, 0);
    // Without a word, as a crash does.
    running.task.abort();
    let _ = running.task.await;

    let again = Log::default();
    let second = Consumer::new("points", broker())
        .topic(topic.as_str())
        .unguarded(logging(&again, |_, _| async { Ok(()) }));
    let running = Running::start(second).await;
    until("the first is done", secs(20), async || !again.is_empty()).await;
    sleep(millis(500)).await;
    // What was finished beyond the committed offset is not run again.
    assert_eq!(again.bodies(), ["0"]);
    running.stop().await;
    assert_eq!(raw.committed("points", &topic, 0).unwrap().0, 10);
}

async fn kf6() {
    let (topic, raw) = (unique("kf6"), Raw::new());
    raw.create(&topic, 3, &[]).await;
    for (round, options) in ["", "commit_each=true"].into_iter().enumerate() {
        for n in 0..30 {
            raw.send(&topic, n % 3, n.to_string().as_bytes()).await;
        }
        let wanted = 10 * (i64::try_from(round).unwrap() + 1);
        for restart in 0..2 {
            let log = Log::default();
            let consumer = Consumer::new("points", with(options))
                .topic(topic.as_str())
                .unguarded(logging(&log, |_, _| async { Ok(()) }));
            let running = Running::start(consumer).await;
            let expected = if restart == 0 { 30 } else { 0 };
            until("all are handled", secs(20), async || log.len() >= expected).await;
            sleep(millis(300)).await;
            running.stop().await;
            assert_eq!(log.len(), expected, "restart {restart} of round {round}");
            for partition in 0..3 {
                assert_eq!(raw.committed("points", &topic, partition).unwrap().0, wanted);
            }
        }
    }
}

#[derive(serde::Deserialize)]
struct Number {
    n: u32,
}

async fn kf7() {
    let (topic, raw) = (unique("kf7"), Raw::new());
    raw.create(&topic, 1, &[]).await;
    let broken = b"{\"n\": \xff";
    raw.send(&topic, 0, b"{\"n\": 0}").await;
    raw.send(&topic, 0, broken).await;
    for n in 1..=100 {
        raw.send(&topic, 0, format!("{{\"n\": {n}}}").as_bytes()).await;
    }
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler = {
        let seen = seen.clone();
        move |_: Context, number: Number| {
            seen.lock().unwrap().push(number.n);
            async { Ok::<(), Failure>(()) }
        }
    };
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .retry(ladder("200ms dead-letter"))
        .unguarded(handler);
    let running = Running::start(consumer).await;
    until("the others are handled", secs(20), async || seen.lock().unwrap().len() == 101).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.rejected), (101, 1));
    let dead = read_all(&broker(), &format!("points.{topic}.dead")).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].body(), broken);
    assert_eq!(raw.committed("points", &topic, 0).unwrap().0, 102);
}

async fn kf8() {
    let (topic, raw, log) = (unique("kf8"), Raw::new(), Log::default());
    raw.create(&topic, 1, &[("max.message.bytes", "100000")]).await;
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .retry(ladder("100ms 100ms 100ms dead-letter"))
        .unguarded(logging(&log, |_, _| async { Err(Failure::system("x".repeat(20_000))) }));
    let running = Running::start(consumer).await;
    let payload = vec![b'p'; 99_700];
    let headers = [
        ("t", Some(&b"1"[..])),
        ("t", Some(b"2")),
        ("bin", Some(&[0, 255])),
        ("none", None),
        ("", Some(b"e")),
    ];
    let owned = headers
        .iter()
        .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: *value }));
    raw.send_with(&topic, 0, &payload, Some(owned)).await;
    until("three retries", secs(30), async || log.len() == 4).await;
    let dead_topic = format!("points.{topic}.dead");
    until("it is committed", secs(20), async || {
        raw.committed("points", &topic, 0).is_some_and(|(at, _)| at == 1)
    })
    .await;
    let summary = running.stop().await;
    assert_eq!((summary.retried, summary.rejected), (3, 1));
    let dead = read_all(&broker(), &dead_topic).await;
    assert_eq!(dead.len(), 1);
    assert!(dead[0].body() == payload);
    let user: Vec<_> = dead[0].headers().iter().filter(|(name, _)| !header::ALL.contains(name)).collect();
    let expected: Vec<_> =
        headers.iter().map(|(name, value)| (*name, value.map(Bytes::copy_from_slice))).collect();
    let expected: Vec<_> = expected.iter().map(|(name, value)| (*name, value.as_ref())).collect();
    assert_eq!(user, expected);
    for name in header::ALL {
        assert!(dead[0].headers().iter().filter(|(found, _)| *found == name).count() <= 1, "{name}");
    }
}

async fn kf9() {
    let (topic, log) = (unique("kf9"), Log::default());
    let consumer = || {
        Consumer::new("points", broker())
            .topic(topic.as_str())
            .unguarded(logging(&log, |_, _| async { Err(Failure::business("no")) }))
    };
    consumer().plan().await.unwrap();
    publish(&topic, ["poison".to_owned()]).await;
    for _ in 0..4 {
        let running = Running::start(consumer()).await;
        until("it has run", secs(20), async || log.len() == 1).await;
        sleep(millis(300)).await;
        running.stop().await;
    }
    assert_eq!(log.len(), 1);
    assert_eq!(read_all(&broker(), &format!("points.{topic}.dead")).await.len(), 1);
    assert_eq!(Raw::new().committed("points", &topic, 0).unwrap().0, 1);
}

async fn rb6() {
    let (topic, raw, log) = (unique("rb6"), Raw::new(), Log::default());
    let dead = format!("points.{topic}.dead");
    let consumer = |topology| {
        Consumer::new("points", with("publish_timeout=2s"))
            .topology(topology)
            .topic(topic.as_str())
            .unguarded(logging(&log, |_, message: Message| async move {
                if message.body() == b"poison" { Err(Failure::business("no")) } else { Ok(()) }
            }))
    };
    consumer(Topology::Declare).plan().await.unwrap();
    raw.delete(&dead).await;
    let mut running = Running::start(consumer(Topology::Trust)).await;
    publish(&topic, ["poison".to_owned()].into_iter().chain(numbers(20))).await;
    let health = running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    assert!(health.to_string().contains(&dead), "{health}");
    until("others go on", secs(10), async || log.len() == 21).await;
    sleep(millis(1500)).await;
    assert_eq!(raw.committed("points", &topic, 0).unwrap().0, 0);
    consumer(Topology::Declare).plan().await.unwrap();
    until("it is done", secs(40), async || raw.committed("points", &topic, 0).unwrap().0 == 21).await;
    running.until_up().await;
    running.stop().await;
    assert_eq!((log.runs("poison").len(), read_all(&broker(), &dead).await.len()), (1, 1));
}

async fn kd3() {
    let (topic, log) = (unique("kd3"), Log::default());
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .retry(ladder("100ms 100ms dead-letter"))
        .unguarded(logging(&log, |_, _| async { Err(Failure::system("no")) }));
    let running = Running::start(consumer).await;
    let publisher = broker().publisher().await.unwrap();
    for _ in 0..2 {
        publisher.publish(&topic, &Message::new("same body")).await.unwrap();
    }
    until("both have run to the end", secs(20), async || log.len() == 6).await;
    until("both are done", secs(20), async || {
        Raw::new().committed("points", &topic, 0).is_some_and(|(at, _)| at == 2)
    })
    .await;
    running.stop().await;
    assert_eq!(log.len(), 6);
    let dead = read_all(&broker(), &format!("points.{topic}.dead")).await;
    let ids: std::collections::BTreeSet<_> =
        dead.iter().filter_map(|letter| letter.headers().get_str(header::DEAD_LETTER)).collect();
    assert_eq!((dead.len(), ids.len()), (2, 2));
}

async fn ordered() {
    let (topic, log, raw) = (unique("ordered"), Log::default(), Raw::new());
    raw.create(&topic, 1, &[]).await;
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .ordering(Ordering::Ordered)
        .retry(ladder("500ms 500ms dead-letter"))
        .unguarded(logging(&log, |_, message: Message| async move {
            if message.body() == b"a1" { Err(Failure::system("busy")) } else { Ok(()) }
        }));
    let running = Running::start(consumer).await;
    let publisher = broker().publisher().await.unwrap();
    for body in ["a1", "a2", "b1", "b2"] {
        publisher.publish(&topic, &Message::new(body).with_key(body[..1].to_owned())).await.unwrap();
    }
    until("all are done", secs(20), async || {
        raw.committed("points", &topic, 0).is_some_and(|(at, _)| at == 4)
    })
    .await;
    running.stop().await;
    let bodies = log.bodies();
    let place = |body: &str| bodies.iter().position(|seen| seen == body).unwrap();
    let last = bodies.iter().rposition(|seen| seen == "a1").unwrap();
    assert_eq!(log.runs("a1").len(), 3);
    assert!(place("a2") > last && place("b2") < last, "{bodies:?}");
    assert_eq!(read_all(&broker(), &format!("points.{topic}.dead")).await.len(), 1);
}

async fn sh1() {
    let (topic, log) = (unique("sh1"), Log::default());
    let done = Log::default();
    let consumer = |log: &Log, done: &Log, time| {
        let done = done.clone();
        Consumer::new("points", broker()).in_flight(50).grace(secs(5)).topic(topic.as_str()).unguarded(
            logging(log, move |cx: Context, message: Message| {
                let done = done.clone();
                async move {
                    sleep(time).await;
                    done.add(&cx, &message);
                    Ok(())
                }
            }),
        )
    };
    let running = Running::start(consumer(&log, &done, millis(500))).await;
    publish(&topic, numbers(200)).await;
    until("work has begun", secs(20), async || log.len() >= 10).await;
    let (begin, begun) = (Instant::now(), log.len());
    let summary = running.stop().await;
    assert!(begin.elapsed() < secs(6), "{:?}", begin.elapsed());
    assert!(log.len() <= begun + 50);
    assert_eq!(usize::try_from(summary.handled).unwrap(), done.len());
    assert_eq!(log.len(), done.len(), "what began has finished");

    let again = Log::default();
    let running = Running::start(consumer(&again, &Log::default(), millis(1))).await;
    until("the rest is handled", secs(20), async || log.len() + again.len() >= 200).await;
    sleep(millis(300)).await;
    running.stop().await;
    let all = [log.bodies(), again.bodies()].concat();
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (200, 200), "nothing twice, nothing missing");
}

async fn sh2() {
    let (topic, log) = (unique("sh2"), Log::default());
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .retry(ladder("100ms 100ms dead-letter"))
        .unguarded(logging(&log, |_, message: Message| async move {
            assert!(message.body() != b"4", "it always panics");
            Ok(())
        }));
    let running = Running::start(consumer).await;
    publish(&topic, numbers(20)).await;
    let raw = Raw::new();
    until("all are done", secs(20), async || {
        raw.committed("points", &topic, 0).is_some_and(|(at, _)| at == 20)
    })
    .await;
    until("three runs", secs(20), async || log.runs("4").len() == 3).await;
    sleep(millis(300)).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.rejected), (19, 1));
    let dead = read_all(&broker(), &format!("points.{topic}.dead")).await;
    let reason = dead[0].headers().get_str(header::REASON).unwrap();
    assert!(dead.len() == 1 && reason.contains("panic"), "{reason}");
}

async fn sh4() {
    let (topic, log, begun) = (unique("sh4"), Log::default(), Arc::new(AtomicBool::new(false)));
    let consumer = || {
        let begun = begun.clone();
        Consumer::new("points", broker()).grace(secs(10)).topic(topic.as_str()).unguarded(logging(
            &log,
            move |_, _| {
                begun.store(true, SeqCst);
                async {
                    sleep(secs(3)).await;
                    Ok(())
                }
            },
        ))
    };
    let running = Running::start(consumer()).await;
    publish(&topic, numbers(1)).await;
    until("it runs", secs(20), async || begun.load(SeqCst)).await;
    running.stop().await;
    assert_eq!(Raw::new().committed("points", &topic, 0).unwrap().0, 1);
    let running = Running::start(consumer()).await;
    sleep(secs(1)).await;
    running.stop().await;
    assert_eq!(counts(&log), BTreeMap::from([("0".to_owned(), 1)]));
}
