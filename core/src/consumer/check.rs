//! Settings that are refused before anything is connected.

use super::Consumer;
use super::topic::{Settings, Topic};
use crate::url::Time;
use crate::{ConsumerSpec, Error, ErrorKind, Key, Plan};

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
    consumer.topics.iter().try_for_each(topic)
}

fn topic(topic: &Topic) -> Result<(), Error> {
    let settings = &topic.settings;
    let who = &settings.topic;
    if who.is_empty() {
        return Err(config("a topic has an empty name; give it one in .topic(…)"));
    }
    if settings.kind().is_empty() {
        return Err(config(&format!("the kind of topic {who} is empty; name one or leave .kind(…) out")));
    }
    if settings.timeout.is_zero() {
        return Err(config(&format!(
            "the handler timeout of topic {who} is zero; set the longest run you expect"
        )));
    }
    if settings.crash_ceiling == 0 {
        return Err(config(&format!(
            "the crash_ceiling of topic {who} is 0: every redelivered message would be a dead letter; set at \
             least 1"
        )));
    }
    if topic.route.needs_key() && settings.key.is_none() {
        return Err(config(&format!(
            "topic {who} has a guarded handler but no key; say what makes an event the same: \
             .key(Key::json(\"/id\"))"
        )));
    }
    keys(settings)?;
    if let Some(record) = topic.route.record() {
        if record.units == 0 {
            return Err(config(&format!(
                "the pool of the store behind topic {who} is too small; it needs at least 2 connections"
            )));
        }
        if record.retention.is_zero() {
            let text =
                format!("the retention of the store behind topic {who} is zero; set at least a second");
            return Err(config(&text));
        }
    }
    Ok(())
}

/// A key that finds nothing in any message would dead-letter all of them, and fields that are
/// no fingerprint would never be compared.
fn keys(settings: &Settings) -> Result<(), Error> {
    let who = &settings.topic;
    let all =
        [(".key", &settings.key), (".order_by", &settings.order_by), (".conflict_on", &settings.conflict)];
    for (setting, key) in all {
        if let Some(problem) = key.as_ref().and_then(Key::problem) {
            return Err(config(&format!("the {setting}(…) of topic {who} {problem}")));
        }
    }
    if settings.conflict.as_ref().is_some_and(|fields| !fields.is_fingerprint()) {
        return Err(config(&format!(
            "the .conflict_on(…) of topic {who} is no fingerprint and would never be compared; write \
             .conflict_on(Key::fingerprint([\"/amount\"]))"
        )));
    }
    Ok(())
}

/// Records that are forgotten before the last rung would let a late copy run again.
pub(super) fn retention(topic: &Topic, plan: &mut Plan) -> Result<(), Error> {
    let Some(record) = topic.route.record() else { return Ok(()) };
    let settings = &topic.settings;
    match settings.policy.horizon() {
        Some(horizon) if horizon >= record.retention => Err(config(&format!(
            "the retry ladder of topic {} takes {}, but its records are kept for {} only; \
             keep them longer or shorten the ladder",
            settings.topic,
            Time(horizon),
            Time(record.retention)
        ))),
        Some(_) => Ok(()),
        None => {
            plan.warn(format!(
                "topic {}: the ladder has no end, but records are kept for {}; a copy older than that \
                 becomes a dead letter",
                settings.topic,
                Time(record.retention)
            ));
            Ok(())
        }
    }
}

/// Names as they are on this broker: `topic_on` may have made two the same, or one empty.
pub(super) fn subscriptions(spec: &ConsumerSpec) -> Result<(), Error> {
    for (i, one) in spec.subscriptions.iter().enumerate() {
        let others = &spec.subscriptions[..i];
        if one.topic.is_empty() {
            return Err(config("a topic has an empty name; give it one in .topic(…) and .topic_on(…)"));
        }
        if one.queue.as_deref() == Some("") {
            return Err(config(&format!(
                "topic {} is given a queue without a name; name one in .queue(…) or leave it out",
                one.topic
            )));
        }
        if others.iter().any(|other| other.topic == one.topic) {
            return Err(config(&format!("topic {} is added twice; put one handler on it", one.topic)));
        }
        if one.queue.is_some() && others.iter().any(|other| other.queue == one.queue) {
            return Err(config(&format!(
                "topic {} takes a queue that another topic takes already; a queue has one handler",
                one.topic
            )));
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
