//! Requests about queues and their messages.

use std::time::Duration;

use oncemq_core::{Error, ErrorKind};

use super::{Cluster, Queue, SHORT};
use crate::client::{Answer, Fault, Request, Stored, verb};
use crate::error::{self, code};
use crate::records::{Native, Record};

/// How long a broker keeps a question for messages that are not there yet, and how long it may
/// take beyond: it looks at its clock every few seconds only.
const SUSPEND: Duration = Duration::from_secs(5);
const SUSPEND_EXTRA: Duration = Duration::from_secs(8);
/// Messages of one answer; the broker gives no more of them either.
const PULL_MAX: usize = 32;
/// A broker has no say in when a message that is sent back is given up: the policy has.
const ANY_TIMES: i32 = i32::MAX;

/// In the flag of a message that is sent: it is a half message.
const HALF: i32 = 4;

/// What a queue was asked for.
#[derive(Debug)]
pub(crate) enum Pulled {
    /// The next messages, and where it goes on.
    Messages(Vec<Stored>, i64),
    /// None for now; it goes on here.
    None(i64),
    /// It goes on elsewhere.
    Moved(Moved),
}

/// Where a queue goes on whose offset is not there, or was set by an operator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moved {
    /// What is there, from the first to behind the last.
    pub(crate) first: i64,
    pub(crate) end: i64,
    /// Where the broker would go on.
    pub(crate) next: i64,
}

/// What became of a message that was sent back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SentBack {
    Stored,
    /// The broker does not have the original any more.
    Expired,
}

/// How a record is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sent<'a> {
    /// To be consumed. It was sent back so often before.
    Plain(u32),
    /// To be kept back until a transaction of this producer group has ended.
    Half(&'a str),
}

impl Cluster {
    pub(crate) async fn pull(&self, group: &str, queue: &Queue, offset: i64) -> Result<Pulled, Error> {
        // The broker waits (2) for messages of the subscription that is named here (4).
        let request = of(queue, verb::PULL, group)
            .with("queueOffset", offset)
            .with("maxMsgNums", PULL_MAX)
            .with("sysFlag", 2 | 4)
            .with("commitOffset", 0)
            .with("suspendTimeoutMillis", SUSPEND.as_millis())
            .with("subscription", "*")
            .with("subVersion", 0)
            .with("expressionType", "TAG");
        let what = format!("consuming {queue}");
        let answer = match self.ask(&queue.broker, request, SUSPEND + SUSPEND_EXTRA).await {
            Ok(answer) => answer,
            Err(fault) => return Err(error::from_fault(&what, &fault)),
        };
        let next = answer.number("nextBeginOffset").unwrap_or(offset);
        match answer.code {
            code::SUCCESS => {
                let found = self.client.stored(answer.body.unwrap_or_default());
                match found.messages.last().map(|last| last.offset + 1) {
                    _ if found.whole => Ok(Pulled::Messages(found.messages, next)),
                    Some(next) => Ok(Pulled::Messages(found.messages, next)),
                    // Nothing may be left out: an operator has to look.
                    None => Err(Error::new(
                        ErrorKind::Internal,
                        format!("{what}: the message at offset {offset} is of no form that the client knows"),
                    )),
                }
            }
            code::PULL_NOT_FOUND | code::PULL_RETRY_AT_ONCE => Ok(Pulled::None(next)),
            code::PULL_OFFSET_MOVED => {
                let bound = |name| answer.number(name).unwrap_or(next);
                Ok(Pulled::Moved(Moved { first: bound("minOffset"), end: bound("maxOffset"), next }))
            }
            _ => Err(error::refused(&what, &answer)),
        }
    }

    /// The committed offset of a group; `None` if it has committed nothing.
    pub(crate) async fn committed(&self, group: &str, queue: &Queue) -> Result<Option<i64>, Error> {
        let what = format!("reading the committed offset of {queue}");
        let request = of(queue, verb::COMMITTED, group).with("setZeroIfNotFound", false);
        match self.ask(&queue.broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => Ok(answer.number("offset")),
            Ok(answer) if answer.code == code::QUERY_NOT_FOUND => Ok(None),
            Ok(answer) => Err(error::refused(&what, &answer)),
            Err(fault) => Err(error::from_fault(&what, &fault)),
        }
    }

    pub(crate) async fn commit(&self, group: &str, queue: &Queue, offset: i64) -> Result<(), Error> {
        let request = of(queue, verb::COMMIT, group).with("commitOffset", offset);
        self.demand(&queue.broker, request, &format!("committing an offset of {queue}")).await.map(drop)
    }

    /// The first offset of a queue, and the one after the last.
    pub(crate) async fn bounds(&self, queue: &Queue) -> Result<(i64, i64), Error> {
        let what = format!("asking for the bounds of {queue}");
        let mut bounds = [0, 0];
        for (bound, code) in bounds.iter_mut().zip([verb::BEGIN, verb::END]) {
            let request = Request::new(code).with("topic", &queue.topic).with("queueId", queue.number);
            let answer = self.demand(&queue.broker, request, &what).await?;
            *bound = answer.number("offset").unwrap_or(0);
        }
        Ok((bounds[0], bounds[1]))
    }

    /// Has the broker store a message again, to be delivered after this level.
    pub(crate) async fn send_back(
        &self,
        group: &str,
        native: &Native,
        level: usize,
    ) -> Result<SentBack, Error> {
        let what = "sending a message back";
        let request = Request::new(verb::SEND_BACK)
            .with("offset", native.position)
            .with("group", group)
            .with("delayLevel", level)
            .with("originMsgId", &native.place)
            .with("originTopic", &native.topic)
            .with("unitMode", false)
            .with("maxReconsumeTimes", ANY_TIMES);
        // Without an answer it may be stored all the same, and asking again stores it twice: a broker
        // that hangs has its time.
        match self.ask(&native.broker, request, self.config.publish_timeout).await {
            Ok(answer) if answer.code == code::SUCCESS => Ok(SentBack::Stored),
            Ok(answer) if answer.remark.starts_with("look message by offset failed") => Ok(SentBack::Expired),
            Ok(answer) if answer.remark.contains("PROPERTIES_SIZE_EXCEEDED") => {
                Err(Error::new(ErrorKind::TooLarge, "its headers leave no room for those of the broker"))
            }
            Ok(answer) => Err(error::refused(what, &answer)),
            Err(fault) => Err(error::from_fault(what, &fault)),
        }
    }

    /// Stores a record in a queue. The answer says how well it is stored.
    pub(crate) async fn send(
        &self,
        queue: &Queue,
        record: &Record,
        sent: Sent<'_>,
        limit: Duration,
    ) -> Result<Answer, Fault> {
        let (group, flag, reconsumed) = match sent {
            Sent::Plain(reconsumed) => ("oncemq", 0, reconsumed),
            Sent::Half(group) => (group, HALF, 0),
        };
        let born = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let request = Request::new(verb::SEND)
            .with("a", group)
            .with("b", &queue.topic)
            .with("c", "TBW102")
            .with("d", 4)
            .with("e", queue.number)
            .with("f", flag | record.flag)
            .with("g", born.as_millis())
            .with("h", 0)
            .with("i", &record.properties)
            .with("j", reconsumed)
            .with("k", false)
            .with("l", ANY_TIMES)
            .with("m", false)
            .with("n", &queue.broker)
            .with_body(record.body.clone());
        self.ask(&queue.broker, request, limit).await
    }
}

fn of(queue: &Queue, code: i32, group: &str) -> Request {
    Request::new(code).with("consumerGroup", group).with("topic", &queue.topic).with("queueId", queue.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake::Fake;
    use crate::config::Config;

    #[tokio::test]
    async fn behind_a_message_that_cannot_be_read_nothing_is_left_out() {
        for (body, found) in [("aaa", Some((3, 9))), ("aaxa", Some((2, 2))), ("xaa", None)] {
            let fields = vec![("nextBeginOffset".to_owned(), "9".to_owned())];
            let fake = Fake::new(move |_| {
                Ok(Answer { fields: fields.clone(), body: Some(body.into()), ..Answer::default() })
            });
            let cluster = fake.cluster(Config::default());
            cluster.route("t").await.unwrap();
            let queue = Queue { topic: "t".into(), broker: "broker-a".into(), number: 0 };
            let pulled = cluster.pull("g", &queue, 0).await;
            let got = match &pulled {
                Ok(Pulled::Messages(messages, next)) => Some((messages.len(), *next)),
                Err(error) if !error::is_final(error) => None,
                other => panic!("{other:?}"),
            };
            assert_eq!(got, found, "{body}: {pulled:?}");
        }
    }
}
