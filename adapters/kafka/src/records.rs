//! Messages as records.
//!
//! A record has no place for a message id and a content type: they travel in headers of
//! ours, which the handler does not see. A content type that another client wrote as the
//! header `content-type` is read too, and stays where it is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use oncemq_core::{Headers, Message, Origin, Parts};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};

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

impl Reader {
    /// A message from a record of the partition that `origin` names.
    pub(crate) fn read(&mut self, record: &BorrowedMessage<'_>, origin: &Origin) -> Message {
        let mut parts = self.parts(record);
        parts.origin = origin.clone().at(record.partition(), record.offset());
        parts.into()
    }

    /// What the record itself says of a message; its origin has no name yet. The message is
    /// made where it is used: memory that one thread takes and another gives back is what
    /// threads wait for each other for.
    pub(crate) fn parts(&mut self, record: &BorrowedMessage<'_>) -> Parts {
        let mut parts = Parts::default();
        parts.payload = record.payload().map(|bytes| self.keep(bytes));
        parts.key = record.key().map(|bytes| self.keep(bytes));
        parts.timestamp = record
            .timestamp()
            .to_millis()
            .and_then(|millis| u64::try_from(millis).ok())
            .and_then(|millis| UNIX_EPOCH.checked_add(Duration::from_millis(millis)));
        (parts.origin.partition, parts.origin.offset) = (Some(record.partition()), Some(record.offset()));
        if let Some(headers) = record.headers() {
            for index in 0..headers.count() {
                // The client panics at a name that is not UTF-8. It cannot be handed on, and
                // must not stop the partition.
                let header = catch_unwind(AssertUnwindSafe(|| headers.try_get(index)));
                if let Ok(Some(header)) = header {
                    let value = header.value.map(|bytes| self.keep(bytes));
                    read_header(header.key, value, &mut parts);
                }
            }
        }
        parts
    }

    fn keep(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        if bytes.len() > CHUNK / 4 {
            return Bytes::copy_from_slice(bytes);
        }
        if self.chunk.capacity() < bytes.len() {
            self.chunk = BytesMut::with_capacity(CHUNK);
        }
        self.chunk.extend_from_slice(bytes);
        self.chunk.split().freeze()
    }
}

fn read_header(name: &str, value: Option<Bytes>, parts: &mut Parts) {
    let text = || value.as_ref().and_then(|bytes| std::str::from_utf8(bytes).ok()).map(Into::into);
    match name {
        ID => parts.id = text(),
        CONTENT_TYPE => parts.content_type = text(),
        _ => {
            if name == FOREIGN_CONTENT_TYPE && parts.content_type.is_none() {
                parts.content_type = text();
            }
            parts.headers.push(name, value);
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
