//! Messages that appear if and only if a local transaction commits.

mod error;
mod half;
mod id;
mod judge;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use oncemq_core::{Decision, Error, ErrorKind, Message, failpoint};
use tokio::time::Instant;

use crate::client::{Answer, ProducerMember};
use crate::cluster::halves::HalfPlace;
use crate::cluster::{Cluster, Queue, Sent};
use crate::config::{Config, config};
use crate::publisher::{Producer, Tried};
use crate::records;
use crate::topology::{check_group, check_topic};
use judge::Asked;

pub use error::TransactionError;
pub use half::Half;
pub use id::TransactionId;
pub(crate) use judge::Check;

/// When a broker asks about a half message first, unless it says otherwise.
const ASKS_AFTER: Duration = Duration::from_secs(6);
/// How often a broker notes which transactions have ended, unless it says otherwise.
const NOTES_EVERY: Duration = Duration::from_secs(3);
/// Between two looks at who is known to the brokers.
const LOOK: Duration = Duration::from_millis(100);
/// How long leaving the group may take.
const LEAVE: Duration = Duration::from_secs(5);

/// Publishes messages that appear if and only if a local transaction commits, whatever crashes.
///
/// The broker first stores a *half message*, which nobody sees. Then the local transaction runs,
/// and commits together with a note of its [`TransactionId`]. Then the database is asked what
/// became of it, and the broker is told. If that is lost, or the process dies anywhere in
/// between, the broker asks a process of the group and gets the database's answer.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use oncemq_core::Message;
/// use oncemq_idempotency::Decisions;
/// use oncemq_rocketmq::RocketmqBroker;
///
/// let decisions = Decisions::open(pool.clone()).await?;
/// let judge = decisions.clone();
/// let broker = RocketmqBroker::from_url("rocketmq://localhost:9876")?;
/// let publisher = broker
///     .transactions("order-service", &["order-created"], move |id| {
///         let judge = judge.clone();
///         async move { judge.decide(id.as_str()).await }
///     })
///     .await?;
///
/// let message = Message::new(r#"{"order_id":17}"#).with_key("order-17");
/// publisher
///     .publish("order-created", &message, |id| async move {
///         let mut tx = pool.begin().await?;
///         sqlx::query("INSERT INTO orders (id) VALUES (17)").execute(&mut *tx).await?;
///         decisions.commit(tx, id.as_str()).await?;
///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
///     })
///     .await?;
/// # Ok(()) }
/// ```
///
/// # Limits
///
/// - A broker asks first after its `transactionTimeOut` (6 s unless set), then every
///   `transactionCheckInterval` (30 s), and `transactionCheckMax` times (15). A question that
///   finds no note rolls the transaction back for good, so one that takes longer writes its note
///   first (`Decisions::record`).
/// - **It counts its questions whether somebody answers or not.** What is still open after the
///   last one it puts aside, into its topic `TRANS_CHECK_MAX_TIME_TOPIC`: the effect is there and
///   the message does not appear. A process of the group must be there, and every local
///   transaction must have ended, before; a longer absence needs a larger `transactionCheckMax`.
/// - Where a transaction ends in the same moment as its broker asks, the message may appear
///   twice, under one id: a consumer with a record handles it once. So it may where a broker asks
///   again before it has noted the answer, which it does every `transactionOpBatchInterval` (3 s):
///   `transactionCheckInterval` should be much longer. And so it may where the clock of this
///   process is not the broker's: it asks by the time that the message says.
/// - A message of a transaction has no delay.
#[derive(Clone)]
pub struct TransactionalPublisher {
    inner: Arc<Inner>,
}

struct Inner {
    producer: Producer,
    group: Arc<str>,
    topics: Vec<Arc<str>>,
    asked: Asked,
    /// Until when a broker does not ask by itself.
    quiet: Duration,
    member: std::sync::Mutex<Option<ProducerMember>>,
    closed: AtomicBool,
}

impl TransactionalPublisher {
    pub(crate) async fn open(
        settings: Arc<Config>,
        group: &str,
        topics: &[&str],
        check: Check,
    ) -> Result<Self, Error> {
        check_group("producer group", group)?;
        if topics.is_empty() {
            return Err(config("a publisher of transactions needs at least one topic to be known for"));
        }
        for topic in topics {
            check_topic(topic)?;
        }
        let topics: Vec<Arc<str>> = topics.iter().map(|topic| Arc::from(*topic)).collect();
        let cluster = Arc::new(Cluster::connect(settings.clone())?);
        let brokers = brokers_of(&cluster, &topics).await?;
        let quiet = quiet_time(&cluster, &brokers).await;
        let asked = Asked::new(check);
        let member = ProducerMember::join(&settings, group, &topics, Arc::new(asked.clone())).await;
        let member =
            member.map_err(|fault| crate::error::from_fault("joining the producer group", &fault))?;
        known(&cluster, &brokers, group, &member, settings.connect_timeout).await?;
        let inner = Inner {
            producer: Producer::new(cluster, settings),
            group: group.into(),
            topics,
            asked,
            quiet,
            member: Some(member).into(),
            closed: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Stores a half message, runs the local transaction, asks the database what became of it,
    /// and tells the broker.
    ///
    /// `local` gets the id to commit together with the transaction (`Decisions::commit`). Its
    /// word alone commits nothing: what counts is the note.
    ///
    /// `Ok` means that `local` said so and the database agrees: the message appears, usually at
    /// once. Where the database or the broker could not be reached any more it is left to the
    /// broker's next question, and appears then if the transaction is committed.
    ///
    /// Not cancel safe, but nothing becomes inconsistent: dropped or panicking, it leaves the
    /// message to the broker's question.
    ///
    /// # Errors
    /// See [`TransactionError`]. The message and the transaction have the same fate in any case.
    pub async fn publish<T, E, F, Fut>(
        &self,
        topic: &str,
        message: &Message,
        local: F,
    ) -> Result<T, TransactionError<E>>
    where
        F: FnOnce(TransactionId) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let half = self.half(topic, message).await.map_err(TransactionError::NotSent)?;
        let said = local(half.id().clone()).await;
        // Where there is no answer the broker asks.
        let decision = half.settle().await.unwrap_or(Decision::Open);
        match (said, decision) {
            (Ok(_), Decision::RolledBack) => Err(TransactionError::NotCommitted),
            (Ok(value), _) => Ok(value),
            (Err(error), decision) => Err(TransactionError::Local { error, decision }),
        }
    }

    /// Stores a half message alone, for a transaction that is not a function: commit
    /// [`Half::id`] with it, then [`settle`](Half::settle). A handler that writes through a
    /// `Tx` writes the id with `Decisions::record` and drops the half message: the broker asks
    /// when the handler's transaction has ended.
    ///
    /// Not cancel safe: dropped, it may leave a half message, which the broker asks about and
    /// drops.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) for a topic that was not named when the publisher was
    /// opened, otherwise as for `Publisher::publish`. No half message with an id that anybody
    /// knows is there then.
    pub async fn half(&self, topic: &str, message: &Message) -> Result<Half, Error> {
        let inner = &self.inner;
        if inner.closed.load(SeqCst) {
            return Err(closed());
        }
        if !inner.topics.iter().any(|known| **known == *topic) {
            return Err(config(format!(
                "topic {topic} is not among the topics that the publisher of transactions was opened with; name it \
                 there, or nobody is asked about its half messages after a crash"
            )));
        }
        let unique = message.id().map_or_else(|| inner.producer.cluster.new_id(), str::to_owned);
        let mut patience = inner.producer.patience();
        loop {
            // Of a try without an answer the broker may have a half message. It is another
            // transaction's, which never commits.
            let id = TransactionId::new();
            let record = records::write_half(message, &unique, &inner.group, id.as_str())?;
            let sent = Instant::now();
            match inner.producer.attempt(topic, &record, Sent::Half(&inner.group), &patience).await {
                Tried::Stored(queue, answer) => {
                    failpoint!("rocketmq.half_stored");
                    let place = place_of(&inner.group, queue, &answer, unique)?;
                    return Ok(Half::new(self.inner.clone(), id, place, sent + inner.quiet));
                }
                Tried::Refused(error) => return Err(error),
                Tried::Again(error) => patience.wait(topic, error).await?,
            }
        }
    }

    /// Leaves the group and closes the connections. Half messages that are not settled are left
    /// to the other members of the group, or to its next one. May be called twice.
    ///
    /// # Errors
    /// None so far.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.closed.store(true, SeqCst);
        let member = self.inner.member.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(member) = member {
            // The library may wait for its own tasks; nobody else has to.
            let _ = tokio::time::timeout(LEAVE, member.leave()).await;
            self.inner.producer.cluster.close().await;
        }
        Ok(())
    }
}

impl fmt::Debug for TransactionalPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionalPublisher")
            .field("group", &self.inner.group)
            .field("topics", &self.inner.topics)
            .finish_non_exhaustive()
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the publisher of transactions is closed; open another one")
}

/// The brokers that keep the topics.
async fn brokers_of(cluster: &Cluster, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Error> {
    let mut brokers = Vec::new();
    for topic in topics {
        let route = cluster.fresh_route(topic).await?;
        if route.is_empty() && cluster.masters().await?.is_empty() {
            return Err(Error::new(ErrorKind::Connection, "no broker of RocketMQ is there now"));
        }
        if !route.iter().any(|seat| seat.writes > 0) {
            return Err(Error::new(
                ErrorKind::Topology,
                format!(
                    "there is no topic {topic} in RocketMQ that takes messages; create it first, or start a consumer \
                     that declares it"
                ),
            ));
        }
        brokers.extend(route.iter().map(|seat| seat.broker.clone()));
    }
    brokers.sort();
    brokers.dedup();
    Ok(brokers)
}

/// For how long after a half message was sent a transaction may be ended. Once the broker asks,
/// it stores the message anew, and ending it at its old place would show it twice; and it asks
/// about what it has not noted yet, too.
async fn quiet_time(cluster: &Cluster, brokers: &[Arc<str>]) -> Duration {
    let mut quiet = quiet_of(ASKS_AFTER, NOTES_EVERY);
    for broker in brokers {
        let setting = async |name, usual| {
            let millis = cluster.setting(broker, name).await.and_then(|text| text.parse().ok());
            millis.map_or(usual, Duration::from_millis)
        };
        let asks_after = setting("transactionTimeOut", ASKS_AFTER).await;
        let notes_every = setting("transactionOpBatchInterval", NOTES_EVERY).await;
        quiet = quiet.min(quiet_of(asks_after, notes_every));
    }
    quiet
}

fn quiet_of(asks_after: Duration, notes_every: Duration) -> Duration {
    asks_after.saturating_sub(notes_every).max(asks_after / 3) * 3 / 4
}

/// Waits until every broker knows this process as a member of the group.
async fn known(
    cluster: &Cluster,
    brokers: &[Arc<str>],
    group: &str,
    member: &ProducerMember,
    limit: Duration,
) -> Result<(), Error> {
    let end = Instant::now() + limit;
    for broker in brokers {
        let last = loop {
            let found = cluster.producers(broker, group).await;
            let is_known = |names: &Vec<String>| names.iter().any(|name| name.ends_with(member.instance()));
            if found.as_ref().is_ok_and(is_known) {
                break None;
            }
            if Instant::now() + LOOK >= end {
                break Some(found.err().map_or_else(String::new, |error| format!(": {error}")));
            }
            tokio::time::sleep(LOOK).await;
        };
        if let Some(why) = last {
            return Err(Error::new(
                ErrorKind::Connection,
                format!(
                    "the broker {broker} does not know this process as a member of the producer group {group} within \
                     {limit:?}{why}; check that this machine reaches the broker"
                ),
            ));
        }
    }
    Ok(())
}

/// Where the broker stored a half message.
fn place_of(group: &Arc<str>, queue: Queue, answer: &Answer, unique: String) -> Result<HalfPlace, Error> {
    let place = answer.fields.iter().find(|(name, _)| name == "msgId").map(|(_, place)| place.as_str());
    // An address, and the position in the last eight bytes.
    let position = place.and_then(|place| {
        let last = place.len().checked_sub(16)?;
        i64::from_str_radix(place.get(last..)?, 16).ok()
    });
    match answer.number("queueOffset").zip(position) {
        Some((offset, position)) => Ok(HalfPlace { group: group.clone(), queue, offset, position, unique }),
        None => Err(Error::new(
            ErrorKind::Internal,
            "the broker did not say where it stored a half message; it will ask about it and drop it",
        )),
    }
}

#[cfg(test)]
mod tests;
