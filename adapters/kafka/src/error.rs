//! What the client says, in words of the library.

use oncemq_core::{Error, ErrorKind};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// An error of the client. `what` says what was being done.
pub(crate) fn from_client(what: &str, error: &KafkaError) -> Error {
    let kind = match error {
        KafkaError::ClientConfig(..) | KafkaError::Nul(_) => ErrorKind::Config,
        other => code_of(other).map_or(ErrorKind::Connection, kind_of),
    };
    let advice = code_of(error).and_then(advice).map(|advice| format!("; {advice}"));
    Error::new(kind, format!("{what}: {}{}", text_of(error), advice.unwrap_or_default()))
}

/// What to do where the broker's words do not say it.
fn advice(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::InvalidTopic => {
            "use up to 249 of a-z, A-Z, 0-9, '.', '_' and '-', and no name that differs from another topic's in '.' and \
             '_' only"
        }
        Code::InvalidSessionTimeout => {
            "set session.timeout.ms between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms"
        }
        Code::InconsistentGroupProtocol => {
            "give all members of the group the same partition.assignment.strategy and group.protocol"
        }
        _ => return None,
    })
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

/// What keeps a consumer waiting. One cause has one text, however the client puts it and
/// however often: who watches the health is told of changes, not of words.
pub(crate) fn cause_of(address: &str, error: &KafkaError) -> String {
    match code_of(error) {
        Some(Code::Authentication | Code::SaslAuthenticationFailed) => {
            format!("Kafka at {address} refuses the login; check user, password and sasl.mechanisms")
        }
        Some(Code::SSL) => {
            format!("no TLS connection to Kafka at {address}; check certificates and ssl.* properties")
        }
        Some(Code::Resolve) => format!("the name of a broker of Kafka at {address} cannot be resolved"),
        Some(code) if !is_silence(code) => format!("Kafka at {address}: {}", text_of(error)),
        _ => format!("Kafka at {address} does not answer; it is waited for"),
    }
}

/// Whether an error says no more than that nobody answers.
pub(crate) fn is_silence(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::NodeUpdate
            | Code::OperationTimedOut
            | Code::TimedOutQueue
            | Code::RequestTimedOut
            | Code::NetworkException
            | Code::WaitingForCoordinator
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::BrokerNotAvailable
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
    )
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

    #[test]
    fn what_a_person_must_change_is_said() {
        for (code, word) in [
            (Code::InvalidTopic, "249"),
            (Code::InvalidSessionTimeout, "group.min.session.timeout.ms"),
            (Code::InconsistentGroupProtocol, "partition.assignment.strategy"),
        ] {
            let error = from_client("consuming", &KafkaError::MessageConsumption(code));
            assert!(error.kind() == ErrorKind::Config && error.to_string().contains(word), "{error}");
        }
    }
}
