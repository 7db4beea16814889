//! Topics and groups: making them, or looking whether they are there.

mod checks;
mod levels;
mod names;

use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{Error, ErrorKind};
use tokio::time::Instant;

pub(crate) use checks::{check_members, check_settings};
pub(crate) use levels::Levels;
pub(crate) use names::{Names, check_group, check_topic};

use crate::client::Seat;
use crate::cluster::Cluster;
use crate::config::Config;

/// Makes what is missing. Returns the number of queues of each topic.
pub(crate) async fn declare(
    cluster: &Cluster,
    settings: &Config,
    names: &Names,
) -> Result<Vec<usize>, Error> {
    let masters = masters(cluster).await?;
    let mut counts = Vec::new();
    let mut brokers = Vec::new();
    for work in &names.works {
        let mut route = cluster.fresh_route(work).await?;
        if route.is_empty() {
            let Some(queues) = settings.queues else { return Err(missing(work, true)) };
            for (broker, _) in &masters {
                cluster.create_topic(broker, work, queues).await?;
            }
            route = await_topic(cluster, settings, work).await?;
        }
        counts.push(route.iter().map(|seat| usize::try_from(seat.reads).unwrap_or(0)).sum());
        brokers.extend(route.iter().map(|seat| seat.broker.clone()));
    }
    brokers.sort();
    brokers.dedup();
    for broker in &brokers {
        declare_group(cluster, names, broker).await?;
    }
    for topic in [&names.retry, &names.dead] {
        await_topic(cluster, settings, topic).await?;
    }
    Ok(counts)
}

/// Makes what is missing of a group on a broker.
pub(crate) async fn declare_group(cluster: &Cluster, names: &Names, broker: &str) -> Result<(), Error> {
    let group = cluster.group(broker, &names.group).await?;
    if group.is_none() {
        cluster.create_group(broker, &names.group).await?;
    }
    let retry_queues = group.unwrap_or_default().retry_queues.max(1);
    for (topic, queues) in [(&names.retry, retry_queues), (&names.dead, 1)] {
        if cluster.topic_queues(broker, topic).await?.is_none() {
            cluster.create_topic(broker, topic, queues).await?;
        }
    }
    Ok(())
}

/// Checks that everything is there. Returns the number of queues of each topic.
pub(crate) async fn verify(cluster: &Cluster, names: &Names) -> Result<Vec<usize>, Error> {
    masters(cluster).await?;
    let mut counts = Vec::new();
    for work in &names.works {
        let route = cluster.fresh_route(work).await?;
        if route.is_empty() {
            return Err(missing(work, false));
        }
        counts.push(route.iter().map(|seat| usize::try_from(seat.reads).unwrap_or(0)).sum());
        for seat in route.iter() {
            if cluster.group(&seat.broker, &names.group).await?.is_none() {
                let text = format!(
                    "there is no consumer group {} on broker {}; create it, or use Topology::Declare",
                    names.group, seat.broker
                );
                return Err(Error::new(ErrorKind::Topology, text));
            }
            for topic in [&names.retry, &names.dead] {
                if cluster.topic_queues(&seat.broker, topic).await?.is_none() {
                    return Err(missing(topic, false));
                }
            }
        }
    }
    Ok(counts)
}

/// The brokers, of which there must be one: without any no topic is anywhere, and none is
/// missing for that.
async fn masters(cluster: &Cluster) -> Result<Vec<(Arc<str>, Arc<str>)>, Error> {
    let masters = cluster.masters().await?;
    if masters.is_empty() {
        let text = "no broker of this RocketMQ cluster has told the name server that it takes messages; start one, \
                    or wait until it has";
        return Err(Error::new(ErrorKind::Connection, text));
    }
    Ok(masters)
}

/// A topic is known to the name server a moment after it was made.
async fn await_topic(cluster: &Cluster, settings: &Config, topic: &str) -> Result<Arc<[Seat]>, Error> {
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
    use oncemq_core::{ConsumerSpec, Subscription};

    use super::*;
    use crate::client::fake::{Fake, answer, field};
    use crate::client::verb;
    use crate::error::code;

    #[tokio::test]
    async fn each_topic_of_the_group_is_looked_for() {
        for gone in ["%RETRY%g", "%DLQ%g"] {
            let fake = Fake::new(move |request| match request.code {
                verb::TOPIC if field(request, "topic") == gone => answer(code::TOPIC_NOT_EXIST),
                verb::GROUP => {
                    let body = Some(r#"{"retryMaxTimes":16}"#.into());
                    Ok(crate::client::Answer { body, ..Default::default() })
                }
                verb::TOPIC => {
                    let body = Some(r#"{"readQueueNums":1}"#.into());
                    Ok(crate::client::Answer { body, ..Default::default() })
                }
                _ => answer(code::SUCCESS),
            });
            let spec = ConsumerSpec::new("g", 1, oncemq_core::Topology::Verify).with(Subscription::new("t"));
            let names = Names::new(&spec).unwrap();
            let error = verify(&fake.cluster(Config::default()), &names).await.unwrap_err();
            assert!(error.kind() == ErrorKind::Topology && error.to_string().contains(gone), "{error}");
        }
    }
}
