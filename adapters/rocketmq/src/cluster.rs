//! A cluster in words of the adapter: where topics are, and the requests that brokers know.

pub(crate) mod halves;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use oncemq_core::{Error, ErrorKind};
use serde_json::{Value, json};

use crate::client::{Answer, Client, Fault, Request, Seat, Stored};
use crate::config::Config;
use crate::error::{self, code};
use crate::records::{Native, Record};

/// How long a short request may take.
pub(crate) const SHORT: Duration = Duration::from_secs(3);
/// How long what the name server said is good for.
const ROUTE_AGE: Duration = Duration::from_secs(10);
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

/// A queue of a topic on one broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Queue {
    pub(crate) topic: Arc<str>,
    pub(crate) broker: Arc<str>,
    pub(crate) number: i32,
}

impl std::fmt::Display for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "queue {} of {} on {}", self.number, self.topic, self.broker)
    }
}

/// What a queue was asked for.
#[derive(Debug)]
pub(crate) enum Pulled {
    /// The next messages, and where it goes on.
    Messages(Vec<Stored>, i64),
    /// None for now; it goes on here.
    None(i64),
    /// The offset is not there: what is, from the first to behind the last.
    Moved(i64, i64),
}

/// What became of a message that was sent back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SentBack {
    Stored,
    /// The broker does not have the original any more.
    Expired,
}

/// Where a topic was, and when.
type Route = (Instant, Arc<[Seat]>);

/// How a record is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sent<'a> {
    /// To be consumed. It was sent back so often before.
    Plain(u32),
    /// To be kept back until a transaction of this producer group has ended.
    Half(&'a str),
}

/// A connection, and what was learned of the cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    client: Arc<dyn Client>,
    config: Arc<Config>,
    routes: Mutex<HashMap<Arc<str>, Route>>,
    /// Topics that were somewhere once.
    seen: Mutex<HashSet<Arc<str>>>,
    addresses: Mutex<BTreeMap<Arc<str>, Arc<str>>>,
}

impl Cluster {
    pub(crate) fn connect(config: Arc<Config>) -> Result<Self, Error> {
        Ok(Self::with(crate::client::connect(&config)?, config))
    }

    pub(crate) fn with(client: Arc<dyn Client>, config: Arc<Config>) -> Self {
        Self { client, config, routes: Mutex::default(), seen: Mutex::default(), addresses: Mutex::default() }
    }

    pub(crate) fn new_id(&self) -> String {
        self.client.new_id()
    }

    pub(crate) async fn close(&self) {
        self.client.close().await;
    }

    /// Every broker that takes messages, by name.
    pub(crate) async fn masters(&self) -> Result<Vec<(Arc<str>, Arc<str>)>, Error> {
        let found = self.client.masters().await.map_err(|fault| self.unreachable(&fault))?;
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.extend(found.iter().cloned());
        Ok(found)
    }

    fn unreachable(&self, fault: &Fault) -> Error {
        let address = self.config.address();
        Error::new(
            ErrorKind::Connection,
            format!(
                "the RocketMQ name server at {address} does not answer; check address and port ({fault})"
            ),
        )
    }

    /// Where a topic is; nowhere if it does not exist.
    pub(crate) async fn route(&self, topic: &str) -> Result<Arc<[Seat]>, Error> {
        let known = self.routes.lock().unwrap_or_else(PoisonError::into_inner).get(topic).cloned();
        match known {
            Some((asked, seats)) if asked.elapsed() < ROUTE_AGE => Ok(seats),
            _ => self.fresh_route(topic).await,
        }
    }

    /// The same, asked for now.
    pub(crate) async fn fresh_route(&self, topic: &str) -> Result<Arc<[Seat]>, Error> {
        let found = self.client.route(topic).await.map_err(|fault| self.unreachable(&fault))?;
        let seats: Arc<[Seat]> = found.unwrap_or_default().into();
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.extend(seats.iter().map(|seat| (seat.broker.clone(), seat.address.clone())));
        drop(addresses);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if seats.is_empty() {
            routes.remove(topic);
        } else {
            routes.insert(topic.into(), (Instant::now(), seats.clone()));
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.into());
        }
        Ok(seats)
    }

    /// Whether a topic was somewhere once.
    pub(crate) fn has_seen(&self, topic: &str) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).contains(topic)
    }

    /// A broker did not answer: it may have moved.
    pub(crate) fn forget_routes(&self) {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn address(&self, broker: &str) -> Result<Arc<str>, Fault> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses
            .get(broker)
            .cloned()
            .ok_or_else(|| Fault::NotSent(format!("the address of {broker} is not known")))
    }

    /// Asks a broker by its name. A refusal is an answer.
    pub(crate) async fn ask(&self, broker: &str, request: Request, limit: Duration) -> Result<Answer, Fault> {
        let address = self.address(broker)?;
        let asked = self.client.ask(&address, request, limit).await;
        if asked.is_err() {
            self.forget_routes();
        }
        asked
    }

    /// The same for requests where everything but success is an error.
    pub(crate) async fn demand(&self, broker: &str, request: Request, what: &str) -> Result<Answer, Error> {
        match self.ask(broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => Ok(answer),
            Ok(answer) => Err(error::refused(what, &answer)),
            Err(fault) => Err(error::from_fault(what, &fault)),
        }
    }

    pub(crate) async fn pull(&self, group: &str, queue: &Queue, offset: i64) -> Result<Pulled, Error> {
        // The broker waits (2) for messages of the subscription that is named here (4).
        let request = of(queue, 11, group)
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
                let body = answer.body.unwrap_or_default();
                Ok(Pulled::Messages(self.client.stored(body), next))
            }
            code::PULL_NOT_FOUND | code::PULL_RETRY_AT_ONCE => Ok(Pulled::None(next)),
            code::PULL_OFFSET_MOVED => {
                let bound = |name| answer.number(name).unwrap_or(next);
                Ok(Pulled::Moved(bound("minOffset"), bound("maxOffset")))
            }
            _ => Err(error::refused(&what, &answer)),
        }
    }

    /// The committed offset of a group; `None` if it has committed nothing.
    pub(crate) async fn committed(&self, group: &str, queue: &Queue) -> Result<Option<i64>, Error> {
        let what = format!("reading the committed offset of {queue}");
        let request = of(queue, 14, group).with("setZeroIfNotFound", false);
        match self.ask(&queue.broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => Ok(answer.number("offset")),
            Ok(answer) if answer.code == code::QUERY_NOT_FOUND => Ok(None),
            Ok(answer) => Err(error::refused(&what, &answer)),
            Err(fault) => Err(error::from_fault(&what, &fault)),
        }
    }

    pub(crate) async fn commit(&self, group: &str, queue: &Queue, offset: i64) -> Result<(), Error> {
        let request = of(queue, 15, group).with("commitOffset", offset);
        self.demand(&queue.broker, request, &format!("committing an offset of {queue}")).await.map(drop)
    }

    /// The first offset of a queue, and the one after the last.
    pub(crate) async fn bounds(&self, queue: &Queue) -> Result<(i64, i64), Error> {
        let what = format!("asking for the bounds of {queue}");
        let mut bounds = [0, 0];
        for (bound, code) in bounds.iter_mut().zip([31, 30]) {
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
        let request = Request::new(36)
            .with("offset", native.position)
            .with("group", group)
            .with("delayLevel", level)
            .with("originMsgId", &native.place)
            .with("originTopic", &native.topic)
            .with("unitMode", false)
            .with("maxReconsumeTimes", ANY_TIMES);
        match self.ask(&native.broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => Ok(SentBack::Stored),
            Ok(answer) if answer.remark.starts_with("look message by offset failed") => Ok(SentBack::Expired),
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
        let request = Request::new(310)
            .with("a", group)
            .with("b", &queue.topic)
            .with("c", "TBW102")
            .with("d", 4)
            .with("e", queue.number)
            .with("f", flag)
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

    /// Tells a broker that a member of a group is alive, and what it consumes.
    pub(crate) async fn heartbeat(&self, broker: &str, member: &Member) -> Result<(), Error> {
        let request = Request::new(34).with_body(member.heartbeat());
        self.demand(broker, request, "telling the broker of this consumer").await.map(drop)
    }

    /// Tells a broker that a member leaves.
    pub(crate) async fn leave(&self, broker: &str, member: &Member) -> Result<(), Error> {
        let request = Request::new(35).with("clientID", &member.id).with("consumerGroup", &member.group);
        self.demand(broker, request, "leaving the consumer group").await.map(drop)
    }

    /// The members of a group that a broker knows, in order.
    pub(crate) async fn members(&self, broker: &str, group: &str) -> Result<Vec<String>, Error> {
        let what = "asking for the members of the consumer group";
        let request = Request::new(38).with("consumerGroup", group);
        let answer = match self.ask(broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => answer,
            // A group without a member is an error to it.
            Ok(answer) if answer.code == code::SYSTEM_ERROR && answer.remark.contains("no consumer") => {
                return Ok(Vec::new());
            }
            Ok(answer) => return Err(error::refused(what, &answer)),
            Err(fault) => return Err(error::from_fault(what, &fault)),
        };
        let body = parsed(answer.body, what)?;
        let list = body["consumerIdList"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut members: Vec<String> = list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        members.sort_unstable();
        Ok(members)
    }

    /// What a broker knows of a group's members; `None` if there is none.
    pub(crate) async fn connections(&self, broker: &str, group: &str) -> Result<Option<Value>, Error> {
        let what = "asking for the members of the consumer group";
        let request = Request::new(203).with("consumerGroup", group);
        match self.ask(broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => parsed(answer.body, what).map(Some),
            Ok(answer) if answer.code == code::NOT_ONLINE => Ok(None),
            Ok(answer) => Err(error::refused(what, &answer)),
            Err(fault) => Err(error::from_fault(what, &fault)),
        }
    }

    /// Takes or keeps the lock of a queue for a member. Whether it has it now.
    pub(crate) async fn lock(&self, queue: &Queue, member: &Member) -> Result<bool, Error> {
        let what = format!("locking {queue}");
        let answer = self.demand(&queue.broker, lock(41, queue, member), &what).await?;
        let body = parsed(answer.body, &what)?;
        Ok(body["lockOKMQSet"].as_array().is_some_and(|list| !list.is_empty()))
    }

    pub(crate) async fn unlock(&self, queue: &Queue, member: &Member) -> Result<(), Error> {
        self.demand(&queue.broker, lock(42, queue, member), &format!("unlocking {queue}")).await.map(drop)
    }
}

/// A member of a consumer group, as brokers know it.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) group: Arc<str>,
    /// The topic of sent back messages included.
    pub(crate) topics: Vec<Arc<str>>,
}

impl Member {
    fn heartbeat(&self) -> Vec<u8> {
        let subscriptions: Vec<Value> = self.topics.iter().map(|topic| subscription(topic)).collect();
        let consumer = json!({
            "groupName": &*self.group,
            "consumeType": "CONSUME_ACTIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": subscriptions,
            "unitMode": false,
        });
        json!({ "clientID": self.id, "producerDataSet": [], "consumerDataSet": [consumer] })
            .to_string()
            .into()
    }
}

fn subscription(topic: &str) -> Value {
    json!({
        "topic": topic,
        "subString": "*",
        "expressionType": "TAG",
        "classFilterMode": false,
        "subVersion": 1,
        "tagsSet": [],
        "codeSet": [],
    })
}

fn of(queue: &Queue, code: i32, group: &str) -> Request {
    Request::new(code).with("consumerGroup", group).with("topic", &queue.topic).with("queueId", queue.number)
}

fn lock(code: i32, queue: &Queue, member: &Member) -> Request {
    let place = json!({ "topic": &*queue.topic, "brokerName": &*queue.broker, "queueId": queue.number });
    let body = json!({
        "consumerGroup": &*member.group,
        "clientId": member.id,
        "onlyThisBroker": false,
        "mqSet": [place],
    });
    Request::new(code).with_body(body.to_string())
}

pub(crate) fn parsed(body: Option<Bytes>, what: &str) -> Result<Value, Error> {
    serde_json::from_slice(&body.unwrap_or_default()).map_err(|why| {
        Error::with_source(ErrorKind::Internal, format!("{what}: the answer cannot be read"), why)
    })
}
