//! Keys are bytes: nothing merges two, nothing loses one.

use std::sync::Arc;

use libtest_mimic::Trial;

use super::{Outcome, StoreHarness, apply_committed, case, ensure, entry, entry_of, open};
use crate::{Claim, Entry, KeyTag, KeyValue, Message, Unit};

pub(super) fn cases<H: StoreHarness>(harness: &Arc<H>, trials: &mut Vec<Trial>) {
    case(harness, trials, "key_bytes_never_merge", byte_exact);
    case(harness, trials, "pg5_long_keys_are_kept_apart", long_keys);
    case(harness, trials, "key_scope_is_consumer_and_kind", scoped);
    case(harness, trials, "key_made_in_another_way_is_another_key", tags);
}

/// Every entry is new at first and done when it comes again.
async fn all_apart<H: StoreHarness>(h: &H, entries: Vec<Entry>) -> Outcome {
    let record = h.open().await?;
    for (i, entry) in entries.iter().enumerate() {
        apply_committed(h, &record, entry, "e").await.map_err(|why| format!("key {i}: {why:?}"))?;
    }
    for (i, entry) in entries.iter().enumerate() {
        let (unit, verdict) = open(&record, entry).await?;
        unit.rollback().await;
        let done = matches!(verdict.claim, Claim::Done { .. });
        ensure(done, || format!("key {i} is {:?} when it comes again", verdict.claim))?;
    }
    Ok(())
}

async fn byte_exact<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let texts = [
        "ab",
        "AB",
        "Ab",
        "ab ",
        " ab",
        "áb",
        "a\u{301}b",
        "ß",
        "ss",
        "😀",
        "😃",
        "a\0b",
        "a",
        "a\0",
        "ab\u{200b}",
        "1",
        "01",
        "%",
        "_",
        "'",
        "\\",
    ];
    let mut entries: Vec<_> = texts.iter().map(|text| entry(text.as_bytes())).collect();
    entries.push(entry(&[0xff, 0xfe]));
    entries.push(entry(&[0xff]));
    all_apart(&*h, entries).await
}

async fn long_keys<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let mut entries = Vec::new();
    for length in [200, 254, 255, 256, 500, 600, 1000, 4_000, 100_000] {
        for last in [b'a', b'b'] {
            let mut key = vec![b'x'; length];
            key.push(last);
            entries.push(entry(&key));
        }
    }
    all_apart(&*h, entries).await
}

async fn scoped<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let message = Message::new("m");
    let make = |consumer: &str, kind: &str, key: &[u8]| entry_of(consumer, kind, key, &message);
    let entries = vec![
        make("a", "kind", b"k"),
        make("b", "kind", b"k"),
        make("a", "other", b"k"),
        make("ak", "ind", b"k"),
        make("a", "kin", b"dk"),
    ];
    all_apart(&*h, entries).await
}

async fn tags<H: StoreHarness>(h: Arc<H>) -> Outcome {
    let tags = [KeyTag::Business, KeyTag::MessageId, KeyTag::Fingerprint];
    let entries = tags.map(|tag| {
        let mut entry = entry(b"same");
        entry.key = Some(KeyValue::tagged(tag, *b"same"));
        entry
    });
    all_apart(&*h, entries.to_vec()).await
}
