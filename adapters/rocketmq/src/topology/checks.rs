//! What a group and its members must be like.

use std::sync::Arc;

use oncemq_core::{ConsumerSpec, Error, ErrorKind, Ordering};

use super::Names;
use crate::cluster::{Cluster, RETRIES};

/// The group of another policy would end retries before the ladder does, wherever a member
/// without the ladder takes part.
pub(crate) async fn check_limit(
    cluster: &Arc<Cluster>,
    spec: &ConsumerSpec,
    names: &Names,
) -> Result<(), Error> {
    let free = spec.subscriptions.iter().filter(|one| one.ordering == Ordering::Free);
    let rungs = free.map(|one| one.rungs.len()).max().unwrap_or(0);
    for work in &names.works {
        for seat in cluster.route(work).await?.iter() {
            let limit = cluster.group_limit(&seat.broker, &names.group).await?.unwrap_or(RETRIES);
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
    use crate::client::Answer;
    use crate::client::fake::Fake;
    use crate::config::Config;

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
