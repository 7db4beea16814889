//! Messages as records.
//!
//! A record has no place for a message id and a content type: they travel in headers of
//! ours, which the handler does not see. A content type that another client wrote as the
//! header `content-type` is read too, and stays where it is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use oncemq_core::{Headers, Message, Origin, Parts};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};

/// The header that carries the message id.
const ID: &str = "oncemq-message-id";
/// The header that carries the content type.
const CONTENT_TYPE: &str = "oncemq-content-type";
/// Where other clients write it.
const FOREIGN_CONTENT_TYPE: &str = "content-type";
/// Small messages share a piece of memory of this size: one allocation for many.
const CHUNK: usize = 16 * 1024;

/// Makes messages of records.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    chunk: BytesMut,
}

/// A record, small enough to be handed from thread to thread. The message is made of it where
/// it is used: memory that one thread takes and another gives back is what they wait for each
/// other for.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) offset: i64,
    /// In milliseconds since 1970; none below zero.
    written: i64,
    /// The key, and after it the payload.
    bytes: Bytes,
    key: Option<usize>,
    has_payload: bool,
    /// What most records do not have.
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Default)]
struct Rest {
    headers: Headers,
    id: Option<Arc<str>>,
    content_type: Option<Arc<str>>,
}

impl Record {
    /// When its producer or the broker stamped it.
    pub(crate) fn timestamp(&self) -> Option<SystemTime> {
        let millis = u64::try_from(self.written).ok()?;
        UNIX_EPOCH.checked_add(Duration::from_millis(millis))
    }

    /// The message of this record in the partition that `origin` names.
    pub(crate) fn into_message(self, origin: &Origin, partition: i32) -> Message {
        let mut parts = Parts::default();
        parts.timestamp = self.timestamp();
        parts.origin = origin.clone().at(partition, self.offset);
        let mut payload = self.bytes;
        parts.key = self.key.map(|length| payload.split_to(length));
        parts.payload = self.has_payload.then_some(payload);
        if let Some(rest) = self.rest {
            (parts.headers, parts.id, parts.content_type) = (rest.headers, rest.id, rest.content_type);
        }
        parts.into()
    }
}

impl Reader {
    pub(crate) fn read(&mut self, record: &BorrowedMessage<'_>) -> Record {
        let (key, payload) = (record.key(), record.payload());
        Record {
            offset: record.offset(),
            written: record.timestamp().to_millis().unwrap_or(-1),
            bytes: self.keep(key.unwrap_or_default(), payload.unwrap_or_default()),
            key: key.map(<[u8]>::len),
            has_payload: payload.is_some(),
            rest: record.headers().map(|headers| Box::new(self.rest(headers))),
        }
    }

    fn rest(&mut self, headers: &BorrowedHeaders) -> Rest {
        let mut rest = Rest::default();
        for index in 0..headers.count() {
            // The client panics at a name that is not UTF-8. It cannot be handed on, and must
            // not stop the partition.
            let header = catch_unwind(AssertUnwindSafe(|| headers.try_get(index)));
            if let Ok(Some(header)) = header {
                let value = header.value.map(|bytes| self.keep(bytes, &[]));
                read_header(header.key, value, &mut rest);
            }
        }
        rest
    }

    fn keep(&mut self, first: &[u8], second: &[u8]) -> Bytes {
        let length = first.len() + second.len();
        if length == 0 {
            return Bytes::new();
        }
        if length > CHUNK / 4 {
            return [first, second].concat().into();
        }
        if self.chunk.capacity() < length {
            self.chunk = BytesMut::with_capacity(CHUNK);
        }
        self.chunk.extend_from_slice(first);
        self.chunk.extend_from_slice(second);
        self.chunk.split().freeze()
    }
}

fn read_header(name: &str, value: Option<Bytes>, rest: &mut Rest) {
    let text = || value.as_ref().and_then(|bytes| std::str::from_utf8(bytes).ok()).map(Into::into);
    match name {
        ID => rest.id = text(),
        CONTENT_TYPE => rest.content_type = text(),
        _ => {
            if name == FOREIGN_CONTENT_TYPE && rest.content_type.is_none() {
                rest.content_type = text();
            }
            rest.headers.push(name, value);
        }
    }
}

/// The headers of a message to send.
pub(crate) fn headers_of(message: &Message) -> Option<OwnedHeaders> {
    let foreign = message.headers().get_str(FOREIGN_CONTENT_TYPE);
    let content_type = message.content_type().filter(|text| foreign != Some(*text));
    let ours = [(ID, message.id()), (CONTENT_TYPE, content_type)];
    let count = message.headers().len() + ours.iter().filter(|(_, value)| value.is_some()).count();
    if count == 0 {
        return None;
    }
    let mut headers = OwnedHeaders::new_with_capacity(count);
    for (name, value) in message.headers().iter() {
        headers = headers.insert(Header { key: name, value: value.map(|bytes| &**bytes) });
    }
    for (name, value) in ours.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        headers = headers.insert(Header { key: name, value: Some(value.as_bytes()) });
    }
    Some(headers)
}

/// A header name that the protocol cannot carry, if there is one.
pub(crate) fn unusable_header(headers: &Headers) -> Option<&str> {
    headers.iter().map(|(name, _)| name).find(|name| name.contains('\0'))
}
