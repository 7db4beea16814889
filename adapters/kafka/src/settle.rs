//! Copies for rungs and dead letters.
//!
//! What deliveries settle with is core's: it has messages stored here, and counts their
//! originals as done once they are confirmed.

use std::sync::Arc;

use async_trait::async_trait;
use oncemq_core::partitions::{Copier, CopyJob, Purpose, Stored};
use oncemq_core::url::Time;
use oncemq_core::{Error, ErrorKind, Health, Message, failpoint};

use crate::publisher::Producer;
use crate::source::{Lane, Shared};

/// The diagnostic text of a dead letter, in bytes.
const REASON_MAX: usize = 16 * 1024;

/// Publishes copies to the topics of rungs and dead letters.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) producer: Producer,
    pub(crate) lanes: Arc<[Lane]>,
    pub(crate) shared: Arc<Shared>,
}

#[async_trait]
impl Copier for Desk {
    async fn store(&self, job: &CopyJob) -> Result<Stored, Error> {
        failpoint!("kafka.before_copy");
        let lane = self.shared.state().parts.of(job.token).map(|part| usize::from(part.subscription));
        let Some(lane) = lane.and_then(|lane| self.lanes.get(lane)) else { return Ok(Stored::Void) };
        let (topic, whole) = copy(job, lane, REASON_MAX)?;
        match self.producer.send(topic, &whole).await {
            // The text is what can be spared.
            Err(error) if error.kind() == ErrorKind::TooLarge => {
                self.producer.send(topic, &copy(job, lane, 0)?.1).await?;
            }
            stored => stored?,
        }
        failpoint!("kafka.copied");
        Ok(Stored::Confirmed)
    }

    fn health(&self, health: Health) {
        self.shared.copies_health(health);
    }
}

/// The copy, and its topic.
fn copy<'a>(job: &CopyJob, lane: &'a Lane, reason_max: usize) -> Result<(&'a str, Message), Error> {
    match &job.purpose {
        Purpose::Retry(retry) => {
            let topic = lane.names.rung(retry.after).ok_or_else(|| {
                let text = format!("there is no retry topic for a delay of {}", Time(retry.after));
                Error::new(ErrorKind::Internal, text)
            })?;
            Ok((topic, retry.copy(&job.message)))
        }
        Purpose::Reject(reject) => Ok((&lane.names.dead, reject.copy(&job.message, reason_max))),
        other => Err(Error::new(ErrorKind::Internal, format!("there is no copy for {other:?}"))),
    }
}
