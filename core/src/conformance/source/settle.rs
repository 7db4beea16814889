//! What becomes of a message by its answer, apart from retries.

use std::time::Duration;

use tokio::time::Instant;

use super::bench::{Bench, bodies, numbers};
use super::publish::user_headers;
use super::{Cases, Outcome, ensure};
use crate::{Ack, Message, header};

pub(super) fn cases(list: &mut Cases) {
    list.add("settle::accept_removes", accept);
    list.add("settle::reject_lands_in_the_dead_letters_once", reject);
    list.add("settle::a_dead_letter_of_any_payload_is_byte_identical", reject_bytes);
    list.add("settle::a_dead_letter_with_a_long_reason_still_arrives", reject_long);
    list.add("settle::defer_comes_back_uncharged_and_itself", defer);
    list.add("settle::discard_leaves_nothing", discard);
    list.add("settle::release_comes_back", release);
    list.add_if(|can| can.redelivered_flag, "settle::release_comes_back_flagged", release_flag);
    list.add("settle::accepts_out_of_order_never_consume_earlier_ones", out_of_order);
}

async fn accept(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(20)).await?;
    let taken = tap.take(20).await?;
    tap.accept(taken).await?;
    tap.outstanding(0).await?;
    bench.ensure_empty(tap).await
}

async fn reject(bench: Bench) -> Outcome {
    let sent = Message::new("body").with_id("id-1").with_header("tenant", "x");
    let (mut tap, delivery) = bench.one(&sent).await?;
    let (ack, trail) = (bench.reject(delivery.message()), bench.charged(delivery.message()));
    delivery.ack(ack);
    tap.flush().await?;
    let letters = bench.dead_letters(1).await?;
    let [letter] = &letters[..] else { return Err(format!("{} dead letters", letters.len()).into()) };
    let facts = [
        (header::DEAD_LETTER, trail.id.to_string()),
        (header::ATTEMPTS, "1".to_owned()),
        (header::CLASS, "business".to_owned()),
        (header::REASON, "unknown product".to_owned()),
        (header::CONSUMER, bench.spec.name.to_string()),
        (header::KIND, bench.topic.clone()),
        (header::ORIGIN, trail.origin.clone()),
    ];
    for (name, expected) in &facts {
        let found = letter.headers().get_str(name);
        ensure(found == Some(expected), || format!("{name} is {found:?}, not {expected:?}"))?;
    }
    ensure(letter.headers().get(header::FAILED_AT).is_some(), || "no time of the failure".into())?;
    ensure(letter.id() == Some("id-1"), || format!("the id is {:?}", letter.id()))?;
    ensure(user_headers(letter) == user_headers(&sent), || format!("{:?}", user_headers(letter)))?;
    bench.ensure_empty(tap).await
}

async fn reject_bytes(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    let payloads = [vec![], vec![0, 255, 254, 0], b"{\"id\":".to_vec(), vec![b' '; 100_000]];
    for payload in &payloads {
        bench.publish(&Message::new(payload.clone())).await?;
    }
    for delivery in tap.take(payloads.len()).await? {
        let ack = bench.reject(delivery.message());
        delivery.ack(ack);
    }
    tap.flush().await?;
    let letters = bench.dead_letters(payloads.len()).await?;
    for payload in payloads {
        let same = letters.iter().filter(|letter| letter.body() == payload).count();
        ensure(same == 1, || format!("{same} dead letters with these {} bytes", payload.len()))?;
    }
    bench.ensure_empty(tap).await
}

async fn reject_long(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    let trail = bench.charged(delivery.message());
    delivery.ack(Ack::reject(crate::Class::System, trail, "ä\n\"\0".repeat(200_000)));
    tap.flush().await?;
    let letters = bench.dead_letters(1).await?;
    ensure(letters.len() == 1 && letters[0].body() == b"body", || format!("{} dead letters", letters.len()))?;
    bench.ensure_empty(tap).await
}

async fn defer(bench: Bench) -> Outcome {
    let sent = Message::new("body").with_id("id-1");
    let (mut tap, delivery) = bench.one(&sent).await?;
    let trail = bench.trail(delivery.message());
    let (after, start) = (Duration::from_millis(300), Instant::now());
    delivery.ack(Ack::Defer { after });
    let again = tap.one().await?;
    ensure(start.elapsed() >= after, || format!("after {:?} already", start.elapsed()))?;
    let found = bench.trail(again.message());
    ensure(found.id == trail.id, || "it has another identity".into())?;
    ensure(found.attempt == 0 && !found.from_ladder, || format!("it was charged or copied: {found:?}"))?;
    ensure(user_headers(again.message()) == user_headers(&sent), || "other headers".into())?;
    tap.accept([again]).await?;
    bench.ensure_empty(tap).await
}

async fn discard(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    delivery.ack(Ack::Discard { reason: "policy" });
    tap.flush().await?;
    tap.outstanding(0).await?;
    bench.ensure_empty(tap).await?;
    let letters = bench.dead_letters(0).await?;
    ensure(letters.is_empty(), || format!("{} dead letters", letters.len()))
}

async fn release(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    let trail = bench.trail(delivery.message());
    delivery.ack(Ack::Release);
    let again = tap.one().await?;
    let found = bench.trail(again.message());
    ensure(found.id == trail.id && found.attempt == 0, || format!("it was charged: {found:?}"))?;
    tap.accept([again]).await?;
    bench.ensure_empty(tap).await
}

async fn release_flag(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    ensure(!delivery.facts().redelivered, || "the first delivery is flagged".into())?;
    delivery.ack(Ack::Release);
    let again = tap.one().await?;
    ensure(again.facts().redelivered, || "what was given back is not flagged".into())?;
    tap.accept([again]).await?;
    tap.close().await
}

async fn out_of_order(bench: Bench) -> Outcome {
    let mut tap = bench.subscribe().await?;
    bench.publish_all(numbers(10)).await?;
    let mut taken = tap.take(10).await?;
    taken.sort_by_key(|delivery| bodies(std::slice::from_ref(delivery)));
    let open = taken.remove(0);
    taken.reverse();
    tap.accept(taken).await?;
    tap.close().await?;
    drop(open);
    let mut again = bench.subscribe().await?;
    let first = again.one().await?;
    let mut seen = vec![first];
    if !bench.harness.capabilities().individual_ack {
        // A broker that knows a prefix only may repeat what is behind it, never lose it.
        while !bodies(&seen).contains(&"0".to_owned()) {
            seen.push(again.one().await?);
        }
    }
    ensure(bodies(&seen).contains(&"0".to_owned()), || format!("{:?} came back", bodies(&seen)))?;
    again.accept(seen).await?;
    again.close().await
}
