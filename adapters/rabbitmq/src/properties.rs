//! Between the broker's properties and neutral messages.

mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable, LongString, ShortString};
use oncemq_core::{Error, ErrorKind, Headers, Message, Origin, Parts};
use tokio::time::Instant;

pub use view::Properties;

/// Carries a record key, which AMQP does not know.
const KEY: &str = "oncemq-key";
/// Values of the original that a copy must not have as properties. The first copy writes
/// them, later ones keep them.
const ORIGINAL: &str = "oncemq-original-";

/// Set by brokers, or with a meaning for them: a copy that carried one of them was seen to
/// be routed twice, refused or counted wrongly.
fn is_brokers(name: &str) -> bool {
    name == "CC"
        || name == "BCC"
        || name == "x-delivery-count"
        || name == "x-acquired-count"
        || name.starts_with("x-death")
        || name.starts_with("x-first-death-")
        || name.starts_with("x-last-death-")
}

/// Whether a handler sees a header: not those by which a broker or a copy keeps its own
/// books.
fn is_users(name: &str) -> bool {
    !is_brokers(name) && !name.starts_with(ORIGINAL)
}

/// What a delivery had beside its neutral parts.
#[derive(Debug)]
pub(crate) struct Native {
    properties: BasicProperties,
    exchange: ShortString,
    routing_key: ShortString,
    /// When it arrived here: the broker's clock for it has been running since.
    pub(crate) received: Instant,
}

impl Native {
    pub(crate) fn of(message: &Message) -> Option<&Self> {
        message.native()?.downcast_ref()
    }
}

/// A delivery in neutral words. Its properties stay with it for copies.
pub(crate) fn message(delivery: lapin::message::Delivery, origin: &Origin, received: Instant) -> Message {
    let properties = delivery.properties;
    let text = |value: &Option<ShortString>| value.as_ref().map(|text| Arc::from(text.as_str()));
    let mut parts = Parts::default();
    if let Some(table) = properties.headers() {
        for (name, value) in table {
            if name.as_str() == KEY {
                parts.key = rendered(value).flatten();
            } else if let Some(value) = rendered(value).filter(|_| is_users(name.as_str())) {
                parts.headers.push(name.as_str(), value);
            }
        }
    }
    parts.payload = Some(Bytes::from(delivery.data));
    parts.id = text(properties.message_id());
    parts.content_type = text(properties.content_type());
    parts.timestamp = properties.timestamp().and_then(|t| UNIX_EPOCH.checked_add(Duration::from_secs(t)));
    parts.origin = origin.clone();
    let (exchange, routing_key) = (delivery.exchange, delivery.routing_key);
    parts.native = Some(Arc::new(Native { properties, exchange, routing_key, received }));
    Message::from(parts)
}

/// A header value as neutral bytes: numbers as decimal text, `Some(None)` for null, `None`
/// for arrays and tables, which have no neutral form.
fn rendered(value: &AMQPValue) -> Option<Option<Bytes>> {
    let bytes = match value {
        AMQPValue::LongString(text) => Bytes::copy_from_slice(text.as_bytes()),
        AMQPValue::ShortString(text) => Bytes::copy_from_slice(text.as_str().as_bytes()),
        AMQPValue::ByteArray(bytes) => Bytes::copy_from_slice(bytes.as_slice()),
        AMQPValue::Boolean(v) => v.to_string().into(),
        AMQPValue::ShortShortInt(v) => v.to_string().into(),
        AMQPValue::ShortShortUInt(v) => v.to_string().into(),
        AMQPValue::ShortInt(v) => v.to_string().into(),
        AMQPValue::ShortUInt(v) => v.to_string().into(),
        AMQPValue::LongInt(v) => v.to_string().into(),
        AMQPValue::LongUInt(v) => v.to_string().into(),
        AMQPValue::LongLongInt(v) => v.to_string().into(),
        AMQPValue::Float(v) => v.to_string().into(),
        AMQPValue::Double(v) => v.to_string().into(),
        AMQPValue::Timestamp(v) => v.to_string().into(),
        AMQPValue::DecimalValue(v) => format!("{}e-{}", v.value, v.scale).into(),
        AMQPValue::Void => return Some(None),
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => return None,
    };
    Some(Some(bytes))
}

/// The properties of a message that is published as a new one.
///
/// # Errors
/// What AMQP cannot carry: an absent payload, a repeated header, a name over 255 bytes.
pub(crate) fn of_new(message: &Message) -> Result<BasicProperties, Error> {
    if message.payload().is_none() {
        return Err(unsupported("RabbitMQ has no message without a body; send an empty one"));
    }
    let properties = common(message)?.with_timestamp(seconds(message.timestamp()));
    Ok(properties.with_headers(table_of(message)?.into()))
}

/// The properties of a copy for a rung or the dead letters: stamped now, with what must not
/// be carried on kept in headers of ours.
pub(crate) fn of_copy(message: &Message) -> Result<BasicProperties, Error> {
    let mut table = table_of(message)?;
    if let Some(native) = Native::of(message) {
        keep_original(native, &mut table);
    }
    Ok(common(message)?.with_timestamp(seconds(None)).with_headers(table.into()))
}

fn seconds(time: Option<SystemTime>) -> u64 {
    let time = time.unwrap_or_else(SystemTime::now);
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn common(message: &Message) -> Result<BasicProperties, Error> {
    // Persistent: a message in memory only is lost with the node.
    let mut to = BasicProperties::default().with_delivery_mode(2);
    if let Some(id) = message.id() {
        to = to.with_message_id(short("message id", id)?);
    }
    if let Some(content_type) = message.content_type() {
        to = to.with_content_type(short("content type", content_type)?);
    }
    let Some(from) = Native::of(message).map(|native| &native.properties) else { return Ok(to) };
    if let Some(value) = from.content_encoding() {
        to = to.with_content_encoding(value.clone());
    }
    if let Some(value) = from.correlation_id() {
        to = to.with_correlation_id(value.clone());
    }
    if let Some(value) = from.reply_to() {
        to = to.with_reply_to(value.clone());
    }
    if let Some(value) = from.kind() {
        to = to.with_type(value.clone());
    }
    if let Some(value) = from.app_id() {
        to = to.with_app_id(value.clone());
    }
    if let Some(value) = from.priority() {
        to = to.with_priority(*value);
    }
    Ok(to)
}

/// The headers. A value that is still what the delivery had keeps its AMQP type.
fn table_of(message: &Message) -> Result<BTreeMap<ShortString, AMQPValue>, Error> {
    let none = FieldTable::default();
    let native = Native::of(message).and_then(|native| native.properties.headers().as_ref());
    let native = native.unwrap_or(&none).inner();
    let mut table = BTreeMap::new();
    if let Some(key) = message.key() {
        table.insert(KEY.into(), AMQPValue::LongString(LongString::from(key.as_ref())));
    }
    for (name, value) in headers_of(message.headers()) {
        let typed = native.get(name).filter(|typed| rendered(typed).is_some_and(|v| v.as_ref() == value));
        let typed = match (typed, value) {
            (Some(typed), _) => typed.clone(),
            (None, Some(bytes)) => AMQPValue::LongString(LongString::from(bytes.as_ref())),
            (None, None) => AMQPValue::Void,
        };
        if table.insert(short("header name", name)?, typed).is_some() {
            return Err(unsupported(format!("header {name:?} stands twice, which RabbitMQ cannot carry")));
        }
    }
    // What has no neutral form goes along unseen.
    for (name, value) in native {
        let unseen = rendered(value).is_none() || !is_users(name.as_str());
        if unseen && !is_brokers(name.as_str()) && !table.contains_key(name) {
            table.insert(name.clone(), value.clone());
        }
    }
    Ok(table)
}

fn headers_of(headers: &Headers) -> impl Iterator<Item = (&str, Option<&Bytes>)> {
    headers.iter().filter(|(name, _)| !is_brokers(name))
}

fn keep_original(native: &Native, table: &mut BTreeMap<ShortString, AMQPValue>) {
    let ours = |name: &ShortString| name.as_str().starts_with(ORIGINAL);
    if table.keys().any(ours) {
        // A copy of a copy: its properties are ours, not the producer's.
        return;
    }
    let mut keep = |name: &str, value: AMQPValue| {
        table.insert(ShortString::from(format!("{ORIGINAL}{name}")), value);
    };
    let text = |value: &ShortString| AMQPValue::LongString(LongString::from(value.as_str()));
    keep("exchange", text(&native.exchange));
    keep("routing-key", text(&native.routing_key));
    let from = &native.properties;
    if let Some(value) = from.timestamp() {
        keep("timestamp", AMQPValue::Timestamp(*value));
    }
    if let Some(value) = from.expiration() {
        keep("expiration", text(value));
    }
    if let Some(value) = from.user_id() {
        keep("user-id", text(value));
    }
    if let Some(value) = from.delivery_mode() {
        keep("delivery-mode", AMQPValue::ShortShortUInt(*value));
    }
    let headers = from.headers().as_ref().map(FieldTable::inner);
    let get = |name: &str| headers.and_then(|headers| headers.get(name)).cloned();
    if let Some(value) = get("CC").filter(|value| !is_empty(value)) {
        keep("cc", value);
    }
}

fn is_empty(value: &AMQPValue) -> bool {
    value.as_array().is_some_and(|array: &FieldArray| array.as_slice().is_empty())
}

fn short(what: &str, text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| {
        let text = format!("a {what} of {} bytes; RabbitMQ carries at most 255", text.len());
        Error::new(ErrorKind::TooLarge, text)
    })
}

fn unsupported(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, text)
}

#[cfg(test)]
mod tests;
