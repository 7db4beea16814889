//! Where deliveries come from.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::{Delivery, Error, Health};

/// What a [`Source`] hands out.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A message to handle.
    Delivery(Delivery),
    /// These partitions leave at the deadline at the latest: nothing of them is started any
    /// more, what runs may finish and settle. The source waits for it by itself.
    ///
    /// What only waits is given back at once as [`Ack::Release`](crate::Ack::Release): the
    /// source lets it go instead of handing it out again. It is done with a partition when
    /// nothing of it is outstanding; no other sign comes, and none is needed, since the
    /// source itself handed out nothing of it any more. A client that tells of a partition
    /// only after it has left says so with a deadline that has passed.
    Revoking {
        /// What leaves.
        scope: Scope,
        /// When it leaves in any case.
        deadline: Instant,
    },
    /// Offsets that will never come: lost to retention or a reset.
    Gap {
        /// The topic.
        topic: String,
        /// The server that numbers the partition, see [`Origin::server`](crate::Origin::server).
        server: Option<Arc<str>>,
        /// The partition.
        partition: i32,
        /// The first missing offset.
        from: i64,
        /// The offset it goes on with.
        to: i64,
    },
    /// A new connection: deliveries of older epochs can no longer be settled, the broker
    /// hands them out again.
    Reconnected {
        /// The epoch that counts from now on.
        epoch: u64,
    },
    /// The state of the connection changed.
    Health(Health),
}

/// A set of partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Everything of this source.
    All,
    /// These partitions of these topics.
    Partitions(Vec<(String, i32)>),
    /// These partitions of these topics, each on the server that numbers it, see
    /// [`Origin::server`](crate::Origin::server): topic, server, number.
    ServerPartitions(Vec<(String, Arc<str>, i32)>),
}

impl Scope {
    /// Whether a message of this origin belongs to it.
    pub fn contains(&self, origin: &crate::Origin) -> bool {
        match self {
            Scope::All => true,
            Scope::Partitions(list) => list
                .iter()
                .any(|(topic, partition)| **topic == *origin.topic && Some(*partition) == origin.partition),
            Scope::ServerPartitions(list) => list.iter().any(|(topic, server, partition)| {
                **topic == *origin.topic
                    && Some(&**server) == origin.server.as_deref()
                    && Some(*partition) == origin.partition
            }),
        }
    }
}

/// A stream of deliveries and events from one broker.
///
/// Receiving is a poll of many events at once, so a source can be chosen at run time
/// without a box for each message.
#[async_trait]
pub trait Source: Send + 'static {
    /// Appends what there is to `events`, at most `max` deliveries among it, and wakes the
    /// task when there is more. With `max` 0 only other events come: that is how intake is
    /// held back while revokes and settlements go on.
    ///
    /// `Ready(Ok(()))` means that something was appended. An error is final: the source
    /// will give nothing more, and what it gave out comes back by the broker. A lost
    /// connection is not an error but an [`Event::Health`]; the source reconnects by itself.
    /// Polled again after an error it returns an error again.
    ///
    /// Cancel safe: a delivery is either in `events` or still in the source.
    fn poll_events(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        events: &mut Vec<Event>,
    ) -> Poll<Result<(), Error>>;

    /// Deliveries handed out and not yet confirmed by the broker as settled. A place is free
    /// only then, not at the hand-off; the task that polls is woken when it changes. On a
    /// log an accepted message is settled when it is marked done, since the commit of its
    /// offset waits for older ones; a copy must be confirmed there too. A delivery of a
    /// partition that has left counts until it is answered: it still takes memory and a run.
    fn outstanding(&self) -> usize;

    /// Waits until everything handed over is applied or known to be void, at most `limit`.
    /// Returns whether that was reached.
    async fn flush(&mut self, limit: Duration) -> bool;

    /// Flushes, gives back what is not settled, and closes. May be called twice. Returns
    /// after `limit` at the latest, whatever the broker does.
    async fn close(&mut self, limit: Duration) -> Result<(), Error>;
}

const _: fn(&dyn Source) = |_| ();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;

    #[test]
    fn partitions_of_two_servers_with_one_number_are_told_apart() {
        let on = |server: &str| Origin::new("rocketmq", "orders").at(3, 7).on(server);
        let scope = Scope::ServerPartitions(vec![("orders".to_owned(), "broker-a".into(), 3)]);
        assert!(scope.contains(&on("broker-a")));
        assert!(!scope.contains(&on("broker-b")));
        assert!(!scope.contains(&Origin::new("rocketmq", "orders").at(3, 7)));
        assert!(!scope.contains(&Origin::new("rocketmq", "others").at(3, 7).on("broker-a")));
    }
}
