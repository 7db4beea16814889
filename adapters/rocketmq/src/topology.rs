//! Topics and groups: their names, and making or checking them.

use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{ConsumerSpec, Error, ErrorKind, Ordering};
use serde_json::json;
use tokio::time::Instant;

use crate::client::Request;
use crate::cluster::{Cluster, parsed};
use crate::config::{Config, config, levels};
use crate::error;

/// The broker's own levels, unless its operator set others.
const LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";
/// Of a group that is made. The ladder decides before; a group's own limit is for those who
/// consume without it.
const RETRIES: usize = 16;
/// Read and write.
const RIGHTS: i32 = 6;

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
        check_name("consumer", &spec.name, 120)?;
        let mut works: Vec<Arc<str>> = Vec::new();
        for subscription in &spec.subscriptions {
            if let Some(queue) = &subscription.queue {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("queue {queue}: RocketMQ has no queues to name; name the topic alone"),
                ));
            }
            check_name("topic", &subscription.topic, 127)?;
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

/// RocketMQ's own rule.
pub(crate) fn check_name(what: &str, name: &str, longest: usize) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "%|_-".contains(c);
    if name.is_empty() || name.len() > longest || !name.chars().all(fits) {
        return Err(config(format!(
            "the {what} name {name:?} does not fit RocketMQ; use up to {longest} of a-z, A-Z, 0-9, '_', '-', '%' and \
             '|'"
        )));
    }
    Ok(())
}

/// The delays that a broker knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Levels(Vec<Duration>);

impl Levels {
    #[cfg(test)]
    pub(crate) fn of(levels: Vec<Duration>) -> Self {
        Self(levels)
    }

    /// Asks the brokers, unless the URL says it. Returns whether they are only supposed.
    pub(crate) async fn find(cluster: &Cluster, config: &Config) -> Result<(Self, bool), Error> {
        if let Some(levels) = &config.delay_levels {
            return Ok((Self(levels.clone()), false));
        }
        let mut found: Option<Vec<Duration>> = None;
        for (broker, _) in cluster.masters().await? {
            let asked = cluster.demand(&broker, Request::new(26), "reading the broker's settings").await;
            let Some(answer) = asked.ok() else { continue };
            let text = answer.body.unwrap_or_default();
            let line = std::str::from_utf8(&text)
                .unwrap_or_default()
                .lines()
                .find_map(|line| line.strip_prefix("messageDelayLevel="));
            let Some(levels) = line.and_then(levels) else { continue };
            if found.as_ref().is_some_and(|known| *known != levels) {
                return Err(config_levels());
            }
            found = Some(levels);
        }
        let supposed = found.is_none();
        let levels = found.or_else(|| levels(LEVELS)).unwrap_or_default();
        Ok((Self(levels), supposed))
    }

    /// The level that waits for at least so long, and how long it waits.
    pub(crate) fn at_least(&self, after: Duration) -> Option<(usize, Duration)> {
        let fits = self.0.iter().enumerate().filter(|(_, delay)| **delay >= after);
        fits.min_by_key(|(_, delay)| **delay).map(|(place, delay)| (place + 1, *delay))
    }

    /// The level of each rung of a subscription, with its delay.
    pub(crate) fn of_rungs(
        &self,
        topic: &str,
        rungs: &[Duration],
    ) -> Result<Vec<(Duration, Duration)>, Error> {
        let longest = self.0.iter().max().copied().unwrap_or_default();
        let level = |rung: &Duration| {
            let (_, actual) = self.at_least(*rung).ok_or_else(|| {
                config(format!(
                    "the retry delay {rung:?} of topic {topic} is longer than the longest delay level of RocketMQ, \
                     {longest:?}; use a shorter one, or more of them"
                ))
            })?;
            Ok((*rung, actual))
        };
        rungs.iter().map(level).collect()
    }
}

fn config_levels() -> Error {
    config(
        "the brokers of this RocketMQ cluster have different delay levels (messageDelayLevel); set the same on all",
    )
}

/// Makes what is missing. Returns the number of queues of each topic.
pub(crate) async fn declare(
    cluster: &Cluster,
    settings: &Config,
    names: &Names,
) -> Result<Vec<usize>, Error> {
    let mut counts = Vec::new();
    let mut brokers = Vec::new();
    for work in &names.works {
        let mut route = cluster.fresh_route(work).await?;
        if route.is_empty() {
            let Some(queues) = settings.queues else { return Err(missing(work, true)) };
            let masters = cluster.masters().await?;
            if masters.is_empty() {
                return Err(config("this RocketMQ cluster has no broker that takes messages; start one"));
            }
            for (broker, _) in masters {
                create_topic(cluster, &broker, work, queues).await?;
            }
            route = await_topic(cluster, settings, work).await?;
        }
        counts.push(route.iter().map(|seat| usize::try_from(seat.reads).unwrap_or(0)).sum());
        brokers.extend(route.iter().map(|seat| seat.broker.clone()));
    }
    brokers.sort();
    brokers.dedup();
    for broker in &brokers {
        if group_limit(cluster, broker, &names.group).await?.is_none() {
            create_group(cluster, broker, &names.group).await?;
        }
        for topic in [&names.retry, &names.dead] {
            if !has_topic(cluster, broker, topic).await? {
                create_topic(cluster, broker, topic, 1).await?;
            }
        }
    }
    for topic in [&names.retry, &names.dead] {
        await_topic(cluster, settings, topic).await?;
    }
    Ok(counts)
}

/// Checks that everything is there. Returns the number of queues of each topic.
pub(crate) async fn verify(cluster: &Cluster, names: &Names) -> Result<Vec<usize>, Error> {
    let mut counts = Vec::new();
    for work in &names.works {
        let route = cluster.fresh_route(work).await?;
        if route.is_empty() {
            return Err(missing(work, false));
        }
        counts.push(route.iter().map(|seat| usize::try_from(seat.reads).unwrap_or(0)).sum());
        for seat in route.iter() {
            if group_limit(cluster, &seat.broker, &names.group).await?.is_none() {
                let text = format!(
                    "there is no consumer group {} on broker {}; create it, or use Topology::Declare",
                    names.group, seat.broker
                );
                return Err(Error::new(ErrorKind::Topology, text));
            }
            for topic in [&names.retry, &names.dead] {
                if !has_topic(cluster, &seat.broker, topic).await? {
                    return Err(missing(topic, false));
                }
            }
        }
    }
    Ok(counts)
}

/// The group of another policy would end retries before the ladder does, wherever a member
/// without the ladder takes part.
pub(crate) async fn check_limit(cluster: &Cluster, spec: &ConsumerSpec, names: &Names) -> Result<(), Error> {
    let free = spec.subscriptions.iter().filter(|one| one.ordering == Ordering::Free);
    let rungs = free.map(|one| one.rungs.len()).max().unwrap_or(0);
    for work in &names.works {
        for seat in cluster.route(work).await?.iter() {
            let limit = group_limit(cluster, &seat.broker, &names.group).await?.unwrap_or(RETRIES);
            if limit < rungs {
                return Err(Error::new(
                    ErrorKind::Topology,
                    format!(
                        "the consumer group {} gives up after {limit} retries on broker {}, before the ladder of \
                         {rungs} does; set its retryMaxTimes to {rungs} or more",
                        names.group, seat.broker
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Members that would take messages and treat them in another way, as far as brokers tell.
pub(crate) async fn check_members(cluster: &Cluster, names: &Names) -> Result<(), Error> {
    let mut ours: Vec<&str> = names.works.iter().chain([&names.retry]).map(|topic| &**topic).collect();
    ours.sort_unstable();
    for work in &names.works {
        for seat in cluster.route(work).await?.iter() {
            let Some(found) = cluster.connections(&seat.broker, &names.group).await? else { continue };
            let wrong = |what: &str| {
                let text = format!(
                    "the consumer group {} has a live member that {what}; members of one group must all be the same, \
                     so stop it or use another consumer name",
                    names.group
                );
                Err(Error::new(ErrorKind::Config, text))
            };
            if found["consumeType"] == "CONSUME_PASSIVELY" {
                return wrong("is a push consumer, which retries and gives up by rules of its own");
            }
            if found["messageModel"] == "BROADCASTING" {
                return wrong("consumes as a broadcast");
            }
            let table = found["subscriptionTable"].as_object().cloned().unwrap_or_default();
            let mut theirs: Vec<&str> = table.keys().map(String::as_str).collect();
            theirs.sort_unstable();
            if theirs != ours {
                return wrong(&format!("subscribes to {} instead of {}", theirs.join(", "), ours.join(", ")));
            }
            if table.values().any(|one| one["subString"] != "*") {
                return wrong("takes only some tags of a topic");
            }
        }
    }
    Ok(())
}

async fn has_topic(cluster: &Cluster, broker: &str, topic: &str) -> Result<bool, Error> {
    let what = format!("looking for topic {topic}");
    let request = Request::new(351).with("topic", topic);
    match cluster.ask(broker, request, crate::cluster::SHORT).await {
        Ok(answer) if answer.code == error::code::SUCCESS => Ok(true),
        Ok(answer) if answer.code == error::code::TOPIC_NOT_EXIST => Ok(false),
        Ok(answer) => Err(error::refused(&what, &answer)),
        Err(fault) => Err(error::from_fault(&what, &fault)),
    }
}

async fn create_topic(cluster: &Cluster, broker: &str, topic: &str, queues: i32) -> Result<(), Error> {
    let request = Request::new(17)
        .with("topic", topic)
        .with("defaultTopic", "TBW102")
        .with("readQueueNums", queues)
        .with("writeQueueNums", queues)
        .with("perm", RIGHTS)
        .with("topicFilterType", "SINGLE_TAG")
        .with("topicSysFlag", 0)
        .with("order", false);
    cluster.demand(broker, request, &format!("creating topic {topic}")).await.map(drop)
}

/// How often a group's messages may be sent back; `None` if there is no such group.
async fn group_limit(cluster: &Cluster, broker: &str, group: &str) -> Result<Option<usize>, Error> {
    let what = format!("looking for the consumer group {group}");
    let request = Request::new(352).with("group", group);
    let answer = match cluster.ask(broker, request, crate::cluster::SHORT).await {
        Ok(answer) if answer.code == error::code::SUCCESS => answer,
        Ok(answer) if answer.code == error::code::GROUP_NOT_EXIST => return Ok(None),
        Ok(answer) => return Err(error::refused(&what, &answer)),
        Err(fault) => return Err(error::from_fault(&what, &fault)),
    };
    let limit = parsed(answer.body, &what)?["retryMaxTimes"].as_u64();
    Ok(Some(limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(RETRIES)))
}

async fn create_group(cluster: &Cluster, broker: &str, group: &str) -> Result<(), Error> {
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
    let request = Request::new(200).with_body(settings.to_string());
    cluster.demand(broker, request, &format!("creating the consumer group {group}")).await.map(drop)
}

/// A topic is known to the name server a moment after it was made.
async fn await_topic(
    cluster: &Cluster,
    settings: &Config,
    topic: &str,
) -> Result<Arc<[crate::client::Seat]>, Error> {
    let end = Instant::now() + settings.connect_timeout;
    loop {
        let route = cluster.fresh_route(topic).await?;
        if !route.is_empty() {
            return Ok(route);
        }
        if Instant::now() >= end {
            let text = format!("topic {topic} was created but does not appear at the RocketMQ name server");
            return Err(Error::new(ErrorKind::Topology, text));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn missing(topic: &str, declared: bool) -> Error {
    let fix = match declared {
        true => "create it, or say how many queues it is to have with queues(n) or ?queues=n",
        false => "create it, or use Topology::Declare",
    };
    Error::new(ErrorKind::Topology, format!("there is no topic {topic} in RocketMQ; {fix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rm7_rungs_are_rounded_up_to_levels() {
        let known = Levels(levels(LEVELS).unwrap());
        let secs = Duration::from_secs;
        assert_eq!(known.at_least(secs(45)), Some((5, secs(60))));
        assert_eq!(known.at_least(Duration::from_millis(1)), Some((1, secs(1))));
        assert_eq!(known.at_least(secs(7200)), Some((18, secs(7200))));
        let error = known.of_rungs("orders", &[secs(5), secs(7201)]).unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("7200s"), "{error}");
    }

    #[tokio::test]
    async fn rm5_a_live_member_that_is_another_kind_of_consumer_is_refused() {
        use oncemq_core::{Subscription, Topology};

        use crate::client::Answer;
        use crate::client::fake::Fake;

        let spec = ConsumerSpec::new("g", 1, Topology::Declare).with(Subscription::new("t"));
        let names = Names::new(&spec).unwrap();
        let table = |topic: &str, tags: &str| {
            format!(r#""%RETRY%g":{{"subString":"*"}},"{topic}":{{"subString":"{tags}"}}"#)
        };
        let cases = [
            ("CONSUME_ACTIVELY", "CLUSTERING", table("t", "*"), None),
            ("CONSUME_PASSIVELY", "CLUSTERING", table("t", "*"), Some("push")),
            ("CONSUME_ACTIVELY", "BROADCASTING", table("t", "*"), Some("broadcast")),
            ("CONSUME_ACTIVELY", "CLUSTERING", table("u", "*"), Some("subscribes to")),
            ("CONSUME_ACTIVELY", "CLUSTERING", table("t", "paid"), Some("some tags")),
        ];
        for (kind, model, table, wrong) in cases {
            let body = format!(
                r#"{{"consumeType":"{kind}","messageModel":"{model}","subscriptionTable":{{{table}}}}}"#
            );
            let fake =
                Fake::new(move |_| Ok(Answer { body: Some(body.clone().into()), ..Answer::default() }));
            let checked = check_members(&fake.cluster(Config::default()), &names).await;
            match wrong {
                None => checked.unwrap(),
                Some(wrong) => {
                    let error = checked.unwrap_err();
                    assert!(
                        error.kind() == ErrorKind::Config && error.to_string().contains(wrong),
                        "{error}"
                    );
                }
            }
        }
    }

    #[test]
    fn names_that_rocketmq_refuses_are_errors_before_it_is_asked() {
        use oncemq_core::{Subscription, Topology};
        let spec = |group: &str, topic: &str| {
            ConsumerSpec::new(group, 1, Topology::Declare).with(Subscription::new(topic))
        };
        for (group, topic) in
            [("points.x", "orders"), ("points", "orders.v1"), ("", "orders"), ("points", "größe")]
        {
            let error = Names::new(&spec(group, topic)).unwrap_err();
            assert!(error.kind() == ErrorKind::Config, "{error}");
        }
        let names = Names::new(&spec("points", "orders")).unwrap();
        assert_eq!((&*names.retry, &*names.dead), ("%RETRY%points", "%DLQ%points"));
        let twice = spec("points", "orders").with(Subscription::new("orders"));
        assert_eq!(Names::new(&twice).unwrap_err().kind(), ErrorKind::Config);
    }
}
