//! What a broker delivers, in words that fit every broker.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

/// A message: payload, key, headers, identity and where it came from.
///
/// Cloning is one reference count. The `with_` methods copy the parts only when the
/// message is shared.
#[derive(Clone)]
pub struct Message {
    parts: Arc<Parts>,
}

/// The parts of a [`Message`], for adapters and for people who build messages.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Parts {
    /// The body. `None` is a tombstone (Kafka's null value), which is not an empty body.
    pub payload: Option<Bytes>,
    /// The partitioning key: Kafka's record key, RocketMQ's message group.
    pub key: Option<Bytes>,
    /// Headers in the order they were set; a name may repeat.
    pub headers: Headers,
    /// The message id, where the broker keeps one that survives a retry.
    pub id: Option<Arc<str>>,
    /// The MIME type of the payload.
    pub content_type: Option<Arc<str>>,
    /// When the producer or the broker stamped the message.
    pub timestamp: Option<SystemTime>,
    /// Where it came from.
    pub origin: Origin,
    /// Properties of the broker's own protocol, kept so that a copy sent back to the
    /// same broker loses none of them. Only the adapter that set it reads it.
    pub native: Option<Arc<dyn Any + Send + Sync>>,
}

/// Where a message came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Origin {
    /// The broker's name: `rabbitmq`, `kafka`, `rocketmq`, `memory`.
    pub broker: Arc<str>,
    /// The topic, or on a queue broker the queue.
    pub topic: Arc<str>,
    /// The server that numbers the partition, on brokers whose servers each have a partition
    /// 0 of a topic (RocketMQ's broker name).
    pub server: Option<Arc<str>>,
    /// The partition, on brokers that have them.
    pub partition: Option<i32>,
    /// The offset in the partition, on brokers that have them.
    pub offset: Option<i64>,
    /// Names the place where the message was stored first, on brokers whose own retry
    /// stores it again at another partition and offset (RocketMQ's origin message id). Such
    /// an adapter sets it on every delivery, the first included: it then names the message
    /// in the place of partition and offset.
    pub first_stored: Option<Arc<str>>,
}

impl Origin {
    /// A place without partition and offset.
    pub fn new(broker: impl Into<Arc<str>>, topic: impl Into<Arc<str>>) -> Self {
        Self {
            broker: broker.into(),
            topic: topic.into(),
            server: None,
            partition: None,
            offset: None,
            first_stored: None,
        }
    }

    /// The same place at a partition and an offset.
    pub fn at(mut self, partition: i32, offset: i64) -> Self {
        self.partition = Some(partition);
        self.offset = Some(offset);
        self
    }

    /// The same place, on a server that numbers its own partitions.
    pub fn on(mut self, server: impl Into<Arc<str>>) -> Self {
        self.server = Some(server.into());
        self
    }

    /// The same place, with the name of the one where the message was stored first.
    pub fn first_stored(mut self, name: impl Into<Arc<str>>) -> Self {
        self.first_stored = Some(name.into());
        self
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.broker, self.topic)?;
        if let Some(server) = &self.server {
            write!(f, "/{server}")?;
        }
        if let (Some(partition), Some(offset)) = (self.partition, self.offset) {
            write!(f, "/{partition}@{offset}")?;
        }
        if let Some(name) = &self.first_stored {
            write!(f, " first stored as {name}")?;
        }
        Ok(())
    }
}

impl Message {
    /// A message with this body and nothing else.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self::from(Parts { payload: Some(payload.into()), ..Parts::default() })
    }

    /// A message without a body.
    pub fn tombstone() -> Self {
        Self::from(Parts::default())
    }

    /// Sets the partitioning key.
    pub fn with_key(mut self, key: impl Into<Bytes>) -> Self {
        self.parts_mut().key = Some(key.into());
        self
    }

    /// Appends a header; a name may repeat.
    pub fn with_header(mut self, name: impl Into<Arc<str>>, value: impl Into<Bytes>) -> Self {
        self.parts_mut().headers.push(name, Some(value.into()));
        self
    }

    /// Sets the message id.
    pub fn with_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.parts_mut().id = Some(id.into());
        self
    }

    /// Sets the content type.
    pub fn with_content_type(mut self, content_type: impl Into<Arc<str>>) -> Self {
        self.parts_mut().content_type = Some(content_type.into());
        self
    }

    /// The body; `None` is a tombstone.
    pub fn payload(&self) -> Option<&Bytes> {
        self.parts.payload.as_ref()
    }

    /// The body, or an empty slice for a tombstone.
    pub fn body(&self) -> &[u8] {
        self.parts.payload.as_deref().unwrap_or_default()
    }

    /// The partitioning key.
    pub fn key(&self) -> Option<&Bytes> {
        self.parts.key.as_ref()
    }

    /// The headers.
    pub fn headers(&self) -> &Headers {
        &self.parts.headers
    }

    /// The message id.
    pub fn id(&self) -> Option<&str> {
        self.parts.id.as_deref()
    }

    /// The content type.
    pub fn content_type(&self) -> Option<&str> {
        self.parts.content_type.as_deref()
    }

    /// When the producer or the broker stamped it.
    pub fn timestamp(&self) -> Option<SystemTime> {
        self.parts.timestamp
    }

    /// Where it came from.
    pub fn origin(&self) -> &Origin {
        &self.parts.origin
    }

    /// The properties of the broker's own protocol, if the adapter kept them.
    pub fn native(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.parts.native.as_deref()
    }

    /// Bytes of payload, key and headers, the figure that bounds the intake.
    pub fn size(&self) -> usize {
        self.body().len() + self.parts.key.as_ref().map_or(0, Bytes::len) + self.parts.headers.size()
    }

    /// The parts, to change several at once.
    pub fn parts_mut(&mut self) -> &mut Parts {
        Arc::make_mut(&mut self.parts)
    }
}

impl From<Parts> for Message {
    fn from(parts: Parts) -> Self {
        Self { parts: Arc::new(parts) }
    }
}

// Payload and header values are business data: they never reach a log through Debug.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.parts.id)
            .field("origin", &format_args!("{}", self.parts.origin))
            .field("payload_bytes", &self.parts.payload.as_ref().map(Bytes::len))
            .field("headers", &self.parts.headers.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("id", &self.id)
            .field("payload_bytes", &self.payload.as_ref().map(Bytes::len))
            .finish_non_exhaustive()
    }
}

/// Headers: ordered, repeated names allowed, values binary or null.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    list: Vec<(Arc<str>, Option<Bytes>)>,
}

impl Headers {
    /// Appends a header. `None` is a null value, which is not an empty one.
    pub fn push(&mut self, name: impl Into<Arc<str>>, value: Option<Bytes>) {
        self.list.push((name.into(), value));
    }

    /// Removes every header of this name, then appends one.
    pub fn set(&mut self, name: impl Into<Arc<str>>, value: impl Into<Bytes>) {
        let name = name.into();
        self.remove(&name);
        self.push(name, Some(value.into()));
    }

    /// Removes every header of this name.
    pub fn remove(&mut self, name: &str) {
        self.list.retain(|(n, _)| &**n != name);
    }

    /// The last value of this name that is not null.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.list.iter().rev().find(|(n, v)| &**n == name && v.is_some())?.1.as_ref()
    }

    /// The last value of this name as text; `None` also if it is not UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// All headers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&Bytes>)> {
        self.list.iter().map(|(n, v)| (&**n, v.as_ref()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn size(&self) -> usize {
        self.list.iter().map(|(n, v)| n.len() + v.as_ref().map_or(0, Bytes::len)).sum()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_order_repeats_nulls_and_binary_values() {
        let mut headers = Headers::default();
        headers.push("t", Some(Bytes::from_static(b"1")));
        headers.push("t", Some(Bytes::from_static(b"2")));
        headers.push("n", None);
        headers.push("b", Some(Bytes::from_static(&[0, 255])));
        let seen: Vec<_> = headers.iter().map(|(n, v)| (n, v.map(|v| v.to_vec()))).collect();
        assert_eq!(
            seen,
            [("t", Some(b"1".to_vec())), ("t", Some(b"2".to_vec())), ("n", None), ("b", Some(vec![0, 255]))]
        );
        assert_eq!(headers.get_str("t"), Some("2"));
        assert_eq!(headers.get("n"), None);
        headers.set("t", "3");
        assert_eq!(headers.iter().filter(|(n, _)| *n == "t").count(), 1);
    }

    #[test]
    fn debug_shows_no_business_data() {
        let message = Message::new("card 4111").with_header("pin", "1234").with_key("alice");
        let text = format!("{message:?} {:?}", message.headers());
        assert!(!text.contains("4111") && !text.contains("1234") && !text.contains("alice"), "{text}");
    }

    #[test]
    fn a_shared_message_is_copied_before_it_changes() {
        let first = Message::new("a");
        let second = first.clone().with_id("2");
        assert_eq!((first.id(), second.id()), (None, Some("2")));
    }

    #[test]
    fn a_tombstone_is_not_an_empty_body() {
        assert!(Message::tombstone().payload().is_none());
        assert!(Message::new("").payload().is_some());
    }
}
