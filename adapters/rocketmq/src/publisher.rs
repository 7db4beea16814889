//! Sending, each message confirmed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::{Error, ErrorKind, Message, Publisher, failpoint};
use tokio::sync::RwLock;
use tokio::time::Instant;

use crate::client::{Answer, Fault, Seat};
use crate::cluster::{Cluster, Queue, Sent};
use crate::config::Config;
use crate::error::{self, code};
use crate::records::{self, Record};
use crate::topology::check_topic;

/// How long one try may take.
const TRY: Duration = Duration::from_secs(3);
/// The wait after a failed try; it doubles up to the longest.
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(2);
/// A broker that failed is left alone so long, where another one has the topic too. One that
/// hangs takes the time of a try from whoever asks it.
const LEFT_ALONE: Duration = Duration::from_secs(10);
/// The longest frame that a broker reads; with more it cuts the connection without a word.
const FRAME_MAX: usize = 16 * 1024 * 1024 - 64 * 1024;

/// Sends until a message is stored. A try without an answer is repeated with the same
/// `UNIQ_KEY`, so that one who stored both can tell.
#[derive(Debug, Clone)]
pub(crate) struct Producer {
    pub(crate) cluster: Arc<Cluster>,
    config: Arc<Config>,
    turn: Arc<AtomicUsize>,
    /// Brokers that failed, and until when they are left alone.
    failed: Arc<Mutex<HashMap<Arc<str>, Instant>>>,
}

/// What a try came to.
pub(crate) enum Tried {
    Stored(Queue, Answer),
    /// No later try can do better.
    Refused(Error),
    Again(Error),
}

/// How long tries go on.
pub(crate) struct Patience {
    limit: Duration,
    end: Instant,
    wait: Duration,
    unknown: bool,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, end: Instant::now() + limit, wait: WAIT_MIN, unknown: false }
    }

    /// Of a try that is made now.
    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), TRY)
    }

    /// Waits for the next try after one that failed.
    ///
    /// # Errors
    /// Patience is at its end, and what all tries together came to.
    pub(crate) async fn wait(&mut self, topic: &str, failed: Error) -> Result<(), Error> {
        self.unknown |= failed.kind() == ErrorKind::Unconfirmed;
        if Instant::now() + self.wait >= self.end {
            return Err(if self.unknown { unconfirmed(topic, self.limit, &failed) } else { failed });
        }
        tokio::time::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(WAIT_MAX);
        Ok(())
    }
}

impl Producer {
    pub(crate) fn new(cluster: Arc<Cluster>, config: Arc<Config>) -> Self {
        Self { cluster, config, turn: Arc::default(), failed: Arc::default() }
    }

    pub(crate) fn patience(&self) -> Patience {
        Patience::new(self.config.publish_timeout)
    }

    /// Sends a record to a topic and returns when it is stored. A future that is dropped leaves
    /// that unknown.
    pub(crate) async fn send(&self, topic: &str, record: &Record, reconsumed: u32) -> Result<(), Error> {
        let mut patience = self.patience();
        loop {
            match self.attempt(topic, record, Sent::Plain(reconsumed), &patience).await {
                Tried::Stored(..) => return Ok(()),
                Tried::Refused(error) => return Err(error),
                Tried::Again(error) => patience.wait(topic, error).await?,
            }
        }
    }

    /// Sends a record once.
    pub(crate) async fn attempt(
        &self,
        topic: &str,
        record: &Record,
        sent: Sent<'_>,
        patience: &Patience,
    ) -> Tried {
        let size = record.body.len() + record.properties.len();
        if size > FRAME_MAX {
            return Tried::Refused(too_large(topic, size, "RocketMQ takes no message over 16 MiB"));
        }
        let route = match self.cluster.route(topic).await {
            Ok(route) => route,
            Err(error) => return Tried::Again(error),
        };
        let Some(queue) = self.choose(topic, &route, record.group.as_deref()) else {
            return self.nowhere(topic).await;
        };
        let answer = self.cluster.send(&queue, record, sent, patience.left()).await;
        failpoint!("rocketmq.published");
        let broker = queue.broker.clone();
        let tried = self.judge(topic, record, queue, answer);
        self.note(broker, &tried);
        tried
    }

    fn note(&self, broker: Arc<str>, tried: &Tried) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        match tried {
            Tried::Stored(..) => drop(failed.remove(&broker)),
            Tried::Again(_) => drop(failed.insert(broker, Instant::now() + LEFT_ALONE)),
            Tried::Refused(_) => {}
        }
    }

    /// A broker that stops in order takes its topics off the name server first: what was there
    /// once, or may be on a broker that is not there, comes back.
    async fn nowhere(&self, topic: &str) -> Tried {
        let text = format!("no broker of RocketMQ takes messages for topic {topic} now");
        let away = Error::new(ErrorKind::Connection, text);
        if self.cluster.has_seen(topic)
            || self.cluster.masters().await.is_ok_and(|masters| masters.is_empty())
        {
            return Tried::Again(away);
        }
        let text = format!(
            "there is no topic {topic} in RocketMQ that takes messages; create it first, or start a consumer that \
             declares it"
        );
        Tried::Refused(Error::new(ErrorKind::Unroutable, text))
    }

    fn judge(&self, topic: &str, record: &Record, queue: Queue, answer: Result<Answer, Fault>) -> Tried {
        let what = format!("publishing to topic {topic}");
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault @ Fault::NotSent(_)) => return Tried::Again(error::from_fault(&what, &fault)),
            Err(fault @ Fault::NoAnswer(_)) => {
                return Tried::Again(Error::new(
                    ErrorKind::Unconfirmed,
                    format!("{what}: no answer ({fault})"),
                ));
            }
        };
        match answer.code {
            code::SUCCESS => Tried::Stored(queue, answer),
            // It has it, but not as safely as it was told to keep it.
            code::FLUSH_DISK_TIMEOUT..=code::FLUSH_SLAVE_TIMEOUT => {
                let text = format!("{what}: {}", error::words(&answer));
                Tried::Again(Error::new(ErrorKind::Unconfirmed, text))
            }
            code::MESSAGE_ILLEGAL => {
                let size = record.body.len() + record.properties.len();
                Tried::Refused(too_large(topic, size, &error::words(&answer)))
            }
            code::SYSTEM_ERROR | code::SYSTEM_BUSY | code::SERVICE_NOT_AVAILABLE => {
                Tried::Again(error::refused(&what, &answer))
            }
            // It has fewer queues than it had.
            code::INVALID_PARAMETER if answer.remark.contains("queueId") => {
                self.cluster.doubt_routes();
                Tried::Again(error::refused(&what, &answer))
            }
            code::TOPIC_NOT_EXIST => {
                self.cluster.doubt_routes();
                let text = format!("{what}: {}", error::words(&answer));
                Tried::Refused(Error::new(ErrorKind::Unroutable, text))
            }
            _ => Tried::Refused(error::refused(&what, &answer)),
        }
    }

    /// Messages of a group go to one queue, as long as the queues stay: the one that the Java
    /// client's selector by hash finds. Others take turns.
    fn choose(&self, topic: &str, route: &[Seat], group: Option<&str>) -> Option<Queue> {
        let mut seats: Vec<&Seat> = route.iter().filter(|seat| seat.writes > 0).collect();
        let place = match group {
            Some(group) => java_hash(group).unsigned_abs() as usize,
            None => {
                let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                let well =
                    |seat: &&Seat| failed.get(&seat.broker).is_none_or(|until| *until <= Instant::now());
                if seats.iter().any(well) {
                    seats.retain(well);
                }
                self.turn.fetch_add(1, SeqCst)
            }
        };
        let queues =
            || seats.iter().flat_map(|seat| (0..seat.writes).map(move |number| (&seat.broker, number)));
        let (broker, number) = queues().nth(place.checked_rem(queues().count())?)?;
        Some(Queue { topic: topic.into(), broker: broker.clone(), number })
    }
}

/// `String.hashCode` of Java.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0, |hash: i32, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

fn too_large(topic: &str, size: usize, why: &str) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        format!("a message of {size} bytes to topic {topic} is over a limit of RocketMQ: {why}"),
    )
}

fn unconfirmed(topic: &str, limit: Duration, last: &Error) -> Error {
    Error::new(
        ErrorKind::Unconfirmed,
        format!(
            "RocketMQ did not confirm a message to {topic} within {limit:?}; it may or may not be stored, send it \
             again with the same id: {last}"
        ),
    )
}

/// Publishes to the topic of the name.
#[derive(Debug)]
pub(crate) struct RocketmqPublisher {
    producer: Producer,
    closed: AtomicBool,
    /// Shared by what is under way.
    busy: RwLock<()>,
}

impl RocketmqPublisher {
    pub(crate) async fn connect(config: Arc<Config>) -> Result<Self, Error> {
        let cluster = Arc::new(Cluster::connect(config.clone())?);
        // A wrong address is an error here.
        cluster.masters().await?;
        Ok(Self {
            producer: Producer::new(cluster, config),
            closed: AtomicBool::new(false),
            busy: RwLock::new(()),
        })
    }
}

#[async_trait]
impl Publisher for RocketmqPublisher {
    async fn publish(&self, topic: &str, message: &Message) -> Result<(), Error> {
        if self.closed.load(SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the publisher is closed; make another one"));
        }
        check_topic(topic)?;
        let _busy = self.busy.read().await;
        let record = records::write(message, &self.producer.cluster.new_id())?;
        self.producer.send(topic, &record, 0).await
    }

    async fn close(&self) -> Result<(), Error> {
        if !self.closed.swap(true, SeqCst) {
            let _idle = self.busy.write().await;
            self.producer.cluster.close().await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake::{Fake, Known, answer, field};

    fn producer(fake: &Fake) -> Producer {
        let config = Config { publish_timeout: Duration::from_secs(5), ..Config::default() };
        Producer::new(fake.cluster(config.clone()), Arc::new(config))
    }

    fn record() -> Record {
        records::write(&Message::new("x"), "7F00").unwrap()
    }

    #[test]
    fn groups_find_the_queues_that_java_finds() {
        assert_eq!(
            (java_hash("order-1"), java_hash("größe"), java_hash("")),
            (-1_207_111_310, 98_762_257, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_try_without_an_answer_is_repeated_with_the_same_key() {
        let mut tries = 0;
        let fake = Fake::new(move |_| {
            tries += 1;
            if tries < 3 { Err(Fault::NoAnswer("late".to_owned())) } else { answer(code::SUCCESS) }
        });
        producer(&fake).send("t", &record(), 0).await.unwrap();
        let sent = fake.asked(310);
        assert_eq!(sent.len(), 3);
        assert!(sent.iter().all(|request| field(request, "i").contains("UNIQ_KEY\u{1}7F00\u{2}")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_with_fewer_queues_than_it_had_is_looked_up_anew() {
        let mut tries = 0;
        let fake = Fake::new(move |_| {
            tries += 1;
            let remark = "request queueId[7] is illegal".to_owned();
            if tries > 1 {
                return answer(code::SUCCESS);
            }
            Ok(Answer { code: code::INVALID_PARAMETER, remark, ..Answer::default() })
        });
        producer(&fake).send("t", &record(), 0).await.unwrap();
        assert_eq!(fake.asked(310).len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_fails_is_left_alone_where_there_is_another() {
        let fake = Fake::new(|request| match field(request, "n") {
            "broker-b" => Err(Fault::NoAnswer("late".to_owned())),
            _ => answer(code::SUCCESS),
        });
        fake.knows(Known::Pair);
        let (producer, record) = (producer(&fake), record());
        let tries = || {
            let sent = fake.asked(310);
            sent.iter().filter(|request| field(request, "n") == "broker-b").count()
        };
        for times in 1..3 {
            for _ in 0..10 {
                producer.send("t", &record, 0).await.unwrap();
            }
            assert_eq!(tries(), times);
            tokio::time::advance(LEFT_ALONE).await;
        }
        // A message group stays where it is: this one is in the second queue.
        let message = Message::new("x").with_key("1");
        let error = producer.send("t", &records::write(&message, "7F00").unwrap(), 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_stored_is_unconfirmed_and_what_cannot_be_is_not() {
        let mut tries = 0;
        let once = Fake::new(move |_| {
            tries += 1;
            Err(if tries == 1 {
                Fault::NoAnswer("late".to_owned())
            } else {
                Fault::NotSent("down".to_owned())
            })
        });
        let error = producer(&once).send("t", &record(), 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}");
        let never = Fake::new(|_| Err(Fault::NotSent("down".to_owned())));
        let error = producer(&never).send("t", &record(), 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
        // Stored, but not as safely as the broker was told to keep it.
        let weak = Fake::new(|_| answer(code::FLUSH_DISK_TIMEOUT));
        let error = producer(&weak).send("t", &record(), 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}");
        let forbidden = Fake::new(|_| answer(code::NO_PERMISSION));
        let error = producer(&forbidden).send("t", &record(), 0).await.unwrap_err();
        assert_eq!((error.kind(), forbidden.asked(310).len()), (ErrorKind::Access, 1), "{error}");
    }
}
