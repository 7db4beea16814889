//! Where the identity of a business event comes from.

use std::fmt;
use std::sync::Arc;

use crate::Message;

mod canonical;
mod document;
mod problem;

pub(crate) use document::Document;

/// A source of idempotency keys: which part of a message says that two deliveries mean the
/// same business event.
///
/// ```
/// use oncemq_core::Key;
/// let by_order = Key::json("/order_id");
/// let by_order_and_step = Key::all([Key::json("/order_id"), Key::header("step")]);
/// let with_fallback = Key::business_header().or(Key::message_id());
/// ```
#[derive(Clone)]
pub struct Key {
    source: Arc<KeySource>,
}

type Extract = dyn Fn(&Message) -> Option<Vec<u8>> + Send + Sync;

enum KeySource {
    Json(String),
    Header(String),
    RecordKey,
    MessageId,
    Fingerprint(Vec<String>),
    Custom(Box<Extract>),
    All(Vec<Key>),
    Or(Key, Key),
}

/// A key found in a message.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyValue {
    tag: KeyTag,
    bytes: Vec<u8>,
}

/// How a key was made. Keys of different tags never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyTag {
    /// From the business data.
    Business,
    /// From the message id.
    MessageId,
    /// A fingerprint over fields of the payload.
    Fingerprint,
}

/// Why there is no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// The message lacks what the key is made of. Says what.
    Missing(String),
    /// The payload could not be read to find it. Says why.
    Unreadable(String),
}

impl Key {
    /// The value at a JSON pointer (RFC 6901) of the payload: a string is its text, an
    /// integer its digits, so `17` and `"17"` are the same key. Anything else, an empty or
    /// blank string too, is a missing key. The empty pointer is the whole payload; any other
    /// begins with `/`, or the consumer refuses to start.
    pub fn json(pointer: impl Into<String>) -> Self {
        Self::from_source(KeySource::Json(pointer.into()))
    }

    /// The value of a header. An empty or blank value is a missing key.
    pub fn header(name: impl Into<String>) -> Self {
        Self::from_source(KeySource::Header(name.into()))
    }

    /// The header `biz_id`, or else `request_id`.
    pub fn business_header() -> Self {
        Self::header("biz_id").or(Self::header("request_id"))
    }

    /// The partitioning key: Kafka's record key, RocketMQ's message group.
    pub fn record_key() -> Self {
        Self::from_source(KeySource::RecordKey)
    }

    /// The message id that survives a retry. It does not see a producer's resend under a
    /// new id: prefer a business id.
    pub fn message_id() -> Self {
        Self::from_source(KeySource::MessageId)
    }

    /// SHA-256 over the fields at these JSON pointers, in a canonical form that is the same
    /// in every build and release: members sorted, no white space, an integral number
    /// written as an integer (`1.0` equals `1`), other numbers in the shortest form that
    /// reads back. An absent field differs from `null`; if all are absent the key is
    /// missing. Name no field that changes between two sends of one event, such as a time
    /// of sending or a trace id.
    pub fn fingerprint<I, S>(pointers: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        Self::from_source(KeySource::Fingerprint(pointers.into_iter().map(Into::into).collect()))
    }

    /// What a function finds. `None` or an empty value is a missing key.
    pub fn from_fn<F>(extract: F) -> Self
    where
        F: Fn(&Message) -> Option<Vec<u8>> + Send + Sync + 'static,
    {
        Self::from_source(KeySource::Custom(Box::new(extract)))
    }

    /// All of these, in this order, each with its length in front, so that no two
    /// combinations meet. A missing part is a missing key.
    pub fn all(parts: impl IntoIterator<Item = Key>) -> Self {
        Self::from_source(KeySource::All(parts.into_iter().collect()))
    }

    /// This, or where it is missing the other.
    pub fn or(self, other: Key) -> Self {
        Self::from_source(KeySource::Or(self, other))
    }

    fn from_source(source: KeySource) -> Self {
        Self { source: Arc::new(source) }
    }

    /// Finds the key of a message. `document` keeps the parsed payload between calls.
    pub(crate) fn find(&self, message: &Message, document: &mut Document) -> Result<KeyValue, NoKey> {
        match &*self.source {
            KeySource::Json(pointer) => {
                let text = document.text_at(message, pointer)?;
                business(text.into_bytes(), || format!("nothing usable at {pointer}"))
            }
            KeySource::Header(name) => {
                let value = message.headers().get(name).map(|v| v.to_vec()).unwrap_or_default();
                business(value, || format!("header {name} is missing or blank"))
            }
            KeySource::RecordKey => {
                let value = message.key().map(|v| v.to_vec()).unwrap_or_default();
                business(value, || "the record key is missing or blank".into())
            }
            KeySource::MessageId => {
                let id = message.id().unwrap_or_default();
                present(KeyTag::MessageId, id.into(), || "the message id is missing or blank".into())
            }
            KeySource::Fingerprint(pointers) => {
                let bytes = canonical::fingerprint(document.value(message)?, pointers)
                    .ok_or_else(|| NoKey::Missing("none of the fingerprint's fields exists".into()))?;
                Ok(KeyValue { tag: KeyTag::Fingerprint, bytes: bytes.to_vec() })
            }
            KeySource::Custom(extract) => {
                let value = extract(message).unwrap_or_default();
                business(value, || "the key function found nothing".into())
            }
            KeySource::All(parts) => all(parts, message, document),
            KeySource::Or(first, second) => match first.find(message, document) {
                Ok(value) => Ok(value),
                Err(first) => second.find(message, document).map_err(|second| first.and(second)),
            },
        }
    }
}

impl NoKey {
    fn and(self, other: NoKey) -> NoKey {
        match (self, other) {
            (NoKey::Unreadable(why), _) | (_, NoKey::Unreadable(why)) => NoKey::Unreadable(why),
            (NoKey::Missing(a), NoKey::Missing(b)) => NoKey::Missing(format!("{a}; {b}")),
        }
    }
}

fn business(bytes: Vec<u8>, why: impl FnOnce() -> String) -> Result<KeyValue, NoKey> {
    present(KeyTag::Business, bytes, why)
}

fn present(tag: KeyTag, bytes: Vec<u8>, why: impl FnOnce() -> String) -> Result<KeyValue, NoKey> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(NoKey::Missing(why()));
    }
    Ok(KeyValue { tag, bytes })
}

fn all(parts: &[Key], message: &Message, document: &mut Document) -> Result<KeyValue, NoKey> {
    let mut bytes = Vec::new();
    let mut tag = KeyTag::Business;
    for part in parts {
        let value = part.find(message, document)?;
        if value.tag != KeyTag::Business {
            tag = value.tag;
        }
        bytes.push(value.tag.byte());
        bytes.extend_from_slice(&(value.bytes.len() as u64).to_be_bytes());
        bytes.extend_from_slice(&value.bytes);
    }
    if parts.is_empty() {
        return Err(NoKey::Missing("Key::all has no parts".into()));
    }
    Ok(KeyValue { tag, bytes })
}

impl KeyValue {
    /// A business key of these bytes, for callers without a [`Key`] source.
    pub fn business(bytes: impl Into<Vec<u8>>) -> Self {
        Self::tagged(KeyTag::Business, bytes)
    }

    /// A key made in this way.
    pub fn tagged(tag: KeyTag, bytes: impl Into<Vec<u8>>) -> Self {
        Self { tag, bytes: bytes.into() }
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How it was made.
    pub fn tag(&self) -> KeyTag {
        self.tag
    }

    /// The key for people: text where it is text, and cut. Never compared.
    pub fn text(&self) -> String {
        let text: String = match std::str::from_utf8(&self.bytes) {
            Ok(text) if self.tag != KeyTag::Fingerprint => {
                text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
            }
            _ => self.bytes.iter().map(|b| format!("{b:02x}")).collect(),
        };
        crate::trail::cut(&text, 120).to_owned()
    }
}

impl KeyTag {
    /// The first byte of the stored form.
    pub fn byte(self) -> u8 {
        match self {
            KeyTag::Business => b'r',
            KeyTag::MessageId => b'm',
            KeyTag::Fingerprint => b'f',
        }
    }
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.tag, self.text())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.source {
            KeySource::Json(pointer) => write!(f, "json {pointer}"),
            KeySource::Header(name) => write!(f, "header {name}"),
            KeySource::RecordKey => f.write_str("record key"),
            KeySource::MessageId => f.write_str("message id"),
            KeySource::Fingerprint(pointers) => write!(f, "fingerprint {}", pointers.join(" ")),
            KeySource::Custom(_) => f.write_str("function"),
            KeySource::All(parts) => f.debug_tuple("all").field(parts).finish(),
            KeySource::Or(a, b) => write!(f, "{a:?} or {b:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
