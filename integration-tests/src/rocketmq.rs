//! RocketMQ as a reader of its own sees it: it shares neither code nor client library with the
//! adapter, so what one of them gets wrong the other does not.

mod wire;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use wire::{Stored, Wire};

use crate::service::Spec;

/// Commits come often, so that there are many of them in the traffic of a test that dies at one.
/// A member that was killed needs no setting: the broker misses it as soon as its connection is
/// gone.
const SHORT: &str = "commit_interval=10ms";
/// Where messages wait for their time, one queue a delay level, those of all groups together.
const SCHEDULE: &str = "SCHEDULE_TOPIC_XXXX";
/// A group that every broker has, for tools. Nothing is committed in its name.
const READER: &str = "TOOLS_CONSUMER";
/// How long messages that are counted may take until they can be read.
const READ_MAX: Duration = Duration::from_secs(10);

mod code {
    pub(super) const PULL: u32 = 11;
    pub(super) const COMMITTED: u32 = 14;
    pub(super) const END: u32 = 30;
    pub(super) const BEGIN: u32 = 31;
    pub(super) const DELIVERED: u32 = 45;
    pub(super) const ROUTE: u32 = 105;
    pub(super) const DELETE_GROUP: u32 = 207;
    pub(super) const DELETE_TOPIC: u32 = 215;
    pub(super) const FORGET_TOPIC: u32 = 216;

    pub(super) const SUCCESS: i64 = 0;
    pub(super) const NOT_FOUND: i64 = 22;
}

/// The address of a service: a name server's, with so many queues for a topic that is made.
pub fn url(server: &str, queues: u32) -> String {
    let joint = if server.contains('?') { '&' } else { '?' };
    format!("{server}{joint}queues={queues}&{SHORT}")
}

/// Where to ask. Each question has connections of its own.
#[derive(Debug)]
pub struct Rocketmq {
    name_server: String,
}

impl Rocketmq {
    /// Notes the address.
    ///
    /// # Panics
    /// The service's broker is not one that this reader can be told.
    pub fn of(spec: &Spec) -> Self {
        let place = spec.broker.strip_prefix("rocketmq://").expect("a rocketmq:// URL");
        let place = place.split(['?', '/']).next().unwrap_or(place);
        assert!(!place.contains(['@', ',']), "the tests use one name server that asks for no login");
        Self { name_server: place.to_owned() }
    }

    /// How many dead letters there are.
    ///
    /// # Panics
    /// Nobody declared them, or a server does not answer.
    pub async fn dead(&self, spec: &Spec) -> u32 {
        let topic = self.topic(dead(spec)).await;
        let mut broker = Wire::connect(&topic.broker).await;
        let mut count = 0;
        for queue in 0..topic.queues {
            let (begin, end) = bounds(&mut broker, &topic.name, queue).await;
            count += end - begin;
        }
        u32::try_from(count).unwrap()
    }

    /// The bodies of all dead letters.
    ///
    /// # Panics
    /// As [`dead`](Self::dead).
    pub async fn dead_letters(&self, spec: &Spec) -> BTreeSet<Vec<u8>> {
        let topic = self.topic(dead(spec)).await;
        let mut broker = Wire::connect(&topic.broker).await;
        let mut bodies = BTreeSet::new();
        for queue in 0..topic.queues {
            let (begin, end) = bounds(&mut broker, &topic.name, queue).await;
            let began = Instant::now();
            let mut next = begin;
            while next < end {
                let read = pull(&mut broker, &topic.name, queue, next).await;
                assert!(began.elapsed() < READ_MAX, "message {next} of {} cannot be read", topic.name);
                for stored in read {
                    next = stored.offset + 1;
                    bodies.insert(stored.body);
                }
            }
        }
        bodies
    }

    /// Whether the group has committed the end of every queue of its topics, and nothing of it
    /// waits for its time.
    ///
    /// # Panics
    /// As [`dead`](Self::dead).
    pub async fn all_done(&self, spec: &Spec) -> bool {
        let retry = self.topic(retry(spec)).await;
        let work = self.topic(spec.topic.clone()).await;
        let mut broker = Wire::connect(&retry.broker).await;
        // What waits moves to the retry topic. Looked at in this order, it is seen in one of
        // the two.
        if self.is_waited_for(&mut broker, &retry.name).await {
            return false;
        }
        for topic in [&retry, &work] {
            for queue in 0..topic.queues {
                let (begin, end) = bounds(&mut broker, &topic.name, queue).await;
                let committed = committed(&mut broker, &spec.name, &topic.name, queue).await;
                if committed.unwrap_or(begin) != end {
                    return false;
                }
            }
        }
        true
    }

    /// Removes everything of a service. What stays disturbs nobody: its names are nobody
    /// else's.
    ///
    /// # Panics
    /// As [`dead`](Self::dead).
    pub async fn remove(&self, spec: &Spec) {
        let place = self.topic(spec.topic.clone()).await.broker;
        let mut broker = Wire::connect(&place).await;
        let mut names = Wire::connect(&self.name_server).await;
        let group = [("groupName", spec.name.clone()), ("cleanOffset", "true".to_owned())];
        let _ = broker.ask(code::DELETE_GROUP, &group).await;
        for topic in [spec.topic.clone(), retry(spec), dead(spec)] {
            let topic = [("topic", topic)];
            let _ = broker.ask(code::DELETE_TOPIC, &topic).await;
            let _ = names.ask(code::FORGET_TOPIC, &topic).await;
        }
    }

    /// Whether a message waits for its time to come to this topic.
    async fn is_waited_for(&self, broker: &mut Wire, topic: &str) -> bool {
        let answer = broker.demand(code::DELIVERED, &[]).await;
        let delivered = wire::offset_table(&String::from_utf8_lossy(&answer.body));
        for queue in 0..self.topic(SCHEDULE.to_owned()).await.queues {
            let (begin, end) = bounds(broker, SCHEDULE, queue).await;
            // Levels count from one. One that nothing was delivered of has no offset.
            let mut next = delivered.get(&(queue + 1)).map_or(begin, |offset| begin.max(*offset));
            while next < end {
                let read = pull(broker, SCHEDULE, queue, next).await;
                // Stored and not to be read yet: it may be for this topic.
                let Some(last) = read.last() else { return true };
                next = last.offset + 1;
                if read.iter().any(|stored| stored.property("REAL_TOPIC") == Some(topic)) {
                    return true;
                }
            }
        }
        false
    }

    /// Where a topic is.
    async fn topic(&self, name: String) -> Topic {
        let fields = [("topic", name.clone()), ("acceptStandardJsonOnly", "true".to_owned())];
        let answer = Wire::connect(&self.name_server).await.ask(code::ROUTE, &fields).await;
        assert_eq!(answer.code, code::SUCCESS, "{name}: {}", answer.remark);
        let route: serde_json::Value = serde_json::from_slice(&answer.body).expect("a route is JSON");
        let [broker] = route["brokerDatas"].as_array().expect("brokers").as_slice() else {
            panic!("the tests use one broker: {route}")
        };
        let broker = broker["brokerAddrs"]["0"].as_str().expect("an address").to_owned();
        let queues = route["queueDatas"][0]["readQueueNums"].as_u64().expect("a number of queues");
        Topic { name, broker, queues }
    }
}

/// A topic, and where it is.
#[derive(Debug)]
struct Topic {
    name: String,
    broker: String,
    queues: u64,
}

fn retry(spec: &Spec) -> String {
    format!("%RETRY%{}", spec.name)
}

fn dead(spec: &Spec) -> String {
    format!("%DLQ%{}", spec.name)
}

fn of(topic: &str, queue: u64) -> Vec<(&'static str, String)> {
    vec![("topic", topic.to_owned()), ("queueId", queue.to_string())]
}

/// The first offset of a queue, and the one after the last; that of a message which is stored
/// and cannot be read yet included.
async fn bounds(broker: &mut Wire, topic: &str, queue: u64) -> (i64, i64) {
    let mut fields = of(topic, queue);
    let begin = broker.demand(code::BEGIN, &fields).await.number("offset");
    fields.push(("committed", "false".to_owned()));
    (begin, broker.demand(code::END, &fields).await.number("offset"))
}

/// What a group has committed.
async fn committed(broker: &mut Wire, group: &str, topic: &str, queue: u64) -> Option<i64> {
    let mut fields = of(topic, queue);
    fields.push(("consumerGroup", group.to_owned()));
    fields.push(("setZeroIfNotFound", "false".to_owned()));
    let answer = broker.ask(code::COMMITTED, &fields).await;
    match answer.code {
        code::SUCCESS => Some(answer.number("offset")),
        code::NOT_FOUND => None,
        _ => panic!("the offset of {group}: {}", answer.remark),
    }
}

/// Messages from this offset on; none if they cannot be read yet.
async fn pull(broker: &mut Wire, topic: &str, queue: u64, offset: i64) -> Vec<Stored> {
    let mut fields = of(topic, queue);
    let more = [
        ("consumerGroup", READER),
        ("maxMsgNums", "32"),
        // With a subscription in the request; without a wait and without a commit.
        ("sysFlag", "4"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "0"),
        ("subscription", "*"),
        ("subVersion", "0"),
        ("expressionType", "TAG"),
    ];
    fields.extend(more.map(|(name, value)| (name, value.to_owned())));
    fields.push(("queueOffset", offset.to_string()));
    let answer = broker.ask(code::PULL, &fields).await;
    if answer.code == code::SUCCESS { wire::stored(&answer.body) } else { Vec::new() }
}
