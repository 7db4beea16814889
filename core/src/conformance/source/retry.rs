//! Retries: a delay that is a floor, and copies that carry what they must.

use tokio::time::Instant;

use super::bench::{Bench, numbers};
use super::publish::user_headers;
use super::{Cases, Outcome, ensure};
use crate::{Ack, Message, header};

pub(super) fn cases(list: &mut Cases) {
    list.add("retry::it_comes_back_no_earlier_than_the_delay", floor);
    list.add("retry::the_copy_keeps_identity_body_and_headers", copy);
    list.add("retry::a_copy_of_a_copy_carries_each_header_once", copy_of_copy);
    list.add("retry::it_waits_while_others_are_delivered", overtaken);
    list.add("retry::it_survives_the_end_of_its_source", survives);
    list.add_alone(|can| can.publish_loaded, "retry::nothing_is_copied_that_must_not_be", loaded);
}

async fn floor(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(3)).await?;
    let delay = bench.harness.shortest_delay();
    let start = Instant::now();
    for (n, delivery) in (1..).zip(tap.take(3).await?) {
        let trail = bench.charged(delivery.message());
        // Two rungs, mixed: none may come at the time of the other.
        delivery.ack(Ack::retry(delay * (1 + n % 2), trail, "busy"));
    }
    for _ in 0..3 {
        let copy = tap.one().await?;
        let asked = delay * if copy.message().body() == b"1" { 1 } else { 2 };
        ensure(start.elapsed() >= asked, || format!("{asked:?} were {:?}", start.elapsed()))?;
        tap.accept([copy]).await?;
    }
    bench.ensure_empty(tap).await
}

async fn copy(bench: Bench) -> Outcome {
    let sent = Message::new(vec![0, 255, 1, 10])
        .with_id("id-1")
        .with_content_type("text/plain")
        .with_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .with_header("tenant", "x");
    let (mut tap, delivery) = bench.one(&sent).await?;
    let trail = bench.charged(delivery.message());
    delivery.ack(Ack::retry(bench.harness.shortest_delay(), trail.clone(), "busy"));
    let copy = tap.one().await?;
    let (message, found) = (copy.message(), bench.trail(copy.message()));
    let attempt = found.attempt + copy.facts().charged;
    ensure(found.id == trail.id, || "the copy has another identity".into())?;
    ensure(attempt == 1, || format!("attempt {attempt} after one charged run"))?;
    ensure(message.body() == sent.body(), || format!("the body is {:?}", message.body()))?;
    ensure(message.id() == sent.id(), || format!("the id is {:?}", message.id()))?;
    ensure(message.content_type() == sent.content_type(), || format!("{:?}", message.content_type()))?;
    ensure(user_headers(message) == user_headers(&sent), || format!("{:?}", user_headers(message)))?;
    tap.accept([copy]).await?;
    bench.ensure_empty(tap).await
}

async fn copy_of_copy(bench: Bench) -> Outcome {
    let (mut tap, mut delivery) = bench.one(&Message::new("body").with_header("tenant", "x")).await?;
    for attempt in 1..=3 {
        let mut trail = bench.trail(delivery.message());
        trail.attempt += delivery.facts().charged + 1;
        ensure(trail.attempt == attempt, || format!("attempt {}, not {attempt}", trail.attempt))?;
        delivery.ack(Ack::retry(bench.harness.shortest_delay(), trail, "busy"));
        delivery = tap.one().await?;
        for name in header::ALL.into_iter().chain(["tenant"]) {
            let times = delivery.message().headers().iter().filter(|(found, _)| *found == name).count();
            ensure(times <= 1, || format!("{name} stands {times} times"))?;
        }
    }
    tap.accept([delivery]).await?;
    bench.ensure_empty(tap).await
}

async fn overtaken(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("slow")).await?;
    let trail = bench.charged(delivery.message());
    let (delay, start) = (bench.harness.shortest_delay() * 2, Instant::now());
    delivery.ack(Ack::retry(delay, trail, "busy"));
    bench.publish(&Message::new("quick")).await?;
    let next = tap.one().await?;
    ensure(next.message().body() == b"quick", || "the retry came first".into())?;
    ensure(start.elapsed() < delay, || format!("the next message waited {:?}", start.elapsed()))?;
    let copy = tap.one().await?;
    tap.accept([next, copy]).await?;
    bench.ensure_empty(tap).await
}

async fn survives(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    let trail = bench.charged(delivery.message());
    delivery.ack(Ack::retry(bench.harness.shortest_delay(), trail.clone(), "busy"));
    tap.flush().await?;
    tap.close().await?;
    let mut next = bench.subscribe().await?;
    let copy = next.one().await?;
    let found = bench.trail(copy.message());
    let attempt = found.attempt + copy.facts().charged;
    ensure(found.id == trail.id && attempt == 1, || format!("it came back as {found:?}"))?;
    next.accept([copy]).await?;
    bench.ensure_empty(next).await
}

async fn loaded(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.harness.publish_loaded(&bench.topic, &Message::new("body").with_id("id-1")).await?;
    let delivery = tap.one().await?;
    let trail = bench.charged(delivery.message());
    delivery.ack(Ack::retry(bench.harness.shortest_delay(), trail, "busy"));
    let copy = tap.one().await?;
    let wrong = bench.harness.copied_wrongly(copy.message());
    ensure(wrong.is_empty(), || format!("the retry carries {wrong:?}"))?;
    let ack = bench.reject(copy.message());
    copy.ack(ack);
    tap.flush().await?;
    for letter in bench.dead_letters(1).await? {
        let wrong = bench.harness.copied_wrongly(&letter);
        ensure(wrong.is_empty(), || format!("the dead letter carries {wrong:?}"))?;
    }
    bench.ensure_empty(tap).await
}
