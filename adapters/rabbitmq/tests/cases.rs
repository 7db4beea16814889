//! Failures that others reported, through a whole consumer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use common::raw::{Raw, text};
use common::{Log, Running, broker, logging, millis, secs, test, unique, until};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use oncemq_core::{
    Ack, Broker, Consumer, Context, Failure, Health, Identity, Message, RetryPolicy, Topology, Trail, header,
};
use oncemq_rabbitmq::QueueType;
use tokio::time::{Instant, sleep};

fn main() {
    common::main(vec![
        test("rb2_each_delivery_is_settled_once_whatever_happens", rb2),
        test("rb3_failing_messages_do_not_hold_up_good_ones", rb3),
        test("rb4_counters_of_the_broker_change_nothing_quorum", || rb4(QueueType::Quorum)),
        test("rb4_counters_of_the_broker_change_nothing_classic", || rb4(QueueType::Classic)),
        test("rb5_thirty_attempts_are_thirty_runs", rb5_attempts),
        test("rb5_returned_often_a_message_is_still_there", rb5_returns),
        test("rb6_without_a_dead_letter_queue_nothing_is_settled", rb6),
        test("rb7_a_refused_queue_leaves_other_consumers_alone", rb7),
        test("rb8_a_deleted_queue_is_consumed_again_when_it_is_back", rb8),
        test("rb8_a_deleted_queue_that_is_ours_is_made_again", rb8_declared),
        test("rb9_an_attempt_header_of_any_kind_ends", rb9),
        test("rb10_the_prefetch_bounds_what_is_out", rb10),
        test("sh1_a_stop_finishes_what_runs_and_gives_back_the_rest", sh1),
        test("sh4_a_stop_during_a_handler_keeps_its_ack", sh4),
    ]);
}

fn ladder(text: &str) -> RetryPolicy {
    text.parse().unwrap()
}

async fn publish(topic: &str, bodies: impl IntoIterator<Item = String>) {
    let publisher = broker().publisher().await.unwrap();
    for body in bodies {
        publisher.publish(topic, &Message::new(body.clone()).with_id(body)).await.unwrap();
    }
}

fn numbers(n: u32) -> impl Iterator<Item = String> {
    (0..n).map(|n| n.to_string())
}

/// The health must never have left `Up`: a channel that saw a tag twice is closed.
fn ensure_calm(running: &Running) -> tokio::task::JoinHandle<()> {
    let mut health = running.health.clone();
    tokio::spawn(async move {
        while health.changed().await.is_ok() {
            let now = health.borrow().clone();
            assert!(!matches!(now, Health::Degraded(_)), "{now}");
        }
    })
}

async fn rb2() {
    let (topic, log) = (unique("rb2"), Log::default());
    let queue = format!("points.{topic}");
    let consumer = Consumer::new("points", broker())
        .grace(millis(500))
        .topic(topic.as_str())
        .retry(ladder("100ms dead-letter"))
        .timeout(millis(300))
        .unguarded(logging(&log, |_, message: Message| async move {
            match message.body() {
                b"error" => Err(Failure::system("broken")),
                b"final" => Err(Failure::business("unknown user")),
                b"panic" => panic!("on purpose"),
                b"slow" => std::future::pending().await,
                _ => Ok(()),
            }
        }));
    let running = Running::start(consumer).await;
    let calm = ensure_calm(&running);
    publish(&topic, ["good", "error", "final", "panic", "slow", "good"].map(str::to_owned)).await;
    let raw = Raw::connect().await;
    let dead = format!("{queue}.dead");
    until("four dead letters", secs(20), async || raw.ready(&dead).await == Some(4)).await;
    // One that is still running when its time is over.
    publish(&topic, ["slow".to_owned()]).await;
    until("it runs", secs(5), async || log.runs("slow").len() == 3).await;
    let summary = running.stop().await;
    calm.await.unwrap();
    assert_eq!((summary.handled, summary.rejected), (2, 4));
    let left = raw.ready(&queue).await.unwrap() + raw.ready(&format!("{queue}.retry.100ms")).await.unwrap();
    assert!(left <= 1, "{left} are left");
}

async fn rb3() {
    let (topic, log) = (unique("rb3"), Log::default());
    let consumer = Consumer::new("points", broker())
        .in_flight(3)
        .topic(topic.as_str())
        .retry(ladder("3s 3s 3s dead-letter"))
        .unguarded(logging(&log, |_, message: Message| async move {
            if message.body().starts_with(b"poison") { Err(Failure::system("broken")) } else { Ok(()) }
        }));
    consumer.plan().await.unwrap();
    publish(&topic, (0..3).map(|n| format!("poison{n}")).chain(numbers(100))).await;
    let running = Running::start(consumer).await;
    let raw = Raw::connect().await;
    let dead = format!("points.{topic}.dead");
    until("three dead letters", secs(40), async || raw.ready(&dead).await == Some(3)).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.retried, summary.rejected), (100, 9, 3));
    let bodies = log.bodies();
    let again = bodies.iter().enumerate().filter(|(_, body)| body.starts_with("poison")).nth(3).unwrap().0;
    assert!(again >= 103, "a poison message ran again before {} good ones", 103 - again);
    for n in 0..3 {
        let runs = log.runs(&format!("poison{n}"));
        assert_eq!(runs.len(), 4);
        for pair in runs.windows(2) {
            assert!(pair[1].1 - pair[0].1 >= secs(3), "not spaced by the delay");
        }
    }
}

async fn rb4(queue_type: QueueType) {
    let (topic, log) = (unique("rb4"), Log::default());
    let consumer = Consumer::new("points", broker().queue_type(queue_type))
        .topic(topic.as_str())
        .retry(ladder("50ms 50ms 50ms dead-letter"))
        .unguarded(logging(&log, async |_, _| Err(Failure::system("broken"))));
    let running = Running::start(consumer).await;
    let mut table = FieldTable::default();
    let mut death = FieldTable::default();
    death.insert("count".into(), AMQPValue::LongLongInt(99));
    death.insert("reason".into(), text("expired"));
    death.insert("queue".into(), text(&format!("points.{topic}")));
    table.insert("x-death".into(), AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into()));
    table.insert("x-delivery-count".into(), AMQPValue::LongLongInt(19));
    table.insert("x-first-death-reason".into(), text("delivery_limit"));
    let raw = Raw::connect().await;
    raw.publish(&topic, &topic, b"counted", BasicProperties::default().with_headers(table)).await;
    raw.publish(&topic, &topic, b"plain", BasicProperties::default()).await;
    let dead = format!("points.{topic}.dead");
    until("two dead letters", secs(20), async || raw.ready(&dead).await == Some(2)).await;
    running.stop().await;
    for body in ["counted", "plain"] {
        let attempts: Vec<u32> = log.runs(body).iter().map(|(attempt, _)| *attempt).collect();
        assert_eq!(attempts, [1, 2, 3, 4], "{body}");
    }
}

async fn rb5_attempts() {
    let (topic, log) = (unique("rb5"), Log::default());
    let policy = RetryPolicy::new(vec![millis(20); 29], oncemq_core::End::DeadLetter).unwrap();
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .retry(policy)
        .unguarded(logging(&log, async |_, _| Err(Failure::system("broken"))));
    let running = Running::start(consumer).await;
    publish(&topic, ["x".to_owned()]).await;
    let raw = Raw::connect().await;
    let dead = format!("points.{topic}.dead");
    until("a dead letter", secs(40), async || raw.ready(&dead).await == Some(1)).await;
    running.stop().await;
    assert_eq!(log.len(), 30);
}

async fn rb5_returns() {
    let mut bare = common::Bare::open(broker(), 1).await;
    bare.send([1]).await;
    for _ in 0..30 {
        drop(bare.next().await);
    }
    bare.next().await.ack(Ack::Accept);
    assert!(bare.source.flush(secs(5)).await);
}

async fn rb6() {
    let (topic, log) = (unique("rb6"), Log::default());
    let (queue, dead) = (format!("points.{topic}"), format!("points.{topic}.dead"));
    let consumer = |topology| {
        Consumer::new("points", broker()).topology(topology).topic(topic.as_str()).unguarded(logging(
            &log,
            |_, message: Message| async move {
                if message.body() == b"poison" { Err(Failure::business("no")) } else { Ok(()) }
            },
        ))
    };
    consumer(Topology::Declare).plan().await.unwrap();
    let raw = Raw::connect().await;
    raw.delete(&dead).await;
    let mut running = Running::start(consumer(Topology::Trust)).await;
    publish(&topic, ["poison".to_owned()].into_iter().chain(numbers(20))).await;
    let health = running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    assert!(health.to_string().contains(&dead), "{health}");
    until("others go on", secs(10), async || log.len() == 21).await;
    sleep(secs(3)).await;
    running.stop().await;
    until("it is still in the queue", secs(10), async || raw.ready(&queue).await == Some(1)).await;

    let mut running = Running::start(consumer(Topology::Trust)).await;
    running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    consumer(Topology::Declare).plan().await.unwrap();
    until("a dead letter", secs(20), async || raw.ready(&dead).await == Some(1)).await;
    running.until_up().await;
    let summary = running.stop().await;
    assert_eq!((log.runs("poison").len(), summary.rejected), (2, 1));
    assert_eq!((raw.ready(&queue).await, raw.ready(&dead).await), (Some(0), Some(1)));
}

async fn rb7() {
    let (good, bad, log) = (unique("rb7"), unique("rb7"), Log::default());
    let on = |topic: &str| {
        let handler = logging(&log, async |_, _| Ok(()));
        Consumer::new("points", broker()).topic(topic).unguarded(handler)
    };
    let running = Running::start(on(&good)).await;
    let raw = Raw::connect().await;
    raw.declare(&format!("points.{bad}"), &[("x-max-length", AMQPValue::LongInt(5))]).await;
    let error = on(&bad).run().await.unwrap_err();
    assert!(error.to_string().contains(&format!("points.{bad}")), "{error}");
    publish(&good, numbers(10)).await;
    until("the other goes on", secs(10), async || log.len() == 10).await;
    assert!(running.health.borrow().is_up());
    running.stop().await;
}

async fn rb8() {
    let (topic, log) = (unique("rb8"), Log::default());
    let queue = format!("points.{topic}");
    let raw = Raw::connect().await;
    raw.declare(&queue, &[]).await;
    let consumer = Consumer::new("points", broker())
        .topology(Topology::Trust)
        .topic(topic.as_str())
        .unguarded(logging(&log, async |_, _| Ok(())));
    let mut running = Running::start(consumer).await;
    raw.delete(&queue).await;
    let health = running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    assert!(health.to_string().contains(&queue), "{health}");
    sleep(secs(5)).await;
    assert!(!running.health.borrow().is_up());
    raw.declare(&queue, &[]).await;
    for body in numbers(10) {
        raw.send(&queue, &body).await;
    }
    until("10 handled", secs(15), async || log.len() == 10).await;
    running.until_up().await;
    running.stop().await;
}

async fn rb8_declared() {
    let (topic, log) = (unique("rb8"), Log::default());
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .retry(ladder("100ms dead-letter"))
        .unguarded(logging(&log, async |_, _| Err(Failure::system("broken"))));
    let mut running = Running::start(consumer).await;
    let (raw, queue) = (Raw::connect().await, format!("points.{topic}"));
    for part in ["", ".retry.100ms", ".dead"] {
        raw.delete(&format!("{queue}{part}")).await;
    }
    running.until_health("degraded", |health| matches!(health, Health::Degraded(_))).await;
    running.until_up().await;
    publish(&topic, ["x".to_owned()]).await;
    let dead = format!("{queue}.dead");
    until("a dead letter", secs(15), async || raw.ready(&dead).await == Some(1)).await;
    assert_eq!(log.len(), 2);
    running.stop().await;
}

/// A ladder copy of this message whose attempt header has this value.
fn forged(topic: &str, id: &str, attempt: Option<AMQPValue>) -> BasicProperties {
    let original = Message::new(id.to_owned()).with_id(id);
    let trail = Trail::read(&original, &"points".into(), &topic.into(), Identity::Content);
    let Ack::Retry(retry) = Ack::retry(secs(1), trail, "broken") else { unreachable!() };
    let mut table = FieldTable::default();
    for (name, value) in retry.copy(&original).headers().iter() {
        table.insert(name.into(), AMQPValue::LongString(value.unwrap().to_vec().into()));
    }
    let mut map = table.inner().clone();
    map.remove(header::ATTEMPT);
    map.extend(attempt.map(|value| (header::ATTEMPT.into(), value)));
    BasicProperties::default().with_message_id(id.into()).with_headers(map.into())
}

async fn rb9() {
    let (topic, log) = (unique("rb9"), Log::default());
    let consumer = Consumer::new("points", broker())
        .topic(topic.as_str())
        .retry(ladder("50ms 50ms 50ms dead-letter"))
        .unguarded(logging(&log, async |_, _| Err(Failure::system("broken"))));
    let running = Running::start(consumer).await;
    let (raw, queue) = (Raw::connect().await, format!("points.{topic}"));
    let kinds = [
        ("i8", Some(AMQPValue::ShortShortInt(2)), 2),
        ("u8", Some(AMQPValue::ShortShortUInt(2)), 2),
        ("i16", Some(AMQPValue::ShortInt(2)), 2),
        ("i32", Some(AMQPValue::LongInt(2)), 2),
        ("i64", Some(AMQPValue::LongLongInt(2)), 2),
        ("text", Some(text("2")), 2),
        // What is no count counts as used up: one run and no more.
        ("junk", Some(text("x")), 1),
        ("negative", Some(AMQPValue::LongInt(-1)), 1),
        ("huge", Some(AMQPValue::LongLongInt(1 << 40)), 1),
        ("absent", None, 4),
    ];
    for (id, value, _) in &kinds {
        raw.publish("", &queue, id.as_bytes(), forged(&topic, id, value.clone())).await;
    }
    let (dead, n) = (format!("{queue}.dead"), kinds.len() as u32);
    until("all dead letters", secs(20), async || raw.ready(&dead).await == Some(n)).await;
    running.stop().await;
    for (id, _, runs) in kinds {
        assert_eq!(log.runs(id).len(), runs, "{id}");
    }
}

async fn rb10() {
    const ALL: u32 = 5000;
    const IN_FLIGHT: u32 = 50;
    let (topic, done) = (unique("rb10"), Arc::new(AtomicU32::new(0)));
    let consumer = Consumer::new("points", broker().queue_type(QueueType::Classic))
        .in_flight(IN_FLIGHT as usize)
        .topic(topic.as_str())
        .unguarded({
            let done = done.clone();
            move |_: Context, _: Message| {
                let done = done.clone();
                async move {
                    sleep(millis(10)).await;
                    done.fetch_add(1, SeqCst);
                    Ok(())
                }
            }
        });
    consumer.plan().await.unwrap();
    let raw = Raw::connect().await;
    let mut confirms = Vec::new();
    for _ in 0..ALL {
        let (options, properties) = (Default::default(), BasicProperties::default());
        let topic = topic.as_str();
        confirms.push(
            raw.channel.basic_publish(topic.into(), topic.into(), options, b"x", properties).await.unwrap(),
        );
    }
    for confirm in confirms {
        confirm.await.unwrap();
    }
    let running = Running::start(consumer).await;
    let queue = format!("points.{topic}");
    let mut looks = 0;
    while done.load(SeqCst) < ALL {
        let ready = raw.ready(&queue).await.unwrap();
        // Taken before: what is neither ready nor done is out.
        let out = ALL - ready - done.load(SeqCst).min(ALL - ready);
        assert!(out <= IN_FLIGHT, "{out} are out");
        looks += 1;
        sleep(millis(20)).await;
    }
    assert!(looks > 5, "it was over before anybody looked");
    running.stop().await;
}

async fn sh1() {
    let (topic, log) = (unique("sh1"), Log::default());
    let stopped = Arc::new(AtomicBool::new(false));
    let consumer = Consumer::new("points", broker())
        .in_flight(50)
        .grace(secs(5))
        .topic(topic.as_str())
        .retry(ladder("60s dead-letter"))
        .unguarded(logging(&log, {
            let stopped = stopped.clone();
            move |_, message: Message| {
                assert!(!stopped.load(SeqCst), "started after the signal");
                async move {
                    if message.body() == b"0" {
                        return Err(Failure::system("broken"));
                    }
                    sleep(millis(500)).await;
                    Ok(())
                }
            }
        }));
    consumer.plan().await.unwrap();
    publish(&topic, numbers(120)).await;
    let running = Running::start(consumer).await;
    until("a batch runs", secs(10), async || log.len() >= 50).await;
    let begin = Instant::now();
    running.stop.stop();
    stopped.store(true, SeqCst);
    let summary = running.task.await.unwrap().unwrap();
    assert!(begin.elapsed() < secs(6), "{:?}", begin.elapsed());
    let (raw, queue) = (Raw::connect().await, format!("points.{topic}"));
    let left = 120 - u32::try_from(summary.handled).unwrap() - 1;
    assert_eq!(summary.panics, 0);
    until("the rest is back", secs(5), async || raw.ready(&queue).await == Some(left)).await;
    assert_eq!(raw.ready(&format!("{queue}.retry.60000ms")).await, Some(1));
    // Without an attempt used.
    for delivery in raw.take(&queue, left as usize).await {
        assert!(common::raw::header(&delivery.properties, header::ATTEMPT).is_none());
    }
}

async fn sh4() {
    let (topic, log) = (unique("sh4"), Log::default());
    let consumer =
        Consumer::new("points", broker()).topic(topic.as_str()).unguarded(logging(&log, async |_, _| {
            sleep(secs(3)).await;
            Ok(())
        }));
    let running = Running::start(consumer).await;
    publish(&topic, ["x".to_owned()]).await;
    until("it runs", secs(10), async || log.len() == 1).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.released), (1, 0));
    assert_eq!(Raw::connect().await.ready(&format!("points.{topic}")).await, Some(0));
}
