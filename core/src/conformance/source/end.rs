//! The end of a source.

use std::future::poll_fn;
use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, bodies, numbers};
use super::{Cases, Outcome, ensure};
use crate::{Ack, Message};

pub(super) fn cases(list: &mut Cases) {
    list.add("end::closing_twice_is_fine", twice);
    list.add("end::closing_gives_back_what_is_not_settled", gives_back);
    list.add("end::answers_after_the_close_are_void", late);
    list.add("end::a_poll_after_the_close_is_an_error", poll);
    list.add("end::closing_with_deliveries_out_ends_in_time", in_time);
}

async fn twice(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    tap.close().await?;
    tap.close().await
}

async fn gives_back(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(6)).await?;
    let mut taken = tap.take(4).await?;
    let done = taken.remove(0);
    let done_body = bodies(std::slice::from_ref(&done));
    tap.accept([done]).await?;
    tap.close().await?;
    let mut next = bench.subscribe().await?;
    let again = next.take(5).await?;
    ensure(!bodies(&again).contains(&done_body[0]), || "what was accepted came back".into())?;
    drop(taken);
    next.accept(again).await?;
    bench.ensure_empty(next).await
}

async fn late(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    tap.close().await?;
    let mut next = bench.subscribe().await?;
    let again = next.one().await?;
    delivery.ack(Ack::Accept);
    tokio::time::sleep(Duration::from_millis(100)).await;
    ensure(next.source.outstanding() == 1, || "the late answer reached another source".into())?;
    drop(again);
    let third = next.one().await?;
    next.accept([third]).await?;
    bench.ensure_empty(next).await
}

async fn poll(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish(&Message::new("body")).await?;
    tap.close().await?;
    let mut events = Vec::new();
    let polled = poll_fn(|cx| tap.source.poll_events(cx, 1, &mut events));
    match tokio::time::timeout(Duration::from_secs(10), polled).await {
        Ok(Err(_)) => ensure(events.is_empty(), || format!("it still gave {events:?}")),
        Ok(Ok(())) => Err(format!("a closed source gave {events:?}").into()),
        Err(_) => Err("a closed source waits".into()),
    }
}

async fn in_time(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(10)).await?;
    let out = tap.take(10).await?;
    let (limit, start) = (Duration::from_secs(2), Instant::now());
    // An error is fine, being late is not.
    let _ = tap.source.close(limit).await;
    let took = start.elapsed();
    ensure(took < limit + Duration::from_secs(1), || format!("it took {took:?} of {limit:?}"))?;
    drop(out);
    let mut next = bench.subscribe().await?;
    let again = next.take(10).await?;
    next.accept(again).await?;
    bench.ensure_empty(next).await
}
