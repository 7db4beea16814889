//! A half message, and how it ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{Decision, Error, failpoint};
use tokio::time::Instant;

use super::{Inner, TransactionId};
use crate::cluster::halves::HalfPlace;

/// How long telling the broker may take.
const TELL: Duration = Duration::from_secs(3);

/// A message that the broker keeps back until a local transaction has ended. Dropped, it is left
/// to the broker, which asks.
#[must_use = "commit its id with the transaction, then settle it"]
pub struct Half {
    publisher: Arc<Inner>,
    id: TransactionId,
    place: HalfPlace,
    /// Until when the broker does not ask by itself.
    quiet: Instant,
}

impl Half {
    pub(super) fn new(publisher: Arc<Inner>, id: TransactionId, place: HalfPlace, quiet: Instant) -> Self {
        Self { publisher, id, place, quiet }
    }

    /// What the local transaction commits.
    pub fn id(&self) -> &TransactionId {
        &self.id
    }

    /// Asks the publisher's check what became of the transaction, and tells the broker. Call it
    /// when the transaction has ended: one that has not is rolled back, or open.
    ///
    /// If the broker cannot be told, or it is about to ask by itself, the message is left to its
    /// question. That is no error.
    ///
    /// Not cancel safe, but nothing becomes inconsistent: dropped, it leaves the message to the
    /// broker.
    ///
    /// # Errors
    /// What the check says. Then the message is left to the broker.
    pub async fn settle(self) -> Result<Decision, Error> {
        let decision = self.publisher.asked.ask(self.id.clone()).await?;
        failpoint!("rocketmq.before_end");
        let left = self.quiet.saturating_duration_since(Instant::now()).min(TELL);
        if decision != Decision::Open && !left.is_zero() {
            let commits = decision == Decision::Committed;
            // Lost, the broker asks.
            let _ = self.publisher.producer.cluster.end(&self.place, commits, left).await;
        }
        Ok(decision)
    }
}

impl fmt::Debug for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Half").field("id", &self.id).field("queue", &self.place.queue).finish_non_exhaustive()
    }
}
