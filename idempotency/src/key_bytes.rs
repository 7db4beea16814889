//! Keys as they are stored, and texts beside them.

use oncemq_core::{Claim, Entry, KeyValue};
use sha2::{Digest, Sha256};

/// Longer ones are hashed: an index entry has a limit in every database.
const STORED_MAX: usize = 512;
/// First byte of a hashed key; the others are [`oncemq_core::KeyTag`]'s.
const HASHED: u8 = b'h';

/// Bytes of texts that are kept for people.
pub(crate) const TEXT_MAX: usize = 200;
/// Bytes of a failure's reason.
pub(crate) const REASON_MAX: usize = 2000;

/// The primary key of a done row: tag, consumer, kind, key, each but the last with its
/// length in front, so that no two keys meet.
pub(crate) fn stored(consumer: &str, kind: &str, key: &KeyValue) -> Vec<u8> {
    let mut out = Vec::with_capacity(consumer.len() + kind.len() + key.as_bytes().len() + 9);
    out.push(key.tag().byte());
    for part in [consumer, kind] {
        out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(key.as_bytes());
    if out.len() > STORED_MAX {
        let hash = Sha256::digest(&out);
        out.clear();
        out.push(HASHED);
        out.extend_from_slice(&hash);
    }
    out
}

pub(crate) fn of_entry(entry: &Entry) -> Option<Vec<u8>> {
    let key = entry.key.as_ref()?;
    Some(stored(&entry.trail.consumer, &entry.trail.kind, key))
}

/// A text as every database takes it: no NUL, which PostgreSQL refuses, and not too long.
pub(crate) fn clean(text: &str, max: usize) -> String {
    let cut = &text[..text.floor_char_boundary(max)];
    cut.replace('\0', "\u{fffd}")
}

/// The verdict for a done key, from what was stored with it. Fields that either side did not
/// declare are no conflict.
pub(crate) fn done(entry: &Entry, body: Option<&[u8]>, conflict: Option<&[u8]>) -> Claim {
    let differs = |ours: [u8; 32]| conflict.is_some_and(|stored| stored != ours);
    Claim::Done { same_body: body == Some(&entry.body), conflict: entry.conflict.is_some_and(differs) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(consumer: &str, kind: &str, key: &[u8]) -> Vec<u8> {
        stored(consumer, kind, &KeyValue::business(key))
    }

    #[test]
    fn no_two_keys_meet() {
        let keys: [(&str, &str, &[u8]); 9] = [
            ("a", "b", b"c"),
            ("ab", "", b"c"),
            ("", "ab", b"c"),
            ("a", "bc", b""),
            ("a", "b", b"C"),
            ("a", "b", b"c "),
            ("a", "b", b"c\0"),
            ("a", "b", "\u{e7}".as_bytes()),
            ("a", "b", "c\u{327}".as_bytes()),
        ];
        let mut stored: Vec<_> = keys.iter().map(|(c, k, b)| of(c, k, b)).collect();
        stored.sort();
        stored.dedup();
        assert_eq!(stored.len(), keys.len());
    }

    #[test]
    fn a_long_key_is_hashed_and_a_hash_is_no_raw_key() {
        let long = of("c", "k", &[b'x'; 4000]);
        assert_eq!((long.len(), long[0]), (33, b'h'));
        assert_ne!(long, of("c", "k", &[b'x'; 4001]));
        let limit = of("c", "k", &[b'x'; 501]);
        assert_eq!((limit.len(), limit[0]), (512, b'r'));
        assert_eq!(of("c", "k", &[b'x'; 502])[0], b'h');
    }

    #[test]
    fn texts_lose_nul_and_are_cut_between_characters() {
        assert_eq!(clean("a\0b", 10), "a\u{fffd}b");
        assert_eq!(clean("ab\u{e7}", 3), "ab");
    }
}
