//! What the client says, in words of the library.

use oncemq_core::{Error, ErrorKind};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// An error of the client. `what` says what was being done.
pub(crate) fn from_client(what: &str, error: &KafkaError) -> Error {
    let kind = match error {
        KafkaError::ClientConfig(..) | KafkaError::Nul(_) => ErrorKind::Config,
        other => code_of(other).map_or(ErrorKind::Connection, kind_of),
    };
    Error::new(kind, format!("{what}: {}", text_of(error)))
}

/// The error's own words, without the names of the client's types.
pub(crate) fn text_of(error: &KafkaError) -> String {
    match error {
        // The value may be a password.
        KafkaError::ClientConfig(_, description, name, _) => format!("{name}: {description}"),
        other => code_of(other).map_or_else(|| other.to_string(), words_of),
    }
}

/// The client names no code for what an administrator was refused.
fn code_of(error: &KafkaError) -> Option<Code> {
    match error {
        KafkaError::AdminOp(code) => Some(*code),
        other => other.rdkafka_error_code(),
    }
}

fn words_of(code: Code) -> String {
    let text = code.to_string();
    // `MessageTimedOut (Local: Message timed out)`
    let inner = text.split_once(" (").and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or(text.clone(), |words| {
        words.trim_start_matches("Broker: ").trim_start_matches("Local: ").to_owned()
    })
}

pub(crate) fn kind_of(code: Code) -> ErrorKind {
    match code {
        Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::SaslAuthenticationFailed
        | Code::Authentication => ErrorKind::Access,
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => ErrorKind::Topology,
        Code::MessageSizeTooLarge | Code::InvalidMessageSize => ErrorKind::TooLarge,
        Code::InvalidTopic
        | Code::InvalidArgument
        | Code::InvalidConfig
        | Code::InvalidSessionTimeout
        | Code::InconsistentGroupProtocol => ErrorKind::Config,
        Code::PolicyViolation | Code::InvalidPartitions | Code::InvalidReplicationFactor => {
            ErrorKind::Topology
        }
        Code::FencedInstanceId | Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch => {
            ErrorKind::Closed
        }
        _ => ErrorKind::Connection,
    }
}

/// Whether an error of the consumer ends it: nothing that time alone can change.
pub(crate) fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::FencedInstanceId
            | Code::InconsistentGroupProtocol
            | Code::InvalidSessionTimeout
    )
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the Kafka source is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_the_brokers_words_without_types() {
        let error = KafkaError::MessageProduction(Code::MessageSizeTooLarge);
        let error = from_client("publishing to orders", &error);
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert_eq!(error.to_string(), "publishing to orders: Message size too large");
    }

    #[test]
    fn what_an_administrator_is_refused_is_no_outage() {
        let error =
            from_client("creating topic orders", &KafkaError::AdminOp(Code::InvalidReplicationFactor));
        assert!(error.kind() == ErrorKind::Topology && !error.is_transient(), "{error:?}");
        assert_eq!(error.to_string(), "creating topic orders: Invalid replication factor");
        let error = from_client("consuming", &KafkaError::MessageConsumption(Code::InvalidSessionTimeout));
        assert!(error.kind() == ErrorKind::Config && !error.is_transient(), "{error:?}");
    }
}
