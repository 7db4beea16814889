//! How much comes, in which order, and who is woken.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, bodies, numbers};
use super::{Cases, Outcome, ensure};
use crate::{Ack, Message};

pub(super) fn cases(list: &mut Cases) {
    list.add("flow::never_more_than_asked_for", bounded);
    list.add("flow::with_room_for_none_none_comes", none);
    list.add("flow::a_place_is_free_once_it_is_settled", freed);
    list.add("flow::a_waiting_poll_is_woken_by_a_message", woken_by_message);
    list.add("flow::a_waiting_poll_is_woken_by_a_settlement", woken_by_settlement);
    list.add_if(|can| can.key_order, "flow::messages_of_a_key_come_in_order", ordered);
}

async fn bounded(bench: Bench) -> Outcome {
    const IN_FLIGHT: usize = 5;
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(40)).await?;
    let (mut out, mut done) = (Vec::new(), 0);
    while done < 40 {
        // As the runtime does: room for what is not out.
        let room = IN_FLIGHT.saturating_sub(tap.source.outstanding());
        if room > 0 && done + out.len() < 40 {
            out.extend(tap.poll(room).await?);
        }
        let now_out = tap.source.outstanding();
        ensure(now_out <= IN_FLIGHT && out.len() <= IN_FLIGHT, || format!("{now_out} are out"))?;
        ensure(now_out >= out.len(), || format!("{} held, but {now_out} outstanding", out.len()))?;
        if out.len() == IN_FLIGHT || done + out.len() == 40 {
            done += out.len();
            tap.accept(std::mem::take(&mut out)).await?;
            tap.outstanding(0).await?;
        }
    }
    bench.ensure_empty(tap).await
}

async fn none(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(3)).await?;
    let end = tokio::time::Instant::now() + bench.harness.redelivery();
    while let Ok(polled) = tokio::time::timeout_at(end, tap.poll(0)).await {
        polled?;
    }
    ensure(tap.source.outstanding() == 0, || format!("{} are out", tap.source.outstanding()))?;
    let taken = tap.take(3).await?;
    tap.accept(taken).await?;
    bench.ensure_empty(tap).await
}

async fn freed(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(6)).await?;
    let mut taken = tap.take(6).await?;
    ensure(tap.source.outstanding() == 6, || format!("{} are out", tap.source.outstanding()))?;
    let mut take = || taken.pop().ok_or("no delivery left");
    take()?.ack(Ack::Accept);
    tap.outstanding(5).await?;
    let delivery = take()?;
    let ack = bench.reject(delivery.message());
    delivery.ack(ack);
    tap.outstanding(4).await?;
    let delivery = take()?;
    let trail = bench.charged(delivery.message());
    delivery.ack(Ack::retry(bench.harness.shortest_delay(), trail, "busy"));
    tap.outstanding(3).await?;
    tap.accept(taken).await?;
    tap.outstanding(0).await?;
    let copy = tap.one().await?;
    tap.accept([copy]).await?;
    bench.ensure_empty(tap).await
}

async fn woken_by_message(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    tap.nothing().await?;
    let (publisher, topic) = (bench.publisher.clone(), bench.topic.clone());
    // In a task of its own: beside the poll its own wakes would stand in for the source's.
    let published = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        publisher.publish(&topic, &Message::new("body")).await
    });
    let delivery = tap.one().await?;
    published.await??;
    tap.accept([delivery]).await?;
    bench.ensure_empty(tap).await
}

async fn woken_by_settlement(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    // In a task of its own: beside the poll its own wakes would stand in for the source's.
    let settled = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        delivery.ack(Ack::Accept);
    });
    let mut events = Vec::new();
    let free = poll_fn(|cx| {
        // Full: nothing is asked for, and only a place that becomes free can wake the task.
        while tap.source.poll_events(cx, 0, &mut events)?.is_ready() {}
        if tap.source.outstanding() == 0 { std::task::Poll::Ready(Ok(())) } else { std::task::Poll::Pending }
    });
    let end = Instant::now() + Duration::from_secs(20);
    let free: Result<Result<(), crate::Error>, _> = tokio::time::timeout_at(end, free).await;
    // What is seen only at the last moment was seen by the timer's wake.
    ensure(Instant::now() < end, || "nobody was woken".into())?;
    free.map_err(|_| "nobody was woken")??;
    settled.await?;
    bench.ensure_empty(tap).await
}

async fn ordered(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    for n in 0..20 {
        for key in ["a", "b", "c"] {
            bench.publish(&Message::new(format!("{key} {n:02}")).with_key(key)).await?;
        }
    }
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let taken = tap.take(60).await?;
    for body in bodies(&taken) {
        by_key.entry(body[..1].to_owned()).or_default().push(body);
    }
    for (key, list) in by_key {
        ensure(list.is_sorted() && list.len() == 20, || format!("key {key} came as {list:?}"))?;
    }
    tap.accept(taken).await?;
    bench.ensure_empty(tap).await
}
