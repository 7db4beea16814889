//! Members that come and go.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use oncemq_core::{Broker, Consumer, Context, ErrorKind, Event, Message, Ordering, Scope, Subscription};
use oncemq_test_kit::{Bare, Log, Running, logging, millis, secs, test, unique, until};
use tokio::time::sleep;

use crate::common::{admin, broker, counts, numbers, publish};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("rm5_a_member_with_another_subscription_is_refused", rm5),
        test("rm5_members_of_one_subscription_share_the_work", sharing),
        test("a_member_that_dies_is_replaced_and_one_that_leaves_repeats_nothing", leaving),
        test("a_queue_that_goes_to_another_member_is_told", told),
        test("an_ordered_queue_never_runs_in_two_members_at_once", locked),
        test("a_retry_limit_of_the_group_below_the_ladder_is_refused", limit),
    ]
}

async fn rm5() {
    let (group, topic, other) = (unique("points"), unique("rm5"), unique("other"));
    let consumer = |topic: &str| {
        Consumer::new(group.as_str(), broker())
            .topic(topic)
            .unguarded(logging(&Log::default(), |_, _| async { Ok(()) }))
    };
    let running = Running::start(consumer(&topic)).await;
    consumer(&topic).plan().await.unwrap();
    let error = consumer(&other).plan().await.unwrap_err();
    // Its topic is not where the live member is: told of, as soon as it shares one.
    let both = Consumer::new(group.as_str(), broker())
        .topic(topic.as_str())
        .unguarded(logging(&Log::default(), |_, _| async { Ok(()) }))
        .topic(other.as_str())
        .unguarded(logging(&Log::default(), |_, _| async { Ok(()) }));
    let second = both.plan().await.unwrap_err();
    for error in [error, second] {
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("subscribes to"), "{error}");
    }
    running.stop().await;
    consumer(&other).plan().await.unwrap();
}

async fn sharing() {
    let (group, topic, log) = (unique("points"), unique("sharing"), Log::default());
    let members: Vec<Log> = (0..2).map(|_| Log::default()).collect();
    let queues: Vec<Arc<Mutex<BTreeSet<_>>>> = vec![Arc::default(), Arc::default()];
    let consumer = |member: usize| {
        let (own, queues) = (members[member].clone(), queues[member].clone());
        Consumer::new(group.as_str(), broker().queues(4)).topic(topic.as_str()).unguarded(logging(
            &log,
            move |cx: Context, message: Message| {
                own.add(&cx, &message);
                queues.lock().unwrap().insert(message.origin().partition);
                async { Ok(()) }
            },
        ))
    };
    let first = Running::start(consumer(0)).await;
    let second = Running::start(consumer(1)).await;
    // Both have seen the other, and what moved has settled.
    sleep(secs(5)).await;
    publish(&topic, numbers(100)).await;
    until("all are handled", secs(20), async || log.len() >= 100).await;
    sleep(millis(500)).await;
    assert!(counts(&log).values().all(|runs| *runs == 1), "{:?}", counts(&log));
    // A send that was tried again may have changed the queue, so it is queues that are shared.
    assert_eq!(members[0].len() + members[1].len(), 100);
    let shares: Vec<_> = queues.iter().map(|own| own.lock().unwrap().clone()).collect();
    assert!(shares.iter().all(|own| own.len() == 2) && shares[0].is_disjoint(&shares[1]), "{shares:?}");
    first.stop().await;
    publish(&topic, (100..150).map(|n| n.to_string())).await;
    until("the other has all of it", secs(20), async || log.len() == 150).await;
    second.stop().await;
    assert_eq!(members[1].len(), 100);
}

async fn leaving() {
    let (group, topic) = (unique("points"), unique("leaving"));
    let consumer = |log: &Log| {
        Consumer::new(group.as_str(), broker()).in_flight(4).topic(topic.as_str()).unguarded(logging(
            log,
            |_, _| async {
                sleep(millis(20)).await;
                Ok(())
            },
        ))
    };
    let (first, second, third) = (Log::default(), Log::default(), Log::default());
    consumer(&first).plan().await.unwrap();
    publish(&topic, numbers(300)).await;
    let running = Running::start(consumer(&first)).await;
    until("some are done", secs(20), async || first.len() > 20).await;
    running.stop().await;
    let running = Running::start(consumer(&second)).await;
    until("some more are done", secs(20), async || second.len() > 20).await;
    // Without a word.
    running.task.abort();
    let _ = running.task.await;
    let before: BTreeSet<_> = first.bodies().into_iter().collect();
    assert!(second.bodies().iter().all(|body| !before.contains(body)), "a clean stop repeats nothing");
    let running = Running::start(consumer(&third)).await;
    until("all are done", secs(30), async || {
        let all: BTreeSet<_> =
            [first.bodies(), second.bodies(), third.bodies()].concat().into_iter().collect();
        all.len() == 300
    })
    .await;
    running.stop().await;
}

async fn told() {
    let topic = unique("told");
    let subscription = || Subscription::new(topic.as_str());
    let spec = oncemq_core::ConsumerSpec::new(unique("told"), 100, oncemq_core::Topology::Declare)
        .with(subscription());
    let mut first = Bare::with(broker().queues(2), &spec).await;
    publish(&topic, numbers(20)).await;
    let mut held = Vec::new();
    while held.len() < 20 {
        held.push(first.next().await);
    }
    let mut second = Bare::with(broker().queues(2), &spec).await;
    let gone = tokio::time::timeout(secs(15), async {
        loop {
            first.poll().await;
            let scope = first.others.iter().find_map(|event| match event {
                Event::Revoking { scope: Scope::ServerPartitions(list), .. } if list[0].0 == topic => {
                    Some(list.clone())
                }
                _ => None,
            });
            if let Some(scope) = scope {
                return scope;
            }
        }
    });
    let gone = gone.await.unwrap();
    assert!(gone.len() == 1 && gone[0].0 == topic && &*gone[0].1 == "broker-a", "{gone:?}");
    let scope = Scope::ServerPartitions(gone);
    let leaving = held.iter().filter(|delivery| scope.contains(delivery.message().origin())).count();
    assert_eq!(leaving, 10);
    let mut again = Vec::new();
    while again.len() < 10 {
        again.push(second.next().await);
    }
    assert!(again.iter().all(|delivery| delivery.facts().redelivered));
    // Answers that come only now are void for what has left.
    for delivery in held {
        delivery.ack(oncemq_core::Ack::Accept);
    }
    first.source.close(secs(5)).await.unwrap();
    again.into_iter().for_each(|delivery| delivery.ack(oncemq_core::Ack::Accept));
    assert!(second.is_silent(secs(3)).await);
    second.source.close(secs(5)).await.unwrap();
}

async fn locked() {
    let (group, topic, log) = (unique("points"), unique("locked"), Log::default());
    let running: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let overlaps = Arc::new(AtomicUsize::new(0));
    let consumer = || {
        let (running, overlaps) = (running.clone(), overlaps.clone());
        Consumer::new(group.as_str(), broker().queues(2))
            .topic(topic.as_str())
            .ordering(Ordering::Ordered)
            .unguarded(logging(&log, move |_, message: Message| {
                let (running, overlaps) = (running.clone(), overlaps.clone());
                async move {
                    let body = String::from_utf8_lossy(message.body()).into_owned();
                    let key = body[..1].to_owned();
                    if !running.lock().unwrap().insert(key.clone()) {
                        overlaps.fetch_add(1, SeqCst);
                    }
                    // Longer than a member waits for one that is not locked.
                    sleep(if body.ends_with('0') { secs(6) } else { millis(20) }).await;
                    running.lock().unwrap().remove(&key);
                    Ok(())
                }
            }))
    };
    let first = Running::start(consumer()).await;
    let publisher = broker().publisher().await.unwrap();
    // Each group is in a queue of its own, and one of the two queues goes to the second member.
    let bodies: Vec<String> =
        ["a", "b"].into_iter().flat_map(|key| (0..3).map(move |n| format!("{key}{n}"))).collect();
    for body in &bodies {
        publisher.publish(&topic, &Message::new(body.clone()).with_key(body[..1].to_owned())).await.unwrap();
    }
    until("both have begun", secs(20), async || log.len() == 2).await;
    let second = Running::start(consumer()).await;
    until("all are done", secs(40), async || log.len() >= bodies.len() && running.lock().unwrap().is_empty())
        .await;
    sleep(millis(500)).await;
    assert_eq!(overlaps.load(SeqCst), 0, "two ran at once: {:?}", log.bodies());
    assert!(counts(&log).values().all(|runs| *runs == 1), "{:?}", log.bodies());
    for key in ["a", "b"] {
        let of_key: Vec<_> = log.bodies().into_iter().filter(|body| body.starts_with(key)).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
    first.stop().await;
    second.stop().await;
}

async fn limit() {
    let (group, topic) = (unique("points"), unique("limit"));
    let consumer = |ladder: &str| {
        Consumer::new(group.as_str(), broker())
            .topic(topic.as_str())
            .retry(ladder.parse().unwrap())
            .unguarded(logging(&Log::default(), |_, _| async { Ok(()) }))
    };
    consumer("1s dead-letter").plan().await.unwrap();
    admin(&["updateSubGroup", "-c", "oncemq", "-g", &group, "-r", "1"]);
    consumer("1s dead-letter").plan().await.unwrap();
    let error = consumer("1s 2s dead-letter").plan().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Topology && error.to_string().contains("retryMaxTimes"), "{error}");
}
