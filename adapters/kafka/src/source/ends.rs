//! Why a source ends by itself: what nobody but a person can mend.

use std::time::Duration;

use oncemq_core::{Error, ErrorKind};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::Metadata;

use super::context::Client;
use crate::error;

/// The longest a question may keep the thread from polling.
const ASK: Duration = Duration::from_secs(1);

/// The error for whoever runs the consumer. The client's own names neither topic nor group.
pub(crate) fn explain(
    client: &Client,
    (address, group): (&str, &str),
    topics: &[&str],
    failed: &KafkaError,
) -> Error {
    match failed.rdkafka_error_code() {
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => {
            let which = those(topics, client, &[Code::UnknownTopicOrPartition, Code::UnknownTopic]);
            let text = format!(
                "{which} was deleted from Kafka at {address} while it was consumed; create it again, or take it out of \
                 the consumer"
            );
            Error::new(ErrorKind::Topology, text)
        }
        Some(Code::TopicAuthorizationFailed) => {
            let which = those(topics, client, &[Code::TopicAuthorizationFailed]);
            let text = format!(
                "this account may not read {which} in Kafka at {address}; grant it DESCRIBE and READ"
            );
            Error::new(ErrorKind::Access, text)
        }
        Some(Code::GroupAuthorizationFailed) => {
            let text = format!(
                "this account may not use group {group} in Kafka at {address}; grant it READ on the group"
            );
            Error::new(ErrorKind::Access, text)
        }
        _ => error::from_client(&format!("consuming from Kafka at {address}"), failed),
    }
}

/// The topics that the cluster says this of; if it says it of none any more, all that it may
/// have been.
fn those(topics: &[&str], client: &Client, codes: &[Code]) -> String {
    let says = |found: Metadata| {
        found.topics().iter().any(|one| one.error().is_some_and(|code| codes.contains(&code.into())))
    };
    let is_it = |topic: &&&str| client.fetch_metadata(Some(topic), ASK).is_ok_and(says);
    let mut found: Vec<&str> = topics.iter().filter(is_it).copied().collect();
    let mut what = "topic";
    if found.is_empty() {
        (found, what) = (topics.to_vec(), if topics.len() == 1 { what } else { "one of the topics" });
    }
    found.sort_unstable();
    format!("{what} {}", found.join(", "))
}
