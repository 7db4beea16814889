//! A source without the runtime around it: what each answer means.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;

use common::Bare;
use common::raw::Raw;
use common::{broker, management, millis, secs, test, until};
use oncemq_core::{Ack, Class, Delivery, ErrorKind, Identity, Trail};
use oncemq_rabbitmq::QueueType;
use tokio::time::{Instant, sleep};

fn main() {
    common::main(vec![
        test("no_more_is_handed_out_than_there_are_places", no_more_than_places),
        test("a_place_is_free_when_the_answer_is_written", places_are_freed),
        test("dropped_it_comes_back_flagged_also_without_a_runtime", dropped_comes_back),
        test("acks_out_of_order_survive_a_lost_connection", out_of_order_acks),
        test("rb1_an_answer_for_a_dead_channel_is_dropped", stale_answers),
        test("a_deferred_delivery_comes_again_after_its_time", deferred),
        test("a_delivery_deferred_for_too_long_goes_back_in_time", deferred_too_long),
        test("deferred_ones_do_not_take_places", deferred_take_no_place),
        test("a_retry_comes_back_after_its_rung", retried),
        test("discarded_it_is_gone", discarded),
        test("a_retry_of_a_lost_connection_is_made_once", retry_of_a_dead_channel),
        test("after_close_there_is_nothing_and_unsettled_comes_back", closed),
        test("a_close_loses_no_acknowledgement_of_a_quorum_queue", closed_at_once),
        test("dropped_without_a_close_everything_comes_back", dropped_source),
        test("cancelled_polls_lose_nothing", cancelled_polls),
        test("what_a_dead_channel_left_behind_is_not_handed_out", buffered),
    ]);
}

fn management_url() -> String {
    std::env::var("ONCEMQ_RABBITMQ_MANAGEMENT_URL").expect("ONCEMQ_RABBITMQ_MANAGEMENT_URL")
}

fn trail(delivery: &Delivery, attempt: u32) -> Trail {
    let mut trail = Trail::read(delivery.message(), &"bare".into(), &"kind".into(), Identity::Content);
    trail.attempt = attempt;
    trail
}

async fn no_more_than_places() {
    let mut bare = Bare::open(broker(), 3).await;
    bare.send(0..10).await;
    let mut out = Vec::new();
    for _ in 0..3 {
        out.push(bare.next().await);
    }
    assert_eq!(bare.source.outstanding(), 3);
    assert!(bare.is_silent(millis(300)).await);
    out.pop().unwrap().ack(Ack::Accept);
    assert_eq!(Bare::body(&bare.next().await), 3);
}

async fn places_are_freed() {
    let mut bare = Bare::open(broker(), 10).await;
    bare.send(0..10).await;
    let mut out = Vec::new();
    for _ in 0..10 {
        out.push(bare.next().await);
    }
    for (i, delivery) in out.into_iter().enumerate() {
        let reason = "no longer wanted";
        match i % 5 {
            0 => delivery.ack(Ack::Discard { reason }),
            1 => {
                let trail = trail(&delivery, 0);
                delivery.ack(Ack::reject(Class::Business, trail, reason));
            }
            2 => {
                let trail = trail(&delivery, 1);
                delivery.ack(Ack::retry(millis(300), trail, reason));
            }
            _ => delivery.ack(Ack::Accept),
        }
    }
    assert!(bare.source.flush(secs(10)).await);
    assert_eq!(bare.source.outstanding(), 0);
    let raw = Raw::connect().await;
    assert_eq!(raw.ready(&format!("{}.dead", bare.queue())).await, Some(2));
}

async fn dropped_comes_back() {
    let mut bare = Bare::open(broker(), 2).await;
    bare.send([7]).await;
    let first = bare.next().await;
    assert!(!first.facts().redelivered);
    std::thread::spawn(move || drop(first)).join().unwrap();
    let second = bare.next().await;
    assert!(second.facts().redelivered);
    drop(second);
    bare.next().await.ack(Ack::Accept);
    assert!(bare.source.flush(secs(5)).await);
    assert!(bare.is_silent(millis(200)).await);
}

async fn out_of_order_acks() {
    let mut bare = Bare::open(broker(), 20).await;
    bare.send(0..20).await;
    let mut kept = Vec::new();
    for i in 0..20 {
        let delivery = bare.next().await;
        if i % 3 == 0 { kept.push(delivery) } else { delivery.ack(Ack::Accept) }
    }
    assert!(bare.source.flush(secs(5)).await);
    let expected: BTreeSet<u32> = kept.iter().map(Bare::body).collect();
    let raw = Raw::connect().await;
    let (queue, n) = (bare.queue(), kept.len());
    bare.source.close(secs(5)).await.unwrap();
    drop(kept);
    until("what was kept is back", secs(5), async || raw.ready(&queue).await == Some(n as u32)).await;
    let back = raw.take(&queue, n).await;
    let back: BTreeSet<u32> =
        back.iter().map(|d| String::from_utf8_lossy(&d.data).parse().unwrap()).collect();
    assert_eq!(back, expected);
}

/// Closes the connection of this source from the server's side, and waits for the next.
async fn cut(bare: &mut Bare) {
    let before = bare.reconnected;
    let end = Instant::now() + secs(30);
    while bare.reconnected == before {
        assert!(Instant::now() < end, "not connected again: {}", bare.health);
        if bare.health.is_up() {
            // The interface learns of a connection some time after it was made.
            management::close_connections(&management_url(), &format!("{} consumer", bare.consumer)).await;
        }
        let _ = tokio::time::timeout(secs(1), bare.poll()).await;
    }
}

async fn stale_answers() {
    let mut bare = Bare::open(broker(), 10).await;
    bare.send(0..4).await;
    let mut old = Vec::new();
    for _ in 0..4 {
        old.push(bare.next().await);
    }
    cut(&mut bare).await;
    let mut fresh = Vec::new();
    for _ in 0..4 {
        fresh.push(bare.next().await);
    }
    assert!(fresh.iter().all(|delivery| delivery.facts().redelivered));
    assert_eq!(bare.source.outstanding(), 8);
    // The tags are the same numbers as those of the new channel.
    for delivery in old {
        delivery.ack(Ack::Accept);
    }
    assert!(bare.source.flush(secs(5)).await);
    assert_eq!(bare.source.outstanding(), 4);
    let reconnected = bare.reconnected;
    // Nobody has answered for them: given back they come again.
    drop(fresh);
    for _ in 0..4 {
        bare.next().await.ack(Ack::Accept);
    }
    assert!(bare.source.flush(secs(5)).await);
    assert!(bare.is_silent(millis(700)).await);
    assert_eq!((bare.source.outstanding(), bare.reconnected), (0, reconnected));
}

async fn deferred() {
    let mut bare = Bare::open(broker(), 2).await;
    bare.send([1]).await;
    let begin = Instant::now();
    bare.next().await.ack(Ack::Defer { after: millis(400) });
    let again = bare.next().await;
    assert!(begin.elapsed() >= millis(400));
    // In the process: the broker has not seen it.
    assert!(!again.facts().redelivered);
    again.ack(Ack::Accept);
    assert!(bare.source.flush(secs(5)).await);
    assert_eq!(bare.source.outstanding(), 0);
}

async fn deferred_too_long() {
    let mut bare = Bare::open(broker().consumer_timeout(secs(2)), 2).await;
    bare.send([1]).await;
    let begin = Instant::now();
    bare.next().await.ack(Ack::Defer { after: secs(60) });
    let again = bare.next().await;
    let waited = begin.elapsed();
    assert!(waited >= millis(800) && waited < secs(10), "{waited:?}");
    assert!(again.facts().redelivered);
    again.ack(Ack::Accept);
    assert!(bare.source.flush(secs(5)).await);
    assert_eq!(bare.source.outstanding(), 0);
}

async fn deferred_take_no_place() {
    let mut bare = Bare::open(broker(), 2).await;
    bare.send(0..2).await;
    for _ in 0..2 {
        bare.next().await.ack(Ack::Defer { after: millis(300) });
    }
    sleep(millis(50)).await;
    assert_eq!(bare.source.outstanding(), 0);
    for _ in 0..2 {
        bare.next().await.ack(Ack::Accept);
    }
    assert!(bare.source.flush(secs(5)).await);
}

async fn retried() {
    let mut bare = Bare::open(broker(), 2).await;
    bare.send([5]).await;
    let first = bare.next().await;
    let trail = trail(&first, 1);
    let begin = Instant::now();
    first.ack(Ack::retry(millis(300), trail, "broken"));
    let second = bare.next().await;
    assert!(begin.elapsed() >= millis(300));
    assert_eq!(Bare::body(&second), 5);
    let read = Trail::read(second.message(), &"bare".into(), &"kind".into(), Identity::Content);
    assert_eq!((read.attempt, read.from_ladder), (1, true));
    second.ack(Ack::Accept);
}

async fn discarded() {
    let mut bare = Bare::open(broker(), 2).await;
    bare.send([5]).await;
    bare.next().await.ack(Ack::Discard { reason: "by policy" });
    assert!(bare.source.flush(secs(5)).await);
    let queue = bare.queue();
    bare.source.close(secs(5)).await.unwrap();
    let raw = Raw::connect().await;
    for queue in [queue.clone(), format!("{queue}.dead")] {
        assert_eq!(raw.ready(&queue).await, Some(0), "{queue}");
    }
}

async fn retry_of_a_dead_channel() {
    let mut bare = Bare::open(broker(), 5).await;
    bare.send([5]).await;
    let old = bare.next().await;
    cut(&mut bare).await;
    let trail = trail(&old, 1);
    old.ack(Ack::retry(millis(300), trail, "broken"));
    bare.next().await.ack(Ack::Accept);
    assert!(bare.source.flush(secs(5)).await);
    // No copy was made: the rung has nothing to hand on.
    assert!(bare.is_silent(millis(800)).await);
}

async fn closed() {
    let mut bare = Bare::open(broker(), 5).await;
    bare.send(0..3).await;
    let kept = bare.next().await;
    bare.next().await.ack(Ack::Accept);
    bare.source.close(secs(5)).await.unwrap();
    bare.source.close(secs(5)).await.unwrap();
    kept.ack(Ack::Accept);
    assert!(bare.source.flush(secs(1)).await);
    let mut events = Vec::new();
    let polled = std::future::poll_fn(|cx| bare.source.poll_events(cx, 5, &mut events)).await;
    assert_eq!(polled.unwrap_err().kind(), ErrorKind::Closed);
    let raw = Raw::connect().await;
    until("two are back", secs(5), async || raw.ready(&bare.queue()).await == Some(2)).await;
}

/// The channel of a quorum queue keeps acknowledgements back when many are under way, and
/// forgets them when it is closed.
async fn closed_at_once() {
    const MANY: u32 = 2000;
    let raw = Raw::connect().await;
    for round in 0..3 {
        let mut bare = Bare::open(broker().queue_type(QueueType::Quorum), MANY as usize).await;
        bare.send(0..MANY).await;
        let mut out = Vec::new();
        for _ in 0..MANY {
            out.push(bare.next().await);
        }
        // Between open ones each has a frame of its own.
        let (open, done): (Vec<_>, Vec<_>) = out.into_iter().partition(|d| Bare::body(d).is_multiple_of(2));
        for delivery in done {
            delivery.ack(Ack::Accept);
        }
        bare.source.close(secs(10)).await.unwrap();
        drop(open);
        // What was lost with the channel is ready again by now.
        sleep(millis(500)).await;
        assert_eq!(raw.ready(&bare.queue()).await, Some(MANY / 2), "round {round}");
    }
}

async fn dropped_source() {
    let mut bare = Bare::open(broker(), 5).await;
    bare.send(0..3).await;
    let kept = bare.next().await;
    let queue = bare.queue();
    drop(bare);
    let raw = Raw::connect().await;
    until("all are back", secs(10), async || raw.ready(&queue).await == Some(3)).await;
    // Nobody is there to be told.
    kept.ack(Ack::Accept);
}

async fn cancelled_polls() {
    let mut bare = Bare::open(broker(), 50).await;
    bare.send(0..200).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 200 {
        let next = tokio::time::timeout(std::time::Duration::from_micros(50), bare.next());
        if let Ok(delivery) = next.await {
            assert!(seen.insert(Bare::body(&delivery)));
            delivery.ack(Ack::Accept);
        }
    }
    assert!(bare.source.flush(secs(5)).await);
    assert_eq!(bare.source.outstanding(), 0);
}

async fn buffered() {
    let mut bare = Bare::open(broker(), 20).await;
    bare.send(0..10).await;
    // One is out; the others wait in the client, since none is asked for.
    bare.in_flight = 1;
    let first = bare.next().await;
    sleep(millis(300)).await;
    let name = format!("{} consumer", bare.consumer);
    until("closed", secs(20), async || management::close_connections(&management_url(), &name).await == 1)
        .await;
    sleep(millis(100)).await;
    drop(first);
    bare.in_flight = 20;
    let mut seen = BTreeSet::new();
    while seen.len() < 10 {
        let delivery = bare.next().await;
        assert!(seen.insert(Bare::body(&delivery)), "it came twice");
        delivery.ack(Ack::Accept);
    }
    assert!(bare.is_silent(millis(700)).await);
}
