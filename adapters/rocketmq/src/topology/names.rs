//! The names of a consumer's topics.

use std::sync::Arc;

use oncemq_core::{ConsumerSpec, Error, ErrorKind};

use crate::config::config;

/// The longest name of a topic.
const TOPIC_MAX: usize = 127;
/// Where brokers keep what is theirs. Dead letters may be consumed.
const TOPICS: [&str; 10] = [
    "%RETRY%",
    "%SYS%",
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "RMQ_SYS_",
    "SCHEDULE_TOPIC_XXXX",
    "SELF_TEST_TOPIC",
    "TBW102",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "rmq_sys_",
];
const GROUPS: [&str; 10] = [
    "%RETRY%",
    "%DLQ%",
    "CID_ONSAPI_",
    "CID_ONS-HTTP-PROXY",
    "CID_RMQ_SYS_",
    "CID_SYS_RMQ_",
    "CLIENT_INNER_PRODUCER",
    "DEFAULT_CONSUMER",
    "SELF_TEST_",
    "TOOLS_CONSUMER",
];

/// The topics of one consumer.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) group: Arc<str>,
    /// One for each subscription.
    pub(crate) works: Vec<Arc<str>>,
    /// Where the broker stores what is sent back.
    pub(crate) retry: Arc<str>,
    /// Where operators look for dead letters.
    pub(crate) dead: Arc<str>,
}

impl Names {
    pub(crate) fn new(spec: &ConsumerSpec) -> Result<Self, Error> {
        check_group("consumer", &spec.name)?;
        let mut works: Vec<Arc<str>> = Vec::new();
        for subscription in &spec.subscriptions {
            if let Some(queue) = &subscription.queue {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("queue {queue}: RocketMQ has no queues to name; name the topic alone"),
                ));
            }
            check_topic(&subscription.topic)?;
            if works.contains(&subscription.topic) {
                let text = format!("topic {} is consumed twice by one consumer", subscription.topic);
                return Err(config(text));
            }
            works.push(subscription.topic.clone());
        }
        Ok(Self {
            group: spec.name.clone(),
            works,
            retry: format!("%RETRY%{}", spec.name).into(),
            dead: format!("%DLQ%{}", spec.name).into(),
        })
    }
}

/// A group of consumers or producers that an application may make.
pub(crate) fn check_group(what: &str, name: &str) -> Result<(), Error> {
    check_name(what, name, 120)?;
    check_own(what, name, &GROUPS)
}

/// A topic that an application may consume and publish to.
pub(crate) fn check_topic(topic: &str) -> Result<(), Error> {
    check_name("topic", topic, TOPIC_MAX)?;
    check_own("topic", topic, &TOPICS)
}

/// Whether RocketMQ keeps a name for itself. These are the beginnings of such names.
fn check_own(what: &str, name: &str, kept: &[&str]) -> Result<(), Error> {
    if kept.iter().any(|kept| name.starts_with(kept)) {
        return Err(config(format!("the {what} name {name} belongs to RocketMQ itself; use another one")));
    }
    Ok(())
}

/// RocketMQ's own rule.
fn check_name(what: &str, name: &str, longest: usize) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "%|_-".contains(c);
    if name.is_empty() || name.len() > longest || !name.chars().all(fits) {
        return Err(config(format!(
            "the {what} name {name:?} does not fit RocketMQ; use up to {longest} of a-z, A-Z, 0-9, '_', '-', '%' and \
             '|'"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oncemq_core::{Subscription, Topology};

    use super::*;

    #[test]
    fn names_that_rocketmq_refuses_are_errors_before_it_is_asked() {
        let spec = |group: &str, topic: &str| {
            ConsumerSpec::new(group, 1, Topology::Declare).with(Subscription::new(topic))
        };
        for (group, topic) in
            [("points.x", "orders"), ("points", "orders.v1"), ("", "orders"), ("points", "größe")]
        {
            let error = Names::new(&spec(group, topic)).unwrap_err();
            assert!(error.kind() == ErrorKind::Config, "{error}");
        }
        for (group, topic) in [
            ("points", "%RETRY%points"),
            ("points", "SCHEDULE_TOPIC_XXXX"),
            ("points", "RMQ_SYS_TRANS_HALF_TOPIC"),
            ("TOOLS_CONSUMER", "orders"),
            ("CLIENT_INNER_PRODUCER", "orders"),
            ("CID_RMQ_SYS_x", "orders"),
        ] {
            let error = Names::new(&spec(group, topic)).unwrap_err();
            assert!(
                error.kind() == ErrorKind::Config && error.to_string().contains("RocketMQ itself"),
                "{error}"
            );
        }
        Names::new(&spec("replay", "%DLQ%points")).unwrap();
        assert_eq!(check_topic("%RETRY%points").unwrap_err().kind(), ErrorKind::Config);
        let names = Names::new(&spec("points", "orders")).unwrap();
        assert_eq!((&*names.retry, &*names.dead), ("%RETRY%points", "%DLQ%points"));
        let twice = spec("points", "orders").with(Subscription::new("orders"));
        assert_eq!(Names::new(&twice).unwrap_err().kind(), ErrorKind::Config);
    }
}
