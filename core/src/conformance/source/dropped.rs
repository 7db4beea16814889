//! Deliveries that are dropped, and polls that are cancelled.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, bodies, numbers};
use super::{Cases, Outcome, ensure};
use crate::{Delivery, Event, Message};

pub(super) fn cases(list: &mut Cases) {
    list.add("dropped::a_dropped_delivery_comes_back", dropped);
    list.add("dropped::also_from_a_thread_without_a_runtime", without_runtime);
    list.add("dropped::a_dropped_source_gives_everything_back", source);
    list.add("dropped::cancelled_polls_lose_nothing", cancelled);
}

async fn dropped(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    drop(delivery);
    let again = tap.one().await?;
    tap.accept([again]).await?;
    bench.ensure_empty(tap).await
}

async fn without_runtime(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    let thread = std::thread::spawn(move || drop(delivery));
    ensure(thread.join().is_ok(), || "the drop panicked".into())?;
    let again = tap.one().await?;
    tap.accept([again]).await?;
    bench.ensure_empty(tap).await
}

async fn source(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(5)).await?;
    let mut taken = tap.take(5).await?;
    // The first one, which a broker that knows a prefix only remembers too.
    let first = taken.remove(0);
    tap.accept([first]).await?;
    drop(tap);
    let mut next = bench.subscribe().await?;
    let again = next.take(4).await?;
    // Answers of the lost source are void: the new one has these messages now.
    drop(taken);
    next.accept(again).await?;
    bench.ensure_empty(next).await
}

async fn cancelled(bench: Bench) -> Outcome {
    const MESSAGES: usize = 200;
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(MESSAGES)).await?;
    let (mut seen, mut events) = (BTreeSet::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs(30);
    while seen.len() < MESSAGES && Instant::now() < end {
        // One poll, then the future is gone; what it was waiting for must not be.
        poll_fn(|cx| match tap.source.poll_events(cx, 7, &mut events) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        })
        .await?;
        let mut deliveries: Vec<Delivery> = Vec::new();
        for event in events.drain(..) {
            if let Event::Delivery(delivery) = event {
                deliveries.push(delivery);
            }
        }
        for body in bodies(&deliveries) {
            ensure(seen.insert(body.clone()), || format!("message {body} came twice"))?;
        }
        deliveries.into_iter().for_each(|delivery| delivery.ack(crate::Ack::Accept));
        std::thread::sleep(Duration::from_micros(50));
        tokio::task::yield_now().await;
    }
    ensure(seen.len() == MESSAGES, || format!("{} of {MESSAGES} came", seen.len()))?;
    tap.flush().await?;
    bench.ensure_empty(tap).await
}
