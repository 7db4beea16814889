//! What a message carries through its copies: identity, attempts and origin.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::{Class, Message};

/// Names of the headers that the library writes on copies of a message.
pub mod header {
    /// The [`TrailId`](super::TrailId) of a ladder copy.
    pub const ID: &str = "oncemq-id";
    /// Charged attempts so far, on a ladder copy.
    pub const ATTEMPT: &str = "oncemq-attempt";
    /// The consumer the copy was made by and for.
    pub const CONSUMER: &str = "oncemq-consumer";
    /// The kind of the message.
    pub const KIND: &str = "oncemq-kind";
    /// When the message was first seen, in milliseconds since 1970.
    pub const FIRST_SEEN: &str = "oncemq-first-seen";
    /// Where the message was first delivered from.
    pub const ORIGIN: &str = "oncemq-origin";
    /// How often it came back from the dead letters.
    pub const REPLAYS: &str = "oncemq-replays";
    /// The id of a dead letter. A message that carries it is a replay.
    pub const DEAD_LETTER: &str = "oncemq-dead-letter";
    /// On a dead letter: charged attempts when it was given up.
    pub const ATTEMPTS: &str = "oncemq-attempts";
    /// On a dead letter: the class of the last failure.
    pub const CLASS: &str = "oncemq-class";
    /// On a dead letter: the reason of the last failure.
    pub const REASON: &str = "oncemq-reason";
    /// On a dead letter: when it was given up, in milliseconds since 1970.
    pub const FAILED_AT: &str = "oncemq-failed-at";

    /// All of them: a copy carries each at most once.
    pub const ALL: [&str; 12] = [
        ID,
        ATTEMPT,
        CONSUMER,
        KIND,
        FIRST_SEEN,
        ORIGIN,
        REPLAYS,
        DEAD_LETTER,
        ATTEMPTS,
        CLASS,
        REASON,
        FAILED_AT,
    ];
}

/// Names one message together with its budget of attempts. Needs no decoding.
///
/// Copies on the ladder keep it, a replay from the dead letters gets a new one, and a dead
/// letter is published under it, so two dead letters of one id are interchangeable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrailId([u8; 32]);

impl TrailId {
    /// The raw bytes, as stores keep them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// From the bytes a store kept.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A number that differs between messages, to spread them over time.
    pub(crate) fn seed(&self) -> u64 {
        self.0.iter().take(8).fold(0, |seed, byte| seed << 8 | u64::from(*byte))
    }

    fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for TrailId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TrailId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The identity and history of one message for one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trail {
    /// Names the message and its budget.
    pub id: TrailId,
    /// The consumer.
    pub consumer: std::sync::Arc<str>,
    /// The kind of the message.
    pub kind: std::sync::Arc<str>,
    /// Charged attempts so far: runs that ended in this message's own failure.
    pub attempt: u32,
    /// How often the message came back from the dead letters.
    pub replays: u32,
    /// When it was first seen.
    pub first_seen: SystemTime,
    /// Where it was first delivered from.
    pub origin: String,
    /// Whether this delivery is a copy from the ladder.
    pub from_ladder: bool,
}

/// Whether a position (log) or the content (queue) names a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Topic, partition, offset and timestamp of the origin, or where it has one the name of
    /// the place where the message was stored first. The timestamp, which a log keeps with
    /// the message, tells a topic from one that was deleted and made again under its name.
    Position,
    /// Message id, body, and the id of the dead letter it is a replay of.
    Content,
}

impl Trail {
    /// Reads the trail of a delivery, or starts one. Headers of another consumer or kind,
    /// as producers forward them by mistake, are ignored.
    pub fn read(
        message: &Message,
        consumer: &std::sync::Arc<str>,
        kind: &std::sync::Arc<str>,
        identity: Identity,
    ) -> Self {
        let headers = message.headers();
        let ours = headers.get_str(header::CONSUMER) == Some(consumer)
            && headers.get_str(header::KIND) == Some(kind);
        let get = |name| if ours { headers.get_str(name) } else { None };
        let ladder_id = get(header::ID).and_then(TrailId::parse);
        let dead_letter = get(header::DEAD_LETTER);
        let replays = get(header::REPLAYS).and_then(|t| t.parse().ok()).unwrap_or(0u32);
        let first_seen = get(header::FIRST_SEEN)
            .filter(|_| ladder_id.is_some())
            .and_then(|t| t.parse().ok())
            .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
            .unwrap_or_else(SystemTime::now);
        Self {
            id: ladder_id.unwrap_or_else(|| fresh_id(message, consumer, kind, identity, dead_letter)),
            consumer: consumer.clone(),
            kind: kind.clone(),
            attempt: match ladder_id {
                Some(_) => get(header::ATTEMPT).map_or(0, parse_attempt),
                None => 0,
            },
            replays: match (ladder_id, dead_letter) {
                (None, Some(_)) => replays.saturating_add(1),
                _ => replays,
            },
            first_seen,
            origin: get(header::ORIGIN).map_or_else(|| message.origin().to_string(), str::to_owned),
            from_ladder: ladder_id.is_some(),
        }
    }

    /// The copy for a rung of the ladder.
    pub(crate) fn copy(&self, original: &Message) -> Message {
        let mut copy = self.stamped(original);
        let headers = &mut copy.parts_mut().headers;
        headers.set(header::ID, self.id.to_string());
        headers.set(header::ATTEMPT, self.attempt.to_string());
        copy
    }

    /// The dead letter. It does not carry the ladder's headers: moved back by hand with all
    /// its headers it is a new message with a fresh budget.
    pub(crate) fn dead_letter(
        &self,
        original: &Message,
        class: Class,
        reason: &str,
        limit: usize,
    ) -> Message {
        let mut copy = self.stamped(original);
        let headers = &mut copy.parts_mut().headers;
        headers.set(header::DEAD_LETTER, self.id.to_string());
        headers.set(header::ATTEMPTS, self.attempt.to_string());
        headers.set(header::CLASS, class.as_str());
        headers.set(header::REASON, cut(reason, limit).to_owned());
        headers.set(header::FAILED_AT, millis(SystemTime::now()).to_string());
        copy
    }

    fn stamped(&self, original: &Message) -> Message {
        let mut copy = original.clone();
        let headers = &mut copy.parts_mut().headers;
        for name in header::ALL {
            headers.remove(name);
        }
        headers.set(header::CONSUMER, self.consumer.to_string());
        headers.set(header::KIND, self.kind.to_string());
        headers.set(header::FIRST_SEEN, millis(self.first_seen).to_string());
        headers.set(header::ORIGIN, self.origin.clone());
        if self.replays > 0 {
            headers.set(header::REPLAYS, self.replays.to_string());
        }
        copy
    }
}

/// The attempt that a header names. Junk means that the budget is used up: a count that
/// cannot be read must never become an endless retry.
fn parse_attempt(text: &str) -> u32 {
    match text.trim().parse::<i128>() {
        Ok(n) if n >= 0 => u32::try_from(n).unwrap_or(u32::MAX),
        _ => u32::MAX,
    }
}

fn fresh_id(
    message: &Message,
    consumer: &str,
    kind: &str,
    identity: Identity,
    dead_letter: Option<&str>,
) -> TrailId {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(consumer.as_bytes());
    part(kind.as_bytes());
    let origin = message.origin();
    match (identity, &origin.first_stored, origin.partition, origin.offset) {
        (Identity::Position, Some(name), _, _) => {
            part(b"first stored");
            part(name.as_bytes());
            // Tools that replay a dead letter keep the name; the replay is a new message.
            part(dead_letter.unwrap_or_default().as_bytes());
        }
        (Identity::Position, None, Some(partition), Some(offset)) => {
            part(b"position");
            part(origin.topic.as_bytes());
            // Nothing at all without one, so that the names of others stay as they are.
            if let Some(server) = &origin.server {
                part(server.as_bytes());
            }
            part(&partition.to_be_bytes());
            part(&offset.to_be_bytes());
            part(&message.timestamp().map_or(0, millis).to_be_bytes());
        }
        _ => {
            part(b"content");
            part(message.id().unwrap_or_default().as_bytes());
            part(message.body());
            part(dead_letter.unwrap_or_default().as_bytes());
        }
    }
    TrailId(hash.finalize().into())
}

pub(crate) fn millis(time: SystemTime) -> u64 {
    let millis = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// The longest prefix of at most `limit` bytes that ends on a character.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Origin, Parts};

    fn names() -> (Arc<str>, Arc<str>) {
        ("points".into(), "orders".into())
    }

    fn read(message: &Message) -> Trail {
        let (consumer, kind) = names();
        Trail::read(message, &consumer, &kind, Identity::Content)
    }

    #[test]
    fn a_ladder_copy_keeps_id_attempt_and_first_seen() {
        let original = Message::new("body").with_id("1").with_header("user", "x");
        let mut trail = read(&original);
        trail.attempt = 3;
        let again = read(&trail.copy(&original));
        assert_eq!((again.id, again.attempt, again.from_ladder), (trail.id, 3, true));
        assert_eq!(millis(again.first_seen), millis(trail.first_seen));
        assert_eq!(trail.copy(&original).headers().get_str("user"), Some("x"));
    }

    #[test]
    fn a_replayed_dead_letter_is_a_new_message_with_a_fresh_budget() {
        let original = Message::new("body").with_id("1");
        let mut trail = read(&original);
        trail.attempt = 4;
        let dead = trail.dead_letter(&original, Class::System, "broken", 100);
        let replay = read(&dead);
        assert_ne!(replay.id, trail.id);
        assert_eq!((replay.attempt, replay.replays, replay.from_ladder), (0, 1, false));
        let second = read(&replay.dead_letter(&dead, Class::System, "broken", 100));
        assert_eq!(second.replays, 2);
        assert_ne!(second.id, replay.id);
    }

    #[test]
    fn every_header_of_ours_stands_once_on_a_copy_of_a_copy() {
        let original = Message::new("body").with_header("t", "1").with_header("t", "2");
        let trail = read(&original);
        let dead = trail.dead_letter(&trail.copy(&original), Class::Business, "x", 10);
        let dead = read(&dead).dead_letter(&dead, Class::Business, "y", 10);
        for name in header::ALL {
            assert!(dead.headers().iter().filter(|(n, _)| *n == name).count() <= 1, "{name}");
        }
        assert_eq!(dead.headers().iter().filter(|(n, _)| *n == "t").count(), 2);
    }

    #[test]
    fn headers_made_for_another_consumer_are_ignored() {
        let original = Message::new("body");
        let mut trail = read(&original);
        trail.attempt = 3;
        let copy = trail.copy(&original);
        let other: Arc<str> = "mail".into();
        let read = Trail::read(&copy, &other, &names().1, Identity::Content);
        assert_eq!((read.attempt, read.from_ladder), (0, false));
    }

    #[test]
    fn a_position_names_a_message_on_a_log() {
        let at = |offset, written| {
            let origin = Origin::new("kafka", "orders").at(0, offset);
            let timestamp = Some(UNIX_EPOCH + Duration::from_millis(written));
            let parts = Parts { origin, timestamp, ..Parts::default() };
            let (consumer, kind) = names();
            Trail::read(&Message::from(parts), &consumer, &kind, Identity::Position).id
        };
        assert_eq!(at(1, 0), at(1, 0));
        assert_ne!(at(1, 0), at(2, 0));
        // The topic was made again.
        assert_ne!(at(1, 0), at(1, 1));
    }

    #[test]
    fn sent_back_by_the_broker_to_another_place_it_is_the_same_message() {
        let stored = |topic: &str, offset, first| {
            let origin = Origin::new("rocketmq", topic).at(0, offset).first_stored(first);
            let (consumer, kind) = names();
            let message = Message::from(Parts { origin, ..Parts::default() });
            Trail::read(&message, &consumer, &kind, Identity::Position)
        };
        let first = stored("orders", 7, "7F00");
        assert_eq!(first.id, stored("%RETRY%points", 1, "7F00").id);
        assert_ne!(first.id, stored("orders", 7, "7F01").id);
        assert_eq!(first.origin, "rocketmq/orders/0@7 first stored as 7F00");

        let origin = Origin::new("rocketmq", "orders").at(0, 9).first_stored("7F00");
        let failed = Message::from(Parts { origin, ..Parts::default() });
        let (consumer, kind) = names();
        let replay = Trail::read(
            &first.dead_letter(&failed, Class::System, "broken", 100),
            &consumer,
            &kind,
            Identity::Position,
        );
        assert_ne!(replay.id, first.id);
        assert_eq!(replay.replays, 1);
    }

    #[test]
    fn rb9_attempt_headers_of_any_shape_never_become_endless() {
        for (text, attempt) in [
            ("0", 0),
            ("2", 2),
            (" 2 ", 2),
            ("1099511627776", u32::MAX),
            ("-1", u32::MAX),
            ("x", u32::MAX),
            ("", u32::MAX),
            ("2.0", u32::MAX),
        ] {
            assert_eq!(parse_attempt(text), attempt, "{text:?}");
        }
    }

    #[test]
    fn kf8_diagnostics_are_cut_on_a_character() {
        assert_eq!(cut("añb", 2), "a");
        assert_eq!(cut("abc", 9), "abc");
    }
}
