//! Messages out of what a broker keeps.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use oncemq_core::{Message, Origin, Parts};

use super::names::{
    CONTENT_TYPE, COUNTED, DELAYS, EMPTY, FOREIGN_CONTENT_TYPE, GROUP, ORIGIN_MESSAGE_ID, RETRY_TOPIC,
    TRANSACTION, UNIQ_KEY, is_system,
};
use super::text::decode;
use crate::client::{Packed, Stored};
use crate::cluster::Queue;

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
    /// The body as it is stored, if its producer compressed it.
    pub(crate) packed: Option<Packed>,
    /// Why no handler can have it.
    pub(crate) unreadable: Option<String>,
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
        packed: stored.packed,
        unreadable: stored.unreadable,
    }));
    parts.into()
}

fn text_of(bytes: Bytes) -> Option<Arc<str>> {
    std::str::from_utf8(&bytes).ok().map(Into::into)
}

/// The transaction of a half message of ours.
pub(crate) fn transaction_of(half: &Stored) -> Option<&str> {
    half.properties.iter().find_map(|(name, value)| (&**name == TRANSACTION).then_some(value.as_str()))
}
