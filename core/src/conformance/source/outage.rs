//! Cut connections and restarted brokers.

use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, numbers};
use super::{Cases, Outcome, ensure};
use crate::{Event, Health, Message};

pub(super) fn cases(list: &mut Cases) {
    list.add_alone(|can| can.disconnect, "outage::an_accept_holds_over_a_cut", accept_and_cut);
    list.add_alone(|can| can.disconnect, "outage::what_was_out_at_a_cut_comes_back_once", cut);
    list.add_alone(|can| can.disconnect, "outage::health_tells_of_a_cut", health);
    list.add_alone(|can| can.disconnect, "outage::publishing_while_cut_is_an_error_in_time", publish);
    list.add_alone(|can| can.disconnect, "outage::closing_while_cut_ends_in_time", close);
    list.add_alone(|can| can.restart, "outage::an_accept_holds_over_a_restart", accept_and_restart);
    list.add_alone(|can| can.restart, "outage::messages_survive_a_restart", restart);
}

async fn accept_and_cut(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    tap.accept([delivery]).await?;
    bench.harness.disconnect().await?;
    bench.harness.reconnect().await?;
    tap.nothing().await?;
    tap.close().await
}

async fn cut(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(3)).await?;
    let stale = tap.take(3).await?;
    bench.harness.disconnect().await?;
    bench.harness.reconnect().await?;
    let again = tap.take(3).await?;
    let told = tap.others.iter().any(|event| matches!(event, Event::Reconnected { .. }));
    ensure(told, || format!("no word of the new connection: {:?}", tap.others))?;
    // Names of the old connection may be in use again; their answers reach nothing.
    stale.into_iter().for_each(|delivery| delivery.ack(crate::Ack::Accept));
    tokio::time::sleep(Duration::from_millis(200)).await;
    ensure(tap.source.outstanding() == 3, || format!("{} are out", tap.source.outstanding()))?;
    drop(again);
    let again = tap.take(3).await?;
    tap.accept(again).await?;
    tap.nothing().await?;
    tap.close().await
}

async fn health(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    tap.nothing().await?;
    ensure(last_health(&tap.others).is_some_and(Health::is_up), || format!("{:?}", tap.others))?;
    bench.harness.disconnect().await?;
    wait_for(&mut tap, |health| matches!(health, Health::Degraded(_))).await?;
    bench.harness.reconnect().await?;
    wait_for(&mut tap, Health::is_up).await?;
    tap.close().await
}

async fn wait_for(tap: &mut super::bench::Tap, wanted: fn(&Health) -> bool) -> Outcome {
    let end = Instant::now() + Duration::from_secs(30);
    while !last_health(&tap.others).is_some_and(wanted) {
        match tokio::time::timeout_at(end, tap.poll(0)).await {
            Ok(polled) if Instant::now() < end => drop(polled?),
            _ => return Err(format!("health stays {:?}", last_health(&tap.others)).into()),
        }
    }
    Ok(())
}

fn last_health(events: &[Event]) -> Option<&Health> {
    events.iter().rev().find_map(|event| match event {
        Event::Health(health) => Some(health),
        _ => None,
    })
}

async fn publish(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.harness.disconnect().await?;
    let message = Message::new("body");
    let sent = tokio::time::timeout(Duration::from_secs(60), bench.publish(&message)).await;
    bench.harness.reconnect().await?;
    ensure(!matches!(sent, Ok(Ok(()))), || "confirmed without a connection".into())?;
    ensure(sent.is_ok(), || "no answer after a minute".into())?;
    tap.close().await
}

async fn close(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    bench.harness.disconnect().await?;
    let (limit, start) = (Duration::from_secs(2), Instant::now());
    // An error is fine, being late is not.
    let _ = tap.source.close(limit).await;
    let took = start.elapsed();
    bench.harness.reconnect().await?;
    ensure(took < limit + Duration::from_secs(1), || format!("it took {took:?} of {limit:?}"))?;
    drop(delivery);
    let mut next = bench.subscribe().await?;
    let again = next.one().await?;
    next.accept([again]).await?;
    bench.ensure_empty(next).await
}

async fn accept_and_restart(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(10)).await?;
    let taken = tap.take(10).await?;
    tap.accept(taken).await?;
    bench.harness.restart().await?;
    tap.nothing().await?;
    tap.close().await
}

async fn restart(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(10)).await?;
    let out = tap.take(4).await?;
    bench.harness.restart().await?;
    drop(out);
    let all = tap.take(10).await?;
    tap.accept(all).await?;
    tap.nothing().await?;
    tap.close().await
}
