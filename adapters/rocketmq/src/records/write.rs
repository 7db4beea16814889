//! What a broker is to keep, out of messages.

use std::collections::HashSet;

use bytes::Bytes;
use oncemq_core::{Error, ErrorKind, Headers, Message, Parts};

use super::Native;
use super::names::{
    CONTENT_TYPE, COUNTED, DELAYS, EMPTY, FOREIGN_CONTENT_TYPE, GROUP, ORIGIN_MESSAGE_ID, OURS, RETRY_TOPIC,
    TRANSACTION, UNIQ_KEY, is_system,
};
use super::text::{self, encode};

/// The longest form of all properties together.
const PROPERTIES_MAX: usize = 32_767;
/// Names the headers that a dead letter had no room for.
pub(crate) const CUT: &str = "oncemq-headers-cut";
/// So much of their names.
const NAMES_MAX: usize = 512;
/// A dead letter without room keeps a key, an id and a content type up to this length.
const PART_MAX: usize = 1_024;
/// What copies of ours need of it.
const ROOM: usize = 4_096;

/// What is sent: the properties in the protocol's form, and the body.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) properties: String,
    pub(crate) body: Bytes,
    /// How the body is compressed, as a message's flag says it.
    pub(crate) flag: i32,
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
/// [`Unsupported`](ErrorKind::Unsupported) for what the protocol cannot carry,
/// [`TooLarge`](ErrorKind::TooLarge) for headers that leave no room for those of a retry.
pub(crate) fn write(message: &Message, id: &str) -> Result<Record, Error> {
    fitting(published(message, id)?.done(message)?)
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
    fitting(writer.done(message)?)
}

/// Leaves room for what a retry or a dead letter adds.
fn fitting(record: Record) -> Result<Record, Error> {
    let size = record.properties.len();
    if size > PROPERTIES_MAX - ROOM {
        let text = format!(
            "headers, id and key of {size} bytes; RocketMQ takes {PROPERTIES_MAX}, of which a retry or a dead letter \
             needs {ROOM}: move the rest into the body"
        );
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    Ok(record)
}

/// Whether a broker understands how a message is to be delayed; it would not say what is wrong.
fn check_delay(headers: &Headers) -> Result<(), Error> {
    let mut delays = DELAYS.iter().filter_map(|name| Some((*name, headers.get(name)?)));
    let Some((name, value)) = delays.next() else { return Ok(()) };
    if let Some((second, _)) = delays.next() {
        return Err(unsupported(format!("the headers {name} and {second} are two delays; send one of them")));
    }
    let digits = !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
    if !digits || name == "DELAY" && value.len() > 3 {
        let want = if name == "DELAY" { "the number of a delay level, such as 3" } else { "a whole number" };
        return Err(unsupported(format!("the header {name} is not {want}")));
    }
    Ok(())
}

fn published(message: &Message, id: &str) -> Result<Writer, Error> {
    if let Some(name) = message.headers().iter().map(|(name, _)| name).find(|name| is_system(name)) {
        return Err(unsupported(format!(
            "the header {name} is a property of RocketMQ's own and cannot be set"
        )));
    }
    check_delay(message.headers())?;
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
    let mut record = writer.done(message)?;
    // As it was stored: uncompressed it may be longer than a broker takes. What cannot be
    // uncompressed is not said to be compressed any more, so that tools show it.
    if let Some(packed) = native.packed.as_ref().filter(|_| native.unreadable.is_none()) {
        (record.flag, record.body) = (packed.flag, packed.body.clone());
    }
    Ok(record)
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
        Ok(Record { properties: self.properties, body, flag: 0, group: self.group })
    }
}

fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

/// The same message with as many of its headers as a copy has room for, the shortest first, and
/// a header that names those that were left out. Our own headers stay, as far as they are not
/// somebody else's under such a name. A key, an id and a content type that are longer than any of
/// use go as well.
pub(crate) fn shortened(message: &Message) -> Message {
    let size =
        |name: &str, value: Option<&Bytes>| name.len() + value.map_or(0, |value| encode(value).len()) + 2;
    let spared = |name: &str, value| is_ours(name) && size(name, value) <= ROOM;
    let mut headers: Vec<_> =
        message.headers().iter().filter(|(name, value)| !spared(name, *value)).collect();
    headers.sort_by_key(|(name, value)| size(name, *value));
    let mut room = PROPERTIES_MAX - 4 * ROOM;
    let mut short = message.clone();
    let mut cut = cut_parts(short.parts_mut());
    for (name, value) in headers {
        match room.checked_sub(size(name, value)) {
            Some(left) => room = left,
            None => cut.push(name.to_owned()),
        }
    }
    let parts = short.parts_mut();
    cut.iter().for_each(|name| parts.headers.remove(name));
    let mut names = cut.join(", ");
    names.truncate(names.floor_char_boundary(NAMES_MAX));
    parts.headers.set(CUT, names);
    short
}

/// Empties what is longer than `PART_MAX`, and names it.
fn cut_parts(parts: &mut Parts) -> Vec<String> {
    let is_long = |text: &[u8]| encode(text).len() > PART_MAX;
    let mut cut = Vec::new();
    if parts.key.take_if(|key| is_long(key)).is_some() {
        cut.push("the message key".to_owned());
    }
    if parts.id.take_if(|id| is_long(id.as_bytes())).is_some() {
        cut.push("the message id".to_owned());
    }
    if parts.content_type.take_if(|name| is_long(name.as_bytes())).is_some() {
        cut.push("the content type".to_owned());
    }
    cut
}

fn is_ours(name: &str) -> bool {
    name.starts_with("oncemq-")
}
