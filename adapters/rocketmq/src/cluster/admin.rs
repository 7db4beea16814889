//! Requests that operators make too: what there is, and making it.

use oncemq_core::Error;
use serde_json::json;

use super::{Cluster, SHORT, parsed};
use crate::client::{Request, verb};
use crate::error::{self, code};

/// Of a group that is made. The ladder decides before; a group's own limit is for those who
/// consume without it.
pub(crate) const RETRIES: usize = 16;
/// Read and write.
const RIGHTS: i32 = 6;

impl Cluster {
    /// A setting of a broker; none if it does not tell.
    pub(crate) async fn setting(&self, broker: &str, name: &str) -> Option<String> {
        let answer =
            self.demand(broker, Request::new(verb::SETTINGS), "reading the broker's settings").await.ok()?;
        let text = answer.body.unwrap_or_default();
        let mut lines = std::str::from_utf8(&text).ok()?.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    }

    pub(crate) async fn has_topic(&self, broker: &str, topic: &str) -> Result<bool, Error> {
        let what = format!("looking for topic {topic}");
        let request = Request::new(verb::TOPIC).with("topic", topic);
        match self.ask(broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => Ok(true),
            Ok(answer) if answer.code == code::TOPIC_NOT_EXIST => Ok(false),
            Ok(answer) => Err(error::refused(&what, &answer)),
            Err(fault) => Err(error::from_fault(&what, &fault)),
        }
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

    /// How often a group's messages may be sent back; `None` if there is no such group.
    pub(crate) async fn group_limit(&self, broker: &str, group: &str) -> Result<Option<usize>, Error> {
        let what = format!("looking for the consumer group {group}");
        let request = Request::new(verb::GROUP).with("group", group);
        let answer = match self.ask(broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => answer,
            Ok(answer) if answer.code == code::GROUP_NOT_EXIST => return Ok(None),
            Ok(answer) => return Err(error::refused(&what, &answer)),
            Err(fault) => return Err(error::from_fault(&what, &fault)),
        };
        let limit = parsed(answer.body, &what)?["retryMaxTimes"].as_u64();
        Ok(Some(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(RETRIES)))
    }

    pub(crate) async fn create_group(&self, broker: &str, group: &str) -> Result<(), Error> {
        let settings = json!({
            "groupName": group,
            "consumeEnable": true,
            "consumeFromMinEnable": true,
            "consumeBroadcastEnable": false,
            "retryQueueNums": 1,
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
