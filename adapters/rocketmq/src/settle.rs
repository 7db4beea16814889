//! Retries and dead letters, confirmed before their originals count as done.
//!
//! A retry is the broker's own: it stores the message again by its place in the log, and counts.
//! Where that cannot serve, a copy of ours goes to the same topic: the original has expired, or
//! attempts were charged that the broker did not count. Dead letters are always copies of ours,
//! since the broker's own cannot say why.

use std::sync::Arc;

use async_trait::async_trait;
use oncemq_core::partitions::{Copier, CopyJob, Purpose, Stored};
use oncemq_core::url::Time;
use oncemq_core::{Class, Error, ErrorKind, Health, Message, Reject, Retry, failpoint, header};

use crate::cluster::{Cluster, SentBack};
use crate::publisher::Producer;
use crate::records::{self, Extra, Native};
use crate::source::Shared;
use crate::topology::{Levels, Names};

/// The diagnostic text of a dead letter, in bytes. All properties of a message together may be
/// 32 KiB long.
const REASON_MAX: usize = 8 * 1024;
/// The same where headers had to go.
const SHORT_REASON_MAX: usize = 1024;

/// What storing again needs.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) producer: Producer,
    pub(crate) names: Names,
    pub(crate) levels: Levels,
    pub(crate) shared: Arc<Shared>,
}

#[async_trait]
impl Copier for Desk {
    async fn store(&self, job: &CopyJob) -> Result<Stored, Error> {
        failpoint!("rocketmq.before_copy");
        if self.shared.state().parts.of(job.token).is_none() {
            return Ok(Stored::Void);
        }
        self.again(job).await?;
        failpoint!("rocketmq.copied");
        Ok(Stored::Confirmed)
    }

    fn health(&self, health: Health) {
        self.shared.copies_health(health);
    }
}

impl Desk {
    async fn again(&self, job: &CopyJob) -> Result<(), Error> {
        let native = Native::of(&job.message).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "a delivery has lost what RocketMQ knows it by")
        })?;
        match &job.purpose {
            Purpose::Retry(retry) => match self.retry(&job.message, native, retry).await {
                // It would be for ever.
                Err(error) if error.kind() == ErrorKind::TooLarge => {
                    let reason = format!("it cannot be sent back: {error}; it failed by: {}", retry.reason);
                    let reject = Reject::new(Class::System, retry.trail.clone(), reason);
                    self.reject(&job.message, native, &reject).await
                }
                stored => stored,
            },
            Purpose::Reject(reject) => self.reject(&job.message, native, reject).await,
            Purpose::Stray => {
                let reason = match &native.unreadable {
                    Some(why) => format!("its body cannot be read: {why}"),
                    None => format!("{} does not consume topic {} any more", self.names.group, native.topic),
                };
                let mut letter = job.message.clone();
                letter.parts_mut().headers.set(header::REASON, reason);
                match self.dead_letter(native, &letter).await {
                    Err(error) if error.kind() == ErrorKind::TooLarge => {
                        self.dead_letter(native, &records::shortened(&letter)).await
                    }
                    stored => stored,
                }
            }
            other => Err(Error::new(ErrorKind::Internal, format!("there is no copy for {other:?}"))),
        }
    }

    async fn retry(&self, message: &Message, native: &Native, retry: &Retry) -> Result<(), Error> {
        let (level, _) = self.levels.at_least(retry.after).ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("there is no delay level for {}", Time(retry.after)))
        })?;
        // What is sent back keeps the headers it has: it can count one attempt more, and no
        // other number. At the first place of its log a broker finds another message when the
        // first file has expired.
        let counts = native.position > 0
            && retry.trail.attempt == native.charged.saturating_add(1)
            && !native.foreign
            && message.headers().get(header::ID).is_none();
        if counts {
            match self.cluster.send_back(&self.names.group, native, level).await {
                Ok(SentBack::Stored) => return Ok(()),
                Ok(SentBack::Expired) => {}
                // A broker that is being emptied may be read and takes nothing; another one does.
                Err(error) if error.kind() == ErrorKind::Access => {}
                Err(error) => return Err(error),
            }
        }
        let attempt = retry.trail.attempt;
        let extra = Extra { level: Some(level), counted: Some(attempt), ..Extra::default() };
        let record = records::copy(&retry.copy(message), native, &extra)?;
        self.producer.send(&self.names.retry, &record, attempt).await
    }

    /// A dead letter has the text and the headers that there is room for.
    async fn reject(&self, message: &Message, native: &Native, reject: &Reject) -> Result<(), Error> {
        let whole = self.dead_letter(native, &reject.copy(message, REASON_MAX)).await;
        let Err(ErrorKind::TooLarge) = whole.as_ref().map_err(Error::kind) else { return whole };
        let bare = self.dead_letter(native, &reject.copy(message, 0)).await;
        let Err(ErrorKind::TooLarge) = bare.as_ref().map_err(Error::kind) else { return bare };
        self.dead_letter(native, &records::shortened(&reject.copy(message, SHORT_REASON_MAX))).await
    }

    async fn dead_letter(&self, native: &Native, letter: &Message) -> Result<(), Error> {
        let record = records::copy(letter, native, &Extra { dead: true, ..Extra::default() })?;
        self.producer.send(&self.names.dead, &record, 0).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use oncemq_core::partitions::{Answer, Copies};
    use oncemq_core::{Identity, Settle, Trail};
    use tokio::sync::mpsc;

    use super::*;
    use crate::client::fake::{Fake, answer, field};
    use crate::client::{self, Answer as Reply, Fault};
    use crate::cluster::Queue;
    use crate::config::{Config, levels};
    use crate::source::test_part;

    const QUEUE: &str = "t";

    /// A source of one queue with one message, at offset 10.
    struct Bench {
        fake: Fake,
        desk: Arc<Desk>,
        settle: Arc<dyn Settle>,
        jobs: mpsc::UnboundedReceiver<CopyJob>,
    }

    impl Bench {
        fn new(reply: impl FnMut(&crate::client::Request) -> Result<Reply, Fault> + Send + 'static) -> Self {
            Self::of(Fake::new(reply))
        }

        fn of(fake: Fake) -> Self {
            Self::with(fake, 4_711)
        }

        /// Of a message at this place of the broker's log.
        fn with(fake: Fake, position: i64) -> Self {
            let config = Config { publish_timeout: Duration::from_millis(10), ..Config::default() };
            let cluster = fake.cluster(config.clone());
            let shared = Arc::new(Shared::new(vec![QUEUE.into()]));
            let queue = Queue { topic: QUEUE.into(), broker: "broker-a".into(), number: 0 };
            let stored = client::Stored {
                offset: 10,
                position,
                place: "7F00".to_owned(),
                ..client::Stored::default()
            };
            test_part(&shared, queue, 10, vec![stored]);
            let names = Names {
                group: "g".into(),
                works: vec![QUEUE.into()],
                retry: "%RETRY%g".into(),
                dead: "%DLQ%g".into(),
            };
            let producer = Producer::new(cluster.clone(), Arc::new(config));
            let levels = Levels::of(levels("1s 5s 10s").unwrap());
            let (copies, jobs) = Copies::new(shared.answers.clone());
            let desk = Arc::new(Desk { cluster, producer, names, levels, shared });
            Self { fake, desk, settle: Arc::new(copies), jobs }
        }

        /// Hands the message out, and answers with what `answer` makes of it. Returns the job.
        async fn job(&mut self, answer: impl FnOnce(&Message, Trail) -> oncemq_core::Ack) -> CopyJob {
            // Where the broker is, as a look at the group would have told.
            self.desk.cluster.route(QUEUE).await.unwrap();
            let mut events = Vec::new();
            self.desk.shared.fill(1, &mut events, &self.settle).unwrap();
            let Some(oncemq_core::Event::Delivery(delivery)) = events.pop() else { panic!("no delivery") };
            let mut trail = Trail::read(delivery.message(), &"g".into(), &"t".into(), Identity::Position);
            trail.attempt = 1;
            let ack = answer(delivery.message(), trail);
            delivery.ack(ack);
            self.jobs.try_recv().unwrap()
        }

        /// Tries once. Returns the job if it failed.
        async fn attempt(&self, job: CopyJob) -> Option<CopyJob> {
            match self.desk.store(&job).await {
                Ok(Stored::Confirmed) => {
                    self.desk.shared.answers.give(Answer::Done(job.token));
                    None
                }
                Ok(Stored::Void) => panic!("void"),
                Err(_) => Some(job),
            }
        }

        /// The offset that would be committed, if it has moved.
        fn moved(&self) -> Option<i64> {
            self.desk.shared.settled().held().find_map(|part| part.commit()).map(|commit| commit.offset)
        }
    }

    fn retry(_: &Message, trail: Trail) -> oncemq_core::Ack {
        oncemq_core::Ack::retry(Duration::from_secs(3), trail, "busy")
    }

    #[tokio::test]
    async fn rm3_a_send_back_that_fails_leaves_the_offset_where_it_is() {
        let answers = Arc::new(Mutex::new(vec![
            answer(0),
            Err(Fault::NoAnswer("late".to_owned())),
            Ok(Reply { code: 1, remark: "busy".to_owned(), ..Reply::default() }),
        ]));
        let mut bench = Bench::new(move |_| answers.lock().unwrap().pop().unwrap());
        let mut job = bench.job(retry).await;
        for _ in 0..2 {
            job = bench.attempt(job).await.expect("it is not stored");
            assert_eq!(bench.moved(), None);
        }
        assert!(bench.attempt(job).await.is_none());
        assert_eq!(bench.moved(), Some(11));
        let asked = bench.fake.asked(36);
        assert_eq!(asked.len(), 3);
        assert_eq!((field(&asked[0], "offset"), field(&asked[0], "delayLevel")), ("4711", "2"));
        assert!(bench.fake.asked(310).is_empty(), "no copy of ours");
    }

    #[tokio::test]
    async fn an_original_that_has_expired_is_sent_back_as_a_copy_of_ours() {
        let mut bench = Bench::new(|request| match request.code {
            36 => {
                let remark = "look message by offset failed, 4711".to_owned();
                Ok(Reply { code: 1, remark, ..Reply::default() })
            }
            _ => answer(0),
        });
        let job = bench.job(retry).await;
        assert!(bench.attempt(job).await.is_none());
        assert_eq!(bench.moved(), Some(11));
        let sent = bench.fake.asked(310);
        let properties = field(&sent[0], "i");
        assert_eq!((field(&sent[0], "b"), field(&sent[0], "j")), ("%RETRY%g", "1"));
        for part in [
            "DELAY\u{1}2\u{2}",
            "RETRY_TOPIC\u{1}t\u{2}",
            "ORIGIN_MESSAGE_ID\u{1}7F00\u{2}",
            "oncemq-counted\u{1}1",
        ] {
            assert!(properties.contains(part), "{properties:?}");
        }
    }

    /// A broker that is asked for the first place of its log answers with what it has first.
    #[tokio::test]
    async fn the_first_message_of_a_broker_is_never_sent_back() {
        let mut bench = Bench::with(Fake::new(|_| answer(0)), 0);
        let job = bench.job(retry).await;
        assert!(bench.attempt(job).await.is_none());
        assert_eq!((bench.fake.asked(36).len(), bench.fake.asked(310).len()), (0, 1));
    }

    #[tokio::test]
    async fn a_broker_that_may_only_be_read_does_not_hold_up_a_retry() {
        let mut bench = Bench::new(|request| match request.code {
            36 => answer(crate::error::code::NO_PERMISSION),
            _ => answer(0),
        });
        let job = bench.job(retry).await;
        assert!(bench.attempt(job).await.is_none());
        assert_eq!((bench.moved(), bench.fake.asked(310).len()), (Some(11), 1));
    }

    #[tokio::test]
    async fn attempts_that_the_broker_cannot_count_go_into_a_copy_of_ours() {
        let mut bench = Bench::new(|_| answer(0));
        let job = bench
            .job(|message, mut trail| {
                trail.attempt = 3;
                retry(message, trail)
            })
            .await;
        assert!(bench.attempt(job).await.is_none());
        assert!(bench.fake.asked(36).is_empty());
        let sent = bench.fake.asked(310);
        assert_eq!(field(&sent[0], "j"), "3");
        assert!(field(&sent[0], "i").contains("oncemq-attempt\u{1}3"));
    }

    /// Of a message of another producer, whose headers fill what a broker takes.
    #[tokio::test]
    async fn what_has_no_room_for_more_headers_is_a_dead_letter_without_some() {
        let room = |request: &crate::client::Request| field(request, "i").len() < 32_768;
        let mut bench = Bench::new(move |request| match request.code {
            36 => {
                let remark = "[PROPERTIES_SIZE_EXCEEDED]".to_owned();
                Ok(Reply { code: 1, remark, ..Reply::default() })
            }
            _ if room(request) => answer(0),
            _ => answer(crate::error::code::MESSAGE_ILLEGAL),
        });
        for purpose in ["retry", "reject"] {
            let mut job = bench
                .job(|message, trail| match purpose {
                    "retry" => retry(message, trail),
                    _ => oncemq_core::Ack::reject(Class::Business, trail, "no product"),
                })
                .await;
            let headers = &mut job.message.parts_mut().headers;
            headers.set("large", "x".repeat(32_600));
            headers.set("tenant", "t");
            assert!(bench.attempt(job).await.is_none(), "{purpose}");
            let sent = bench.fake.asked(310);
            let letter = sent.last().unwrap();
            let properties = field(letter, "i");
            assert_eq!(field(letter, "b"), "%DLQ%g");
            for part in ["tenant\u{1}t\u{2}", "oncemq-headers-cut\u{1}large\u{2}"] {
                assert!(properties.contains(part), "{purpose}: {part:?}");
            }
            let why = if purpose == "retry" { "cannot be sent back" } else { "no product" };
            assert!(properties.contains(why), "{purpose}: {why:?}");
            bench = Bench::of(bench.fake);
        }
    }

    #[tokio::test]
    async fn a_dead_letter_that_is_not_confirmed_leaves_the_offset_where_it_is() {
        let mut down = true;
        let mut bench = Bench::new(move |_| {
            if std::mem::take(&mut down) { Err(Fault::NotSent("down".to_owned())) } else { answer(0) }
        });
        let reject = |_: &Message, trail| oncemq_core::Ack::reject(Class::Business, trail, "no product");
        let job = bench.job(reject).await;
        let job = bench.attempt(job).await.expect("it is not stored");
        assert_eq!(bench.moved(), None);
        assert!(bench.attempt(job).await.is_none());
        assert_eq!(bench.moved(), Some(11));
        assert!(bench.fake.asked(310).iter().all(|request| field(request, "b") == "%DLQ%g"));
    }
}
