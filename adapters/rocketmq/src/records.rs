//! Messages as the broker keeps them: a body and properties, which are text.
//!
//! Headers are properties. `KEYS` and `TAGS`, by which the broker's tools find a message and
//! other consumers choose, are headers of that name; the message group is the key of a message,
//! and its id is `UNIQ_KEY`. What the broker writes for itself is not shown.

mod text;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use oncemq_core::{Error, ErrorKind, Headers, Message, Origin, Parts};

use crate::client::Stored;
use crate::cluster::Queue;
use text::{decode, encode};

/// The id of a message; the producer makes it, and it stays through retries and dead letters.
pub(crate) const UNIQ_KEY: &str = "UNIQ_KEY";
/// The message group: messages of one group are in one queue.
const GROUP: &str = "__SHARDINGKEY";
/// The topic that a message had before it was sent back.
pub(crate) const RETRY_TOPIC: &str = "RETRY_TOPIC";
/// Where it was stored first.
const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
const CONTENT_TYPE: &str = "oncemq-content-type";
/// Where other clients write it.
const FOREIGN_CONTENT_TYPE: &str = "content-type";
/// The broker stores no empty body: such a message has one zero byte, and this property.
const EMPTY: &str = "oncemq-empty-body";
/// How many of the broker's count are in our own header already.
const COUNTED: &str = "oncemq-counted";

/// The transaction of a half message.
const TRANSACTION: &str = "oncemq-transaction";

/// Ways to ask for a delay, as headers of a message that is published.
const DELAYS: [&str; 4] = ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

/// Properties that belong to the broker and its clients. Nobody may set them, and they are not
/// shown as headers.
const SYSTEM: [&str; 48] = [
    "1ST_POP_TIME",
    "ARRIVE_TIME",
    "BORN_TIMESTAMP",
    "BUYER_ID",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "CLUSTER",
    "CONSUME_START_TIME",
    "CORRECTION_FLAG",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "DUP_INFO",
    "E_T",
    "EXTEND_UNIQ_INFO",
    "INNER_BASE",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
    "INNER_NUM",
    "INSTANCE_ID",
    "MAX_OFFSET",
    "MAX_RECONSUME_TIMES",
    "MIN_OFFSET",
    "MQ2_FLAG",
    "MSG_REGION",
    "MSG_TYPE",
    ORIGIN_MESSAGE_ID,
    "ORIGIN_GROUP",
    "PGROUP",
    "POP_CK",
    "POP_CK_OFFSET",
    "PROPERTY_FORWARD_QUEUE_ID",
    "PUSH_REPLY_TIME",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "REDIRECT",
    "REPLY_TO_CLIENT",
    RETRY_TOPIC,
    "TRACE_CONTEXT",
    "TRACE_ON",
    "TRANSACTION_CHECK_TIMES",
    "TRANSFER_FLAG",
    "TRANS_OFFSET",
    "TRAN_MSG",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TTL",
    "WAIT",
    "_SYS_MSG_PRIORITY_",
    UNIQ_KEY,
];

/// Properties of ours that no header shows.
const OURS: [&str; 4] = [CONTENT_TYPE, EMPTY, COUNTED, TRANSACTION];

fn is_system(name: &str) -> bool {
    let timer = name.starts_with("TIMER_") && !DELAYS.contains(&name);
    timer || name.starts_with("__") || SYSTEM.contains(&name)
}

/// What a delivery keeps of the broker's own, to be sent back by.
#[derive(Debug, Clone)]
pub(crate) struct Native {
    /// Which subscription it belongs to; none, if its topic is not consumed any more.
    pub(crate) subscription: Option<u16>,
    /// The topic it is consumed as.
    pub(crate) topic: Arc<str>,
    /// Sent back, it would come as another topic's: it was that once, before it was a dead
    /// letter.
    pub(crate) foreign: bool,
    pub(crate) broker: Arc<str>,
    pub(crate) position: i64,
    /// Where it stands now, and where it was stored first.
    pub(crate) place: Box<str>,
    pub(crate) first: Option<Box<str>>,
    /// Charged attempts that only the broker has counted.
    pub(crate) charged: u32,
}

impl Native {
    pub(crate) fn of(message: &Message) -> Option<&Self> {
        message.native()?.downcast_ref()
    }
}

/// Reads a stored message. `topics` are the subscriptions' topics.
pub(crate) fn read(stored: Stored, queue: &Queue, topics: &[Arc<str>]) -> Message {
    let mut parts = Parts::default();
    let mut origin = Origin::new("rocketmq", queue.topic.clone()).at(queue.number, stored.offset);
    origin = origin.on(queue.broker.clone());
    let (mut topic, mut first, mut empty, mut counted) = (None, None, false, 0);
    for (name, value) in stored.properties {
        match &*name {
            UNIQ_KEY => parts.id = Some(value.into()),
            GROUP => parts.key = Some(decode(value)),
            RETRY_TOPIC => topic = Some(Arc::from(value)),
            ORIGIN_MESSAGE_ID => first = Some(value.into_boxed_str()),
            CONTENT_TYPE => parts.content_type = text_of(decode(value)),
            EMPTY => empty = true,
            COUNTED => counted = value.parse().unwrap_or(0),
            TRANSACTION => {}
            _ if is_system(&name) || DELAYS.contains(&&*name) => {}
            _ => {
                if &*name == FOREIGN_CONTENT_TYPE && parts.content_type.is_none() {
                    parts.content_type = Some(value.as_str().into());
                }
                parts.headers.push(name.clone(), Some(decode(value)));
            }
        }
    }
    // The place alone would name another message after the broker has lost its data.
    let unique = parts.id.as_deref().unwrap_or_default();
    origin = origin.first_stored(format!("{unique}@{}", first.as_deref().unwrap_or(&stored.place)));
    parts.origin = origin;
    parts.payload = Some(if empty { Bytes::new() } else { stored.body });
    parts.timestamp =
        u64::try_from(stored.born).ok().and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
    // Of what is published anew, say from the dead letters, the broker's count is of another life.
    let sent_back = !topics.contains(&queue.topic);
    let before = topic.unwrap_or_else(|| queue.topic.clone());
    let foreign = !sent_back && before != queue.topic;
    let topic = if sent_back { before } else { queue.topic.clone() };
    let subscription = topics.iter().position(|known| *known == topic);
    parts.native = Some(Arc::new(Native {
        subscription: subscription.and_then(|place| u16::try_from(place).ok()),
        topic,
        foreign,
        broker: queue.broker.clone(),
        position: stored.position,
        place: stored.place.into(),
        first,
        charged: if sent_back { stored.reconsumed.saturating_sub(counted) } else { 0 },
    }));
    parts.into()
}

fn text_of(bytes: Bytes) -> Option<Arc<str>> {
    std::str::from_utf8(&bytes).ok().map(Into::into)
}

/// What is sent: the properties in the protocol's form, and the body.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) properties: String,
    pub(crate) body: Bytes,
    /// What chooses the queue.
    pub(crate) group: Option<String>,
}

/// What a copy carries beside the message.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// A delay level: the copy appears when its time is over.
    pub(crate) level: Option<usize>,
    /// How many of the broker's count our header has.
    pub(crate) counted: Option<u32>,
    /// It goes to the dead letters.
    pub(crate) dead: bool,
}

/// A message as an application publishes it. `id` is for one without an id of its own.
///
/// # Errors
/// [`Unsupported`](ErrorKind::Unsupported) for what the protocol cannot carry.
pub(crate) fn write(message: &Message, id: &str) -> Result<Record, Error> {
    published(message, id)?.done(message)
}

/// The same, kept back by the broker until it knows how a transaction of this producer group
/// ended.
///
/// # Errors
/// As [`write`]; also for a delay, which the broker would forget.
pub(crate) fn write_half(
    message: &Message,
    id: &str,
    group: &str,
    transaction: &str,
) -> Result<Record, Error> {
    if let Some(name) = DELAYS.iter().find(|name| message.headers().get(name).is_some()) {
        return Err(unsupported(format!("the header {name}: RocketMQ delays no message of a transaction")));
    }
    let mut writer = published(message, id)?;
    writer.put("TRAN_MSG", "true");
    writer.put("PGROUP", group);
    writer.put(TRANSACTION, transaction);
    writer.done(message)
}

/// The transaction of a half message of ours.
pub(crate) fn transaction_of(half: &Stored) -> Option<&str> {
    half.properties.iter().find_map(|(name, value)| (&**name == TRANSACTION).then_some(value.as_str()))
}

fn published(message: &Message, id: &str) -> Result<Writer, Error> {
    if let Some(name) = message.headers().iter().map(|(name, _)| name).find(|name| is_system(name)) {
        return Err(unsupported(format!(
            "the header {name} is a property of RocketMQ's own and cannot be set"
        )));
    }
    let mut writer = Writer::default();
    writer.message(message, id)?;
    Ok(writer)
}

/// A copy of a message that was delivered.
///
/// # Errors
/// As [`write`].
pub(crate) fn copy(message: &Message, native: &Native, extra: &Extra) -> Result<Record, Error> {
    let mut writer = Writer::default();
    writer.message(message, &native.place)?;
    let first = native.first.as_deref().unwrap_or(&native.place);
    writer.put(RETRY_TOPIC, &native.topic);
    writer.put(ORIGIN_MESSAGE_ID, first);
    if extra.dead {
        writer.put("DLQ_ORIGIN_TOPIC", &native.topic);
        writer.put("DLQ_ORIGIN_MESSAGE_ID", first);
    }
    if let Some(level) = extra.level {
        writer.put("DELAY", &level.to_string());
    }
    if let Some(counted) = extra.counted {
        writer.put(COUNTED, &counted.to_string());
    }
    writer.done(message)
}

#[derive(Default)]
struct Writer {
    properties: String,
    group: Option<String>,
}

impl Writer {
    fn message(&mut self, message: &Message, id: &str) -> Result<(), Error> {
        let id = message.id().unwrap_or(id);
        if !text::is_plain(id) {
            return Err(unsupported(
                "the message id is empty or has a control character that RocketMQ's properties cannot carry; use \
                 plain text",
            ));
        }
        self.put(UNIQ_KEY, id);
        if let Some(key) = message.key() {
            let group = encode(key);
            self.put(GROUP, &group);
            self.group = Some(group);
        }
        self.headers(message.headers())?;
        let foreign = message.headers().get_str(FOREIGN_CONTENT_TYPE);
        if let Some(content_type) = message.content_type().filter(|text| foreign != Some(*text)) {
            self.put(CONTENT_TYPE, &encode(content_type.as_bytes()));
        }
        Ok(())
    }

    fn headers(&mut self, headers: &Headers) -> Result<(), Error> {
        let mut seen = HashSet::new();
        for (name, value) in headers.iter() {
            if !text::is_plain(name) || OURS.contains(&name) {
                return Err(unsupported(format!("a header of the name {name:?} cannot be sent to RocketMQ")));
            }
            let Some(value) = value else {
                return Err(unsupported(format!("the header {name} is null, which RocketMQ cannot carry")));
            };
            if !seen.insert(name) {
                return Err(unsupported(format!(
                    "the header {name} is there twice; RocketMQ keeps each name once"
                )));
            }
            self.put(name, &encode(value));
        }
        Ok(())
    }

    fn put(&mut self, name: &str, value: &str) {
        self.properties.push_str(name);
        self.properties.push(text::IS);
        self.properties.push_str(value);
        self.properties.push(text::END);
    }

    fn done(mut self, message: &Message) -> Result<Record, Error> {
        let mut body = message.payload().cloned().ok_or_else(|| {
            unsupported("RocketMQ has no tombstones; a message without a body cannot be sent")
        })?;
        if body.is_empty() {
            self.put(EMPTY, "1");
            body = Bytes::from_static(&[0]);
        }
        Ok(Record { properties: self.properties, body, group: self.group })
    }
}

fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(record: Record, offset: i64) -> Stored {
        let pairs = record.properties.split(text::END).filter_map(|pair| pair.split_once(text::IS));
        Stored {
            offset,
            body: record.body,
            place: "7F00".to_owned(),
            properties: pairs.map(|(name, value)| (name.into(), value.to_owned())).collect(),
            ..Stored::default()
        }
    }

    fn queue(topic: &str) -> Queue {
        Queue { topic: topic.into(), broker: "broker-a".into(), number: 2 }
    }

    fn back(message: &Message) -> Message {
        read(stored(write(message, "id").unwrap(), 7), &queue("orders"), &["orders".into()])
    }

    #[test]
    fn what_text_cannot_carry_arrives_all_the_same() {
        let values: [&[u8]; 6] =
            [b"", b"a\x01b", b"\x02", &[0, 159, 146, 150], b"=b64=", "größe\0".as_bytes()];
        let mut sent = Message::new("").with_key(vec![0, 255]).with_id("order 1").with_content_type("a/b");
        for (n, value) in values.iter().enumerate() {
            sent = sent.with_header(format!("h{n}"), value.to_vec());
        }
        let read = back(&sent);
        for (n, value) in values.iter().enumerate() {
            assert_eq!(read.headers().get(&format!("h{n}")).unwrap(), value);
        }
        assert_eq!(read.headers().len(), values.len());
        assert_eq!(
            (read.key(), read.id(), read.content_type()),
            (sent.key(), sent.id(), sent.content_type())
        );
        assert!(read.payload().is_some_and(Bytes::is_empty));
    }

    #[test]
    fn keys_and_tags_are_headers_of_that_name() {
        let record =
            write(&Message::new("x").with_header("KEYS", "a b").with_header("TAGS", "paid"), "id").unwrap();
        assert!(
            record.properties.contains("KEYS\u{1}a b\u{2}")
                && record.properties.contains("TAGS\u{1}paid\u{2}")
        );
    }

    #[test]
    fn what_belongs_to_the_broker_cannot_be_set() {
        let repeated = Message::new("x").with_header("t", "1").with_header("t", "2");
        let names =
            ["UNIQ_KEY", "RETRY_TOPIC", "__SHARDINGKEY", "TIMER_ROLL_TIMES", "a\u{1}", "", EMPTY, COUNTED];
        let wrong = names.map(|name| Message::new("x").with_header(name, "1"));
        for message in wrong.iter().chain([&repeated, &Message::tombstone(), &Message::new("x").with_id("")])
        {
            assert_eq!(write(message, "id").unwrap_err().kind(), ErrorKind::Unsupported, "{message:?}");
        }
        assert!(write(&Message::new("x").with_header("DELAY", "3"), "id").is_ok());
    }

    #[test]
    fn a_half_message_names_its_transaction_and_shows_it_to_nobody() {
        let message = Message::new("x").with_id("u1").with_header("tenant", "t");
        let half = stored(write_half(&message, "id", "producers", "t-1").unwrap(), 0);
        assert_eq!(transaction_of(&half), Some("t-1"));
        assert!(half.properties.iter().any(|(name, value)| &**name == "PGROUP" && value == "producers"));
        let read = read(half, &queue("orders"), &["orders".into()]);
        assert_eq!((read.id(), read.headers().len()), (Some("u1"), 1));
        for wrong in ["DELAY", "TIMER_DELAY_SEC", TRANSACTION, "TRAN_MSG"] {
            let error = write_half(&message.clone().with_header(wrong, "1"), "id", "g", "t").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{wrong}");
        }
    }

    #[test]
    fn a_copy_keeps_where_it_came_from() {
        let first = back(&Message::new("x").with_id("u1").with_header("tenant", "t"));
        let native = Native::of(&first).unwrap();
        let extra = Extra { counted: Some(3), ..Extra::default() };
        let mut kept = stored(copy(&first, native, &extra).unwrap(), 0);
        (kept.place, kept.reconsumed) = ("8F00".to_owned(), 5);
        let again = read(kept, &queue("%RETRY%g"), &["x".into(), "orders".into()]);
        let native = Native::of(&again).unwrap();
        assert_eq!((native.subscription, native.charged, &*native.topic), (Some(1), 2, "orders"));
        assert_eq!(again.origin().first_stored.as_deref(), Some("u1@7F00"));
        assert_eq!(first.origin().first_stored, again.origin().first_stored);
        assert_eq!(again.headers().len(), 1);
    }

    #[test]
    fn a_dead_letter_is_consumed_as_what_it_is() {
        let first = back(&Message::new("x"));
        let extra = Extra { dead: true, ..Extra::default() };
        let mut letter = stored(copy(&first, Native::of(&first).unwrap(), &extra).unwrap(), 0);
        letter.reconsumed = 5;
        let read = read(letter, &queue("%DLQ%g"), &["%DLQ%g".into()]);
        let native = Native::of(&read).unwrap();
        assert_eq!((native.subscription, native.charged, native.foreign), (Some(0), 0, true));
        assert!(!Native::of(&first).unwrap().foreign);
    }

    #[test]
    fn a_message_of_a_topic_that_is_not_consumed_any_more_has_no_subscription() {
        let read = read(Stored::default(), &queue("gone"), &["orders".into()]);
        assert_eq!(Native::of(&read).unwrap().subscription, None);
    }
}
