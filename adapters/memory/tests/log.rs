//! Log mode at the level of the traits.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::*;
use oncemq_core::{
    Ack, Broker, ConsumerSpec, Delivery, ErrorKind, Event, Health, Identity, Message, Plan, Scope, Source,
    Subscription, Topology, Trail,
};
use oncemq_memory::MemoryBroker;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);
const POSITION: Identity = Identity::Position;

fn flags(deliveries: &[Delivery]) -> Vec<bool> {
    deliveries.iter().map(|delivery| delivery.facts().redelivered).collect()
}

fn accept(deliveries: impl IntoIterator<Item = Delivery>) {
    deliveries.into_iter().for_each(|delivery| delivery.ack(Ack::Accept));
}

async fn keyed(broker: &MemoryBroker, topic: &str, key: &str, bodies: &[&str]) {
    let publisher = publisher(broker).await;
    for body in bodies {
        let message = Message::new((*body).to_owned()).with_key(key.to_owned());
        publisher.publish(topic, &message).await.unwrap();
    }
}

/// The partitions of a source's next revoke, and its deadline.
async fn revoked(source: &mut Box<dyn Source>) -> (Vec<(String, i32)>, Instant) {
    for event in events(source, 0).await {
        if let Event::Revoking { scope: Scope::Partitions(list), deadline } = event {
            return (list, deadline);
        }
    }
    panic!("no revoke came");
}

#[tokio::test(start_paused = true)]
async fn a_key_has_its_partition_and_its_order() {
    let broker = MemoryBroker::log(4);
    broker.create_topic("orders");
    for key in ["a", "b", "c", "d", "e", "f"] {
        keyed(&broker, "orders", key, &["1", "2", "3"]).await;
    }
    // A group that comes later begins at the oldest message.
    let mut source = open(&broker, "points", &["orders"]).await;
    let taken = take(&mut source, 18).await;
    let mut partitions = std::collections::BTreeSet::new();
    for key in ["a", "b", "c", "d", "e", "f"] {
        let of_key: Vec<_> = taken.iter().filter(|d| d.message().key().unwrap() == key.as_bytes()).collect();
        assert_eq!(of_key.iter().map(|d| body(d)).collect::<Vec<_>>(), ["1", "2", "3"]);
        let origins: Vec<_> = of_key.iter().map(|d| d.message().origin().clone()).collect();
        assert!(origins.iter().all(|origin| origin.partition == origins[0].partition));
        partitions.insert(origins[0].partition);
    }
    assert!(partitions.len() > 1);
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_unroutable() {
    let broker = MemoryBroker::log(1);
    let publisher = publisher(&broker).await;
    let refused = publisher.publish("orders", &Message::new("a")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unroutable);
    let spec = ConsumerSpec::new("points", 1, Topology::Verify).with(Subscription::new("orders"));
    let missing = broker.prepare(&spec, &mut Plan::default()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Topology);
}

#[tokio::test(start_paused = true)]
async fn kf5_the_lowest_unfinished_offset_is_committed() {
    let broker = MemoryBroker::log(1);
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["0", "1", "2", "3"]).await;
    let mut taken = take(&mut source, 4).await;
    accept(taken.split_off(1));
    assert_eq!((broker.committed("points", "orders", 0), broker.left("points")), (Some(0), 1));
    accept(taken);
    assert_eq!((broker.committed("points", "orders", 0), broker.left("points")), (Some(4), 0));
    assert_eq!(broker.committed("points", "orders", 1), None);
    assert_eq!(broker.committed("mail", "orders", 0), None);
}

#[tokio::test(start_paused = true)]
async fn a_crash_begins_again_at_the_committed_offset_and_flags_suspects() {
    let broker = MemoryBroker::log(1);
    let mut source = open(&broker, "points", &["orders"]).await;
    let bodies_in: Vec<_> = (0..30).map(|n| n.to_string()).collect();
    publish(&broker, "orders", &bodies_in.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut taken = take(&mut source, 4).await;
    assert_eq!(flags(&taken), [false; 4]);
    let late = taken.remove(1);
    accept(taken);
    broker.crash("points");
    let mut next = open(&broker, "points", &["orders"]).await;
    late.ack(Ack::Accept);
    let again = take(&mut next, 29).await;
    assert_eq!(bodies(&again)[..3], ["1", "2", "3"]);
    // The first in_flight offsets after the committed one, which is 1.
    let mut expected = [false; 29];
    expected[..16].fill(true);
    assert_eq!(flags(&again), expected);
    assert_eq!(broker.committed("points", "orders", 0), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_crash_forgets_what_was_done_and_not_committed() {
    let broker = MemoryBroker::log(1);
    broker.commit_late(2);
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["0", "1", "2", "3", "4"]).await;
    accept(take(&mut source, 4).await);
    assert_eq!(broker.committed("points", "orders", 0), Some(4));
    broker.crash("points");
    let mut next = open(&broker, "points", &["orders"]).await;
    let again = take(&mut next, 3).await;
    assert_eq!(bodies(&again), ["2", "3", "4"]);
    assert_eq!(flags(&again)[..2], [true; 2]);
    accept(again.into_iter().take(1));
    // No commit goes back behind the one that its owner began with.
    broker.crash("points");
    let mut last = open(&broker, "points", &["orders"]).await;
    assert_eq!(bodies(&take(&mut last, 3).await), ["2", "3", "4"]);
}

#[tokio::test(start_paused = true)]
async fn after_a_clean_close_nothing_is_suspect_and_finished_offsets_stay_finished() {
    let broker = MemoryBroker::log(1);
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["0", "1", "2", "3"]).await;
    let mut taken = take(&mut source, 3).await;
    taken.remove(0).ack(Ack::Release);
    accept(taken);
    source.close(SECOND).await.unwrap();
    let mut next = open(&broker, "points", &["orders"]).await;
    let taken = take(&mut next, 2).await;
    assert_eq!((bodies(&taken), flags(&taken)), (vec!["0".to_owned(), "3".to_owned()], vec![false; 2]));
}

#[tokio::test(start_paused = true)]
async fn a_close_with_deliveries_out_is_not_clean() {
    let broker = MemoryBroker::log(1);
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["0", "1"]).await;
    let out = one(&mut source).await;
    source.close(SECOND).await.unwrap();
    // A clean stop in between that reached nothing does not whitewash it.
    open(&broker, "points", &["orders"]).await.close(SECOND).await.unwrap();
    let mut next = open(&broker, "points", &["orders"]).await;
    let again = one(&mut next).await;
    assert!(again.facts().redelivered);
    drop(out);
    assert_eq!(next.outstanding(), 1);
}

#[tokio::test(start_paused = true)]
async fn answers_move_the_log_on_and_what_comes_back_keeps_its_identity() {
    let broker = MemoryBroker::log(1);
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["retry", "defer", "reject", "discard", "release"]).await;
    let taken = take(&mut source, 5).await;
    let start = Instant::now();
    let first = charged(&taken[0], "points", "orders", POSITION);
    for delivery in taken {
        let trail = charged(&delivery, "points", "orders", POSITION);
        let ack = match &*body(&delivery) {
            "retry" => Ack::retry(5 * SECOND, trail, "busy"),
            "defer" => Ack::Defer { after: SECOND },
            "reject" => reject(&delivery, "points", "orders", POSITION),
            "discard" => Ack::Discard { reason: "policy" },
            _ => Ack::Release,
        };
        delivery.ack(ack);
    }
    assert_eq!((broker.committed("points", "orders", 0), source.outstanding()), (Some(1), 0));
    assert_eq!((broker.left("points"), broker.discarded()), (3, 1));
    let back = take(&mut source, 2).await;
    assert_eq!((bodies(&back), flags(&back)), (vec!["release".into(), "defer".into()], vec![true, false]));
    assert!(start.elapsed() >= SECOND && start.elapsed() < 2 * SECOND);
    assert_eq!(back[1].message().origin().offset, Some(1));
    accept(back);
    assert_eq!(broker.committed("points", "orders", 0), Some(5));
    let copy = one(&mut source).await;
    assert!(start.elapsed() >= 5 * SECOND);
    let read = Trail::read(copy.message(), &first.consumer, &first.kind, POSITION);
    assert_eq!((read.id, read.attempt), (first.id, 1));
    copy.ack(Ack::Accept);
    assert_eq!(texts(&broker.dead_letters("points", "orders")), ["reject"]);
    assert_eq!(broker.left("points"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_replay_is_a_new_message_on_a_log_too() {
    let broker = MemoryBroker::log(2);
    let mut source = open(&broker, "points", &["orders"]).await;
    let mut other = open(&broker, "mail", &["orders"]).await;
    publish(&broker, "orders", &["a"]).await;
    accept(take(&mut other, 1).await);
    let delivery = one(&mut source).await;
    let first = charged(&delivery, "points", "orders", POSITION);
    let ack = reject(&delivery, "points", "orders", POSITION);
    delivery.ack(ack);
    assert_eq!(broker.replay("points", "orders"), 1);
    assert_eq!((broker.left("points"), broker.left("mail")), (1, 0));
    let replay = one(&mut source).await;
    let trail = charged(&replay, "points", "orders", POSITION);
    assert_ne!(trail.id, first.id);
    assert_eq!((trail.attempt, trail.replays), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn copies_survive_a_crash() {
    let broker = MemoryBroker::log(1);
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a"]).await;
    let delivery = one(&mut source).await;
    let trail = charged(&delivery, "points", "orders", POSITION);
    delivery.ack(Ack::retry(5 * SECOND, trail.clone(), "busy"));
    broker.crash("points");
    let mut next = open(&broker, "points", &["orders"]).await;
    let copy = one(&mut next).await;
    assert!(!copy.facts().redelivered);
    drop((copy, next));
    let mut last = open(&broker, "points", &["orders"]).await;
    let copy = one(&mut last).await;
    assert!(copy.facts().redelivered);
    assert_eq!(charged(&copy, "points", "orders", POSITION).attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn kf2_a_revoke_waits_for_what_is_out_and_then_moves() {
    let broker = MemoryBroker::log(2);
    let mut first = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a", "b", "c", "d"]).await;
    let mut out = vec![one(&mut first).await, one(&mut first).await];
    assert_ne!(out[0].message().origin().partition, out[1].message().origin().partition);
    let mut second = open(&broker, "points", &["orders"]).await;
    let (lost, _) = revoked(&mut first).await;
    assert_eq!(lost.len(), 2, "the topic and its copies: {lost:?}");
    let scope = Scope::Partitions(lost);
    let leaving = out.iter().position(|d| scope.contains(d.message().origin())).unwrap();
    let last = out.remove(leaving);
    nothing(&mut second, SECOND).await;
    // Nothing of a leaving partition is handed out any more; the other one goes on.
    let kept = one(&mut first).await;
    assert!(!scope.contains(kept.message().origin()));
    let waiting = sleeping(&mut second);
    last.ack(Ack::Accept);
    assert!(waiting.is_woken());
    let moved = one(&mut second).await;
    assert!(scope.contains(moved.message().origin()) && !moved.facts().redelivered);
    moved.ack(Ack::Accept);
    assert_eq!((first.outstanding(), second.outstanding()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn answers_of_a_lost_owner_are_void() {
    let broker = MemoryBroker::log(1);
    let mut first = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a"]).await;
    let slow = one(&mut first).await;
    // A second member gets nothing of one partition; when the first leaves, it does.
    let mut second = open(&broker, "points", &["orders"]).await;
    let mut third = open(&broker, "points", &["orders"]).await;
    nothing(&mut second, SECOND).await;
    drop(first);
    let again = one(&mut second).await;
    assert!(again.facts().redelivered);
    slow.ack(Ack::Accept);
    assert_eq!((broker.committed("points", "orders", 0), second.outstanding()), (Some(0), 1));
    again.ack(Ack::Accept);
    assert_eq!(broker.committed("points", "orders", 0), Some(1));
    nothing(&mut third, SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_moves_the_partition_and_fences_its_old_owner() {
    let broker = MemoryBroker::log(2);
    let mut first = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a", "b"]).await;
    let mut out = take(&mut first, 2).await;
    let start = Instant::now();
    let mut second = open(&broker, "points", &["orders"]).await;
    let (lost, deadline) = revoked(&mut first).await;
    assert_eq!(deadline - start, 30 * SECOND);
    let again = one(&mut second).await;
    assert!(start.elapsed() >= 30 * SECOND && again.facts().redelivered);
    assert_eq!((first.outstanding(), second.outstanding()), (1, 1));
    let scope = Scope::Partitions(lost);
    let stale = out.remove(out.iter().position(|d| scope.contains(d.message().origin())).unwrap());
    stale.ack(Ack::Accept);
    assert_eq!((first.outstanding(), broker.left("points")), (1, 2));
    accept(out);
    assert_eq!((first.outstanding(), broker.left("points")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn members_share_partitions_evenly_and_few_move() {
    let broker = MemoryBroker::log(6);
    let mut members = Vec::new();
    for n in 1..=4 {
        members.push(open(&broker, "points", &["orders"]).await);
        let mut moved = 0;
        for member in &mut members {
            let mut polled = Vec::new();
            let waker = std::task::Waker::noop();
            let _ = member.poll_events(&mut std::task::Context::from_waker(waker), 0, &mut polled);
            for event in polled {
                if let Event::Revoking { scope: Scope::Partitions(list), .. } = event {
                    moved += list.len() / 2;
                }
            }
        }
        assert_eq!(moved, [0, 3, 2, 1][n - 1], "{n} members");
    }
    publish(&broker, "orders", &["1", "2", "3", "4", "5", "6"]).await;
    let mut counts = Vec::new();
    for member in &mut members {
        let mut polled = Vec::new();
        let waker = std::task::Waker::noop();
        let _ = member.poll_events(&mut std::task::Context::from_waker(waker), 16, &mut polled);
        counts.push(polled.len());
    }
    assert_eq!(counts.iter().sum::<usize>(), 6);
    assert!(counts.iter().all(|count| (1..=2).contains(count)), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cut_begins_again_under_a_new_epoch() {
    let broker = MemoryBroker::log(1);
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["0", "1"]).await;
    let mut stale = take(&mut source, 2).await;
    accept(stale.split_off(1));
    broker.disconnect();
    assert!(matches!(events(&mut source, 9).await[..], [Event::Health(Health::Degraded(_))]));
    broker.reconnect();
    let again = take(&mut source, 2).await;
    assert_eq!((bodies(&again), flags(&again)), (vec!["0".into(), "1".into()], vec![true; 2]));
    accept(stale);
    assert_eq!((source.outstanding(), broker.committed("points", "orders", 0)), (2, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn lost_acks_come_back_in_process() {
    let broker = MemoryBroker::log(1);
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["0"]).await;
    broker.lose_acks(1);
    for redelivered in [false, true] {
        let delivery = one(&mut source).await;
        assert_eq!(delivery.facts().redelivered, redelivered);
        delivery.ack(Ack::Accept);
    }
    assert_eq!(broker.committed("points", "orders", 0), Some(1));
}

#[tokio::test(start_paused = true)]
async fn expired_offsets_come_as_a_gap() {
    let broker = MemoryBroker::log(1);
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["0", "1", "2", "3", "4"]).await;
    let mut out = take(&mut source, 2).await;
    out.remove(1).ack(Ack::Release);
    broker.expire("orders", 0, 4);
    let seen = events(&mut source, 9).await;
    let [Event::Gap { from: 2, to: 4, .. }, Event::Delivery(last)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(body(last), "4");
    // What is out may still be answered.
    accept(out);
    assert_eq!((broker.committed("points", "orders", 0), broker.left("points")), (Some(4), 1));
}
