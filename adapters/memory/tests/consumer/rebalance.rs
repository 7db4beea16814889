//! Several consumers of one name on a log.

use std::collections::BTreeMap;
use std::time::Duration;

use oncemq_core::{Consumer, Context, Failure, Message, Ordering};
use oncemq_memory::MemoryBroker;

use crate::common::publisher;
use crate::{SECOND, Seen, drained, start, text};

fn member(broker: &MemoryBroker, seen: &Seen, name: &'static str, work: Duration) -> Consumer {
    let seen = seen.clone();
    let handler = move |_: Context, message: Message| {
        let seen = seen.clone();
        async move {
            tokio::time::sleep(work).await;
            seen.add(format!("{name} {}", text(&message)));
            Ok::<(), Failure>(())
        }
    };
    Consumer::new("points", broker.clone()).in_flight(8).workers(2).topic("orders").unguarded(handler)
}

async fn publish_all(broker: &MemoryBroker, keys: usize, each: usize) {
    let publisher = publisher(broker).await;
    for n in 0..each {
        for key in 0..keys {
            let message = Message::new(format!("{key} {n}")).with_key(key.to_string());
            publisher.publish("orders", &message).await.unwrap();
        }
    }
}

/// The numbers of each key in the order they were handled, whoever did it.
fn by_key(seen: &Seen) -> BTreeMap<String, Vec<usize>> {
    let mut by_key: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for name in seen.names() {
        let mut words = name.split(' ').skip(1);
        let key = words.next().unwrap().to_owned();
        by_key.entry(key).or_default().push(words.next().unwrap().parse().unwrap());
    }
    by_key
}

#[tokio::test(start_paused = true)]
async fn members_that_join_and_leave_lose_double_and_reorder_nothing() {
    let broker = MemoryBroker::log(6);
    let seen = Seen::new();
    let work = Duration::from_millis(40);
    let first = start(member(&broker, &seen, "first", work)).await;
    publish_all(&broker, 12, 60).await;
    tokio::time::sleep(SECOND).await;
    let second = start(member(&broker, &seen, "second", work)).await;
    tokio::time::sleep(SECOND).await;
    let third = start(member(&broker, &seen, "third", work)).await;
    tokio::time::sleep(SECOND).await;
    let of_first = first.finish().await;
    tokio::time::sleep(SECOND).await;
    let fourth = start(member(&broker, &seen, "fourth", work)).await;
    drained(&broker, "points").await;
    let by_key = by_key(&seen);
    assert_eq!(by_key.len(), 12);
    for (key, list) in by_key {
        assert_eq!(list, (0..60).collect::<Vec<_>>(), "key {key}");
    }
    let mut handled = of_first.handled;
    for (name, running) in [("second", second), ("third", third), ("fourth", fourth)] {
        let part = running.finish().await.handled;
        assert!(part > 0, "{name} did nothing");
        handled += part;
    }
    assert_eq!(handled, 720);
}

#[tokio::test(start_paused = true)]
async fn a_revoke_gives_a_run_the_time_of_its_handler() {
    let broker = MemoryBroker::log(2);
    let seen = Seen::new();
    let publisher = publisher(&broker).await;
    // The limit of a revoke is the handler's own: 30 s unless set, and this run takes 29 s.
    let first = start(member(&broker, &seen, "first", 29 * SECOND)).await;
    for body in ["0 0", "1 0", "2 0", "3 0"] {
        publisher.publish("orders", &Message::new(body)).await.unwrap();
    }
    tokio::time::sleep(SECOND).await;
    let second = start(member(&broker, &seen, "second", SECOND)).await;
    drained(&broker, "points").await;
    // The owner was given the time to finish, so nothing was made twice.
    assert_eq!(seen.len(), 4);
    let handled = first.finish().await.handled + second.finish().await.handled;
    assert_eq!(handled, 4);
}

/// Its ladder waits in place for an hour if `fails`.
fn climber(broker: &MemoryBroker, seen: &Seen, fails: bool, work: Duration) -> Consumer {
    let seen = seen.clone();
    let handler = move |cx: Context, message: Message| {
        let seen = seen.clone();
        async move {
            tokio::time::sleep(work).await;
            let name = if fails { "first" } else { "second" };
            seen.add(format!("{name} {} {}", text(&message), cx.attempt()));
            if fails { Err(Failure::system("the bank is closed")) } else { Ok(()) }
        }
    };
    Consumer::new("points", broker.clone())
        .workers(2)
        .topic("orders")
        .ordering(Ordering::Ordered)
        .retry("1h dead-letter".parse().unwrap())
        .unguarded(handler)
}

#[tokio::test(start_paused = true)]
async fn a_revoke_ends_what_only_waits_for_a_rung() {
    // They wait when the revoke comes, or fail while it lasts.
    for work in [Duration::ZERO, 3 * SECOND] {
        let broker = MemoryBroker::log(2);
        let seen = Seen::new();
        let first = start(climber(&broker, &seen, true, work)).await;
        publish_all(&broker, 8, 2).await;
        tokio::time::sleep(SECOND).await;
        let second = start(climber(&broker, &seen, false, Duration::ZERO)).await;
        // Long before the 30 seconds that a revoke gives to runs.
        tokio::time::sleep(work + 2 * SECOND).await;
        let by = |name: &str| -> Vec<String> {
            seen.names().iter().filter_map(|line| line.strip_prefix(name).map(str::to_owned)).collect()
        };
        let moved = by("second ");
        assert!(!moved.is_empty() && moved.len() < 16, "{moved:?}");
        // Whole keys, in order, and nothing of them is charged.
        let keys: Vec<_> = moved.iter().filter_map(|line| line.strip_suffix(" 0 1")).collect();
        let later = moved.iter().filter_map(|line| line.strip_suffix(" 1 1"));
        assert_eq!(later.collect::<Vec<_>>(), keys, "{moved:?}");
        assert_eq!(moved.len(), 2 * keys.len());
        // The first one ran the head of every key once, and what stayed waits on.
        assert_eq!(by("first ").len(), 8);
        let kept = 16 - moved.len();
        assert_eq!(broker.left("points"), kept);
        assert_eq!(second.finish().await.handled, moved.len() as u64);
        let summary = first.finish().await;
        assert_eq!((summary.handled, summary.retried, summary.rejected), (0, 0, 0));
    }
}
