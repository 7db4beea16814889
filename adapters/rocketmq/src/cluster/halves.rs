//! Requests about half messages.

use std::sync::Arc;
use std::time::Duration;

use oncemq_core::Error;

use super::{Cluster, Queue, SHORT, parsed};
use crate::client::{Request, verb};
use crate::error::{self, code};

/// How a transaction ended.
const COMMIT: i32 = 8;
const ROLLBACK: i32 = 12;

/// Where a half message is.
#[derive(Debug)]
pub(crate) struct HalfPlace {
    pub(crate) group: Arc<str>,
    pub(crate) queue: Queue,
    /// Among the broker's half messages, and in its log.
    pub(crate) offset: i64,
    pub(crate) position: i64,
    pub(crate) unique: String,
}

impl Cluster {
    /// Tells a broker how the transaction of a half message ended.
    pub(crate) async fn end(&self, half: &HalfPlace, commits: bool, limit: Duration) -> Result<(), Error> {
        let what = "ending a transaction";
        let request = Request::new(verb::END_TRANSACTION)
            .with("topic", &half.queue.topic)
            .with("producerGroup", &half.group)
            .with("tranStateTableOffset", half.offset)
            .with("commitLogOffset", half.position)
            .with("commitOrRollback", if commits { COMMIT } else { ROLLBACK })
            .with("fromTransactionCheck", false)
            .with("msgId", &half.unique)
            .with("transactionId", &half.unique)
            .with("bname", &half.queue.broker);
        match self.ask(&half.queue.broker, request, limit).await {
            Ok(answer) if answer.code == code::SUCCESS => Ok(()),
            Ok(answer) => Err(error::refused(what, &answer)),
            Err(fault) => Err(error::from_fault(what, &fault)),
        }
    }

    /// The names of the members of a producer group that a broker knows.
    pub(crate) async fn producers(&self, broker: &str, group: &str) -> Result<Vec<String>, Error> {
        let what = "asking for the members of the producer group";
        let request = Request::new(verb::PRODUCERS).with("producerGroup", group);
        let answer = match self.ask(broker, request, SHORT).await {
            Ok(answer) if answer.code == code::SUCCESS => answer,
            // A group without a member is an error to it.
            Ok(answer) if answer.code == code::SYSTEM_ERROR => return Ok(Vec::new()),
            Ok(answer) => return Err(error::refused(what, &answer)),
            Err(fault) => return Err(error::from_fault(what, &fault)),
        };
        let body = parsed(answer.body, what)?;
        let list = body["connectionSet"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(list.iter().filter_map(|found| found["clientId"].as_str()).map(str::to_owned).collect())
    }
}
