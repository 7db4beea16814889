//! Settings that are refused before anything is connected.

use super::Consumer;
use super::topic::Topic;
use crate::{Error, ErrorKind, Plan};

const NAME_MAX: usize = 64;

pub(super) fn consumer(consumer: &Consumer) -> Result<(), Error> {
    name("consumer", &consumer.name)?;
    if consumer.topics.is_empty() {
        return Err(config("the consumer has no topic; add one with .topic(…).handler(…)"));
    }
    if consumer.topics.len() > usize::from(u16::MAX) {
        return Err(config("a consumer takes at most 65535 topics"));
    }
    if consumer.in_flight == 0 {
        return Err(config("in_flight is 0, which brokers take for \"no limit\"; set at least 1"));
    }
    if consumer.in_flight > usize::from(u16::MAX) {
        return Err(config("in_flight is above 65535, the largest prefetch there is; set less"));
    }
    if consumer.workers == Some(0) {
        return Err(config("workers is 0; set at least 1 or leave it out"));
    }
    if consumer.bytes_max == 0 {
        return Err(config("in_flight_bytes is 0; set at least 1"));
    }
    for item in &consumer.topics {
        topic(item)?;
    }
    distinct(&consumer.topics)
}

fn topic(topic: &Topic) -> Result<(), Error> {
    let settings = &topic.settings;
    let who = &settings.topic;
    if who.is_empty() {
        return Err(config("a topic has an empty name"));
    }
    if settings.kind().is_empty() {
        return Err(config(&format!("the kind of topic {who} is empty")));
    }
    if settings.timeout.is_zero() {
        return Err(config(&format!(
            "the handler timeout of topic {who} is zero; set the longest run you expect"
        )));
    }
    if topic.route.needs_key() && settings.key.is_none() {
        return Err(config(&format!(
            "topic {who} has a guarded handler but no key; say what makes an event the same: \
             .key(Key::json(\"/id\"))"
        )));
    }
    if let Some(record) = topic.route.record() {
        if record.units == 0 {
            return Err(config(&format!(
                "the pool of the store behind topic {who} is too small; it needs at least 2 connections"
            )));
        }
        if record.retention.is_zero() {
            return Err(config(&format!("the retention of the store behind topic {who} is zero")));
        }
    }
    Ok(())
}

/// Records that are forgotten before the last rung would let a late copy run again.
pub(super) fn retention(topic: &Topic, plan: &mut Plan) -> Result<(), Error> {
    let Some(record) = topic.route.record() else { return Ok(()) };
    let settings = &topic.settings;
    match settings.policy.horizon() {
        Some(horizon) if horizon >= record.retention => Err(config(&format!(
            "the retry ladder of topic {} takes {horizon:?}, but its records are kept for {:?} only; \
             keep them longer or shorten the ladder",
            settings.topic, record.retention
        ))),
        Some(_) => Ok(()),
        None => {
            plan.warn(format!(
                "topic {}: the ladder has no end, but records are kept for {:?}; a copy older than that \
                 becomes a dead letter",
                settings.topic, record.retention
            ));
            Ok(())
        }
    }
}

fn distinct(topics: &[Topic]) -> Result<(), Error> {
    for (i, topic) in topics.iter().enumerate() {
        if topics[..i].iter().any(|other| other.settings.topic == topic.settings.topic) {
            return Err(config(&format!("topic {} is added twice", topic.settings.topic)));
        }
    }
    Ok(())
}

/// The strictest of the brokers' rules, so that a name can move from one to another.
fn name(what: &str, name: &str) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fits) {
        return Err(config(&format!(
            "{what} name {name:?} must be 1 to {NAME_MAX} letters, digits, - or _, which every broker accepts"
        )));
    }
    Ok(())
}

fn config(message: &str) -> Error {
    Error::new(ErrorKind::Config, message)
}
