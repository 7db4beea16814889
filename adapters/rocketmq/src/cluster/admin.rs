//! Requests that operators make too: what there is, and making it.

use oncemq_core::Error;
use serde_json::{Value, json};

use super::{Cluster, SHORT, parsed};
use crate::client::{Request, verb};
use crate::error::{self, code};

/// Read and write.
const RIGHTS: i32 = 6;

/// How a broker treats what a consumer group sends back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupSettings {
    /// How often it takes a message back.
    pub(crate) retries: usize,
    /// In how many queues it puts such messages, whatever their topic has. In none, it takes
    /// them and stores nothing.
    pub(crate) retry_queues: i32,
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self { retries: 16, retry_queues: 1 }
    }
}

impl Cluster {
    /// A setting of a broker; none if it does not tell.
    pub(crate) async fn setting(&self, broker: &str, name: &str) -> Option<String> {
        let answer =
            self.demand(broker, Request::new(verb::SETTINGS), "reading the broker's settings").await.ok()?;
        let text = answer.body.unwrap_or_default();
        let mut lines = std::str::from_utf8(&text).ok()?.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    }

    /// How many queues of a topic a broker lets read; `None` if it has no such topic.
    pub(crate) async fn topic_queues(&self, broker: &str, topic: &str) -> Result<Option<i32>, Error> {
        let what = format!("looking for topic {topic}");
        let request = Request::new(verb::TOPIC).with("topic", topic);
        let answer = match self.ask(broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => answer,
            Ok(answer) if answer.code == code::TOPIC_NOT_EXIST => return Ok(None),
            Ok(answer) => return Err(error::refused(&what, &answer)),
            Err(fault) => return Err(error::from_fault(&what, &fault)),
        };
        Ok(Some(number(&parsed(answer.body, &what)?["readQueueNums"]).unwrap_or(0)))
    }

    pub(crate) async fn create_topic(&self, broker: &str, topic: &str, queues: i32) -> Result<(), Error> {
        let request = Request::new(verb::CREATE_TOPIC)
            .with("topic", topic)
            .with("defaultTopic", "TBW102")
            .with("readQueueNums", queues)
            .with("writeQueueNums", queues)
            .with("perm", RIGHTS)
            .with("topicFilterType", "SINGLE_TAG")
            .with("topicSysFlag", 0)
            .with("order", false);
        self.demand(broker, request, &format!("creating topic {topic}")).await.map(drop)
    }

    /// The settings of a consumer group; `None` if a broker has no such group.
    pub(crate) async fn group(&self, broker: &str, group: &str) -> Result<Option<GroupSettings>, Error> {
        let what = format!("looking for the consumer group {group}");
        let request = Request::new(verb::GROUP).with("group", group);
        let answer = match self.ask(broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => answer,
            Ok(answer) if answer.code == code::GROUP_NOT_EXIST => return Ok(None),
            Ok(answer) => return Err(error::refused(&what, &answer)),
            Err(fault) => return Err(error::from_fault(&what, &fault)),
        };
        let (settings, usual) = (parsed(answer.body, &what)?, GroupSettings::default());
        Ok(Some(GroupSettings {
            retries: number(&settings["retryMaxTimes"]).unwrap_or(usual.retries),
            retry_queues: number(&settings["retryQueueNums"]).unwrap_or(usual.retry_queues),
        }))
    }

    pub(crate) async fn create_group(&self, broker: &str, group: &str) -> Result<(), Error> {
        let settings = json!({
            "groupName": group,
            "consumeEnable": true,
            "consumeFromMinEnable": true,
            "consumeBroadcastEnable": false,
            "retryQueueNums": GroupSettings::default().retry_queues,
            // The ladder may have up to 64 rungs.
            "retryMaxTimes": 64,
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1,
            "notifyConsumerIdsChangedEnable": true,
        });
        let request = Request::new(verb::CREATE_GROUP).with_body(settings.to_string());
        self.demand(broker, request, &format!("creating the consumer group {group}")).await.map(drop)
    }
}

fn number<N: TryFrom<i64>>(value: &Value) -> Option<N> {
    value.as_i64().and_then(|number| N::try_from(number).ok())
}
