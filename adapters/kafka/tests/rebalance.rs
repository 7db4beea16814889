//! Members that come and go, against a real cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::raw::Raw;
use common::{KAFKA, with};
use oncemq_core::{
    Ack, Consumer, ConsumerSpec, Context, Delivery, ErrorKind, Event, Failure, Message, Scope, Subscription,
    Topology,
};
use oncemq_test_kit::{Bare, Running, millis, secs, test, unique, until};
use tokio::time::{Instant, sleep};

const RANGE: &str = "partition.assignment.strategy=range&heartbeat.interval.ms=300";
const COOPERATIVE: &str = "partition.assignment.strategy=cooperative-sticky&heartbeat.interval.ms=300";
const NEW: &str = "group.protocol=consumer";

fn main() {
    let mut tests = Vec::new();
    for (name, options) in [("range", RANGE), ("cooperative", COOPERATIVE), ("new_protocol", NEW)] {
        tests.push(test(&format!("kf2_members_join_and_leave_{name}"), move || join_and_leave(options)));
        tests.push(test(&format!("kf2_answers_of_an_old_assignment_are_void_{name}"), move || {
            old_answers(options)
        }));
    }
    tests.push(test("kf2_an_old_assignment_has_no_say_in_the_next_one", came_back));
    tests.push(test("kf2_a_handler_that_outlasts_the_bound_is_abandoned", outlasted));
    tests.push(test("kf3_partitions_that_stay_go_on_while_others_leave", untouched));
    tests.push(test("kf10_a_paused_partition_flows_again_after_it_moved", paused));
    tests.push(test("kf11_a_fenced_static_member_ends_with_an_error", fenced));
    tests.push(test("kf11_a_partition_that_is_added_is_consumed", grown));
    KAFKA.main(tests);
}

/// How often each body was handled, by all members.
type Effects = Arc<Mutex<BTreeMap<String, usize>>>;

/// A member of the topic's own group.
fn member(topic: &str, options: &str, effects: &Effects, time: Duration) -> Consumer {
    let effects = effects.clone();
    Consumer::new(topic, with(options)).in_flight(8).grace(secs(5)).topic(topic).unguarded(
        move |_: Context, message: Message| {
            let effects = effects.clone();
            async move {
                sleep(time).await;
                let body = String::from_utf8_lossy(message.body()).into_owned();
                *effects.lock().unwrap().entry(body).or_default() += 1;
                Ok::<(), Failure>(())
            }
        },
    )
}

async fn send(raw: &Raw, topic: &str, partitions: i32, numbers: std::ops::Range<i32>) {
    for n in numbers {
        raw.send(topic, n % partitions, n.to_string().as_bytes()).await;
    }
}

fn distinct(effects: &Effects) -> usize {
    effects.lock().unwrap().len()
}

/// Nobody dies and handlers end in time, so nothing runs twice.
async fn join_and_leave(options: &'static str) {
    let (topic, raw, effects) = (unique("join"), Raw::new(), Effects::default());
    raw.create(&topic, 6, &[]).await;
    send(&raw, &topic, 6, 0..300).await;
    let first = Running::start(member(&topic, options, &effects, millis(100))).await;
    sleep(secs(1)).await;
    let second = Running::start(member(&topic, options, &effects, millis(100))).await;
    sleep(secs(3)).await;
    let handled = first.stop().await.handled;
    assert!(handled > 0);
    let third = Running::start(member(&topic, options, &effects, millis(100))).await;
    send(&raw, &topic, 6, 300..360).await;
    until("all are handled", secs(60), async || distinct(&effects) == 360).await;
    sleep(millis(500)).await;
    let (second, third) = (second.stop().await, third.stop().await);
    assert!(second.handled > 0);
    let twice: Vec<_> =
        effects.lock().unwrap().iter().filter(|(_, times)| **times > 1).map(|(n, _)| n.clone()).collect();
    assert_eq!(twice, Vec::<String>::new());
    assert_eq!(handled + second.handled + third.handled, 360);
    for partition in 0..6 {
        assert_eq!(raw.committed(&topic, &topic, partition).unwrap().0, 60);
    }
}

/// A source of a group that others join.
async fn bare(group: &str, topic: &str, options: &str) -> Bare {
    let spec = ConsumerSpec::new(group, 100, Topology::Declare).with(Subscription::new(topic));
    Bare::with(with(options), &spec).await
}

async fn old_answers(options: &'static str) {
    let (topic, group, raw) = (unique("old"), unique("group"), Raw::new());
    raw.create(&topic, 2, &[]).await;
    send(&raw, &topic, 2, 0..20).await;
    let options = format!("{options}&revoke_timeout=500ms");
    let mut first = bare(&group, &topic, &options).await;
    let mut out: Vec<Delivery> = Vec::new();
    while out.len() < 20 {
        out.push(first.next().await);
    }
    // Nothing is settled, and the second member gets one of the partitions all the same.
    let mut second = bare(&group, &topic, &options).await;
    let mut again = Vec::new();
    let end = Instant::now() + secs(40);
    while again.len() < 10 {
        assert!(Instant::now() < end, "{} of 10", again.len());
        first.poll_for(millis(20)).await;
        second.poll_for(millis(20)).await;
        second.drain(|delivery| again.push(delivery));
    }
    let moved = again[0].message().origin().partition.unwrap();
    assert!(again.iter().all(|delivery| delivery.facts().redelivered));
    // The first answers for everything, also for what it does not have any more.
    first.drain(|delivery| out.push(delivery));
    for delivery in out {
        delivery.ack(Ack::Accept);
    }
    assert!(first.source.flush(secs(5)).await);
    assert_eq!(raw.committed(&group, &topic, moved).unwrap().0, 0, "committed by a member that has lost it");
    for delivery in again {
        delivery.ack(Ack::Accept);
    }
    assert!(second.source.flush(secs(5)).await);
    assert_eq!(raw.committed(&group, &topic, moved).unwrap().0, 10);
}

/// With `range` a member gives up everything and gets some of it back. What it took before is
/// for nothing, also where partition and offset are the same.
async fn came_back() {
    let (topic, group, raw) = (unique("back"), unique("group"), Raw::new());
    raw.create(&topic, 2, &[]).await;
    send(&raw, &topic, 2, 0..20).await;
    let options = format!("{RANGE}&revoke_timeout=500ms");
    let mut first = bare(&group, &topic, &options).await;
    let mut old: Vec<Delivery> = Vec::new();
    while old.len() < 20 {
        old.push(first.next().await);
    }
    let mut second = bare(&group, &topic, &options).await;
    let mut new = Vec::new();
    let end = Instant::now() + secs(40);
    while new.len() < 10 {
        assert!(Instant::now() < end, "{} of 10", new.len());
        second.poll_for(millis(20)).await;
        first.poll_for(millis(20)).await;
        first.drain(|delivery| new.push(delivery));
    }
    let stayed = new[0].message().origin().partition.unwrap();
    for delivery in old {
        delivery.ack(Ack::Accept);
    }
    assert!(first.source.flush(secs(5)).await);
    assert_eq!(raw.committed(&group, &topic, stayed).unwrap().0, 0, "committed by an old assignment");
    for delivery in new {
        delivery.ack(Ack::Accept);
    }
    assert!(first.source.flush(secs(5)).await);
    assert_eq!(raw.committed(&group, &topic, stayed).unwrap().0, 10);
}

async fn outlasted() {
    let (topic, raw, effects) = (unique("outlast"), Raw::new(), Effects::default());
    raw.create(&topic, 2, &[]).await;
    send(&raw, &topic, 2, 0..4).await;
    let options = format!("{COOPERATIVE}&revoke_timeout=1s");
    let first = Running::start(member(&topic, &options, &effects, secs(8))).await;
    sleep(millis(500)).await;
    let quick = Effects::default();
    let second = Running::start(member(&topic, &options, &quick, millis(10))).await;
    until("the second has its partition", secs(7), async || distinct(&quick) >= 2).await;
    first.stop().await;
    second.stop().await;
}

/// While one partition waits for its delivery, the client fetches nothing; what is fetched
/// goes on.
async fn untouched() {
    let (topic, group, raw) = (unique("stay"), unique("group"), Raw::new());
    raw.create(&topic, 2, &[]).await;
    send(&raw, &topic, 2, 0..40).await;
    let options = format!("{COOPERATIVE}&revoke_timeout=8s");
    let spec =
        ConsumerSpec::new(group.as_str(), 2, Topology::Declare).with(Subscription::new(topic.as_str()));
    let mut first = Bare::with(with(&options), &spec).await;
    let mut held = vec![first.next().await, first.next().await];
    while held[0].message().origin().partition == held[1].message().origin().partition {
        held.remove(0).ack(Ack::Accept);
        held.push(first.next().await);
    }
    let mut second = Bare::with(with(&options), &spec).await;
    let leaving = loop {
        first.poll_for(millis(20)).await;
        second.poll_for(millis(20)).await;
        let scope = first.others.iter().find_map(|event| match event {
            Event::Revoking { scope: Scope::Partitions(list), .. } => Some(list[0].1),
            _ => None,
        });
        if let Some(scope) = scope {
            break scope;
        }
    };
    let begin = Instant::now();
    let stays =
        held.iter().position(|delivery| delivery.message().origin().partition != Some(leaving)).unwrap();
    held.remove(stays).ack(Ack::Accept);
    for _ in 0..10 {
        first.next().await.ack(Ack::Accept);
    }
    assert!(begin.elapsed() < secs(2), "{:?}", begin.elapsed());
    drop(held);
}

async fn paused() {
    let (topic, raw, effects) = (unique("paused"), Raw::new(), Effects::default());
    raw.create(&topic, 2, &[]).await;
    for batch in 0..10 {
        send(&raw, &topic, 2, batch * 500..(batch + 1) * 500).await;
    }
    let slow = Running::start(member(&topic, COOPERATIVE, &effects, millis(100))).await;
    // Long enough for its buffer to be full.
    sleep(secs(2)).await;
    let other = Running::start(member(&topic, COOPERATIVE, &effects, millis(1))).await;
    sleep(secs(2)).await;
    other.stop().await;
    let quick = Running::start(member(&topic, COOPERATIVE, &effects, millis(1))).await;
    sleep(secs(1)).await;
    slow.stop().await;
    until("all are handled", secs(40), async || distinct(&effects) == 5_000).await;
    quick.stop().await;
    let effects = effects.lock().unwrap();
    assert!(
        effects.values().all(|times| *times == 1),
        "{:?}",
        effects.iter().filter(|(_, n)| **n > 1).count()
    );
}

async fn fenced() {
    let (topic, effects) = (unique("fenced"), Effects::default());
    let options = format!("group.instance.id=one&session.timeout.ms=6000&{COOPERATIVE}");
    let first = Running::start(member(&topic, &options, &effects, millis(1))).await;
    let second = Running::start(member(&topic, &options, &effects, millis(1))).await;
    let error =
        tokio::time::timeout(secs(30), first.task).await.expect("it does not end").unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    second.stop().await;
}

async fn grown() {
    let (topic, raw, effects) = (unique("grown"), Raw::new(), Effects::default());
    raw.create(&topic, 1, &[]).await;
    let options = "topic.metadata.refresh.interval.ms=1000";
    let running = Running::start(member(&topic, options, &effects, millis(1))).await;
    send(&raw, &topic, 1, 0..5).await;
    raw.grow(&topic, 3).await;
    // A producer that has seen the new ones.
    send(&Raw::new(), &topic, 3, 5..20).await;
    until("all are handled", secs(40), async || distinct(&effects) == 20).await;
    running.stop().await;
    let bodies: BTreeSet<_> = effects.lock().unwrap().keys().cloned().collect();
    assert_eq!(bodies.len(), 20);
}
