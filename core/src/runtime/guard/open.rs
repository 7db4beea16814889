//! From a job to a run, or to a refusal that needs no store.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::{Parts, Running};
use crate::fate::{Findings, fate};
use crate::key::{Document, NoKey};
use crate::runtime::settle::ack_of;
use crate::runtime::{Job, Outcome, Tally, TopicEnv};
use crate::{Ack, Class, Entry, Record};

impl<R: Record, H, C> Running<R, H, C> {
    pub(super) fn open(parts: Parts<R, H, C>, job: Job) -> Result<Self, Outcome> {
        let topic = &parts.topic;
        let trail = topic.trail(&job.message, job.facts);
        let mut entry = Entry::new(None, trail, Sha256::digest(job.message.body()).into());
        entry.message_id = job.message.id().map(str::to_owned);
        let mut missing = None;
        let mut key_problem = None;
        match job.key.map(|found| *found) {
            Some(Ok(key)) => entry.key = Some(Arc::unwrap_or_clone(key)),
            Some(Err(NoKey::Unreadable(why))) => key_problem = Some(why),
            Some(Err(NoKey::Missing(why))) => missing = Some(why),
            None => missing = Some("the topic declares none".into()),
        }
        if let Some(fields) = &topic.conflict {
            let found = fields.find(&job.message, &mut Document::default());
            entry.conflict = found.ok().and_then(|value| value.as_bytes().try_into().ok());
        }
        if let Some(outcome) = refused_at_once(topic, &entry, missing, parts.retention) {
            return Err(outcome);
        }
        Ok(Self {
            suspect: job.facts.redelivered,
            may_repeat: topic.shared.capabilities.log || job.facts.redelivered,
            alone: false,
            turn: None,
            beside: None,
            mark: None,
            tally: Tally::default(),
            message: job.message,
            leaving: job.leaving,
            key_problem,
            entry,
            parts,
        })
    }
}

/// A message that is refused before the store is asked: without a key, or a copy that is
/// older than the memory of what is done.
fn refused_at_once(
    topic: &TopicEnv,
    entry: &Entry,
    missing: Option<String>,
    retention: Duration,
) -> Option<Outcome> {
    let trail = &entry.trail;
    if let Some(why) = missing {
        let found = Findings { missing_key: Some(topic.missing_key), ..Findings::default() };
        let reason = format!("no idempotency key: {why}");
        let end = fate(&found, &topic.policy).message;
        return Some(Outcome::new(ack_of(end, trail.clone(), Class::Business, &reason)));
    }
    let age = SystemTime::now().duration_since(trail.first_seen).unwrap_or_default();
    if trail.from_ladder && age > retention {
        let reason = "beyond retention: the record of it may be gone already";
        return Some(Outcome::new(Ack::reject(Class::System, trail.clone(), reason)));
    }
    None
}
