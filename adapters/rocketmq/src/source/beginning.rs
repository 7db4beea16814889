//! Where a group begins that has committed nothing.

use std::sync::Arc;
use std::time::Duration;

use oncemq_core::Error;
use tokio::time::sleep;

use crate::cluster::{Cluster, Queue};

/// Longer than a broker needs to take in a first commit.
const TAKE_IN: Duration = Duration::from_millis(100);

/// Has a group that is new to a topic begin at its end, in all queues at once: what is in a queue
/// that is found later came after the group.
pub(crate) async fn at_the_end(cluster: &Arc<Cluster>, group: &str, topic: &Arc<str>) -> Result<(), Error> {
    let mut ends = Vec::new();
    for queue in Queue::all(topic, &cluster.route(topic).await?) {
        if cluster.committed(group, &queue).await?.is_some() {
            return Ok(());
        }
        let (_, end) = cluster.bounds(&queue).await?;
        ends.push((queue, end));
    }
    commit_first(cluster, group, ends).await
}

/// Commits offsets of queues in which a group has committed nothing.
///
/// A broker keeps the offsets that a group has in a topic in one table. It makes the table with
/// the first commit, and with each of two that come at once: then one of them is lost, though
/// both were confirmed. So they are looked at again.
pub(crate) async fn commit_first(
    cluster: &Cluster,
    group: &str,
    mut firsts: Vec<(Queue, i64)>,
) -> Result<(), Error> {
    while !firsts.is_empty() {
        for (queue, offset) in &firsts {
            cluster.commit(group, queue, *offset).await?;
        }
        sleep(TAKE_IN).await;
        let mut lost = Vec::new();
        for (queue, offset) in firsts {
            if cluster.committed(group, &queue).await?.is_none() {
                lost.push((queue, offset));
            }
        }
        firsts = lost;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake::{Fake, answer, field};
    use crate::client::{Answer, verb};
    use crate::config::Config;
    use crate::error::code;

    /// A topic from 3 to 8, with this committed offset once so many commits have come.
    fn topic(committed: i64, after: usize) -> Fake {
        let mut commits = 0;
        Fake::new(move |request| {
            commits += usize::from(request.code == verb::COMMIT);
            let offset = match request.code {
                verb::COMMITTED if commits < after => return answer(code::QUERY_NOT_FOUND),
                verb::COMMITTED => committed,
                verb::BEGIN => 3,
                _ => 8,
            };
            let fields = vec![("offset".to_owned(), offset.to_string())];
            Ok(Answer { fields, ..Answer::default() })
        })
    }

    fn commits(fake: &Fake) -> Vec<String> {
        fake.asked(verb::COMMIT).iter().map(|commit| field(commit, "commitOffset").to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_commit_that_the_broker_loses_is_sent_again() {
        let fake = topic(8, 2);
        at_the_end(&fake.cluster(Config::default()), "g", &"t".into()).await.unwrap();
        assert_eq!(commits(&fake), ["8", "8"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_is_not_new_does_not_begin_anew() {
        let fake = topic(5, 0);
        at_the_end(&fake.cluster(Config::default()), "g", &"t".into()).await.unwrap();
        assert!(commits(&fake).is_empty());
    }
}
