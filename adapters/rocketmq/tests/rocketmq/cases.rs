//! Failures that others reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use libtest_mimic::Trial;
use oncemq_core::{Broker, Consumer, Context, Failure, Message, Ordering, header};
use oncemq_test_kit::{Log, Running, logging, millis, secs, test, unique, until};
use tokio::time::sleep;

use crate::common::suite::read_all;
use crate::common::{admin, broker, committed, counts, ladder, numbers, publish, with};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("rm1_one_failure_among_ten_repeats_only_itself", rm1),
        test("rm2_a_long_handler_runs_once_and_waiting_messages_are_no_attempts", rm2),
        test("rm4_a_failing_message_of_an_ordered_queue_holds_its_group_and_no_other", rm4),
        test("rm7_the_last_failure_is_a_dead_letter_at_once_and_found_by_the_tools", rm7),
        test("attempts_and_id_stay_right_through_three_rungs_of_measured_delay", attempts),
        test("two_hundred_handlers_run_together", together),
        test("kf5_a_later_offset_that_is_done_first_commits_nothing", kf5),
        test("kf7_an_undecodable_message_is_dead_lettered_once", kf7),
        test("kd3_two_messages_without_key_or_id_are_two", kd3),
        test("a_dead_letter_that_is_published_again_has_a_fresh_budget", replay),
        test("a_retry_of_a_topic_that_is_not_consumed_any_more_is_a_dead_letter", stray),
        test("sh1_a_stop_finishes_what_runs_and_gives_back_the_rest", sh1),
        test("sh2_a_panic_ends_in_the_dead_letters_and_others_go_on", sh2),
        test("sh4_a_stop_during_a_handler_keeps_its_ack", sh4),
    ]
}

fn names(case: &str) -> (String, String) {
    (unique("points"), unique(case))
}

async fn rm1() {
    let ((group, topic), log) = (names("rm1"), Log::default());
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("1s dead-letter"))
        .unguarded(logging(&log, |cx: Context, message: Message| async move {
            if message.body() == b"5" && cx.attempt() == 1 { Err(Failure::system("once")) } else { Ok(()) }
        }));
    let running = Running::start(consumer).await;
    publish(&topic, numbers(10)).await;
    until("all are done", secs(20), async || log.len() == 11).await;
    sleep(millis(500)).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.retried, summary.rejected), (10, 1, 0));
    let expected = (0..10).map(|n| (n.to_string(), if n == 5 { 2 } else { 1 })).collect();
    assert_eq!(counts(&log), expected);
}

async fn rm2() {
    let ((group, topic), log) = (names("rm2"), Log::default());
    let consumer = Consumer::new(group.as_str(), broker())
        .in_flight(2)
        .topic(topic.as_str())
        .timeout(secs(60))
        .unguarded(logging(&log, |_, message: Message| async move {
            sleep(if message.body() == b"0" { secs(16) } else { millis(100) }).await;
            Ok(())
        }));
    let running = Running::start(consumer).await;
    publish(&topic, numbers(200)).await;
    until("all are handled", secs(60), async || log.len() == 200).await;
    sleep(millis(500)).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.retried), (200, 0));
    assert!(counts(&log).values().all(|runs| *runs == 1));
    assert!(log.runs("199").iter().all(|(attempt, _)| *attempt == 1));
}

async fn rm4() {
    let ((group, topic), log) = (names("rm4"), Log::default());
    let consumer = Consumer::new(group.as_str(), broker().queues(4))
        .topic(topic.as_str())
        .ordering(Ordering::Ordered)
        .retry(ladder("3s 3s dead-letter"))
        .unguarded(logging(&log, |_, message: Message| async move {
            if message.body() == b"a0" { Err(Failure::system("busy")) } else { Ok(()) }
        }));
    let running = Running::start(consumer).await;
    let publisher = broker().publisher().await.unwrap();
    let groups = ["a", "b", "c", "d", "e", "f"];
    for n in 0..3 {
        for group in groups {
            let message = Message::new(format!("{group}{n}")).with_key(group);
            publisher.publish(&topic, &message).await.unwrap();
        }
    }
    until("all are done", secs(20), async || log.len() == 20).await;
    sleep(millis(300)).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.rejected), (17, 1));
    assert_eq!(log.runs("a0").len(), 3);
    let bodies = log.bodies();
    let last = bodies.iter().rposition(|body| body == "a0").unwrap();
    let place = |body: &str| bodies.iter().position(|seen| seen == body).unwrap();
    assert!(place("a1") > last && place("a2") > place("a1"), "{bodies:?}");
    for group in &groups[1..] {
        let places = [0, 1, 2].map(|n| place(&format!("{group}{n}")));
        assert!(places.is_sorted() && places[2] < last, "{group}: {bodies:?}");
    }
    assert_eq!(committed(&group, &topic).iter().sum::<i64>(), 18);
    assert_eq!(read_all(&broker(), &format!("%DLQ%{group}")).await.len(), 1);
}

async fn rm7() {
    let ((group, topic), log) = (names("rm7"), Log::default());
    let failed = Arc::new(Mutex::new(Instant::now()));
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("1s dead-letter"))
        .unguarded(logging(&log, {
            let failed = failed.clone();
            move |_, _| {
                *failed.lock().unwrap() = Instant::now();
                async { Err(Failure::system("no product 17")) }
            }
        }));
    let running = Running::start(consumer).await;
    let publisher = broker().publisher().await.unwrap();
    let key = unique("order");
    let message = Message::new("{\"order\": 1}").with_header("KEYS", key.clone()).with_header("TAGS", "paid");
    publisher.publish(&topic, &message).await.unwrap();
    until("it has run twice", secs(20), async || log.len() == 2).await;
    let dead = format!("%DLQ%{group}");
    let mut letters = Vec::new();
    until("the dead letter", secs(20), async || {
        letters = read_all(&broker(), &dead).await;
        letters.len() == 1
    })
    .await;
    assert!(failed.lock().unwrap().elapsed() < secs(10));
    running.stop().await;
    let headers = letters[0].headers();
    assert_eq!(headers.get_str(header::REASON), Some("no product 17"));
    assert_eq!(
        (headers.get_str(header::ATTEMPTS), headers.get_str(header::CLASS)),
        (Some("2"), Some("system"))
    );
    assert!(headers.get_str(header::ORIGIN).unwrap().contains("rocketmq/%RETRY%"), "{headers:?}");
    assert_eq!(letters[0].body(), b"{\"order\": 1}");
    // As operators look for it.
    let id = letters[0].id().unwrap().to_owned();
    let found = admin(&["queryMsgByKey", "-t", &dead, "-k", &key]);
    assert!(found.contains(&id), "{found}");
    let found = admin(&["queryMsgByUniqueKey", "-t", &dead, "-i", &id]);
    assert!(found.contains("no product 17") && found.contains(&topic), "{found}");
}

async fn attempts() {
    let ((group, topic), log) = (names("attempts"), Log::default());
    let ids = Arc::new(Mutex::new(BTreeSet::new()));
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("1s 2s 2500ms dead-letter"))
        .unguarded(logging(&log, {
            let ids = ids.clone();
            move |cx: Context, message: Message| {
                ids.lock().unwrap().insert(message.id().unwrap().to_owned());
                async move { if cx.attempt() < 4 { Err(Failure::system("busy")) } else { Ok(()) } }
            }
        }));
    let plan = consumer.plan().await.unwrap();
    assert!(
        plan.to_string().contains("retries 1s 2s 2500ms (really 3s) then dead letter in topic %DLQ%"),
        "{plan}"
    );
    let running = Running::start(consumer).await;
    publish(&topic, ["order-1".to_owned()]).await;
    until("four runs", secs(30), async || log.len() == 4).await;
    sleep(millis(300)).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.retried), (1, 3));
    let runs = log.runs("order-1");
    assert_eq!(runs.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
    for (pair, (least, most)) in runs.windows(2).zip([(1_000, 3_500), (2_000, 4_500), (2_500, 5_500)]) {
        let waited = pair[1].1 - pair[0].1;
        assert!(waited >= millis(least) && waited < millis(most), "{waited:?} instead of {least} ms");
    }
    assert_eq!(*ids.lock().unwrap(), BTreeSet::from(["order-1".to_owned()]));
}

async fn together() {
    let ((group, topic), most) = (names("together"), Arc::new(AtomicUsize::new(0)));
    let now = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    let handler = {
        let (now, most, done) = (now.clone(), most.clone(), done.clone());
        move |_: Context, _: Message| {
            let (now, most, done) = (now.clone(), most.clone(), done.clone());
            async move {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                sleep(millis(1_500)).await;
                now.fetch_sub(1, SeqCst);
                done.fetch_add(1, SeqCst);
                Ok::<(), Failure>(())
            }
        }
    };
    let consumer =
        Consumer::new(group.as_str(), broker()).in_flight(200).topic(topic.as_str()).unguarded(handler);
    consumer.plan().await.unwrap();
    publish(&topic, numbers(200)).await;
    let running = Running::start(consumer).await;
    until("all are done", secs(20), async || done.load(SeqCst) == 200).await;
    running.stop().await;
    assert!(most.load(SeqCst) >= 190, "{} at once", most.load(SeqCst));
}

async fn kf5() {
    let ((group, topic), log) = (names("kf5"), Log::default());
    // The tool that asks for offsets takes its time.
    let first = Consumer::new(group.as_str(), broker()).topic(topic.as_str()).timeout(secs(300)).unguarded(
        logging(&log, |_, message: Message| async move {
            if message.body() == b"0" {
                std::future::pending::<()>().await;
            }
            Ok(())
        }),
    );
    let running = Running::start(first).await;
    publish(&topic, numbers(10)).await;
    until("all have begun", secs(20), async || log.len() == 10).await;
    // Later than a commit by time.
    sleep(millis(1_200)).await;
    assert_eq!(committed(&group, &topic), [0]);
    // Without a word, as a crash does.
    running.task.abort();
    let _ = running.task.await;

    let again = Log::default();
    let second = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .unguarded(logging(&again, |_, _| async { Ok(()) }));
    let running = Running::start(second).await;
    until("all are done", secs(20), async || again.len() == 10).await;
    running.stop().await;
    assert_eq!(committed(&group, &topic), [10]);
}

#[derive(serde::Deserialize)]
struct Number {
    n: u32,
}

async fn kf7() {
    let (group, topic) = names("kf7");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let seen = seen.clone();
        move |_: Context, number: Number| {
            seen.lock().unwrap().push(number.n);
            async { Ok::<(), Failure>(()) }
        }
    };
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("1s dead-letter"))
        .unguarded(handler);
    consumer.plan().await.unwrap();
    let broken = b"{\"n\": \xff";
    let publisher = broker().publisher().await.unwrap();
    publisher.publish(&topic, &Message::new(&broken[..])).await.unwrap();
    for n in 0..20 {
        publisher.publish(&topic, &Message::new(format!("{{\"n\": {n}}}"))).await.unwrap();
    }
    let running = Running::start(consumer).await;
    until("the others are handled", secs(20), async || seen.lock().unwrap().len() == 20).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.rejected), (20, 1));
    let dead = read_all(&broker(), &format!("%DLQ%{group}")).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].body(), broken);
}

async fn kd3() {
    let ((group, topic), log) = (names("kd3"), Log::default());
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("1s 1s dead-letter"))
        .unguarded(logging(&log, |_, _| async { Err(Failure::system("no")) }));
    let running = Running::start(consumer).await;
    let publisher = broker().publisher().await.unwrap();
    for _ in 0..2 {
        publisher.publish(&topic, &Message::new("same body")).await.unwrap();
    }
    until("both have run to the end", secs(20), async || log.len() == 6).await;
    let mut dead = Vec::new();
    until("two dead letters", secs(30), async || {
        dead = read_all(&broker(), &format!("%DLQ%{group}")).await;
        dead.len() >= 2
    })
    .await;
    running.stop().await;
    let ids: BTreeSet<_> =
        dead.iter().filter_map(|letter| letter.headers().get_str(header::DEAD_LETTER)).collect();
    assert_eq!((log.len(), dead.len(), ids.len()), (6, 2, 2));
}

async fn replay() {
    let ((group, topic), log) = (names("replay"), Log::default());
    let broken = Arc::new(AtomicBool::new(true));
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("1s dead-letter"))
        .unguarded(logging(&log, {
            let broken = broken.clone();
            move |_, _| {
                let failed = broken.load(SeqCst);
                async move { if failed { Err(Failure::system("no")) } else { Ok(()) } }
            }
        }));
    let running = Running::start(consumer).await;
    publish(&topic, ["order-1".to_owned()]).await;
    let dead = format!("%DLQ%{group}");
    let mut letters = Vec::new();
    until("the dead letter", secs(20), async || {
        letters = read_all(&broker(), &dead).await;
        letters.len() == 1
    })
    .await;
    broken.store(false, SeqCst);
    broker().publisher().await.unwrap().publish(&topic, &letters[0]).await.unwrap();
    until("it runs again", secs(20), async || log.len() == 3).await;
    sleep(millis(300)).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.rejected), (1, 1));
    let attempts: Vec<_> = log.runs("order-1").iter().map(|(attempt, _)| *attempt).collect();
    assert_eq!(attempts, [1, 2, 1]);
}

async fn stray() {
    let ((group, topic), other, log) = (names("stray"), unique("other"), Log::default());
    let failing = logging(&log, |_, _| async { Err(Failure::system("busy")) });
    let first = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("2s dead-letter"))
        .unguarded(failing);
    let running = Running::start(first).await;
    publish(&topic, ["old".to_owned()]).await;
    until("it has failed", secs(20), async || log.len() == 1).await;
    running.stop().await;
    let next = Consumer::new(group.as_str(), broker())
        .topic(other.as_str())
        .unguarded(logging(&Log::default(), |_, _| async { Ok(()) }));
    let running = Running::start(next).await;
    let mut letters = Vec::new();
    until("the dead letter", secs(20), async || {
        letters = read_all(&broker(), &format!("%DLQ%{group}")).await;
        letters.len() == 1
    })
    .await;
    running.stop().await;
    let reason = letters[0].headers().get_str(header::REASON).unwrap();
    assert!(letters[0].body() == b"old" && reason.contains(&topic), "{reason}");
}

async fn sh1() {
    let ((group, topic), log, done) = (names("sh1"), Log::default(), Log::default());
    let consumer = |log: &Log, done: &Log, time| {
        let done = done.clone();
        Consumer::new(group.as_str(), broker()).in_flight(50).grace(secs(5)).topic(topic.as_str()).unguarded(
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
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (200, 200), "nothing twice, nothing missing");
}

async fn sh2() {
    let ((group, topic), log) = (names("sh2"), Log::default());
    let consumer = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .retry(ladder("1s 1s dead-letter"))
        .unguarded(logging(&log, |_, message: Message| async move {
            assert!(message.body() != b"4", "it always panics");
            Ok(())
        }));
    let running = Running::start(consumer).await;
    publish(&topic, numbers(20)).await;
    until("three runs", secs(20), async || log.runs("4").len() == 3).await;
    sleep(millis(500)).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.rejected), (19, 1));
    let dead = read_all(&broker(), &format!("%DLQ%{group}")).await;
    let reason = dead[0].headers().get_str(header::REASON).unwrap();
    assert!(dead.len() == 1 && reason.contains("panic"), "{reason}");
}

async fn sh4() {
    let ((group, topic), log) = (names("sh4"), Log::default());
    let begun = Arc::new(AtomicBool::new(false));
    let consumer = || {
        let begun = begun.clone();
        let broker = with("commit_each=true");
        Consumer::new(group.as_str(), broker).grace(secs(10)).topic(topic.as_str()).unguarded(logging(
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
    assert_eq!(committed(&group, &topic), [1]);
    let running = Running::start(consumer()).await;
    sleep(secs(1)).await;
    running.stop().await;
    assert_eq!(counts(&log), BTreeMap::from([("0".to_owned(), 1)]));
}
