//! Exchanges and queues: their names, and how they are made or checked.
//!
//! ```text
//! exchange <topic> ─► <queue> ──ack──► gone
//!                       │  ▲
//!              copy     ▼  │ when its time is over, by the default exchange
//!                <queue>.retry.<ms>ms     one for each rung
//!                <queue>.dead             dead letters
//! ```

mod declare;

use std::time::Duration;

use lapin::types::ShortString;
use oncemq_core::{ConsumerSpec, Error, Subscription};

use crate::config::config;

pub(crate) use declare::{Limit, declare, verify};

/// The longest time a queue can keep a message before it hands it on.
const TTL_MAX: Duration = Duration::from_millis(u32::MAX as u64);

/// The names of one subscription.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Bound to by the work queue; `None` for a queue that was there before.
    pub(crate) exchange: Option<ShortString>,
    pub(crate) work: ShortString,
    /// Delay queues by their delay, the shortest first.
    pub(crate) rungs: Vec<(Duration, ShortString)>,
    pub(crate) dead: ShortString,
}

impl Names {
    /// # Errors
    /// A name or delay that the broker would refuse.
    pub(crate) fn new(spec: &ConsumerSpec, subscription: &Subscription) -> Result<Self, Error> {
        let topic = &subscription.topic;
        let own = subscription.queue.is_none();
        let work = match &subscription.queue {
            Some(queue) => queue.to_string(),
            None => format!("{}.{topic}", spec.name),
        };
        if work.is_empty() {
            return Err(config(format!("topic {topic} is given a queue without a name")));
        }
        if (own && topic.starts_with("amq.")) || work.starts_with("amq.") {
            return Err(config(format!(
                "topic {topic}: names that begin with amq. belong to the broker; choose another one for {}",
                if own { "the topic" } else { "the queue" }
            )));
        }
        let mut rungs = Vec::new();
        for delay in &subscription.rungs {
            if *delay > TTL_MAX {
                return Err(config(format!(
                    "topic {topic} has a retry delay of {delay:?}; RabbitMQ delays at most {TTL_MAX:?}; shorten it"
                )));
            }
            let delay = Duration::from_millis(millis(*delay).into());
            rungs.push((delay, name(format!("{work}.retry.{}ms", delay.as_millis()))?));
        }
        rungs.sort();
        rungs.dedup();
        Ok(Self {
            exchange: own.then(|| name(topic.to_string())).transpose()?,
            dead: name(format!("{work}.dead"))?,
            work: name(work)?,
            rungs,
        })
    }

    /// The delay queue for a wait: the shortest that is not too short, or else the longest.
    pub(crate) fn rung(&self, after: Duration) -> Option<&ShortString> {
        let fits = self.rungs.iter().find(|(delay, _)| *delay >= after);
        fits.or(self.rungs.last()).map(|(_, queue)| queue)
    }
}

/// Refuses subscriptions of which one would take the messages, the waiting copies or the dead
/// letters of another. Dead letters may be taken by a topic that names their queue.
pub(crate) fn apart<'a>(all: impl Iterator<Item = &'a Names> + Clone) -> Result<(), Error> {
    for (place, one) in all.clone().enumerate() {
        for (_, other) in all.clone().enumerate().filter(|(other, _)| *other != place) {
            let use_of = if one.work == other.work {
                "messages"
            } else if other.rungs.iter().any(|(_, queue)| *queue == one.work) {
                "waiting retries"
            } else if one.exchange.is_some() && one.work == other.dead {
                "dead letters"
            } else {
                continue;
            };
            return Err(config(format!(
                "a topic would consume queue {}, which is for the {use_of} of queue {}; choose another name for \
                 the topic or its queue",
                one.work, other.work
            )));
        }
    }
    Ok(())
}

/// In milliseconds, rounded up: a delay is a floor.
pub(crate) fn millis(delay: Duration) -> u32 {
    u32::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

fn name(text: String) -> Result<ShortString, Error> {
    ShortString::try_new(text.as_str()).map_err(|_| {
        let start: String = text.chars().take(40).collect();
        let text = format!("the name {start}… has {} bytes; RabbitMQ takes at most 255", text.len());
        config(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncemq_core::Topology;

    fn names(subscription: Subscription) -> Result<Names, Error> {
        Names::new(&ConsumerSpec::new("points", 1, Topology::Declare), &subscription)
    }

    #[test]
    fn names_come_from_consumer_and_topic() {
        let rungs = [Duration::from_micros(1500), Duration::from_secs(60), Duration::from_micros(1200)];
        let names = names(Subscription::new("orders").with_rungs(rungs)).unwrap();
        assert_eq!(names.exchange.as_ref().unwrap().as_str(), "orders");
        assert_eq!((names.work.as_str(), names.dead.as_str()), ("points.orders", "points.orders.dead"));
        let queues: Vec<_> = names.rungs.iter().map(|(_, queue)| queue.as_str()).collect();
        assert_eq!(queues, ["points.orders.retry.2ms", "points.orders.retry.60000ms"]);
    }

    #[test]
    fn an_existing_queue_is_not_bound() {
        let names = names(Subscription::new("orders").with_queue("legacy")).unwrap();
        assert!(names.exchange.is_none());
        assert_eq!((names.work.as_str(), names.dead.as_str()), ("legacy", "legacy.dead"));
    }

    #[test]
    fn a_wait_is_never_shortened_while_a_rung_is_long_enough() {
        let rungs = [5, 60].map(Duration::from_secs);
        let names = names(Subscription::new("orders").with_rungs(rungs)).unwrap();
        let rung = |secs| names.rung(Duration::from_secs(secs)).unwrap().as_str();
        assert_eq!(rung(5), "points.orders.retry.5000ms");
        assert_eq!(rung(6), "points.orders.retry.60000ms");
        assert_eq!(rung(600), "points.orders.retry.60000ms");
    }

    #[test]
    fn subscriptions_that_would_share_a_queue_are_refused() {
        let rungs = |topic: &str| Subscription::new(topic).with_rungs([Duration::from_secs(5)]);
        let all =
            |other: Subscription| apart([names(rungs("orders")).unwrap(), names(other).unwrap()].iter());
        for topic in ["orders.dead", "orders.retry.5000ms"] {
            let error = all(Subscription::new(topic)).unwrap_err().to_string();
            assert!(error.contains(&format!("queue points.{topic},")), "{error}");
        }
        for queue in ["points.orders", "points.orders.retry.5000ms"] {
            assert!(all(Subscription::new("payments").with_queue(queue)).is_err(), "{queue}");
        }
        assert!(all(Subscription::new("payments").with_queue("points.orders.dead")).is_ok());
        assert!(all(rungs("orders.retry")).is_ok());
    }

    #[test]
    fn names_and_delays_the_broker_refuses_are_refused_first() {
        for subscription in [
            Subscription::new("x".repeat(250)),
            Subscription::new("amq.direct"),
            Subscription::new("orders").with_queue(""),
            Subscription::new("orders").with_rungs([Duration::from_secs(60 * 86_400)]),
        ] {
            assert!(names(subscription).is_err());
        }
    }
}
