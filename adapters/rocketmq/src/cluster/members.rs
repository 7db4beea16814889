//! Requests about the members of consumer groups, and what only one of them may do.

use std::sync::Arc;

use oncemq_core::Error;
use serde_json::{Value, json};

use super::{Cluster, Queue, SHORT, parsed};
use crate::client::{Request, verb};
use crate::error::{self, code};

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

impl Cluster {
    /// Tells a broker that a member of a group is alive, and what it consumes.
    pub(crate) async fn heartbeat(&self, broker: &str, member: &Member) -> Result<(), Error> {
        let request = Request::new(verb::HEARTBEAT).with_body(member.heartbeat());
        self.demand(broker, request, "telling the broker of this consumer").await.map(drop)
    }

    /// Tells a broker that a member leaves.
    pub(crate) async fn leave(&self, broker: &str, member: &Member) -> Result<(), Error> {
        let request =
            Request::new(verb::LEAVE).with("clientID", &member.id).with("consumerGroup", &member.group);
        self.demand(broker, request, "leaving the consumer group").await.map(drop)
    }

    /// The members of a group that a broker knows, in order, each once: a broker counts the
    /// connections that told it of a member, and an old one may live on beside the new one.
    pub(crate) async fn members(&self, broker: &str, group: &str) -> Result<Vec<String>, Error> {
        let what = "asking for the members of the consumer group";
        let request = Request::new(verb::MEMBERS).with("consumerGroup", group);
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
        members.dedup();
        Ok(members)
    }

    /// What a broker knows of a group's members; `None` if there is none.
    pub(crate) async fn connections(&self, broker: &str, group: &str) -> Result<Option<Value>, Error> {
        let what = "asking for the members of the consumer group";
        let request = Request::new(verb::CONSUMERS).with("consumerGroup", group);
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
        let answer = self.demand(&queue.broker, lock(verb::LOCK, queue, member), &what).await?;
        let body = parsed(answer.body, &what)?;
        Ok(body["lockOKMQSet"].as_array().is_some_and(|list| !list.is_empty()))
    }

    pub(crate) async fn unlock(&self, queue: &Queue, member: &Member) -> Result<(), Error> {
        self.demand(&queue.broker, lock(verb::UNLOCK, queue, member), &format!("unlocking {queue}"))
            .await
            .map(drop)
    }
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

#[cfg(test)]
mod tests {
    use crate::client::Answer;
    use crate::client::fake::Fake;
    use crate::config::Config;

    #[tokio::test]
    async fn a_member_of_two_connections_is_one_member() {
        let body = r#"{"consumerIdList":["b","a","b"]}"#;
        let fake = Fake::new(|_| Ok(Answer { body: Some(body.into()), ..Answer::default() }));
        let cluster = fake.cluster(Config::default());
        cluster.route("t").await.unwrap();
        assert_eq!(cluster.members("broker-a", "g").await.unwrap(), ["a", "b"]);
    }
}
