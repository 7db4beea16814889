//! What a broker cannot do it must refuse, or keep away from, and go on.

use bytes::Bytes;

use super::bench::Bench;
use super::{Cases, Outcome, ensure};
use crate::{ErrorKind, Message, Parts};

pub(super) fn cases(list: &mut Cases) {
    list.add_if(|can| !can.tombstones, "lacking::a_tombstone_is_unsupported", tombstone);
    list.add_if(|can| !can.repeated_headers, "lacking::a_repeated_header_is_unsupported", repeated);
    list.add_if(|can| !can.redelivered_flag, "lacking::the_flag_is_never_set", flag);
}

/// The message is refused, and the next one goes through.
async fn refused(bench: &Bench, message: &Message) -> Outcome {
    let mut tap = bench.subscribe().await?;
    match bench.publisher.publish(&bench.topic, message).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        other => return Err(format!("expected Unsupported, got {other:?}").into()),
    }
    bench.publish(&Message::new("next")).await?;
    let next = tap.one().await?;
    ensure(next.message().body() == b"next", || "the refused message was delivered".into())?;
    tap.accept([next]).await?;
    tap.close().await
}

async fn tombstone(bench: Bench) -> Outcome {
    refused(&bench, &Message::tombstone().with_key("k")).await
}

async fn repeated(bench: Bench) -> Outcome {
    let mut parts = Parts { payload: Some(Bytes::from_static(b"body")), ..Parts::default() };
    parts.headers.push("t", Some(Bytes::from_static(b"1")));
    parts.headers.push("t", Some(Bytes::from_static(b"2")));
    refused(&bench, &Message::from(parts)).await
}

async fn flag(bench: Bench) -> Outcome {
    let (mut tap, delivery) = bench.one(&Message::new("body")).await?;
    drop(delivery);
    let again = tap.one().await?;
    ensure(!again.facts().redelivered, || "a flag that the capabilities deny".into())?;
    tap.accept([again]).await?;
    tap.close().await
}
