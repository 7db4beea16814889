//! Queue mode at the level of the traits.

mod common;

use std::time::Duration;

use common::*;
use oncemq_core::{
    Ack, Broker, Class, ConsumerSpec, ErrorKind, Event, Health, Identity, Message, Ordering, Plan,
    Subscription, Topology, header,
};
use oncemq_memory::{MemoryBroker, Mode};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_message_goes_to_every_queue_bound_to_its_topic() {
    let broker = MemoryBroker::queue();
    let mut points = open(&broker, "points", &["orders"]).await;
    let mut mail = open(&broker, "mail", &["orders"]).await;
    publish(&broker, "orders", &["a", "b"]).await;
    for (source, queue) in [(&mut points, "points.orders"), (&mut mail, "mail.orders")] {
        let taken = take(source, 2).await;
        assert_eq!(bodies(&taken), ["a", "b"]);
        assert_eq!(taken[0].message().origin().to_string(), format!("memory/{queue}"));
        taken.into_iter().for_each(|delivery| delivery.ack(Ack::Accept));
    }
    assert_eq!((broker.left("points"), broker.left("mail")), (0, 0));
}

#[tokio::test]
async fn without_a_queue_a_message_is_unroutable() {
    let broker = MemoryBroker::queue();
    let publisher = publisher(&broker).await;
    let refused = publisher.publish("orders", &Message::new("a")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unroutable);
    let _source = open(&broker, "points", &["orders"]).await;
    publisher.publish("orders", &Message::new("a")).await.unwrap();
    publisher.close().await.unwrap();
    publisher.close().await.unwrap();
    let closed = publisher.publish("orders", &Message::new("a")).await.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_release_comes_back_first_and_flagged() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a", "b", "c"]).await;
    let mut taken = take(&mut source, 2).await;
    assert!(taken.iter().all(|delivery| !delivery.facts().redelivered));
    // Whatever the order of giving back, the queue's order stays.
    taken.remove(0).ack(Ack::Release);
    drop(taken);
    let again = take(&mut source, 3).await;
    assert_eq!(bodies(&again), ["a", "b", "c"]);
    let flags: Vec<_> = again.iter().map(|delivery| delivery.facts().redelivered).collect();
    assert_eq!(flags, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_comes_back_as_a_copy_after_its_delay() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    let publisher = publisher(&broker).await;
    let original = Message::new(vec![0, 255, 1]).with_id("7").with_header("t", "1").with_header("t", "2");
    publisher.publish("orders", &original).await.unwrap();
    let delivery = one(&mut source).await;
    let trail = charged(&delivery, "points", "orders", Identity::Content);
    let start = Instant::now();
    delivery.ack(Ack::retry(5 * SECOND, trail.clone(), "busy"));
    assert_eq!((source.outstanding(), broker.left("points")), (0, 1));
    let copy = one(&mut source).await;
    assert!(start.elapsed() >= 5 * SECOND && start.elapsed() < 6 * SECOND);
    let read = oncemq_core::Trail::read(copy.message(), &trail.consumer, &trail.kind, Identity::Content);
    assert_eq!((read.id, read.attempt, read.from_ladder), (trail.id, 1, true));
    assert_eq!(copy.message().body(), [0, 255, 1]);
    assert_eq!(copy.message().headers().iter().filter(|(name, _)| *name == "t").count(), 2);
    assert!(!copy.facts().redelivered);
}

#[tokio::test(start_paused = true)]
async fn a_defer_comes_back_itself_and_a_discard_never() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a"]).await;
    one(&mut source).await.ack(Ack::Defer { after: SECOND });
    nothing(&mut source, SECOND / 2).await;
    let again = one(&mut source).await;
    assert!(again.message().headers().is_empty());
    assert!(!again.facts().redelivered);
    again.ack(Ack::Discard { reason: "policy" });
    nothing(&mut source, 60 * SECOND).await;
    assert_eq!((broker.discarded(), broker.left("points")), (1, 0));
    assert!(broker.dead_letters("points", "orders").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_reject_lands_in_the_dead_letters_and_a_replay_has_a_fresh_budget() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a"]).await;
    let delivery = one(&mut source).await;
    let ack = reject(&delivery, "points", "orders", Identity::Content);
    let first = charged(&delivery, "points", "orders", Identity::Content).id;
    delivery.ack(ack);
    let letters = broker.dead_letters("points", "orders");
    assert_eq!(texts(&letters), ["a"]);
    assert_eq!(letters[0].headers().get_str(header::REASON), Some("no such product"));
    assert_eq!(letters[0].headers().get_str(header::CLASS), Some("business"));
    assert_eq!(broker.left("points"), 0);

    assert_eq!(broker.replay("points", "orders"), 1);
    let replay = one(&mut source).await;
    let trail = charged(&replay, "points", "orders", Identity::Content);
    assert_ne!(trail.id, first);
    assert_eq!((trail.attempt, trail.replays), (1, 1));
    assert!(broker.dead_letters("points", "orders").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_crash_returns_what_was_out_and_voids_late_answers() {
    let broker = MemoryBroker::queue();
    let mut dead = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a", "b", "c"]).await;
    let mut out = take(&mut dead, 2).await;
    out.remove(0).ack(Ack::Defer { after: 60 * SECOND });
    broker.crash("points");
    let mut next = open(&broker, "points", &["orders"]).await;
    let taken = take(&mut next, 3).await;
    // Also what the dead process had put aside.
    assert_eq!(bodies(&taken), ["a", "b", "c"]);
    let flags: Vec<_> = taken.iter().map(|delivery| delivery.facts().redelivered).collect();
    assert_eq!(flags, [true, true, false]);
    out.remove(0).ack(Ack::Accept);
    assert_eq!((broker.left("points"), next.outstanding(), dead.outstanding()), (3, 3, 0));
    let mut events = Vec::new();
    let end = std::future::poll_fn(|cx| dead.poll_events(cx, 1, &mut events)).await.unwrap_err();
    assert_eq!(end.kind(), ErrorKind::Closed);
    assert!(events.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_crash_ends_a_poll_that_waits() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    let _health = events(&mut source, 1).await;
    let waits = tokio::spawn(async move {
        let mut events = Vec::new();
        std::future::poll_fn(|cx| source.poll_events(cx, 1, &mut events)).await.map_err(|error| error.kind())
    });
    tokio::task::yield_now().await;
    broker.crash("points");
    assert_eq!(waits.await.unwrap(), Err(ErrorKind::Closed));
}

#[tokio::test(start_paused = true)]
async fn lost_acks_bring_the_message_back() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a"]).await;
    broker.lose_acks(2);
    for redelivered in [false, true, true] {
        let delivery = one(&mut source).await;
        assert_eq!(delivery.facts().redelivered, redelivered);
        delivery.ack(Ack::Accept);
    }
    assert_eq!(broker.left("points"), 0);
}

#[tokio::test(start_paused = true)]
async fn rb6_an_answer_from_before_a_reconnect_is_void() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a", "b"]).await;
    let stale = take(&mut source, 2).await;
    broker.disconnect();
    assert_eq!(source.outstanding(), 0);
    let seen = events(&mut source, 10).await;
    assert!(matches!(&seen[..], [Event::Health(Health::Degraded(_))]), "{seen:?}");
    let refused = broker.publisher().await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Connection);
    broker.reconnect();
    let seen = events(&mut source, 1).await;
    let [Event::Reconnected { .. }, Event::Health(Health::Up), Event::Delivery(first)] = &seen[..] else {
        panic!("{seen:?}");
    };
    assert!(first.facts().redelivered);
    // The old ids are in use again; their answers must not reach the new deliveries.
    stale.into_iter().for_each(|delivery| delivery.ack(Ack::Accept));
    assert_eq!((broker.left("points"), source.outstanding()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn with_room_for_nothing_only_other_events_come() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a"]).await;
    assert!(matches!(events(&mut source, 0).await[..], [Event::Health(Health::Up)]));
    let none = tokio::time::timeout(SECOND, events(&mut source, 0)).await;
    assert!(none.is_err());
    assert_eq!((source.outstanding(), broker.left("points")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn settling_wakes_the_task_that_polls() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a"]).await;
    let delivery = one(&mut source).await;
    let settled = sleeping(&mut source);
    assert!(!settled.is_woken());
    delivery.ack(Ack::Accept);
    assert!(settled.is_woken());
    assert_eq!(source.outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn several_queues_of_a_source_take_turns() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders", "refunds"]).await;
    let many: Vec<_> = (0..100).map(|n| n.to_string()).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    publish(&broker, "orders", &many).await;
    publish(&broker, "refunds", &many).await;
    let taken = take(&mut source, 64).await;
    let orders = taken.iter().filter(|delivery| delivery.facts().subscription == 0).count();
    assert_eq!(orders, 32);
}

#[tokio::test(start_paused = true)]
async fn competing_sources_share_a_queue_unless_it_is_ordered() {
    for (ordering, second) in [(Ordering::Free, 2), (Ordering::Ordered, 0)] {
        let broker = MemoryBroker::queue();
        let mut subscription = Subscription::new("orders");
        subscription.ordering = ordering;
        let spec = ConsumerSpec::new("points", 16, Topology::Declare).with(subscription);
        broker.prepare(&spec, &mut Plan::default()).await.unwrap();
        let mut sources = [broker.subscribe(&spec).await.unwrap(), broker.subscribe(&spec).await.unwrap()];
        let _health = events(&mut sources[1], 0).await;
        publish(&broker, "orders", &["a", "b", "c"]).await;
        let first = one(&mut sources[0]).await;
        let mut polled = Vec::new();
        let waker = std::task::Waker::noop();
        let _ = sources[1].poll_events(&mut std::task::Context::from_waker(waker), 2, &mut polled);
        assert_eq!(polled.len(), second, "{ordering:?}");
        drop((first, polled));
        sources[0].close(SECOND).await.unwrap();
        // The next one is served once the first has left.
        assert_eq!(bodies(&take(&mut sources[1], 3).await), ["a", "b", "c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn closing_twice_is_fine_and_gives_back_what_is_out() {
    let broker = MemoryBroker::queue();
    let mut source = open(&broker, "points", &["orders"]).await;
    publish(&broker, "orders", &["a"]).await;
    let out = one(&mut source).await;
    source.close(SECOND).await.unwrap();
    source.close(SECOND).await.unwrap();
    let mut next = open(&broker, "points", &["orders"]).await;
    assert!(one(&mut next).await.facts().redelivered);
    out.ack(Ack::Accept);
    assert_eq!(broker.left("points"), 1);
}

#[tokio::test]
async fn an_existing_queue_is_taken_and_a_missing_one_refused() {
    let broker = MemoryBroker::queue();
    let spec = ConsumerSpec::new("points", 1, Topology::Declare)
        .with(Subscription::new("orders").with_queue("legacy"));
    let mut plan = Plan::default();
    let missing = broker.prepare(&spec, &mut plan).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Topology);
    assert!(missing.to_string().contains("legacy"), "{missing}");
    broker.bind("legacy", "orders");
    broker.prepare(&spec, &mut plan).await.unwrap();
    let mut source = broker.subscribe(&spec).await.unwrap();
    publish(&broker, "orders", &["a"]).await;
    let delivery = one(&mut source).await;
    delivery.ack(Ack::reject(
        Class::System,
        oncemq_core::Trail::read(&Message::new("a"), &"points".into(), &"orders".into(), Identity::Content),
        "broken",
    ));
    assert_eq!(broker.dead_letters("points", "orders").len(), 1);

    for topology in [Topology::Verify, Topology::Trust] {
        let spec = ConsumerSpec::new("other", 1, topology).with(Subscription::new("orders"));
        let refused = match broker.prepare(&spec, &mut plan).await {
            Ok(()) => broker.subscribe(&spec).await.err(),
            Err(error) => Some(error),
        };
        assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Topology), "{topology:?}");
    }
}

#[tokio::test]
async fn a_name_is_one_broker_for_the_whole_process() {
    let first = MemoryBroker::named("shop", Mode::Queue).unwrap();
    let _source = open(&first, "points", &["orders"]).await;
    let second = MemoryBroker::named("shop", Mode::Queue).unwrap();
    publish(&second, "orders", &["a"]).await;
    assert_eq!(first.left("points"), 1);
    let other = MemoryBroker::named("shop", Mode::Log { partitions: 2 }).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Config);
    let none = MemoryBroker::named("empty", Mode::Log { partitions: 0 }).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Config);
}
