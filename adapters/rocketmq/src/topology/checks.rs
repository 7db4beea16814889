//! What a group and its members must be like.

use std::sync::Arc;

use oncemq_core::{ConsumerSpec, Error, ErrorKind, Ordering};

use super::Names;
use crate::cluster::{Cluster, GroupSettings};

/// The group of another policy would end retries before the ladder does, wherever a member
/// without the ladder takes part; and what is sent back must be where it is read.
pub(crate) async fn check_settings(
    cluster: &Arc<Cluster>,
    spec: &ConsumerSpec,
    names: &Names,
) -> Result<(), Error> {
    let free = spec.subscriptions.iter().filter(|one| one.ordering == Ordering::Free);
    let rungs = free.map(|one| one.rungs.len()).max().unwrap_or(0);
    let group = &names.group;
    for work in &names.works {
        for seat in cluster.route(work).await?.iter() {
            let broker = &seat.broker;
            let GroupSettings { retries, retry_queues } =
                cluster.group(broker, group).await?.unwrap_or_default();
            let read = cluster.topic_queues(broker, &names.retry).await?.unwrap_or(0);
            let wrong = if retries < rungs {
                format!(
                    "gives up after {retries} retries on broker {broker}, before the ladder of {rungs} does; set its \
                     retryMaxTimes to {rungs} or more"
                )
            } else if retry_queues < 1 {
                format!("sends nothing back on broker {broker}; set its retryQueueNums to {}", read.max(1))
            } else if retry_queues > read {
                format!(
                    "sends back into {retry_queues} queues on broker {broker}, and {} is read from {read}; set its \
                     retryQueueNums to {read}, or give the topic more queues",
                    names.retry
                )
            } else {
                continue;
            };
            return Err(Error::new(ErrorKind::Topology, format!("the consumer group {group} {wrong}")));
        }
    }
    Ok(())
}

/// Members that would take messages and treat them in another way, as far as brokers tell.
pub(crate) async fn check_members(cluster: &Arc<Cluster>, names: &Names) -> Result<(), Error> {
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

#[cfg(test)]
mod tests {
    use oncemq_core::{Subscription, Topology};

    use super::*;
    use crate::client::fake::Fake;
    use crate::client::{Answer, verb};
    use crate::config::Config;

    /// The broker counts what is sent back as stored, wherever it puts it.
    #[tokio::test]
    async fn what_is_sent_back_must_be_where_it_is_read() {
        let spec = ConsumerSpec::new("g", 1, Topology::Declare).with(Subscription::new("t"));
        let names = Names::new(&spec).unwrap();
        for (queues, read, wrong) in
            [(1, 1, None), (2, 4, None), (4, 1, Some("to 1")), (0, 1, Some("nothing"))]
        {
            let fake = Fake::new(move |request| {
                let body = match request.code {
                    verb::GROUP => format!(r#"{{"retryMaxTimes":16,"retryQueueNums":{queues}}}"#),
                    _ => format!(r#"{{"readQueueNums":{read}}}"#),
                };
                Ok(Answer { body: Some(body.into()), ..Answer::default() })
            });
            let checked = check_settings(&fake.cluster(Config::default()), &spec, &names).await;
            match (checked, wrong) {
                (Ok(()), None) => {}
                (Err(error), Some(wrong)) => {
                    assert!(
                        error.kind() == ErrorKind::Topology && error.to_string().contains(wrong),
                        "{error}"
                    );
                }
                (other, _) => panic!("{queues} of {read}: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn rm5_a_live_member_that_is_another_kind_of_consumer_is_refused() {
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
}
